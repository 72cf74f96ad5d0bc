"""A small folder of an experiment with known numbers, as `ulda experiment run` leaves it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulda.data import Domain, DomainWriter, Header, Record
from ulda.experiments import Experiment
from ulda.experiments.examples import Examples, save_examples
from ulda.experiments.runs import Packed, Run, pack, read_runs, write_run
from ulda.io.fingerprints import fingerprint
from ulda.physics import cartesian_mask

SIDE = 24
SUBJECTS = ("a", "a", "b", "b", "c", "c")
INDICES = (1, 3, 5)
PHASES = 2
RATIO, MASK_SEED = 0.4, 1
MASK = cartesian_mask(SIDE, RATIO, seed=MASK_SEED)
HOSTILE_NAME = "<img src=x onerror=\"window['hacked']=1\"> & 'x' ∇φ"
"""As `report_examples.HOSTILE`, without what a name of a domain may not have: a dot, and a slash for its file."""

TITLES = {"ulda": "U-LDA", "dncn": "DnCn", "meta": "Meta"}
TRACE = {
    # the smoothing halves after the second iteration, and the second example stops there
    "phi": np.array([[9.0, 9.0, 9.0], [7.0, 7.0, 7.0], [6.0, 6.0, 6.5], [5.0, np.nan, 8.0]]),
    "eps": np.array([[0.02, 0.02, 0.02], [0.02, 0.02, 0.02], [0.02, 0.02, 0.02], [0.01, np.nan, 0.02]]),
    "grad_norm": np.array([[4.0, 4.0, 4.0], [2.0, 2.0, 2.0], [1.0, 1.0, 1.0], [0.5, np.nan, 0.5]]),
    # of the line search, once of nothing, all else of the proposal
    "branch": np.array([[np.nan] * 3, [0, 1, 2], [1, 1, 0], [0, np.nan, 0]]),
}
DEFINITION: dict[str, Any] = {
    "name": "one of my own",
    "title": "brain to cardiac and knee",
    "sources": [{"name": "brain", "ratio": RATIO, "mask_seed": MASK_SEED}],
    "targets": [{"name": name, "ratio": RATIO, "mask_seed": MASK_SEED} for name in ("cardiac", "knee")],
    "variants": [{"method": name} for name in ("TV", "dncn", "meta", "ulda")],
    "scales": {"bench": {"side": SIDE, "steps": 80, "batch_size": 2, "adapt_steps": {5: 80, 40: 80}, "draws": {5: 2}}},
}


def levels(seed: int) -> NDArray[np.float32]:
    """Return three images with values that half precision keeps, the largest 1."""
    counts = np.random.default_rng(seed).integers(0, 200, (len(INDICES), SIDE, SIDE))
    images: NDArray[np.float32] = (counts / 256).astype(np.float32)
    images[:, 0, 0] = 1
    return images


REFERENCE = levels(0)


def psnr_of(seed: int) -> list[float]:
    """Return the PSNR of all test slices: of the examples the true one, of the others the number of the slice."""
    errors = ((levels(seed) - REFERENCE) ** 2).mean((1, 2))
    found = [float(i + seed) for i in range(len(SUBJECTS))]
    for index, error in zip(INDICES, errors, strict=True):
        found[index] = round(float(-10 * np.log10(error)), 4)
    return found


def add_run(
    folder: Path,
    run: Run,
    seed: int,
    domain: str = "cardiac",
    *,
    examples: bool = True,
    traced: bool = False,
    whole: dict[str, Any] | None = None,
    **changes: Any,
) -> None:
    """Write a run whose images are those of a seed; `whole` replaces parts of it, `changes` those of the test."""
    facts: dict[str, Any] = {
        "psnr": psnr_of(seed),
        "ssim": [0.5 + 0.01 * seed] * len(SUBJECTS),
        "nmse": [0.1] * len(SUBJECTS),
        "subjects": list(SUBJECTS),
        "data": "d" * 64,
        "mask": fingerprint([("mask", MASK.lines)]),
        "kspace": "simulated",
        "convention": "per slice, peak 1",
        "trained_on": "e" * 64,
        "n": run.size,
    }
    found = {
        "experiment": "one of my own",
        "scale": {"name": "bench", "side": SIDE},
        "variant": {"label": ""},
        "recipe": {"domain": {"name": domain, "data": "", "ratio": RATIO, "mask_seed": MASK_SEED}},
        "software": {"ulda": "0.1.0"},
        "title": TITLES.get(run.method, run.method),
        "spent": {"steps": 80},
        "results": {domain: facts | changes},
    }
    write_run(folder / "runs", run, found | (whole or {}))
    if examples:
        kept = Examples(np.array(INDICES), REFERENCE, levels(seed), PHASES if traced else 0, TRACE if traced else {})
        save_examples(folder / "examples" / f"{run.key}.npz", domain, kept)


def experiment_folder(folder: Path) -> Path:
    """Write the results of four methods on two targets and a source.

    On cardiac with 5 slices: TV, a classical method; dncn, without examples and with two draws; meta and ulda with
    traces. With 40 slices and as trained, and on knee: ulda alone.
    """
    add_run(folder, Run("classical", "TV", "cardiac"), 4)
    add_run(folder, Run("adapt", "dncn", "cardiac", 5, 0), 2, examples=False)
    add_run(folder, Run("adapt", "dncn", "cardiac", 5, 1), 5, examples=False)
    add_run(folder, Run("adapt", "meta", "cardiac", 5), 3, traced=True)
    for size in (0, 5, 40):
        add_run(folder, Run("adapt", "ulda", "cardiac", size), 1 if size == 5 else 6 + size, traced=True)
    add_run(folder, Run("adapt", "ulda", "knee", 0), 9, "knee")
    add_run(folder, Run("train", "ulda"), 8, "brain")
    return folder


def packed_file(folder: Path, path: Path) -> Path:
    """Pack the results of `experiment_folder`."""
    pack(Packed(Experiment.model_validate(DEFINITION), "bench", read_runs(folder / "runs")), path)
    return path


def add_data(folder: Path, kspace: NDArray[np.complex64], subjects: Sequence[str] = SUBJECTS) -> Domain:
    """Write the measured k-space of the test slices where an experiment keeps its data; its lines are columns."""
    path = folder / "data" / f"cardiac-{SIDE}.h5"
    path.parent.mkdir()
    with DomainWriter(path, Header("cardiac", "kspace", "measured", phase_axis=-1)) as writer:
        for one, subject in zip(kspace, subjects, strict=True):
            writer.append(Record(one, subject, split="test"))
    return Domain.open(path)


def hostile_folder(folder: Path, hostile: str) -> Path:
    """Write results in which the domain, the subjects and the method are attacks."""
    for number, method in enumerate(("other", HOSTILE_NAME)):
        add_run(
            folder, Run("adapt", f"m{number}", "d", 5), number + 1, HOSTILE_NAME, subjects=[hostile] * len(SUBJECTS)
        )
        path = folder / "runs" / f"adapt-m{number}-d-5-0.json"
        found = json.loads(path.read_text())
        found["run"] |= {"method": method, "domain": HOSTILE_NAME}
        found |= {"title": method, "experiment": hostile, "software": {hostile: hostile}}
        path.write_text(json.dumps(found))
    return folder
