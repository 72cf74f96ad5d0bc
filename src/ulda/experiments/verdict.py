"""What the results of an experiment say about the method they are compared with, in sentences made from the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ulda.evaluation.paired import PairedDifference
from ulda.experiments.definition import Experiment
from ulda.experiments.tables import SOURCE, Entry, Key, Score, collect, difference, slices_in_words

SCORES: tuple[Score, ...] = ("psnr", "ssim")
_UNITS = {"psnr": " dB", "ssim": ""}
_DIGITS = {"psnr": 2, "ssim": 4}


@dataclass(frozen=True)
class Standing:
    """How the reference compares with the best other method on a target.

    Attributes
    ----------
    target, score
        Where, and in what.
    size, other_size
        The numbers of target slices of the reference and of the others.
    best_other
        The variant that is best among the others: the one that the reference leads by least, or is behind by most.
    difference
        The reference minus that one, slice by slice; with as many slices, over the draws that both have.
    slices
        The numbers of target slices in words.
    """

    target: str
    score: Score
    size: int
    other_size: int
    best_other: str
    difference: PairedDifference
    slices: str

    @property
    def is_first(self) -> bool:
        """Whether the reference is at least as good."""
        return self.difference.mean >= 0

    @property
    def is_clear(self) -> bool:
        """Whether the interval of the difference is on one side of zero."""
        return self.difference.low > 0 or self.difference.high < 0

    def sentence(self, titles: Mapping[str, str], reference: str, other: str) -> str:
        """Return it for people; `other` is what the reference is compared with, in a word or two."""
        digits, unit = _DIGITS[self.score], _UNITS[self.score]
        verb = "leads" if self.is_first else "is behind"
        mean = f"{abs(self.difference.mean):.{digits}f}"
        return (
            f"{self.target}, {self.slices}, {self.score.upper()}: "
            f"{titles[reference]} {verb} {titles[self.best_other]}, "
            f"the best {other}, by {mean}{unit} (difference {self._interval()}"
            f"{'' if self.is_clear else ', no clear one'})"
        )

    def short(self, titles: Mapping[str, str]) -> str:
        """Return it for a table: the other method, and the difference, in bold type where the reference leads."""
        mean = f"{self.difference.mean:+.{_DIGITS[self.score]}f}"
        return f"{titles[self.best_other]}: {f'**{mean}**' if self.is_first else mean} {self._interval()}"

    def _interval(self) -> str:
        digits = _DIGITS[self.score]
        return f"[{self.difference.low:.{digits}f}, {self.difference.high:.{digits}f}]"


def standings(experiment: Experiment, runs: dict[str, dict[str, Any]], sizes: Sequence[int]) -> list[Standing]:
    """Compare the reference with the best other method, on every target.

    First with as many slices for both, then the reference with the fewest slices against the others with the next more;
    a method without training is among the others each time. Where the reference or all others are missing there is
    nothing to compare.
    """
    entries = collect(runs)
    pairs = [(size, size) for size in sizes] + ([(sizes[0], sizes[1])] if len(sizes) > 1 else [])
    found = (
        _standing(experiment, entries, target.name, score, pair)
        for target in experiment.targets
        for pair in pairs
        for score in SCORES
    )
    return [standing for standing in found if standing is not None]


def _standing(
    experiment: Experiment, entries: dict[Key, Entry], target: str, score: Score, pair: tuple[int, int]
) -> Standing | None:
    size, other_size = pair
    compared = {
        variant.name: difference(
            entries,
            (experiment.reference, target, size),
            (variant.name, target, other_size if variant.is_learned else SOURCE),
            score,
        )
        for variant in experiment.variants
        if variant.name != experiment.reference
    }
    others = {name: found for name, found in compared.items() if found is not None}
    if not others:
        return None
    best = min(others, key=lambda name: others[name].mean)
    found = others[best]
    words = slices_in_words(target, size, entries)
    if size != other_size:
        words = f"{words.removesuffix(' slices')} against {slices_in_words(target, other_size, entries)}"
    return Standing(target, score, size, other_size, best, found, words)


def sentences(experiment: Experiment, runs: dict[str, dict[str, Any]], sizes: Sequence[int]) -> list[str]:
    """Return what the results say, one sentence for each comparison, and one that counts them."""
    found, titles = standings(experiment, runs, sizes), experiment.titles
    other = "variant" if experiment.family else "other method"
    if not found:
        return ["there is nothing to compare yet"]
    ahead = [standing for standing in found if standing.is_first]
    behind = [standing for standing in found if not standing.is_first]
    clear = [sum(standing.is_clear for standing in part) for part in (ahead, behind)]
    summary = (
        f"{titles[experiment.reference]} is at least as good as the best {other} in {len(ahead)} of {len(found)} "
        f"comparisons, clearly better in {clear[0]} and clearly worse in {clear[1]}"
    )
    return [summary, *(standing.sentence(titles, experiment.reference, other) for standing in found)]


def overview(experiment: Experiment, runs: dict[str, dict[str, Any]], sizes: Sequence[int]) -> list[list[str]]:
    """Return the standings as rows: target, slices, scores of the reference, the best others in PSNR and in SSIM."""
    entries, titles = collect(runs), experiment.titles
    rows: dict[tuple[str, int, int], list[str]] = {}
    for standing in standings(experiment, runs, sizes):
        ours = entries[experiment.reference, standing.target, standing.size].text()
        row = rows.setdefault(
            (standing.target, standing.size, standing.other_size), [standing.target, standing.slices, ours, "", ""]
        )
        row[3 + SCORES.index(standing.score)] = standing.short(titles)
    return list(rows.values())
