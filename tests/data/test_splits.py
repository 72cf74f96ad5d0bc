from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ulda.data import check_leakage, split_by_subject
from ulda.errors import UldaError


@given(st.lists(st.sampled_from("abcdefghij"), min_size=30, max_size=200), st.integers(0, 50))
def test_no_subject_is_divided_and_no_split_is_empty(subjects: list[str], seed: int) -> None:
    if len(set(subjects)) < 3:
        return
    assignment = split_by_subject(subjects, {"train": 0.7, "val": 0.1, "test": 0.2}, seed)
    assert set(assignment) == set(subjects)
    assert set(assignment.values()) == {"train", "val", "test"}
    check_leakage(subjects, [assignment[subject] for subject in subjects])


def test_the_fractions_are_met_when_subjects_are_small() -> None:
    subjects = [f"s{i // 3}" for i in range(600)]
    assignment = split_by_subject(subjects, {"train": 0.7, "val": 0.1, "test": 0.2}, seed=4)
    counts = Counter(assignment[subject] for subject in subjects)
    assert counts == pytest.approx({"train": 420, "val": 60, "test": 120}, abs=3)


def test_the_seed_decides() -> None:
    subjects = [f"s{i}" for i in range(40)]
    fractions = {"train": 0.5, "test": 0.5}
    assert split_by_subject(subjects, fractions, 1) == split_by_subject(subjects, fractions, 1)
    assert split_by_subject(subjects, fractions, 1) != split_by_subject(subjects, fractions, 2)


@pytest.mark.parametrize(
    ("subjects", "fractions", "message"),
    [
        (["a", "b"], {"train": 0.7, "test": 0.7}, "add up to 1"),
        (["a", "b"], {"train": 1.5, "test": -0.5}, "between 0 and 1"),
        (["a", "a", "a"], {"train": 0.5, "test": 0.5}, "1 subjects for the 2 splits"),
    ],
)
def test_impossible_splits_are_clear_errors(subjects: list[str], fractions: dict[str, float], message: str) -> None:
    with pytest.raises(UldaError, match=message):
        split_by_subject(subjects, fractions)


def test_leakage_names_the_subject_and_the_splits() -> None:
    with pytest.raises(UldaError, match=r"subject b is in the splits test and val \(and 1 more"):
        check_leakage(["a", "b", "b", "c", "c"], ["train", "val", "test", "val", "train"])
    check_leakage(["a", "a"], ["train", ""])
