"""Results of other settings than today's are noticed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.experiments.tiny import BENCH, SIZES, TINY, TINY_DNCN, TINY_ULDA, runner
from ulda.experiments.recipes import digest_of, outdated, recipe_of
from ulda.experiments.running import Runner
from ulda.experiments.runs import Run, read_runs

ALL = {f"adapt-{method}-hip-{at}" for method in ("ulda", "dncn") for at in ("0-0", "2-0", "2-1", "100-0", "100-1")}
ALL |= {"train-ulda", "train-dncn", "classical-zero-filling-knee", "classical-zero-filling-hip"}


def variants(ulda: dict[str, Any]) -> dict[str, Any]:
    return {"variants": [TINY["variants"][0], TINY_ULDA | ulda, TINY_DNCN]}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, set()),
        ({"scales": {"bench": BENCH | {"side": 40}}}, ALL),
        ({"scales": {"bench": BENCH | {"steps": 5}}}, {key for key in ALL if "classical" not in key}),
        (variants({"train": {"phases": [3]}}), {key for key in ALL if "ulda" in key}),
        (variants({"sizes": SIZES | {"eps_ratio": 0.2}}), {key for key in ALL if "ulda" in key}),
        (variants({"adapt": {"warp": 0.1}}), {key for key in ALL if "adapt-ulda" in key and "hip-0" not in key}),
        ({"targets": [{"name": "hip", "ratio": 0.4}]}, {key for key in ALL if "hip" in key}),
        # what changes nothing about a result
        (variants({"adapt": {"checkpoint_every": 1}}), set()),
        ({"targets": [{"name": "hip", "ratio": 0.3, "subjects_are": "slice positions"}]}, set()),
        ({"title": "another"}, set()),
    ],
)
def test_results_of_other_settings_are_noticed(changes: dict[str, Any], expected: set[str], done: Runner) -> None:
    today = runner(done.folder, done.data_folder, **changes)
    found = outdated(today.experiment, today.data.scale, read_runs(done.runs_folder))
    assert {run.key for run in found} == expected


def test_what_was_adapted_from_another_training_is_noticed(done: Runner) -> None:
    runs = copy.deepcopy(read_runs(done.runs_folder))
    training = runs["train-ulda"]["recipe"]
    assert runs["adapt-ulda-hip-2-0"]["recipe"]["trained"] == digest_of(training)
    runs["adapt-ulda-hip-2-0"]["recipe"]["trained"] = digest_of(training | {"source_slices": 3})
    found = outdated(done.experiment, done.data.scale, runs)
    assert [run.key for run in found] == ["adapt-ulda-hip-2-0"]


def test_a_recipe_names_the_training_that_is_taken_over(tmp_path: Path) -> None:
    narrow = {"label": "narrow", "method": "ulda", "sizes": SIZES | {"rank": 0}, "trained_as": "ulda"}
    one = runner(tmp_path, tmp_path, variants=[*TINY["variants"], narrow])
    recipes = [recipe_of(one.experiment, one.data.scale, Run("adapt", name, "hip", 2)) for name in ("ulda", "narrow")]
    assert recipes[0]["trained"] == recipes[1]["trained"]
    assert [recipe["sizes"]["rank"] for recipe in recipes] == [1, 0]
