"""Cross-anatomy transfer at 64 x 64 with a 20 % mask, T = 15: sources brain and prostate, targets cardiac and knee.

Run on as many cores as there are; every part continues where it was stopped::

    python -m benchmarks.transfer --folder runs/transfer train ulda          # configs/brain-prostate.yaml
    python -m benchmarks.transfer --folder runs/transfer train dncn
    python -m benchmarks.transfer --folder runs/transfer adapt cardiac 5     # and 40, and knee
    python -m benchmarks.transfer --folder runs/transfer judge brain         # and every other domain
    python -m benchmarks.transfer --folder runs/transfer collect

It needs ``../shared/data``. ``train ulda`` is `ulda train` with that configuration; its first stage is the model
``unrolled``, its last round ``equilibrium``. ``judge`` solves every test slice from zero-filling with frozen weights.
``collect`` writes ``benchmarks/results/transfer.json``, the model and its adapters beside it, and its tables into
``docs/training-notes.md``, which tells what they mean.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from ulda.training.adaptation import adapt
from ulda.training.network import UNADAPTED
from ulda.training.runs import load_tasks, peak_memory_mb, train_base

from scripts.marked import write_between
from ulda.data import Domain, ImportOptions, import_domain
from ulda.evaluation import paired_difference
from ulda.methods import TotalVariation, ZeroFilled
from ulda.methods.dncn import DnCn
from ulda.metrics import psnr, ssim
from ulda.physics import CartesianMRI, Mask, normalise_measurement
from ulda.solvers import Status
from ulda.solvers.certificate import software_versions
from ulda.training import ULDA, Architecture, load_adapter, load_base
from ulda.training.config import load_config
from ulda.training.history import Progress
from ulda.training.loop import Task, fit
from ulda.training.settings import Settings
from ulda.training.slices import normalised_images
from ulda.training.supervised import supervised_loss

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"
MODELS = ROOT / "benchmarks" / "results" / "brain-prostate"
SOURCES, TARGETS = ("brain", "prostate"), ("cardiac", "knee")
SIZES = (5, 40)
CONFIG = load_config(ROOT / "configs" / "brain-prostate.yaml")
(SIDE, _) = CONFIG.data[0].size or (64, 64)

DNCN = Settings(
    steps=sum(stage.steps for stage in CONFIG.all_rounds),  # as many as all rounds together
    batch_size=CONFIG.train.batch_size,
    learning_rate=1e-3,
    common=0.0,
    checkpoint_every=100,
)


def domain(name: str, folder: Path) -> Domain:
    """Import a domain of the shared data at the size of this benchmark."""
    path = folder / f"{name}-{SIDE}.h5"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        import_domain([SHARED / f"{name}.npz"], path, ImportOptions(size=(SIDE, SIDE)))
    return Domain.open(path)


@cache
def source_tasks() -> list[Task]:
    """Return the training and validation slices of the sources."""
    return load_tasks(CONFIG)[0]


def mask() -> Mask:
    """Return the one mask of this benchmark."""
    return source_tasks()[0].masks[0]


def ulda_folder(folder: Path) -> Path:
    """Return where `train_base` has its files."""
    return folder / "ulda"


def unrolled(folder: Path) -> ULDA:
    """Return the model of the first stage, which was trained before."""
    model = ULDA(Architecture(**vars(CONFIG.architecture)), SOURCES, seed=CONFIG.seed)
    fit(model, source_tasks(), CONFIG.train, folder=ulda_folder(folder))
    return model.eval()


def equilibrium(folder: Path) -> ULDA:
    """Return the model of the last round, which was trained before."""
    return load_base(ulda_folder(folder))


def dncn(folder: Path, report: Callable[[Progress], None] | None = None) -> nn.Module:
    """Return a DnCn as far as its settings train it; what was done before is not done again."""
    model = DnCn()
    fit(model, source_tasks(), DNCN, loss=supervised_loss, folder=folder / "dncn", report=report)
    return model.eval()


def train(name: str, folder: Path) -> None:
    """Train a model, and note what it cost."""
    began: dict[str, tuple[float, int]] = {}
    costs: dict[str, Any] = {}
    place = folder / f"cost-{name}.json"
    if place.exists():
        costs = json.loads(place.read_text())

    def report(stage: str, progress: Progress) -> None:
        start, first = began.setdefault(stage, (time.time(), progress.step))
        if progress.step % 10 == 0 or progress.validation:
            seconds = round(time.time() - start)
            print(stage, progress.step, seconds, f"{progress.loss:.5f}", progress.validation, flush=True)
        if progress.step > first:
            costs[stage] = {
                "seconds_per_step": (time.time() - start) / (progress.step - first),
                "peak_megabytes": peak_memory_mb(),
            }
            place.write_text(json.dumps(costs) + "\n")

    if name == "ulda":
        train_base(
            CONFIG, ulda_folder(folder), resume=True, command="ulda train configs/brain-prostate.yaml", report=report
        )
    else:
        dncn(folder, lambda progress: report("train", progress))


def adapt_to(target: str, n_slices: int, folder: Path) -> None:
    """Adapt the equilibrium model to a target with few slices, and note what it cost."""
    base = equilibrium(folder)
    place = folder / "adapters" / f"{target}-{n_slices}"
    start = time.time()

    def report(progress: Progress) -> None:
        if progress.validation:
            print(progress.step, round(time.time() - start), f"{progress.loss:.5f}", progress.validation, flush=True)

    adaptation = adapt(base, domain(target, folder), slices=n_slices, mask=mask(), folder=place / "run", report=report)
    adaptation.facts["peak_megabytes"] = peak_memory_mb()
    adaptation.save(place, overwrite=True)
    print(adaptation.sentence())


@torch.no_grad()
def solve(model: ULDA, name: str, images: Tensor, marks: tuple[int, ...]) -> dict[str, Any]:
    """Solve from zero-filling and return the scores at some iterations, and what the phases up to the first one did."""
    physics = CartesianMRI(mask())
    reference, found = images.abs(), {mark: list[Tensor]() for mark in marks}
    n_phases = n_proposals = n_descending = 0
    for batch in images.split(8):
        y, x, peak = normalise_measurement(physics.A(batch), physics)
        latest = x.clone()

        def keep(status: Status, latest: Tensor = latest, peak: Tensor = peak) -> None:
            latest[status.samples] = status.x_next
            if status.iteration + 1 in marks:
                found[status.iteration + 1].append((latest * peak).abs().clone())

        _, trace = model.solve(y, physics, name, model.options(name, iterations=max(marks)), callback=keep)
        for mark in marks:  # a run that ended before has reached its solution
            if len(trace) < mark:
                found[mark].append((latest * peak).abs())
        for i in range(len(batch)):
            steps = trace.steps(i)[: marks[0]]
            n_phases += len(steps)
            n_proposals += sum(step.branch == "u" for step in steps)
            n_descending += sum(step.phi <= step.phi_before for step in steps)
    scores = {f"{mark // marks[0]}T": quality(torch.cat(found[mark]), reference) for mark in marks}
    return {"scores": scores, "u_steps": n_proposals / n_phases, "descending": n_descending / n_phases}


def cost_of(name: str, folder: Path) -> dict[str, Any]:
    """Return time and memory of the stages of a training, also for one epoch: as many steps as see every slice once."""
    n_slices = sum(len(task.images) for task in source_tasks())
    costs: dict[str, dict[str, Any]] = json.loads((folder / f"cost-{name}.json").read_text())
    for cost in costs.values():
        cost["seconds_per_epoch"] = cost["seconds_per_step"] * n_slices / CONFIG.train.batch_size
    return {"slices_per_epoch": n_slices, "stages": costs}


def quality(x: Tensor, reference: Tensor) -> dict[str, Any]:
    """Return PSNR and SSIM per slice and their means."""
    values = {"psnr": psnr(x, reference, data_range=1.0), "ssim": ssim(x, reference, data_range=1.0)}
    means = {name: round(float(value.mean()), 4) for name, value in values.items()}
    return means | {f"{name}_per_slice": [round(v, 4) for v in value.tolist()] for name, value in values.items()}


@torch.no_grad()
def reconstruct_all(method: Callable[[Tensor, CartesianMRI], Tensor], images: Tensor) -> dict[str, Any]:
    """Return the scores of any other method."""
    physics = CartesianMRI(mask())
    x = torch.cat([method(physics.A(batch), physics).abs() for batch in images.split(8)])
    return quality(x, images.abs())


def judge_source(name: str, folder: Path, thin: int) -> dict[str, Any]:
    """Measure everything on the test split of a source."""
    first, last = unrolled(folder), equilibrium(folder)
    T = last.architecture.phases
    test = domain(name, folder).select(split="test")
    images = normalised_images(test)
    marks = (T, 2 * T, 8 * T, 30 * T)
    return {
        "subjects": list(test.subjects),
        "data": test.fingerprint(),
        "zero-filling": reconstruct_all(ZeroFilled(), images),
        "TV": reconstruct_all(TotalVariation(), images),
        "dncn": reconstruct_all(dncn(folder), images),
        "unrolled": solve(first, name, images, (T,)),
        "equilibrium": solve(last, name, images, marks),
        # the solution, after 30 T iterations, costs as much as 30 times all of T
        "thinned": {"every": thin, "unrolled": solve(first, name, images[::thin], marks)},
    }


def judge_target(name: str, folder: Path) -> dict[str, Any]:
    """Measure what adaptation brings on the test split of a target."""
    model = equilibrium(folder)
    model.add_domain(UNADAPTED)
    T = model.architecture.phases
    test = domain(name, folder).select(split="test")
    images, subjects = normalised_images(test), list(test.subjects)
    row: dict[str, Any] = {
        "subjects": subjects,
        "data": test.fingerprint(),
        "zero-filling": reconstruct_all(ZeroFilled(), images),
        "TV": reconstruct_all(TotalVariation(), images),
        "un-adapted": solve(model, UNADAPTED, images, (T,)),
    }
    for n_slices in SIZES:
        place = folder / "adapters" / f"{name}-{n_slices}"
        chosen = load_adapter(model, place)
        row[f"adapted-{n_slices}"] = solve(model, chosen, images, (T,))
        facts = json.loads((place / "adapter.json").read_text())
        row[f"adaptation-{n_slices}"] = {
            key: facts[key] for key in ("seconds", "peak_megabytes", "settings", "subjects", "validation")
        }
    for first, second in (("adapted-5", "un-adapted"), ("adapted-40", "adapted-5")):
        a, b = (row[key]["scores"]["1T"]["psnr_per_slice"] for key in (first, second))
        row[f"{first} - {second}"] = paired_difference(a, b, subjects).as_dict()
    return row


def judge(name: str, folder: Path, thin: int) -> None:
    """Judge one domain and write its part of the results."""
    row = judge_source(name, folder, thin) if name in SOURCES else judge_target(name, folder)
    print(name, summary(row), flush=True)
    (folder / f"judged-{name}.json").write_text(json.dumps(row) + "\n")


def collect(folder: Path) -> None:
    """Write the result file from its parts, and its tables into the notes."""
    result: dict[str, Any] = {
        "mask": mask().as_dict(),
        "side": SIDE,
        "kspace": "simulated from magnitude images, noise-free",
        "settings": {
            "ulda": [stage.model_dump(mode="json") for stage in CONFIG.all_rounds],
            "dncn": DNCN.model_dump(mode="json"),
        },
        "n_parameters": {
            "unrolled": count(unrolled(folder)),
            "equilibrium": count(equilibrium(folder)),
            "dncn": count(DnCn()),
        },
        "cost": {name: cost_of(name, folder) for name in ("ulda", "dncn")},
        "software": software_versions(),
    }
    for group, names in (("sources", SOURCES), ("targets", TARGETS)):
        result[group] = {name: json.loads((folder / f"judged-{name}.json").read_text()) for name in names}
    path = ROOT / "benchmarks" / "results" / "transfer.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, separators=(",", ":")) + "\n")
    keep_models(folder)
    write_between(ROOT / "docs" / "training-notes.md", "<!-- transfer -->", "<!-- end -->", tables(result))


def keep_models(folder: Path) -> None:
    """Keep the model and its adapters beside the results, so that they can be looked at without hours of training."""
    MODELS.mkdir(parents=True, exist_ok=True)
    for name in ("model.json", "model.safetensors"):
        shutil.copyfile(ulda_folder(folder) / name, MODELS / name)
    for place in sorted((folder / "adapters").iterdir()):
        (MODELS / place.name).mkdir(exist_ok=True)
        for name in ("adapter.json", "adapter.safetensors"):
            shutil.copyfile(place / name, MODELS / place.name / name)


def tables(result: dict[str, Any]) -> str:
    """Return the result file as Markdown."""

    def cell(entry: dict[str, Any]) -> str:
        return f"{entry['psnr']:.2f} / {entry['ssim']:.3f}"

    methods = ("zero-filling", "TV", "dncn", "unrolled", "equilibrium")
    lines = ["| test split, PSNR (dB) / SSIM | " + " | ".join(methods) + " |", "|---" * (len(methods) + 1) + "|"]
    for name, row in result["sources"].items():
        cells = [cell(row[m]["scores"]["1T"] if "scores" in row[m] else row[m]) for m in methods]
        lines.append(f"| {name} ({len(row['subjects'])} slices) | " + " | ".join(cells) + " |")
    counts = result["n_parameters"]
    lines.append("| parameters | | | " + " | ".join(f"{counts[m]:,}" for m in methods[2:]) + " |")
    lines += ["", "| solved on from zero-filling | T | 2T | 8T | 30T | u-steps up to T | descending phases |"]
    lines.append("|---" * 7 + "|")
    for name, row in result["sources"].items():
        for model in ("unrolled", "equilibrium"):
            few, whole = row["thinned"].get(model, row[model]), row[model]
            cells = [f"{few['scores'][mark]['psnr']:.2f}" for mark in ("1T", "2T", "8T", "30T")]
            shares = [f"{100 * whole[key]:.1f} %" for key in ("u_steps", "descending")]
            lines.append(f"| {name}, {model} | " + " | ".join(cells + shares) + " |")
    lines += ["", "| target | zero-filling | TV | un-adapted | 5 slices | 40 slices | 5 - un-adapted | 40 - 5 |"]
    lines.append("|---" * 8 + "|")
    for name, row in result["targets"].items():
        learned = [row[key]["scores"]["1T"] for key in ("un-adapted", "adapted-5", "adapted-40")]
        cells = [cell(entry) for entry in (row["zero-filling"], row["TV"], *learned)]
        for key in ("adapted-5 - un-adapted", "adapted-40 - adapted-5"):
            difference = row[key]
            cells.append(f"{difference['mean']:+.2f} [{difference['low']:.2f}, {difference['high']:.2f}]")
        lines.append(f"| {name} ({len(row['subjects'])} slices) | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def count(model: nn.Module) -> int:
    """Return the number of real parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def summary(row: dict[str, Any]) -> dict[str, Any]:
    """Return the means alone, for the screen."""
    found: dict[str, Any] = {}
    for name, entry in row.items():
        if isinstance(entry, dict) and "scores" in entry:
            found[name] = {mark: (s["psnr"], s["ssim"]) for mark, s in entry["scores"].items()}
            found[name] |= {key: round(entry[key], 4) for key in ("u_steps", "descending")}
        elif isinstance(entry, dict) and "psnr" in entry:
            found[name] = (entry["psnr"], entry["ssim"])
        elif isinstance(entry, dict) and "low" in entry:
            found[name] = [round(entry[key], 3) for key in ("mean", "low", "high")]
        elif name == "thinned":
            found[name] = summary(entry)
    return found


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("train").add_argument("name", choices=("ulda", "dncn"))
    adaptation = parts.add_parser("adapt")
    adaptation.add_argument("target", choices=TARGETS)
    adaptation.add_argument("slices", type=int, choices=SIZES)
    judging = parts.add_parser("judge")
    judging.add_argument("name", choices=[*SOURCES, *TARGETS])
    judging.add_argument("--thin", type=int, default=8, help="30 T of the unrolled model on every so many-th slice")
    parts.add_parser("collect")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.part == "train":
        train(arguments.name, arguments.folder)
    elif arguments.part == "adapt":
        adapt_to(arguments.target, arguments.slices, arguments.folder)
    elif arguments.part == "judge":
        judge(arguments.name, arguments.folder, arguments.thin)
    else:
        collect(arguments.folder)


if __name__ == "__main__":
    main()
