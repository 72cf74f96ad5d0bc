from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from ulda.errors import UldaError
from ulda.evaluation import paired_difference, verdict


def study(n_subjects: int, n_slices: int, seed: int, mean: float = 0.0) -> tuple[NDArray[np.float64], list[str]]:
    """Draw differences whose subjects differ more than the slices of a subject do."""
    rng = np.random.default_rng(seed)
    per_subject = mean + rng.normal(size=n_subjects)
    differences = np.repeat(per_subject, n_slices) + 0.3 * rng.normal(size=n_subjects * n_slices)
    return differences, [f"s{i // n_slices}" for i in range(n_subjects * n_slices)]


def test_equal_sized_subjects_are_a_bootstrap_of_their_means() -> None:
    differences, subjects = study(12, 5, seed=3, mean=0.4)
    found = paired_difference(differences + 30.0, np.full(60, 30.0), subjects, resamples=40_000)
    expected = stats.bootstrap(
        (differences.reshape(12, 5).mean(1),), np.mean, n_resamples=40_000, method="percentile", rng=1
    ).confidence_interval
    assert found.mean == pytest.approx(differences.mean())
    assert found.low == pytest.approx(expected.low, abs=0.02)
    assert found.high == pytest.approx(expected.high, abs=0.02)
    assert (found.n_subjects, found.n_slices, found.resampled) == (12, 60, "subjects")
    assert found.n_better == (differences > 0).sum()


def test_two_subjects_have_three_resamples() -> None:
    """Means of aa, ab and bb with probabilities 1/4, 1/2, 1/4: the interval of 40 % is the point ab."""
    first, subjects = [4.0, 1.0, 1.0], ["a", "b", "b"]
    wide = paired_difference(first, [0.0] * 3, subjects)
    assert (wide.low, wide.high) == (1.0, 4.0)
    narrow = paired_difference(first, [0.0] * 3, subjects, confidence=0.4)
    assert (narrow.low, narrow.mean, narrow.high) == (2.0, 2.0, 2.0)


def test_a_few_subjects_with_many_slices_are_few() -> None:
    """The interval is as wide as the subjects differ, however many slices each has."""
    few, many = (study(8, n, seed=5) for n in (4, 400))
    widths = [d.high - d.low for d in (paired_difference(x, np.zeros(len(x)), s) for x, s in (few, many))]
    assert widths[1] > 0.6 * widths[0]
    pooled = 2 * 1.96 * few[0].std() / math.sqrt(len(few[0]))
    assert widths[0] > 1.3 * pooled


def test_coverage() -> None:
    """Of 400 studies with 25 subjects, about 95 % of the intervals hold the truth; the binomial spread is 1.1 %."""
    hits = 0
    for seed in range(400):
        differences, subjects = study(25, 3, seed, mean=0.7)
        found = paired_difference(differences, np.zeros(75), subjects, resamples=1000)
        hits += found.low <= 0.7 <= found.high
    assert 0.90 <= hits / 400 <= 0.975


def test_equal_differences_leave_no_doubt() -> None:
    found = paired_difference([30.5, 31.5, 32.5], [30.0, 31.0, 32.0], ["a", "b", "c"])
    assert (found.low, found.mean, found.high) == (0.5, 0.5, 0.5)
    few = "; so few subjects make the interval too narrow"
    assert verdict(found) == f"adaptation helped by 0.50 dB [0.50, 0.50] on 3 subjects (3 slices){few}"
    nothing = paired_difference([1.0, 2.0], [1.0, 2.0], ["a", "b"])
    assert verdict(nothing) == f"no clear difference: 0.00 dB [0.00, 0.00] on 2 subjects (2 slices){few}"
    many = paired_difference([31.0] * 6, [30.5] * 6, list("abcdef"))
    assert verdict(many) == "adaptation helped by 0.50 dB [0.50, 0.50] on 6 subjects (6 slices)"


def test_the_seed_decides_and_the_order_of_the_slices_does_not() -> None:
    differences, subjects = study(6, 2, seed=1)
    zeros = np.zeros(12)
    one = paired_difference(differences, zeros, subjects)
    assert one == paired_difference(differences, zeros, subjects)
    assert one.low != paired_difference(differences, zeros, subjects, seed=1).low
    order = np.random.default_rng(0).permutation(12)
    shuffled = paired_difference(differences[order], zeros, [subjects[i] for i in order])
    assert (shuffled.low, shuffled.high) == pytest.approx((one.low, one.high))


def test_verdicts() -> None:
    up, down, mixed = [1.0, 2.0, 1.5], [-1.0, -2.0, -1.5], [1.0, -2.0, 0.4]
    subjects, zeros = ["a", "b", "c"], [0.0] * 3
    assert verdict(paired_difference(up, zeros, subjects)).startswith("adaptation helped by 1.50 dB [1.")
    assert verdict(paired_difference(down, zeros, subjects)).startswith("adaptation did not help: -1.50 dB [-2.00, -1.")
    assert verdict(paired_difference(mixed, zeros, subjects)).startswith("no clear difference: -0.20 dB [-2.00, 1.00]")
    prior = verdict(paired_difference(up, zeros, subjects), "the learned prior", over="TV")
    assert prior.startswith("the learned prior helped by 1.50 dB [")
    assert prior.endswith("] over TV on 3 subjects (3 slices); so few subjects make the interval too narrow")


def test_a_single_subject_is_said_so() -> None:
    found = paired_difference([1.0, 2.0, 3.0], [0.0] * 3, ["a"] * 3)
    assert found.resampled == "slices"
    assert 1 <= found.low < 2 < found.high <= 3
    assert verdict(found).endswith(
        "on 1 subject (3 slices); with a single subject the interval is over its slices and says nothing about other "
        "subjects"
    )
    alone = paired_difference([1.0], [0.0], ["a"])
    assert math.isnan(alone.low)
    assert verdict(alone) == "no clear difference: 1.00 dB on 1 subject (1 slice); a single slice has no interval"


@pytest.mark.parametrize(
    ("first", "second", "subjects", "message"),
    [
        ([1.0, 2.0], [1.0], ["a", "b"], "one score per slice"),
        ([1.0], [1.0], ["a", "b"], "one score per slice"),
        ([], [], [], "one score per slice"),
        ([1.0, math.inf], [1.0, math.inf], ["a", "b"], "slice 1 has the scores inf and inf"),
        ([math.nan, 1.0], [1.0, 1.0], ["a", "b"], "slice 0 has the scores nan and 1"),
    ],
)
def test_what_cannot_be_compared(first: list[float], second: list[float], subjects: list[str], message: str) -> None:
    with pytest.raises(UldaError, match=message):
        paired_difference(first, second, subjects)


@pytest.mark.parametrize(("confidence", "resamples"), [(0.0, 10), (1.0, 10), (math.nan, 10), (0.9, 0)])
def test_impossible_intervals(confidence: float, resamples: int) -> None:
    with pytest.raises(UldaError, match="strictly between 0 and 1"):
        paired_difference([1.0, 2.0], [1.0, 1.0], ["a", "b"], confidence=confidence, resamples=resamples)
