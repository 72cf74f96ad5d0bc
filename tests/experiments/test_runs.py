"""The list of runs, and their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.experiments.tiny import BENCH, TINY, runner
from ulda.errors import UldaError
from ulda.experiments import Experiment
from ulda.experiments.running import Runner
from ulda.experiments.runs import Packed, pack, read_packed, read_runs, runs_of


def test_the_runs(done: Runner) -> None:
    keys = [run.key for run in runs_of(done.experiment, done.data.scale)]
    assert keys[:4] == ["classical-zero-filling-knee", "classical-zero-filling-hip", "train-ulda", "train-dncn"]
    assert keys[4:6] == ["adapt-ulda-hip-0-0", "adapt-dncn-hip-0-0"]
    assert len(keys) == 2 + 2 + 2 * (1 + 2 * 2)


def test_few_slices_may_be_drawn_more_often_than_many(data: Path, tmp_path: Path) -> None:
    some = runner(tmp_path, data, scales={"bench": BENCH | {"draws": {2: 3}}})
    keys = [run.key for run in runs_of(some.experiment, some.data.scale) if run.kind == "adapt"]
    assert [key for key in keys if "dncn" in key] == [
        "adapt-dncn-hip-0-0",
        "adapt-dncn-hip-2-0",
        "adapt-dncn-hip-100-0",
        "adapt-dncn-hip-2-1",
        "adapt-dncn-hip-2-2",
    ]


def test_names_of_runs_must_differ() -> None:
    alike = {
        "targets": [{"name": "brain-hip"}, {"name": "hip"}],
        "variants": [{"method": "ulda"}, {"method": "ulda", "label": "ulda-brain"}],
    }
    experiment = Experiment.model_validate(TINY | alike)
    with pytest.raises(UldaError, match="two runs of tiny would be called adapt-ulda-brain-hip-0-0"):
        runs_of(experiment, experiment.scale("bench"))


def test_packed_results_hold_their_definition(done: Runner, tmp_path: Path) -> None:
    runs = read_runs(done.runs_folder)
    pack(Packed(done.experiment, "bench", runs), tmp_path / "tiny.json")
    assert read_packed(tmp_path / "tiny.json") == Packed(done.experiment, "bench", runs)


def test_the_sizes_of_packed_results_are_those_with_results() -> None:
    experiment = Experiment.model_validate(TINY | {"scales": {"bench": BENCH | {"adapt_steps": {2: 3, 9: 3, 100: 3}}}})
    runs = {str(size): {"run": {"size": size}} for size in (100, 0, 2)}
    assert Packed(experiment, "bench", runs).sizes == (2, 100)


def test_a_packed_file_has_the_domains_of_its_scale(tmp_path: Path) -> None:
    paper = BENCH | {"targets": [{"name": "ankle"}]}
    experiment = Experiment.model_validate(TINY | {"scales": {"bench": BENCH, "paper": paper}})
    pack(Packed(experiment, "paper", {}), tmp_path / "tiny.json")
    assert read_packed(tmp_path / "tiny.json").experiment == experiment.at("paper")
