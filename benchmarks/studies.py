"""Short trainings on real slices at 64 x 64, for the studies behind the presets; judged on validation slices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from ulda.methods import ULDA, method_settings, new_method
from ulda.physics import ACQUISITIONS
from ulda.training.config import DataConfig, MaskConfig
from ulda.training.slices import load_task
from ulda.training.tasks import Task
from ulda.training.validation import validate

DATA = Path("../shared/data")
RESULTS = Path(__file__).parent / "results"
SIZE, RATIO = 64, 0.2
SOURCES, TARGETS = ("brain", "prostate"), ("cardiac", "knee", "natural")
VALIDATED = 12
"""The most validation slices of a domain."""


def task_of(name: str, slices: int | None = None) -> Task:
    """Return the slices of a domain with one mask."""
    masks = MaskConfig(ratios=(RATIO,), per_ratio=1, seed=0, validation_ratio=RATIO, validation_seed=0)
    entry = DataConfig(name=name, file=str(DATA / f"{name}.npz"), size=(SIZE, SIZE), slices=slices)
    task, _ = load_task(entry, masks, ACQUISITIONS["ideal"])
    every = max(1, -(-len(task.validation) // VALIDATED))
    return Task(name, task.images, task.masks, task.validation[::every], task.axis, task.validation_mask)


def trained(method: str, steps: int, network: dict[str, Any], train: dict[str, Any]) -> tuple[ULDA, float]:
    """Train U-LDA on the sources; return it, and its mean validation PSNR on them."""
    tasks = [task_of(name) for name in SOURCES]
    model = new_method(method, SOURCES, **network)
    assert isinstance(model, ULDA)
    changes = {"steps": steps, "batch_size": 2, "validate_every": 0} | train
    settings = method_settings(method, "train", **changes)
    model.fit(tasks, settings)
    scores = validate(model, tasks)
    return model, sum(score["psnr"] for score in scores.values()) / len(scores)


def write(name: str, command: str, rows: list[dict[str, Any]], **facts: Any) -> None:
    """Write the rows of a study, and what was done."""
    content = {
        "command": command,
        "size": SIZE,
        "ratio": RATIO,
        "sources": SOURCES,
        "validation_slices": VALIDATED,
        "torch": torch.__version__,
        **facts,
        "rows": rows,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
