"""An experiment that runs in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ulda.experiments import Experiment
from ulda.experiments.running import Runner

SIZES: dict[str, Any] = {"width": 2, "depth": 1, "phases": 3, "steps_per_phase": 2, "rank": 1}
TINY_ULDA: dict[str, Any] = {"method": "ulda", "sizes": SIZES, "train": {"phases": [2, 3]}}
TINY_DNCN: dict[str, Any] = {"method": "dncn", "sizes": {"filters": 2, "layers": 2, "cascades": 1}}
BENCH: dict[str, Any] = {"side": 32, "steps": 4, "batch_size": 2, "adapt_steps": {2: 3, 100: 3}, "draws": 2}
TINY: dict[str, Any] = {
    "name": "tiny",
    "title": "knees to larger crops of knees",
    "sources": [{"name": "knee", "ratio": 0.3}],
    "targets": [{"name": "hip", "ratio": 0.3}],
    "variants": [{"method": "zero-filling"}, TINY_ULDA, TINY_DNCN],
    "scales": {"bench": BENCH},
    "paper": {"ulda": {"hip": [37.26, 95.59]}},
}


def runner(folder: Path, data: Path, **changes: Any) -> Runner:
    """Return what runs the tiny experiment, with changes of its definition."""
    return Runner(Experiment.model_validate(TINY | changes), "bench", folder, data)
