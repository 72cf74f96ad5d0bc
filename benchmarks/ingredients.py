"""What each ingredient of training for scanner data is worth, on measured data that no training sees.

Run: ``python -m benchmarks.ingredients`` (about a minute a row on one core; finished rows are kept). Each row trains
the preset `default` anew without one ingredient, in a short training at 96 x 96, and judges the un-adapted base on the
measured sets of `benchmarks.real_kspace`. A row with another seed tells what is noise. The table is written into
``docs/real-kspace.md``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks.real_kspace import DATA, PAGE, RESULTS, Case, collections, score
from scripts.marked import write_between
from ulda.evaluation.learned import Learned
from ulda.methods import ULDA, method_settings, new_method
from ulda.methods.ulda import UNADAPTED
from ulda.physics import ACQUISITIONS, Acquisition
from ulda.training.config import DataConfig, MaskConfig
from ulda.training.slices import load_task
from ulda.training.tasks import Task

OUT = RESULTS / "ingredients.json"
SOURCES = ("brain", "prostate", "cardiac", "natural")
SIZE, STEPS, PHASES = 96, 150, (1, 2)
SETS = {
    "lowfield-3x": "low-field brain, 3x",
    "complex-kidney": "kidney",
    "complex-spine_fatwater": "spine",
    "complex-brain_fieldmap": "field-map brain",
    "multicoil-brain_body_2ch": "2-coil brain",
    "multicoil-phantom_13of16ch": "13-coil phantom",
    "brain13-gaussian-4x": "13-coil brain",
}
JUDGED = 3
"""The most slices of a set."""

SCANNER = ACQUISITIONS["scanner"]
Plan = tuple[Acquisition, dict[str, Any], dict[str, Any]]
PLANS: dict[str, Plan] = {
    "nothing left out": (SCANNER, {}, {}),
    "another seed": (SCANNER, {}, {"seed": 1}),
    "phase": (replace(SCANNER, phase=False), {}, {}),
    "noise": (replace(SCANNER, snr_db=None), {}, {}),
    "coils": (replace(SCANNER, coils=1), {}, {}),
    "demodulation": (SCANNER, {"phase_lines": 0}, {}),
    "noise-aware weight": (SCANNER, {"noise_aware": False}, {}),
    "total variation as the start": (SCANNER, {"start": "zero-filling"}, {}),
    "logarithm in the loss": (SCANNER, {}, {"logarithmic": False, "ssim_weight": 0.01}),
}
"""What is left out: the acquisition, and changes of network and training."""


def task_of(name: str, acquisition: Acquisition) -> Task:
    """Return the training slices of a source; an acquisition without masks gets those that `scanner` draws from."""
    drawn = acquisition if acquisition.masks else replace(acquisition, masks=SCANNER.masks, any_axis=True)
    entry = DataConfig(name=name, file=str(DATA / f"{name}.npz"), size=(SIZE, SIZE), slices=None)
    task, _ = load_task(entry, MaskConfig(), drawn)
    return task


def trained(acquisition: Acquisition, network: dict[str, Any], train: dict[str, Any]) -> ULDA:
    """Train a base, and make it ready to be used un-adapted."""
    model = new_method("ulda", SOURCES, phases=PHASES[-1], **network)
    assert isinstance(model, ULDA)
    changes: dict[str, Any] = {
        "steps": STEPS,
        "batch_size": 1,
        "phases": PHASES,
        "validate_every": 0,
        "checkpoint_every": 0,
    }
    tasks = [task_of(name, acquisition) for name in SOURCES]
    model.fit(
        [replace(task, validation=task.images[:0]) for task in tasks],
        method_settings("ulda", "train", **changes | train),
    )
    model.add_domain(UNADAPTED, rank=0)
    return model


def judged(model: ULDA, cases: Sequence[Case]) -> float:
    """Return the mean PSNR of some slices."""
    method = Learned(model, UNADAPTED)
    values = [score(method(c.y, c.physics)[0].abs(), c.reference[0].abs(), c.support)[0] for c in cases]
    return round(sum(values) / len(values), 3)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the Markdown table: the first row in dB, the others as what is lost."""
    lines = ["| left out | " + " | ".join(SETS.values()) + " |", "| --- |" + " --- |" * len(SETS)]
    for row in rows:
        whole = rows[0]["psnr"]
        first = row is rows[0]
        cells = [f"{v:.2f} dB" if first else f"{v - whole[name]:+.2f}" for name, v in row["psnr"].items()]
        lines.append(f"| {row['without']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Train and judge the rows that are missing."""
    torch.set_num_threads(1)
    what = {"size": SIZE, "steps": STEPS, "phases": list(PHASES), "sources": list(SOURCES), "slices": JUDGED}
    found = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    rows: list[dict[str, Any]] = found["rows"] if {key: found.get(key) for key in what} == what else []
    cases = {}
    for one in (one for one in collections() if one.name in SETS):
        every = list(one.cases())
        cases[one.name] = every[:: -(-len(every) // JUDGED)]
    for label, (acquisition, network, train) in PLANS.items():
        if any(row["without"] == label for row in rows):
            continue
        model = trained(acquisition, network, train)
        rows.append({"without": label, "psnr": {name: judged(model, of) for name, of in cases.items()}})
        print(rows[-1], flush=True)
        content = {"command": "python -m benchmarks.ingredients", **what, "torch": torch.__version__, "rows": rows}
        OUT.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    write_between(PAGE, "<!-- ingredients -->", "<!-- end -->", f"\n{table(rows)}\n")


if __name__ == "__main__":
    main()
