"""The writers that faults are injected into, each of a result in an old and a new version."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from tests.fault_injection import Writer
from tests.small_models import scale_sources, small_model
from ulda.data import Domain
from ulda.data.domain import Header, Record
from ulda.data.domain_writer import DomainWriter
from ulda.data.importing import import_domain
from ulda.data.resplit import write_splits
from ulda.errors import UldaError
from ulda.evaluation.assessment import Assessment, assess
from ulda.evaluation.folder import check_folder, evaluation_output
from ulda.evaluation.report import read_report
from ulda.experiments import load_experiment
from ulda.experiments.runs import Packed, pack, read_packed
from ulda.methods import ULDA
from ulda.models.bundled import FACTS, ModelKind, model_folder
from ulda.physics import cartesian_mask, fft2c
from ulda.reconstruction import reconstruct_file
from ulda.solvers.outputs import finish_output, run_file, verify_output
from ulda.solvers.signatures import new_key, sign_output, signature_problem
from ulda.training.checkpoint import load_checkpoint, save_checkpoint

SIDE = 24
OLD, NEW, NONE, MIXED = "old", "new", "none", "mixed"


def writers(folder: Path, subjects: str = "abc") -> list[Writer]:
    """Return all writers; what they read is put into a folder, the data with a slice for each of the subjects."""
    torch.set_num_threads(1)
    models = {OLD: small_model("brain", domain="knee"), NEW: small_model("brain", domain="knee")}
    with torch.no_grad():
        models[NEW].adapter("knee").get_parameter("layer.real").mul_(2)
    scale_sources(models[NEW], 2.0)
    data = _data(folder, subjects)
    names = ("knee.h5", "knee.npy", "knee.nii.gz", "knee.png")
    return [
        _model("model", models),
        _model("adapter", models),
        *(_reconstruction(name, models[OLD], _kspace(folder)) for name in names),
        _evaluation(models, Domain.open(data)),
        _packed(),
        _checkpoint(models),
        _signature(models[OLD], _kspace(folder), folder),
        _keys(),
        _imported(data),
        _split(Domain.open(data)),
    ]


def _kspace(folder: Path) -> Path:
    path, lines = folder / "kspace.h5", cartesian_mask(SIDE, 0.4, seed=1).lines
    images = torch.rand(3, SIDE, SIDE, generator=torch.Generator().manual_seed(0)).to(torch.complex64)
    with h5py.File(path, "w") as file:
        file["kspace"], file["mask"] = (fft2c(images) * lines).numpy(), lines.numpy()
    return path


def _data(folder: Path, subjects: str) -> Path:
    path, generator = folder / "data.h5", np.random.default_rng(0)
    with DomainWriter(path, Header("boxes", "magnitude")) as writer:
        for subject in subjects:
            writer.append(Record(generator.random((SIDE, SIDE)).astype(np.float32), subject))
    return path


def _model(kind: str, models: dict[str, ULDA]) -> Writer:
    known: ModelKind = "base" if kind == "model" else "adapter"
    bases = {version: small_model("brain") for version in models}
    scale_sources(bases[NEW], 2.0)

    def write(place: Path, version: str, overwrite: bool) -> None:
        if kind == "model":
            bases[version].save(place / "made", {"made": version}, overwrite=overwrite)
        else:
            models[version].save_adapter("knee", place / "made", {"made": version}, overwrite=overwrite)

    def read(place: Path) -> str:
        made = place / "made"
        try:
            folder = model_folder(made, known)
        except UldaError:  # there is none
            return MIXED if any(made.glob(f"{kind}.*")) else NONE
        facts = json.loads((folder / FACTS[known]).read_text())
        if kind == "model":
            ULDA.load(folder)
            return str(facts["card"]["made"])
        bases[OLD].load_adapter(folder)
        return str(facts["made"])

    return Writer(f"{kind}.json + {kind}.safetensors", write, read)


def _reconstruction(name: str, model: ULDA, source: Path) -> Writer:
    def write(place: Path, version: str, overwrite: bool) -> None:
        phases = {OLD: 1, NEW: 2}[version]
        options: dict[str, Any] = {"command": version, "iterations": phases, "overwrite": overwrite}
        reconstruct_file(model, source, place / name, domain="knee", **options)

    def read(place: Path) -> str:
        out = place / name
        finish_output(out)
        if not run_file(out).exists():
            return MIXED if any(place.glob("knee*")) else NONE
        if not verify_output(out).verdict.ok:
            return MIXED
        with h5py.File(run_file(out)) as file:
            return str(json.loads(file.attrs["facts"])["command"])

    return Writer(name if name.endswith(".h5") else f"{name} + {name}.run.h5", write, read)


def _evaluation(models: dict[str, ULDA], domain: Domain) -> Writer:
    mask = cartesian_mask(SIDE, 0.4, seed=1)
    made: dict[str, Assessment] = {
        version: assess(model, domain, mask, acquisition="ideal") for version, model in models.items()
    }

    def write(place: Path, version: str, overwrite: bool) -> None:
        comparison = made[version].comparison
        with evaluation_output(place / "out", domain, overwrite=overwrite) as writer:
            writer.store.observe(0, comparison.reference, comparison.reconstructions)
            writer.save(made[version], (version,), {})
            writer.save_text("evaluation.json", json.dumps({"version": version}))

    def read(place: Path) -> str:
        out = place / "out"
        check_folder(out, overwrite=True)
        if not out.exists() or not any(one.name[0] != "." for one in out.iterdir()):
            return NONE
        (version,) = read_report(out).notes
        rows = (out / "scores.csv").read_text().splitlines()[1:]
        first = float(made[version].comparison.scores["zero-filling"].psnr[0])
        agrees = json.loads((out / "evaluation.json").read_text()) == {"version": version}
        agrees &= float(rows[0].split(",")[3]) == first
        last = float(made[version].comparison.scores["adapted"].psnr[-1])
        agrees &= float(rows[-1].split(",")[3]) == last
        return version if agrees else MIXED

    return Writer("evaluation folder", write, read)


def _packed() -> Writer:
    experiment = load_experiment("cross-anatomy")

    def write(place: Path, version: str, overwrite: bool) -> None:  # noqa: ARG001, it replaces anyway
        pack(Packed(experiment, "bench", {version: {"run": {}}}), place / "packed.json")

    def read(place: Path) -> str:
        path = place / "packed.json"
        return next(iter(read_packed(path).runs)) if path.exists() else NONE

    return Writer("packed results", write, read)


def _checkpoint(models: dict[str, ULDA]) -> Writer:
    def write(place: Path, version: str, overwrite: bool) -> None:  # noqa: ARG001, it replaces anyway
        model = models[version]
        optimiser = torch.optim.Adam(model.parameters())
        save_checkpoint(place / "checkpoint.safetensors", model, optimiser, {}, {"version": version})

    def read(place: Path) -> str:
        model = small_model("brain", domain="knee")
        path = place / "checkpoint.safetensors"
        facts, _ = load_checkpoint(path, model, torch.optim.Adam(model.parameters())) if path.exists() else ({}, {})
        return str(facts.get("version", NONE))

    return Writer("checkpoint", write, read)


def _signature(model: ULDA, source: Path, folder: Path) -> Writer:
    write_run = _reconstruction("knee.npy", model, source).write
    key, public = new_key(folder / "key")

    def write(place: Path, version: str, overwrite: bool) -> None:
        if version == OLD:
            write_run(place, OLD, overwrite)
        else:
            sign_output(place / "knee.npy", key)

    def read(place: Path) -> str:
        checked = verify_output(place / "knee.npy")
        if not checked.verdict.ok:
            return MIXED
        return NEW if signature_problem(checked.digest, checked.signature, public) == "" else OLD

    return Writer("signature", write, read, needs_old=True)


def _keys() -> Writer:
    def write(place: Path, version: str, overwrite: bool) -> None:  # noqa: ARG001, keys are never replaced
        if not (overwrite and _has(place, "key", "key.pub")):
            new_key(place / "key")

    def read(place: Path) -> str:
        return NEW if _has(place, "key", "key.pub") else MIXED if any(place.glob("key*")) else NONE

    return Writer("pair of keys", write, read)


def _has(place: Path, *names: str) -> bool:
    finish_output(place / names[0])
    return all((place / name).exists() for name in names)


def _imported(source: Path) -> Writer:
    def write(place: Path, version: str, overwrite: bool) -> None:
        from ulda.data.importing import ImportOptions

        import_domain([source], place / "domain.h5", ImportOptions(name=version), overwrite=overwrite)

    return Writer("domain file", write, _domain_reader(lambda domain: domain.name))


def _split(source: Domain) -> Writer:
    splits = {OLD: "train", NEW: "test"}

    def write(place: Path, version: str, overwrite: bool) -> None:
        write_splits(source, dict.fromkeys("abc", splits[version]), place / "domain.h5", overwrite=overwrite)

    def version_of(domain: Domain) -> str:
        found = set(domain.label("split"))
        return next((version for version, split in splits.items() if found == {split}), MIXED)

    return Writer("splits", write, _domain_reader(version_of))


def _domain_reader(version_of: Callable[[Domain], str]) -> Callable[[Path], str]:
    def read(place: Path) -> str:
        path = place / "domain.h5"
        if not path.exists():
            return NONE
        domain = Domain.open(path)
        domain.fingerprint()
        return version_of(domain)

    return read
