"""The tables of an experiment, from the files of its runs alone."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ulda.errors import UldaError
from ulda.evaluation.paired import PairedDifference, paired_difference
from ulda.experiments.definition import Experiment
from ulda.experiments.runs import UNADAPTED_SIZE

Format = Literal["md", "tex", "csv"]
Score = Literal["psnr", "ssim"]


@dataclass(frozen=True)
class Entry:
    """The scores of a method on a domain with a number of target slices.

    Attributes
    ----------
    psnr, ssim
        Per draw and slice, ``(draws, slices)``.
    subjects
        The subject of each slice.
    drawn
        Which draws of the target slices these are.
    n
        How many slices were learned from; None where the run does not say.
    basis
        Fingerprints of the test slices and the mask, and the convention of the scores, as far as the run has them.
    """

    psnr: np.ndarray[Any, np.dtype[np.float64]]
    ssim: np.ndarray[Any, np.dtype[np.float64]]
    subjects: tuple[str, ...]
    drawn: tuple[int, ...]
    n: int | None = None
    basis: tuple[str, ...] = ()

    @property
    def draws(self) -> int:
        """How many draws there are."""
        return len(self.psnr)

    def mean_over(self, draws: Sequence[int], score: Score) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the score of each slice, the mean over some of the draws."""
        values: np.ndarray[Any, np.dtype[np.float64]] = getattr(self, score)
        return values[[self.drawn.index(draw) for draw in draws]].mean(0)

    def text(self) -> str:
        """Return the means, with the standard deviation over the draws where there are several."""
        psnr, ssim = self.psnr.mean(1), self.ssim.mean(1)
        if not (np.isfinite(psnr).all() and np.isfinite(ssim).all()):
            return "not finite"
        if self.draws == 1:
            return f"{psnr.mean():.2f} / {ssim.mean():.3f}"
        return f"{psnr.mean():.2f} ± {psnr.std(ddof=1):.2f} / {ssim.mean():.3f} ± {ssim.std(ddof=1):.3f}"


Key = tuple[str, str, int]
"""Method, domain and number of target slices; -1 for a source."""

SOURCE = -1
PAPER = -2
"""In place of a number of target slices: what the paper prints, which has more of them and other data."""


def collect(runs: dict[str, dict[str, Any]]) -> dict[Key, Entry]:
    """Gather the scores of all runs, draws together."""
    found: dict[Key, list[dict[str, Any]]] = {}
    for result in runs.values():
        run = result["run"]
        for domain, scores in result["results"].items():
            size = run["size"] if run["kind"] == "adapt" else SOURCE
            found.setdefault((run["method"], domain, size), []).append(scores | {"draw": run["draw"]})
    return {key: _entry(key, draws) for key, draws in found.items()}


def _entry(key: Key, draws: Sequence[Mapping[str, Any]]) -> Entry:
    tested_on = {(tuple(scores["subjects"]), basis_of(scores)) for scores in draws}
    if len(tested_on) > 1:
        raise UldaError(
            f"the draws of {key[0]} on {key[1]} with {key[2]} slices were tested on different slices or with different "
            "masks; remove the older ones from the folder of the runs, and run the experiment again"
        )
    ((subjects, basis),) = tested_on
    psnr, ssim = (np.array([scores[name] for scores in draws], float) for name in ("psnr", "ssim"))
    return Entry(psnr, ssim, subjects, tuple(scores["draw"] for scores in draws), draws[0].get("n"), basis)


def basis_of(scores: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what scores must have in common to be compared, beside the subjects of their slices."""
    return tuple(str(scores.get(name, "")) for name in ("data", "mask", "convention"))


def difference(entries: dict[Key, Entry], first: Key, second: Key, score: Score = "psnr") -> PairedDifference | None:
    """Compare two entries slice by slice, draws averaged.

    None where one is missing or not finite, and where they were tested on different slices or with different masks.
    With as many target slices both count by the draws that they have in common: they have learned from the same slices.
    """
    if first not in entries or second not in entries:
        return None
    a, b = entries[first], entries[second]
    ours, theirs = a.drawn, b.drawn
    if first[-1] == second[-1]:
        ours = theirs = tuple(draw for draw in a.drawn if draw in b.drawn)
    if not ours or (a.subjects, a.basis) != (b.subjects, b.basis):
        return None
    scores = a.mean_over(ours, score), b.mean_over(theirs, score)
    return paired_difference(*scores, a.subjects) if np.isfinite(scores).all() else None


def rows_of(
    experiment: Experiment, runs: dict[str, dict[str, Any]], sizes: Sequence[int], domains: Sequence[str] = ()
) -> list[list[str]]:
    """Return the table: a row per method, and for each domain and size the scores and the difference from ours.

    Parameters
    ----------
    experiment
        What was run.
    runs
        The results by their keys.
    sizes
        The numbers of target slices.
    domains
        Only the columns of these domains; all if empty.
    """
    for name in domains:
        experiment.domain(name)
    entries, titles = collect(runs), experiment.titles
    columns = [
        (source.name, size)
        for source in experiment.sources
        for size in (SOURCE, *([PAPER] if _is_in(experiment.paper_sources, source.name) else []))
    ]
    columns += [
        (target.name, size)
        for target in experiment.targets
        for size in (UNADAPTED_SIZE, *sizes, *([PAPER] if _is_in(experiment.paper, target.name) else []))
    ]
    columns = [column for column in columns if not domains or column[0] in domains]
    rows = [["method", *(_heading(*column, entries) for column in columns)]]
    sources = {source.name for source in experiment.sources}
    for variant in experiment.variants:
        row = [titles[variant.name]]
        for domain, size in columns:
            key = (variant.name, domain, size if variant.is_learned else SOURCE)
            entry = entries.get(key)
            if size == PAPER:
                printed = experiment.paper_sources if domain in sources else experiment.paper
                row.append(_printed(printed.get(variant.name, {}).get(domain)))
            else:
                row.append("" if entry is None else entry.text() + _against(entries, experiment, key, size))
        rows.append(row)
    return rows


RECORD = (
    "method",
    "domain",
    "role",
    "slices",
    "learned_from",
    "draws",
    "tested",
    "subjects",
    "psnr",
    "psnr_std",
    "ssim",
    "ssim_std",
    "psnr_difference",
    "psnr_low",
    "psnr_high",
    "ssim_difference",
    "ssim_low",
    "ssim_high",
)
"""The columns of `records_of`."""


def records_of(experiment: Experiment, runs: dict[str, dict[str, Any]], domains: Sequence[str] = ()) -> list[list[str]]:
    """Return the scores as data: a row per method, domain and number of target slices, below a row of headings.

    Standard deviations are over the draws of the target slices; the differences are those from ours, slice by slice,
    with their intervals. What does not exist is empty. A method without training has the same scores for every number
    of slices of a target, and a row for each that ours has.
    """
    for name in domains:
        experiment.domain(name)
    entries, titles = collect(runs), experiment.titles
    sources = {entry.name for entry in experiment.sources}
    sizes = {
        name: sorted(size for method, domain, size in entries if (method, domain) == (experiment.reference, name))
        for name in {domain for _, domain, _ in entries}
    }
    rows = [list(RECORD)]
    for variant in experiment.variants:
        for (method, domain, learned_size), entry in sorted(entries.items()):
            if method != variant.name or (domains and domain not in domains):
                continue
            for size in [learned_size] if variant.is_learned else sizes[domain] or [SOURCE]:
                compared = (method, domain, learned_size), (experiment.reference, domain, size)
                found = [
                    None if method == experiment.reference else difference(entries, *compared, score)
                    for score in ("psnr", "ssim")
                ]
                psnr, ssim = entry.psnr.mean(1), entry.ssim.mean(1)
                spread = [f"{score.std(ddof=1):.4f}" if entry.draws > 1 else "" for score in (psnr, ssim)]
                rows.append(
                    [
                        titles[method],
                        domain,
                        "source" if domain in sources else "target",
                        str(size) if size >= UNADAPTED_SIZE else "",
                        "" if entry.n is None else str(entry.n),
                        str(entry.draws) if variant.is_learned and size > UNADAPTED_SIZE else "",
                        str(len(entry.subjects)),
                        str(len(set(entry.subjects))),
                        f"{psnr.mean():.4f}",
                        spread[0],
                        f"{ssim.mean():.4f}",
                        spread[1],
                        *(value for one in found for value in _numbers(one)),
                    ]
                )
    return rows


def _numbers(found: PairedDifference | None) -> list[str]:
    return ["", "", ""] if found is None else [f"{value:.4f}" for value in (found.mean, found.low, found.high)]


def _is_in(paper: Mapping[str, Mapping[str, object]], domain: str) -> bool:
    return any(domain in printed for printed in paper.values())


def _heading(domain: str, size: int, entries: dict[Key, Entry]) -> str:
    if size == SOURCE:
        return f"{domain} (source)"
    if size == PAPER:
        return f"{domain}, the paper"
    if size == UNADAPTED_SIZE:
        return f"{domain}, as trained"
    return f"{domain}, {slices_in_words(domain, size, entries)}"


def slices_in_words(domain: str, size: int, entries: dict[Key, Entry]) -> str:
    """Say how many target slices were learned from: where there are fewer than asked for, it is all of them."""
    found = {entry.n for (_, name, other), entry in entries.items() if (name, other) == (domain, size)} - {None}
    fewer = [n for n in found if n is not None and n < size]
    return f"all {fewer[0]} slices" if fewer else f"{size} slices"


def _against(entries: dict[Key, Entry], experiment: Experiment, key: Key, size: int) -> str:
    """Return the difference from the reference in words, where there is one to compare with."""
    if key[0] == experiment.reference:
        return ""
    found = difference(entries, key, (experiment.reference, key[1], size))
    return "" if found is None else f" ({found.mean:+.2f} [{found.low:.2f}, {found.high:.2f}])"


def _printed(values: tuple[float, float] | None) -> str:
    return "" if values is None else f"{values[0]:.2f} / {values[1] / 100:.3f}"


def formatted(rows: list[list[str]], style: Format) -> str:
    """Return a table as Markdown, LaTeX or CSV.

    Examples
    --------
    >>> print(formatted([["method", "brain"], ["U-LDA", "27.1 / 0.840"]], "md"))
    | method | brain |
    |---|---|
    | U-LDA | 27.1 / 0.840 |
    """
    if style == "md":
        lines = ["| " + " | ".join(text.replace("|", r"\|") for text in row) + " |" for row in rows]
        return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
    if style == "csv":
        stream = io.StringIO()
        csv.writer(stream, lineterminator="\n").writerows(rows)
        return stream.getvalue().rstrip("\n")
    lines = [" & ".join(_tex(text) for text in row) + r" \\" for row in rows]
    head = [r"\begin{tabular}{l" + "c" * (len(rows[0]) - 1) + "}", r"\hline", lines[0], r"\hline"]
    return "\n".join([*head, *lines[1:], r"\hline", r"\end{tabular}"])


_TEX = {symbol: rf"\{symbol}" for symbol in "&%_#${}"}
_TEX |= {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "±": r"$\pm$"}

_MINUS = re.compile(r"(?<!\w)-(?=\d)")
"""The sign of a negative number, which is no hyphen."""


def _tex(text: str) -> str:
    return _MINUS.sub("$-$", "".join(_TEX.get(letter, letter) for letter in text))
