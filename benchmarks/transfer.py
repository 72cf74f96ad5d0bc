"""Cross-anatomy transfer at 64 x 64 with a 20 % mask, T = 15: sources brain and prostate, targets cardiac and knee.

Run, in any order and on as many cores as there are; every part continues where it was stopped::

    python benchmarks/transfer.py train unrolled --folder runs/transfer
    python benchmarks/transfer.py train equilibrium --folder runs/transfer
    python benchmarks/transfer.py train dncn --folder runs/transfer
    python benchmarks/transfer.py adapt cardiac 5 --folder runs/transfer      # and 40, and knee
    python benchmarks/transfer.py judge --folder runs/transfer

It needs ``../shared/data``. ``judge`` solves every test slice from zero-filling with frozen weights and writes
``benchmarks/results/transfer.json``; ``docs/training-notes.md`` tells what the numbers mean.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ulda.baselines.dncn import DnCn
from ulda.data import Domain, ImportOptions, import_domain
from ulda.physics import cartesian_mask
from ulda.training import ULDA, Architecture
from ulda.training.history import Progress
from ulda.training.loop import Task, fit
from ulda.training.settings import Settings
from ulda.training.supervised import supervised_loss

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"
SIDE, RATIO = 64, 0.2
SOURCES, TARGETS = ("brain", "prostate"), ("cardiac", "knee")
SIZES = (5, 40)
MASK = cartesian_mask(SIDE, RATIO)

COMMON: dict[str, Any] = {
    "steps": 900,
    "batch_size": 2,
    "learning_rate": 5e-3,
    "warm_up": 0.1,
    "validate_every": 100,
    "checkpoint_every": 25,
}
TRAINING = {
    "unrolled": Settings(**COMMON, phases=(7, 11, 15)),
    "equilibrium": Settings(**COMMON, lower_level="equilibrium", longest_rollout=10),
    "dncn": Settings(**{**COMMON, "learning_rate": 1e-3}),
}
ARCHITECTURES = {
    "unrolled": Architecture(phases=15),
    "equilibrium": Architecture(phases=15, shared_steps=True, tied_steps=True),
}


def domain(name: str, folder: Path) -> Domain:
    """Import a domain of the shared data at the size of this benchmark."""
    path = folder / f"{name}-{SIDE}.h5"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        import_domain([SHARED / f"{name}.npz"], path, ImportOptions(size=(SIDE, SIDE)))
    return Domain.open(path)


def stack(selection: Domain) -> Tensor:
    """Return all slices, each with peak 1, as one tensor."""
    return torch.stack([image / image.abs().max() for image in selection.images()])


def source_task(name: str, folder: Path) -> Task:
    """Return the training and validation slices of a source."""
    slices = domain(name, folder)
    return Task(name, stack(slices.select(split="train")), [MASK], stack(slices.select(split="val")))


def new_model(name: str) -> nn.Module:
    """Return an untrained model."""
    torch.manual_seed(0)
    return DnCn() if name == "dncn" else ULDA(ARCHITECTURES[name], SOURCES)


def trained(name: str, folder: Path, report: Callable[[Progress], None] | None = None) -> nn.Module:
    """Return a model as far as its settings train it; what was done before is not done again."""
    model = new_model(name)
    tasks = [source_task(source, folder) for source in SOURCES]
    loss = supervised_loss if name == "dncn" else None
    fit(model, tasks, TRAINING[name], loss=loss, folder=folder / name, report=report)
    return model


def train(name: str, folder: Path) -> None:
    """Train a model, and note what it cost."""
    start, first = time.time(), -1

    def report(progress: Progress) -> None:
        nonlocal first
        first = progress.step if first < 0 else first
        if progress.step % 10 == 0 or progress.validation:
            print(progress.step, round(time.time() - start), f"{progress.loss:.5f}", progress.validation, flush=True)
        cost = {
            "seconds_per_step": (time.time() - start) / (progress.step - first + 1),
            "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        (folder / name / "cost.json").write_text(json.dumps(cost) + "\n")

    trained(name, folder, report)


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("train").add_argument("name", choices=TRAINING)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.part == "train":
        train(arguments.name, arguments.folder)


if __name__ == "__main__":
    main()
