"""Data and results that the tests share and do not change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.experiments.tiny import runner
from tests.training.small_domains import write_domain
from ulda.experiments.running import Runner
from ulda.experiments.runs import runs_of


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the data of the tiny experiment."""
    folder = tmp_path_factory.mktemp("data")
    write_domain(folder / "knee.npz", every=3)
    write_domain(folder / "hip.npz", size=48, every=4)
    return folder


@pytest.fixture(scope="session")
def done(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Runner:
    """Return the tiny experiment with all its runs done."""
    whole = runner(tmp_path_factory.mktemp("run"), data)
    for run in runs_of(whole.experiment, whole.data.scale):
        whole.run(run)
    return whole
