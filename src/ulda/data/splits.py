"""Splits by subject: no person is ever in two of them."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from ulda.errors import UldaError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SPLITS = ("train", "val", "test")


def check_split_name(split: str, where: str) -> None:
    """Refuse a split that no other part of the package would ever read; the empty text is no split.

    Examples
    --------
    >>> check_split_name("trian", "table.csv")
    Traceback (most recent call last):
    ...
    ulda.errors.UldaError: the split 'trian' in table.csv is unknown; expected train, val, test or an empty text
    """
    if split and split not in SPLITS:
        raise UldaError(f"the split {split!r} in {where} is unknown; expected {', '.join(SPLITS)} or an empty text")


def check_leakage(subjects: Sequence[str], splits: Sequence[str]) -> None:
    """Refuse a subject whose slices lie in two splits.

    Examples
    --------
    >>> check_leakage(["a", "a", "b"], ["train", "train", "test"])
    >>> check_leakage(["a", "a", "b"], ["train", "test", "test"])
    Traceback (most recent call last):
    ...
    ulda.errors.UldaError: subject a is in the splits test and train; results on test would not be honest, ...
    """
    seen: dict[str, set[str]] = defaultdict(set)
    for subject, split in zip(subjects, splits, strict=True):
        if split:
            seen[subject].add(split)
    leaking = sorted(subject for subject, where in seen.items() if len(where) > 1)
    if leaking:
        where = " and ".join(sorted(seen[leaking[0]]))
        others = f" (and {len(leaking) - 1} more subjects)" if len(leaking) > 1 else ""
        raise UldaError(
            f"subject {leaking[0]} is in the splits {where}{others}; results on test would not be honest, "
            "so put all slices of a subject into one split"
        )


def split_by_subject(subjects: Sequence[str], fractions: Mapping[str, float], seed: int = 0) -> dict[str, str]:
    """Assign each subject to a split so that the slice counts come close to the fractions.

    Subjects are visited in random order, the largest gap to its fraction takes the next one. Every split
    with a positive fraction gets at least one subject.

    Examples
    --------
    >>> split_by_subject(["a", "a", "b", "c"], {"train": 0.5, "test": 0.5}, seed=1)
    {'a': 'train', 'b': 'test', 'c': 'test'}
    """
    if any(not 0 <= f <= 1 for f in fractions.values()) or not math.isclose(sum(fractions.values()), 1, abs_tol=1e-6):
        given = ", ".join(f"{name} {value:g}" for name, value in fractions.items())
        raise UldaError(f"the fractions of the splits must be between 0 and 1 and add up to 1, but they are {given}")
    wanted = [name for name, value in fractions.items() if value > 0]
    counts: dict[str, int] = defaultdict(int)
    for subject in subjects:
        counts[subject] += 1
    if len(counts) < len(wanted):
        raise UldaError(
            f"there are {len(counts)} subjects for the {len(wanted)} splits {', '.join(wanted)}; a subject cannot be "
            "divided, so ask for fewer splits or import more subjects"
        )
    order = sorted(counts)
    np.random.default_rng(seed).shuffle(order)
    order.sort(key=lambda subject: -counts[subject])
    filled: dict[str, float] = dict.fromkeys(wanted, 0)
    assignment: dict[str, str] = {}
    for position, subject in enumerate(order):
        empty = [name for name in wanted if filled[name] == 0]
        candidates = empty if len(order) - position == len(empty) else wanted
        target = max(candidates, key=lambda name: fractions[name] * len(subjects) - filled[name])
        assignment[subject] = target
        filled[target] += counts[subject]
    return dict(sorted(assignment.items()))
