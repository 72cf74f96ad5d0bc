"""What the files of a domain lack for an experiment is said before it is run."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from ulda.data.readers import Slice
from ulda.experiments.definition import DomainEntry, Scale
from ulda.experiments.domain_check import Scan, check_domain, n_train

SCALE = Scale(side=40, steps=4, batch_size=2, adapt_steps={2: 3, 4: 5}, draws=2, source_slices=4)


def scale(**changes: Any) -> Scale:
    return SCALE.model_copy(update=changes)


def scan(splits: dict[str, int], side: int = 64, subjects_per_split: int = 2) -> Scan:
    found = Scan()
    for split, n in splits.items():
        for i in range(n):
            array = np.ones((side, side + 8), np.float32)
            found.add(Slice(array, "magnitude", subject=f"{split}{i % subjects_per_split}", split=split))
    return found


def problems(found: Scan, *, is_source: bool = False, **changes: Any) -> str:
    check = check_domain(DomainEntry(name="hip"), is_source, found, scale(**changes))
    return " | ".join(check.problems)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (scan({"train": 9, "val": 2, "test": 3}, side=32), "the smallest slice is 32 x 40, but 40 x 40 is needed"),
        (scan({"train": 9, "val": 2}), "it has no slices in the split test"),
        (scan({"val": 2, "test": 2}), "it has no slices in the split train"),
        (scan({"": 9}), "it has no splits, and they cannot be made: there are 2 subjects for the 3 splits"),
        (scan({"train": 3, "val": 2, "test": 2}), ""),
        (scan({"train": 1, "val": 2, "test": 2}), "there are 1 slices to train on, but 2, 4 are asked for"),
        (scan({"train": 2, "val": 2, "test": 2}), "there are 2 slices to train on, but 4 are asked for"),
        (Scan(), "there is no slice that is not empty"),
    ],
)
def test_each_thing_that_is_missing_is_said(found: Scan, message: str) -> None:
    said = problems(found)
    assert re.search(message, said) if message else said == ""


def test_splits_are_made_where_there_are_enough_subjects() -> None:
    check = check_domain(DomainEntry(name="hip"), False, scan({"": 20}, subjects_per_split=10), scale())
    assert check.problems == ()
    assert check.found.endswith("no split 20")
    # ten subjects of two slices
    assert check.notes == ("hip: it has no splits; the experiment makes them by subject: test 4, train 14, val 2",)
    # what is left to train on is counted with them
    few = check_domain(DomainEntry(name="hip"), True, scan({"": 3}, subjects_per_split=3), scale())
    assert few.problems == ("hip: there are 1 slices to train on, but 4 are asked for",)


def test_fewer_test_slices_than_the_scale_has_are_told() -> None:
    found = scan({"train": 9, "val": 2, "test": 3})
    for wanted, notes in ((3, ()), (5, ("hip: there are 3 slices to report on, not 5",))):
        assert check_domain(DomainEntry(name="hip"), False, found, scale(test_slices=wanted)).notes == notes


def test_small_slices_are_enlarged_where_that_is_said() -> None:
    small = scan({"train": 9, "val": 2, "test": 3}, side=32)
    assert "`enlarge: true` in the definition" in problems(small)
    check = check_domain(DomainEntry(name="hip", enlarge=True), False, small, scale())
    assert check.problems == ()
    assert check.notes == ("hip: slices, the smallest 32 x 40, are enlarged to 40 x 40",)


@pytest.mark.parametrize("combine_coils", [True, False])
def test_numbers_of_coils_may_differ_where_coils_are_combined(combine_coils: bool) -> None:
    found = Scan()
    for split, n_coils in (("train", 4), ("train", 8), ("train", 4), ("val", 4), ("test", 4)):
        kspace = np.ones((n_coils, 64, 64), np.complex64)
        found.add(Slice(kspace, "kspace", subject=split, split=split), combine_coils=combine_coils)
    said = problems(found, is_source=True, source_slices=2)
    expected = "" if combine_coils else "hip: its slices cannot be in one file, they are of different kinds "
    assert said == (expected and f"{expected}(kspace of 4 coils, kspace of 8 coils)")


def test_fewer_slices_than_asked_for() -> None:
    few = scan({"train": 3, "val": 1, "test": 1})
    assert "there are 3 slices to train on, but 4 are asked for" in problems(few, is_source=True)
    assert problems(few, is_source=True, source_slices=None) == ""
    # all that there are may stand for the largest size
    check = check_domain(DomainEntry(name="hip"), False, few, scale())
    assert check.notes == ("hip: there are 3 slices to train on; they stand for 4",)
    # without a val split a fifth is held out
    assert n_train(scan({"train": 10, "test": 2})) == 8
    assert n_train(scan({"train": 10, "test": 2}, subjects_per_split=1)) == 10


def test_bad_slices_are_counted() -> None:
    found = scan({"train": 9, "val": 2, "test": 3})
    found.add(Slice(np.zeros((64, 64), np.float32), "magnitude", split="train"))
    found.add(Slice(np.full((64, 64), np.nan, np.float32), "magnitude", subject="new", split="train"))
    assert (found.n_slices, found.n_empty, len(found.splits)) == (16, 1, 15)
    lines = np.ones(64, bool)
    found.add(Slice(np.ones((64, 64), np.complex64), "kspace", subject="train0", split="test", lines=lines))
    said = problems(found)
    assert "1 slices hold NaN or infinite values" in said
    assert "arrived undersampled" in said
    assert "subject train0 is in the splits test and train" in said


def test_the_target_of_oversampled_kspace_decides_about_its_size() -> None:
    found = Scan()
    kspace, target = np.ones((4, 128, 64), np.complex64), np.ones((50, 60), np.float32)
    found.add(Slice(kspace, "kspace", subject="a", split="train", target=target))
    assert found.smallest == (50, 60)
