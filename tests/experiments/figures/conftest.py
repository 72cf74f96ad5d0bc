"""Results to draw: those of the tiny experiment, and some written by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.experiments.figures.drawn import results_of
from tests.experiments.tiny import runner
from ulda.experiments.figures import Results
from ulda.experiments.running import Runner
from ulda.experiments.runs import Run

RUNS = (
    Run("classical", "zero-filling", "hip"),
    *(Run("train", method) for method in ("ulda", "dncn")),
    *(Run("adapt", method, "hip", 2, draw) for method in ("ulda", "dncn") for draw in (0, 1)),
)


@pytest.fixture
def results(done: Runner) -> Results:
    """Return the results of the tiny experiment with two target slices."""
    found = results_of(done)
    return replace(found, sizes=(2,), runs={run.key: found.runs[run.key] for run in RUNS})


@pytest.fixture
def made_up(tmp_path: Path) -> Runner:
    """Return an experiment whose results are written by hand."""
    return runner(tmp_path, tmp_path)
