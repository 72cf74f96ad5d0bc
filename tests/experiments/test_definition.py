"""What a definition may say, and how mistakes in it are explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from tests.experiments.tiny import BENCH, TINY, runner
from ulda.errors import UldaError
from ulda.experiments import Experiment, load_experiment
from ulda.experiments.running import Runner
from ulda.experiments.scheduling import pending


@pytest.mark.parametrize(
    "changes",
    [
        {"variants": [{"method": "ulda", "label": "w/o warp"}]},
        {"variants": [{"method": "ulda", "label": "../../victim"}]},
        {"targets": [{"name": "../hip"}]},
        {"targets": [{"name": "knee, 3T"}]},
    ],
)
def test_names_must_do_as_names_of_files(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="should match pattern"):
        Experiment.model_validate(TINY | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": "lda"}, "the reference lda is not among the methods"),
        ({"targets": [{"name": "knee"}]}, "two domains have the name knee"),
        ({"titel": "x"}, "did you mean 'title'"),
        ({"scales": {"bench": {"side": 0, "steps": 1, "batch_size": 1, "adapt_steps": {}}}}, "scales.bench.side"),
        ({"scales": {"bench": BENCH | {"draws": {5: 2}}}}, "draws of 5 target slices, but no steps"),
        ({"scales": {"bench": BENCH | {"draws": {2: 0}}}}, "scales.bench.draws"),
    ],
)
def test_a_wrong_file_is_explained(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(yaml.safe_dump(TINY | changes))
    with pytest.raises(UldaError, match=f"wrong.yaml: .*{message}"):
        load_experiment(file)


def test_what_does_not_exist_is_named(tmp_path: Path, data: Path) -> None:
    with pytest.raises(UldaError, match=r"there are: .*cross-anatomy, .*, cross-modality, cross-sampling-ratio"):
        load_experiment("cross-country")
    one = runner(tmp_path, data)
    with pytest.raises(UldaError, match="tiny has no method 'unet'; it has: zero-filling, ulda, dncn"):
        pending(one, ["unet"])
    with pytest.raises(UldaError, match="tiny has no scale 'paper'; it has: bench"):
        one.experiment.scale("paper")
    absent = Runner(one.experiment, "bench", tmp_path / "other", tmp_path)
    with pytest.raises(UldaError, match="there is no data for knee"):
        absent.data.domain(one.experiment.sources[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trained_as": "dncn"}, "which has none of that method"),
        ({"trained_as": "nobody"}, "which has none of that method"),
        ({"trained_as": "ulda", "train": {"clip": 2.0}}, "no settings or measures of its own"),
    ],
)
def test_a_training_that_cannot_be_taken_over(changes: dict[str, Any], message: str) -> None:
    variants = [*TINY["variants"], {"label": "narrow", "method": "ulda"} | changes]
    with pytest.raises(ValueError, match=message):
        Experiment.model_validate(TINY | {"variants": variants})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compare_with": ""}, "alone needs both, the measure similarity and compare_with"),
        ({"compare_with": "alone"}, "alone is compared with alone, which is no other variant"),
        ({"compare_with": "unet"}, "alone is compared with unet, which is no other variant"),
        ({"method": "TV"}, "alone learns nothing, so there is nothing to measure"),
    ],
)
def test_what_cannot_be_measured(changes: dict[str, Any], message: str) -> None:
    alone = {"label": "alone", "method": "lda", "measure": ["similarity"], "compare_with": "ulda"}
    with pytest.raises(ValueError, match=message):
        Experiment.model_validate(TINY | {"variants": [alone | changes, {"method": "ulda"}]})


def test_titles_are_those_of_the_presets() -> None:
    variants = [
        {"method": "ulda"},
        {"method": "ulda-paper"},
        {"method": "lda", "preset": "paper"},
        {"method": "ulda", "label": "no-warp"},
        {"method": "TV"},
    ]
    titles = Experiment.model_validate(TINY | {"variants": variants}).titles
    assert list(titles.values()) == ["U-LDA", "U-LDA (paper)", "LDA", "no-warp", "TV"]
