"""Folders as users have them are domains of an experiment: pictures, splits by folder, or no splits at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.experiments.tiny import TINY
from ulda.errors import UldaError
from ulda.experiments import Experiment
from ulda.experiments.dry_run import dry_run
from ulda.experiments.running import Runner
from ulda.experiments.runs import runs_of

SCALE: dict[str, Any] = TINY["scales"]["bench"] | {"adapt_steps": {2: 3}, "draws": 1, "test_slices": 2}
CLASSICAL: dict[str, Any] = TINY | {"variants": TINY["variants"][:1], "reference": "zero-filling", "paper": {}}


def pictures(folder: Path, n: int, side: int = 32) -> None:
    folder.mkdir(parents=True)
    generator = np.random.default_rng(side)
    for i in range(n):
        Image.fromarray(generator.integers(0, 255, (side, side, 3)).astype(np.uint8)).save(folder / f"{i}.png")


def runner(tmp_path: Path, knee: dict[str, Any] | None = None, hip: dict[str, Any] | None = None) -> Runner:
    """Return an experiment on folders of pictures, without learned methods."""
    entries = {name: {"name": name, "ratio": 0.3} | (more or {}) for name, more in (("knee", knee), ("hip", hip))}
    domains = {"sources": [entries["knee"]], "targets": [entries["hip"]]}
    values = CLASSICAL | domains | {"scales": {"bench": SCALE}}
    return Runner(Experiment.model_validate(values), "bench", tmp_path / "run", tmp_path / "data")


def test_pictures_that_are_subjects_are_split_by_the_experiment(tmp_path: Path) -> None:
    pictures(tmp_path / "data" / "knee", 10)
    for split, n in (("train", 3), ("val", 1), ("test", 4)):
        pictures(tmp_path / "data" / "hip" / split, n)
    alone = {"picture_subjects": True}
    one = runner(tmp_path, alone, alone)
    found = dry_run(one)
    assert found.problems == []
    assert found.domains[0].notes == (
        "knee: it has no splits; the experiment makes them by subject: test 2, train 7, val 1",
    )
    assert found.domains[1].notes == ()
    knee, hip = (one.data.domain(one.experiment.domain(name)) for name in ("knee", "hip"))
    assert [len(knee.select(split=split)) for split in ("train", "val", "test")] == [7, 1, 2]
    assert [len(hip.select(split=split)) for split in ("train", "val", "test")] == [3, 1, 4]
    # the same splits each time
    again = Runner(one.experiment, "bench", tmp_path / "again", one.data_folder)
    assert again.data.domain(one.experiment.domain("knee")).fingerprint() == knee.fingerprint()
    # as many are reported on as the scale says
    assert len(one.data.test(one.experiment.domain("hip"))) == 2
    for run in runs_of(one.experiment, one.data.scale):
        result = one.run(run)["results"][run.domain]
        assert len(result["psnr"]) == len(set(result["subjects"])) == 2


def test_pictures_of_one_subject_are_refused_as_they_cannot_be_split(tmp_path: Path) -> None:
    for name in ("knee", "hip"):
        pictures(tmp_path / "data" / name, 12)
    one = runner(tmp_path)
    expected = "it has no splits, and they cannot be made: there are 1 subjects for the 3 splits"
    assert all(expected in problem for problem in dry_run(one).problems)
    assert len(dry_run(one).problems) == 2
    with pytest.raises(UldaError, match=f"the data of knee cannot be used: {expected}"):
        one.data.domain(one.experiment.sources[0])
    assert list((tmp_path / "run" / "data").iterdir()) == []


def test_small_pictures_are_enlarged_where_the_definition_says_so(tmp_path: Path) -> None:
    pictures(tmp_path / "data" / "knee", 12, side=16)
    pictures(tmp_path / "data" / "hip", 12, side=16)
    one = runner(tmp_path, {"picture_subjects": True, "enlarge": True}, {"picture_subjects": True})
    found = dry_run(one)
    assert len(found.problems) == 1
    assert "hip: the smallest slice is 16 x 16, but 32 x 32 is needed" in found.problems[0]
    assert "knee: slices, the smallest 16 x 16, are enlarged to 32 x 32" in found.notes
    assert one.data.domain(one.experiment.domain("knee")).shape == (32, 32)
    with pytest.raises(UldaError, match="is 16 x 16, but 32 x 32 is needed"):
        one.data.domain(one.experiment.domain("hip"))


def test_a_folder_may_be_read_in_two_ways(tmp_path: Path) -> None:
    pictures(tmp_path / "data" / "hip" / "train", 3)
    pictures(tmp_path / "data" / "hip" / "test", 3)
    one = runner(tmp_path, {"picture_subjects": True, "data": "hip"}, {})
    many, few = (one.data.domain(entry) for entry in (*one.experiment.sources, *one.experiment.targets))
    assert (len(set(many.subjects)), len(set(few.subjects))) == (6, 2)
