"""Which results of an experiment a report shows: one domain, one number of target slices, one draw, all methods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulda.errors import UldaError
from ulda.evaluation.paired import counted
from ulda.evaluation.report.content import METRICS
from ulda.experiments.definition import Experiment
from ulda.experiments.tables import basis_of

AS_TRAINED = 0
_REFERENCE = "ulda"


@dataclass(frozen=True)
class Tested:
    """A method on the test slices of a domain, as one run found it.

    Attributes
    ----------
    key, kind, method, size, draw
        Those of the run; see `ulda.experiments.runs`.
    domain
        The domain it was tested on.
    title
        The method for people.
    side
        Pixels of a side; 0 where it is not said.
    subjects
        The subject of each slice.
    scores
        Scores of each slice ``(n,)`` by metric.
    facts
        What else the run says of this test.
    result
        All that the run says.
    """

    key: str
    kind: str
    method: str
    size: int
    draw: int
    domain: str
    title: str
    side: int
    subjects: tuple[str, ...]
    scores: Mapping[str, NDArray[np.float64]]
    facts: Mapping[str, Any]
    result: Mapping[str, Any]

    @property
    def basis(self) -> tuple[Any, ...]:
        """What must agree for two methods to be compared: the slices, the mask and the meaning of the scores."""
        return (self.subjects, *basis_of(self.facts))


@dataclass(frozen=True)
class Choice:
    """What is compared.

    Attributes
    ----------
    domain
        The domain.
    size
        The number of target slices; None on a source, and for classical methods alone.
    tested
        The methods, in their order; the slices, the mask and the meaning of the scores are the same for all.
    judged
        The title of the method that the others are compared with; empty for none.
    notes
        What is left out, each in a sentence.
    """

    domain: str
    size: int | None
    tested: tuple[Tested, ...]
    judged: str
    notes: tuple[str, ...]

    @property
    def words(self) -> str:
        """How the methods learned the domain, in words: empty on a source; all slices where there are not so many."""
        if self.size is None:
            return ""
        learned_from = [one.facts["n"] for one in self.tested if isinstance(one.facts.get("n"), int)]
        fewer = [n for n in learned_from if 0 < n < self.size]
        return f"adapted with all {counted(fewer[0], 'slice')}" if fewer else size_words(self.size)


def tests_in(runs: Mapping[str, Any], place: str) -> list[Tested]:
    """Return the tests of all runs; `place` is what to call the file or folder in a message."""
    found = []
    for key, result in runs.items():
        try:
            found += [_tested(key, result, domain, facts) for domain, facts in result["results"].items()]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            detail = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise UldaError(f"{key} in {place} is not the result of a run of an experiment ({detail})") from error
    names: dict[str, set[str]] = {}
    for one in found:
        names.setdefault(one.title, set()).add(one.method)
    # two methods with one title need their names
    return [one if len(names[one.title]) == 1 else replace(one, title=f"{one.title} ({one.method})") for one in found]


def _tested(key: str, result: Mapping[str, Any], domain: str, facts: Mapping[str, Any]) -> Tested:
    run = result["run"]
    subjects = tuple(map(str, facts["subjects"]))
    scores = {metric.key: np.array(facts[metric.key], np.float64) for metric in METRICS if metric.key in facts}
    if not scores or any(values.shape != (len(subjects),) for values in scores.values()):
        raise ValueError(f"there is not one score for each of {counted(len(subjects), 'slice')}")
    kind, method = str(run["kind"]), str(run["method"])
    parts = {name: dict(result.get(name, {})) for name in ("variant", "scale", "recipe", "software", "spent")}
    return Tested(
        key=key,
        kind=kind,
        method=method,
        size=int(run["size"]),
        draw=int(run["draw"]),
        domain=domain,
        title=str(result["title"]),
        side=int(parts["scale"].get("side", 0)),
        subjects=subjects,
        scores=scores,
        facts=facts,
        result={**result, **parts},
    )


def choose(
    tests: Sequence[Tested], definitions: Sequence[Experiment], domain: str | None, slices: int | None, place: str
) -> Choice:
    """Choose what is compared.

    Parameters
    ----------
    tests
        All that there is.
    definitions
        The experiments they are of, as far as they are known: they say the order, and whom the others are compared
        with.
    domain, slices
        What to show; None for the first target, and for the fewest target slices that most methods have.
    place
        What to call the file or folder in a message.
    """
    targets, sources = _domains(tests, definitions)
    known = [*targets, *sources]
    if domain is None:
        domain = known[0]
    if domain not in known:
        raise UldaError(f"{place} has no results on {domain!r}; it has them on: {', '.join(known)}")
    here = [one for one in tests if one.domain == domain]
    sizes = _sizes(here)
    size = _size(sizes, domain, slices)
    wanted = [one for one in here if one.kind != "adapt" or one.size == size]
    draws = Counter(one.draw for one in wanted if one.kind == "adapt")
    draw = min(draws, key=lambda draw: (-draws[draw], draw), default=0)
    order = [variant.name for experiment in definitions for variant in experiment.variants]
    drawn = sorted(
        (one for one in wanted if one.kind != "adapt" or one.draw == draw), key=lambda one: _rank(one.method, order)
    )
    references = [*(experiment.reference for experiment in definitions), _REFERENCE]
    judged = next((one for name in references for one in drawn if one.method == name), None)
    bases = Counter(one.basis for one in drawn)
    basis = judged.basis if judged else max(bases, key=lambda basis: bases[basis])
    compared = tuple(one for one in drawn if one.basis == basis)
    notes = _notes_on_draws(wanted, draw)
    others = [one.title for one in drawn if one.basis != basis]
    if others:
        notes.append(f"left out, since tested on other slices or with another mask: {', '.join(others)}")
    elsewhere = {one.title for one in tests if one.kind != "classical"} - {one.title for one in wanted}
    if elsewhere and size is not None:
        notes.append(f"without a result on {domain}, {size_words(size)}: {', '.join(sorted(elsewhere))}")
    return Choice(domain, size, compared, judged.title if judged else "", tuple(notes))


def _domains(tests: Sequence[Tested], definitions: Sequence[Experiment]) -> tuple[list[str], list[str]]:
    """Return the targets and the sources that there are results on, in the order of the experiments."""
    defined = [entry.name for experiment in definitions for entry in experiment.targets]
    order = [*defined, *(entry.name for experiment in definitions for entry in experiment.sources)]
    adapted_to = {one.domain for one in tests if one.kind == "adapt"}
    names = sorted({one.domain for one in tests}, key=lambda name: _rank(name, order))
    targets = [name for name in names if name in adapted_to or name in defined]
    return targets, [name for name in names if name not in targets]


def _sizes(tests: Iterable[Tested]) -> dict[int, set[str]]:
    """Return the numbers of target slices, from none, and which methods have results with each."""
    found: dict[int, set[str]] = {}
    for one in sorted((one for one in tests if one.kind == "adapt"), key=lambda one: one.size):
        found.setdefault(one.size, set()).add(one.method)
    return found


def _size(sizes: Mapping[int, set[str]], domain: str, slices: int | None) -> int | None:
    if slices is None:
        adapted = {size: methods for size, methods in sizes.items() if size != AS_TRAINED}
        n_methods = len(set[str]().union(*sizes.values()))
        of_most = [size for size, methods in adapted.items() if 2 * len(methods) > n_methods]
        if of_most or not adapted:
            return min(of_most or sizes, default=None)
        return min(adapted, key=lambda size: (-len(adapted[size]), size))
    if not sizes:
        raise UldaError(f"nothing was adapted to {domain}, so there is no number of slices to choose")
    if slices not in sizes:
        known = ", ".join(f"{size} ({size_words(size)})" if size == AS_TRAINED else str(size) for size in sizes)
        raise UldaError(f"there is no result on {domain} with {counted(slices, 'target slice')}; there are: {known}")
    return slices


def _rank(name: str, order: Sequence[str]) -> tuple[int, str]:
    """Return what sorts as `order` does, and behind that by name."""
    return (order.index(name) if name in order else len(order), name)


def _notes_on_draws(wanted: Sequence[Tested], draw: int) -> list[str]:
    draws: dict[str, set[int]] = {}
    for one in wanted:
        if one.kind == "adapt":
            draws.setdefault(one.title, set()).add(one.draw)
    notes = []
    several = [title for title, found in draws.items() if len(found) > 1]
    if several:
        n_draws = len(set[int]().union(*draws.values()))
        notes.append(
            f"all is of draw {draw + 1} of {n_draws} of the target slices, and ± is over test slices; ulda experiment "
            f"table has the means over the draws, where ± is over draws: there are several of {listed(several)}"
        )
    missing = [title for title, found in draws.items() if draw not in found]
    if missing:
        notes.append(f"left out, since without a result of draw {draw + 1}: {', '.join(missing)}")
    return notes


def size_words(size: int) -> str:
    """Say how many target slices the methods had.

    Examples
    --------
    >>> size_words(0), size_words(5)
    ('as trained', 'adapted with 5 slices')
    """
    return "as trained" if size == AS_TRAINED else f"adapted with {counted(size, 'slice')}"


def listed(names: Sequence[str]) -> str:
    """Return names as a list in a sentence.

    Examples
    --------
    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
