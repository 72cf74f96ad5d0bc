"""What figures are drawn from: the runs of an experiment, its logs and its example reconstructions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ulda.errors import UldaError
from ulda.evaluation.paired import PairedDifference, counted, counted_span, paired_difference
from ulda.experiments.definition import SUBJECTS, Experiment
from ulda.experiments.examples import Examples, load_examples
from ulda.experiments.figures.style import Look, looks_of
from ulda.experiments.measures import MEASURED_SLICES
from ulda.experiments.runs import UNADAPTED_SIZE, Run
from ulda.experiments.tables import SOURCE, Entry, Key, collect
from ulda.training.slices import choose_slices


class NothingToDrawError(UldaError):
    """The results lack what a figure shows; the message says what."""


@dataclass(frozen=True)
class Results:
    """The results of an experiment at one scale.

    Attributes
    ----------
    experiment, sizes
        What was run, and the numbers of target slices.
    folder
        Where it was run; holds the logs and the examples.
    runs
        What was found, by the key of the run.
    """

    experiment: Experiment
    sizes: tuple[int, ...]
    folder: Path
    runs: dict[str, dict[str, Any]]

    @cached_property
    def entries(self) -> dict[Key, Entry]:
        """The scores of all runs."""
        return collect(self.runs)

    @cached_property
    def titles(self) -> dict[str, str]:
        """The name of each method for people."""
        return self.experiment.titles

    @cached_property
    def looks(self) -> dict[str, Look]:
        """The look of each method."""
        variants = self.experiment.variants
        learned = [variant.name for variant in variants if variant.is_learned]
        classical = [variant.name for variant in variants if not variant.is_learned]
        return looks_of(learned, classical, self.experiment.reference)

    @property
    def methods(self) -> list[str]:
        """All methods, in the order of the experiment."""
        return [variant.name for variant in self.experiment.variants]

    @property
    def targets(self) -> list[str]:
        """The target domains."""
        return [entry.name for entry in self.experiment.targets]

    @property
    def all_sizes(self) -> tuple[int, ...]:
        """The numbers of target slices, from none."""
        return (UNADAPTED_SIZE, *self.sizes)

    def is_learned(self, method: str) -> bool:
        """Tell whether a method has something to train."""
        return self.experiment.variant(method).is_learned

    def subjects_are(self, domain: str) -> str:
        """Return what counts as a subject in the data of a domain, in words."""
        return self.experiment.domain(domain).subjects_are

    def entry(self, method: str, domain: str, size: int) -> Entry | None:
        """Return the scores of a method on a target; a classical one has the same with every number of slices."""
        return self.entries.get((method, domain, size if self.is_learned(method) else SOURCE))

    def key(self, method: str, domain: str, size: int, draw: int = 0) -> str:
        """Return the key of the run that tested a method on a target."""
        if self.is_learned(method):
            return Run("adapt", method, domain, size, draw).key
        return Run("classical", method, domain).key

    def runs_of(self, method: str, domain: str, size: int) -> list[dict[str, Any]]:
        """Return the adaptations of a method, in the order of their draws."""
        wanted = {"kind": "adapt", "method": method, "domain": domain, "size": size}
        found = [result for result in self.runs.values() if wanted.items() <= result["run"].items()]
        return sorted(found, key=lambda result: int(result["run"]["draw"]))

    def size_words(self, domain: str, size: int) -> str:
        """Say how many target slices there were; where a target has fewer than were asked for, it gave all it has."""
        learned = [entry.n for (_, at, n), entry in self.entries.items() if at == domain and n == size and entry.n]
        return size_words(size, min(learned, default=None))

    def named(self, methods: Iterable[str]) -> str:
        """Return the names of some methods for people, as a list in a sentence."""
        return ", ".join(self.titles[name] for name in methods)

    def examples(self, key: str) -> dict[str, Examples]:
        """Return the examples of a run by domain; none where none were kept."""
        return load_examples(self.folder / "examples" / f"{key}.npz") if key in self.runs else {}


def interval(values: Sequence[float] | Any, subjects: Sequence[str]) -> PairedDifference:
    """Return the mean of scores per slice, with its bootstrap interval by subject: their difference from zero."""
    return paired_difference(values, [0.0] * len(values), subjects)


def interval_words(found: Iterable[PairedDifference], subjects_are: str = SUBJECTS) -> str:
    """Say what the intervals of a figure are."""
    listed = list(found)
    parts = []
    for unit, words in (("subjects", subjects_are), ("slices", "the slices of the only subject")):
        of_unit = [one for one in listed if one.resampled == unit]
        if of_unit:
            parts.append(f"{100 * of_unit[0].confidence:g} % bootstrap interval, resampling {words}")
    return " or ".join(parts) or "without interval: a single slice"


def basis_words(entries: Iterable[Entry], subjects_are: str = SUBJECTS) -> str:
    """Say on how many slices, subjects and draws some scores rest.

    Examples
    --------
    >>> import numpy as np
    >>> entry = Entry(np.ones((2, 3)), np.ones((2, 3)), ("a", "a", "b"), (0, 1))
    >>> basis_words([entry])
    '3 test slices of 2 subjects, up to 2 draws of the target slices'
    >>> basis_words([entry], "slice positions of one volunteer")
    '3 test slices of 2 slice positions of one volunteer, up to 2 draws of the target slices'
    """
    listed = list(entries)
    slices = counted_span([len(entry.subjects) for entry in listed], "test slice")
    subjects = subject_words([len(set(entry.subjects)) for entry in listed], subjects_are)
    draws = max(entry.draws for entry in listed)
    drawn = "1 draw" if draws == 1 else f"up to {draws} draws"
    return f"{slices} of {subjects}, {drawn} of the target slices"


def subject_words(numbers: Sequence[int], subjects_are: str = SUBJECTS) -> str:
    """Say how many subjects there are, in the words of their domain, from the fewest to the most.

    Examples
    --------
    >>> subject_words([1]), subject_words([2, 9], "slice positions of one volunteer")
    ('1 subject', '2 to 9 slice positions of one volunteer')
    """
    if subjects_are == SUBJECTS:
        return counted_span(numbers, "subject")
    return " to ".join(str(n) for n in sorted({min(numbers), max(numbers)})) + f" {subjects_are}"


def measured_words(results: Results, domain: str) -> str:
    """Say on how many slices and subjects of a domain a run measures what is more expensive than the scores."""
    subjects = next(r["results"][domain]["subjects"] for r in results.runs.values() if domain in r["results"])
    chosen = choose_slices(subjects, min(MEASURED_SLICES, len(subjects)))
    of = subject_words([len({subjects[i] for i in chosen})], results.subjects_are(domain))
    return f"{counted(len(chosen), 'slice')} of {of}"


def size_words(size: int, learned: int | None = None) -> str:
    """Say how many target slices there were.

    Parameters
    ----------
    size
        How many were asked for.
    learned
        How many were learned from; None where it is not known.

    Examples
    --------
    >>> size_words(0), size_words(5), size_words(100, 42)
    ('as trained', '5 slices', 'all 42 slices')
    """
    if size == UNADAPTED_SIZE:
        return "as trained"
    return counted(size, "slice") if learned is None or learned >= size else f"all {counted(learned, 'slice')}"
