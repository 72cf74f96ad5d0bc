"""Two methods on the same slices: the difference per slice, its interval by subject, and a verdict in one sentence.

The slices of one person are alike, so a person, not a slice, is what would be drawn anew if the study were repeated.
The bootstrap therefore draws subjects with replacement, each with all of its slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ulda.errors import UldaError

RESAMPLES = 4000
"""Enough for the ends of a 95 % interval to be stable in their second digit."""

_BLOCK = 500
"""Resamples at a time; all at once would need memory for each subject and resample."""

FEW_SUBJECTS = 6
"""With fewer, an interval by resampling misses the truth more often than it says: one time in four with three."""

Unit = Literal["subjects", "slices", "nothing"]


@dataclass(frozen=True)
class PairedDifference:
    """The mean difference of two methods over slices, with a bootstrap interval.

    Attributes
    ----------
    mean
        Mean over the slices of `first` minus `second`.
    low, high
        The ends of the percentile interval; NaN for a single slice, which has none.
    n_subjects, n_slices
        On how many the difference was measured.
    n_better
        On how many slices the difference is positive.
    resampled
        What the bootstrap drew: ``subjects``; ``slices``, if there is a single subject; or ``nothing``.
    confidence, resamples, seed
        How the interval was made.
    """

    mean: float
    low: float
    high: float
    n_subjects: int
    n_slices: int
    n_better: int
    resampled: Unit
    confidence: float
    resamples: int
    seed: int

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers for a result file."""
        return asdict(self)


def paired_difference(
    first: ArrayLike,
    second: ArrayLike,
    subjects: Sequence[str],
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> PairedDifference:
    """Return by how much `first` exceeds `second`, slice by slice, with an interval by subject.

    Parameters
    ----------
    first, second
        A score per slice ``(n,)`` of two methods, on the same slices in the same order.
    subjects
        The subject of each slice.
    confidence
        The probability the interval aims at.
    resamples
        How often the subjects are drawn.
    seed
        Seed of the draws.

    Examples
    --------
    >>> d = paired_difference([31.0, 33.0, 30.0], [30.0, 31.0, 29.0], ["a", "a", "b"])
    >>> round(d.mean, 2), d.low, d.high, d.n_subjects
    (1.33, 1.0, 1.5, 2)
    """
    differences = _differences(first, second, subjects)
    if not 0 < confidence < 1 or resamples < 1:
        raise UldaError(
            "the confidence must lie strictly between 0 and 1 and there must be at least one resample, "
            f"but they are {confidence:g} and {resamples}"
        )
    names, subject_of = np.unique(np.asarray(subjects, dtype=str), return_inverse=True)
    unit: Unit = "subjects"
    if len(names) == 1:
        unit, subject_of = ("slices", np.arange(len(differences))) if len(differences) > 1 else ("nothing", subject_of)
    tail = (1 - confidence) / 2
    means = _resampled_means(differences, subject_of, resamples, seed)
    low, high = (float(end) for end in np.quantile(means, [tail, 1 - tail])) if unit != "nothing" else (np.nan, np.nan)
    return PairedDifference(
        mean=float(differences.mean()),
        low=low,
        high=high,
        n_subjects=len(names),
        n_slices=len(differences),
        n_better=int((differences > 0).sum()),
        resampled=unit,
        confidence=confidence,
        resamples=resamples,
        seed=seed,
    )


def verdict(difference: PairedDifference, what: str = "adaptation", *, unit: str = "dB", over: str = "") -> str:
    """Say in one sentence whether something helped, for a score where more is better.

    Parameters
    ----------
    difference
        The score with it minus the score without it.
    what
        What may have helped.
    unit
        The unit of the score.
    over
        What it is compared with, if that does not go without saying.

    Examples
    --------
    >>> d = paired_difference([31.0, 33.0, 30.0], [30.0, 31.0, 29.0], ["a", "a", "b"])
    >>> verdict(d)
    'adaptation helped by 1.33 dB [1.00, 1.50] on 2 subjects (3 slices); so few subjects make the interval too narrow'
    """
    size = " ".join(filter(None, (f"{abs(difference.mean):.2f}", unit)))
    signed = f"-{size}" if difference.mean < 0 else size
    interval = f" [{difference.low:.2f}, {difference.high:.2f}]" if difference.resampled != "nothing" else ""
    basis = f"on {counted(difference.n_subjects, 'subject')} ({counted(difference.n_slices, 'slice')})"
    where = f" over {over}" if over else ""
    if difference.low > 0:
        sentence = f"{what} helped by {size}{interval}{where} {basis}"
    elif difference.high < 0:
        sentence = f"{what} did not help: {signed}{interval}{where} {basis}"
    else:
        sentence = f"no clear difference: {signed}{interval}{where} {basis}"
    if difference.resampled == "subjects" and difference.n_subjects < FEW_SUBJECTS:
        sentence += "; so few subjects make the interval too narrow"
    if difference.resampled == "slices":
        sentence += "; with a single subject the interval is over its slices and says nothing about other subjects"
    if difference.resampled == "nothing":
        sentence += "; a single slice has no interval"
    return sentence


def _differences(first: ArrayLike, second: ArrayLike, subjects: Sequence[str]) -> NDArray[np.float64]:
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.ndim != 1 or not len(a) == len(b) == len(subjects) or len(a) == 0 or a.shape != b.shape:
        raise UldaError(
            "a paired comparison needs one score per slice of both methods and a subject for each, "
            f"but there are {a.shape} and {b.shape} scores and {len(subjects)} subjects"
        )
    with np.errstate(invalid="ignore"):
        differences = a - b
    if not np.isfinite(differences).all():
        worst = int(np.flatnonzero(~np.isfinite(differences))[0])
        raise UldaError(
            f"slice {worst} has the scores {a[worst]:g} and {b[worst]:g}, whose difference is not a number to average; "
            "an exact reconstruction has an infinite PSNR, a broken one none"
        )
    return differences


def _resampled_means(
    differences: NDArray[np.float64], group_of: NDArray[np.integer[Any]], resamples: int, seed: int
) -> NDArray[np.float64]:
    """Return the mean over slices in each resample of the groups.

    How often each group is drawn is multinomial, so that a resample is a weighting of sums and counts.
    """
    sums, counts = np.bincount(group_of, differences), np.bincount(group_of)
    n_groups = len(sums)
    generator, means = np.random.default_rng(seed), []
    for done in range(0, resamples, _BLOCK):
        size = min(_BLOCK, resamples - done)
        drawn = generator.multinomial(n_groups, np.full(n_groups, 1 / n_groups), size=size)
        means.append((drawn @ sums) / (drawn @ counts))
    return np.concatenate(means)


def counted(number: int, what: str) -> str:
    """Say how many of something there are: ``1 slice``, ``2 slices``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def counted_span(numbers: Sequence[int], what: str) -> str:
    """Say how many of something there are, from the fewest to the most: ``2 slices``, ``1 to 3 slices``."""
    low, high = min(numbers), max(numbers)
    return counted(low, what) if low == high else f"{low} to {high} {what}s"
