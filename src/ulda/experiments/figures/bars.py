"""Bars of the quality on each target by the number of target slices, and paired differences, with intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from ulda.evaluation.paired import PairedDifference
from ulda.experiments.figures.results import NothingToDrawError, Results, basis_words, interval, interval_words
from ulda.experiments.figures.style import Look, add_legend, literal, new_figure, panels
from ulda.experiments.runs import UNADAPTED_SIZE
from ulda.experiments.tables import Entry, difference

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METRICS = {"psnr": ("PSNR (dB)", 1.0), "ssim": ("SSIM", 0.05)}
"""The label of an axis, and the steps in which it may begin."""

NEAR = 1.0
"""Differences of so many dB are drawn; larger ones, which the bars show, are written."""

_GAP = 1.0  # between groups, in bars
_WIDTH = 0.9  # of a bar
_ROOM = 0.15  # of the range, below the lowest end of an interval


@dataclass(frozen=True)
class Group:
    """Bars side by side.

    Attributes
    ----------
    words
        What stands below them.
    left
        The place of the first one.
    entries
        The scores by method; None where there are none.
    differences
        By how much the PSNR of the others exceeds that of the method compared with; None where that is not known.
    """

    words: str
    left: float
    entries: dict[str, Entry | None]
    differences: dict[str, PairedDifference | None]

    @property
    def places(self) -> dict[str, float]:
        """The place of each method."""
        return {name: self.left + i for i, name in enumerate(self.entries)}


def draw(results: Results) -> dict[str, Figure]:
    """Draw a figure per target: a group of bars per number of target slices, a bar per method."""
    figures = {}
    for target in results.targets:
        groups = _groups(results, target)
        if groups:
            figures[f"bars-{target}"] = _figure(results, target, groups)
    if not figures:
        raise NothingToDrawError("no method has been tested on a target")
    return figures


def _groups(results: Results, target: str) -> list[Group]:
    """Return the scores to draw: of the methods without training, then of the others with each number of slices.

    A method has the same place in all groups of its kind.
    """
    tested = [name for name in results.methods if any(results.entry(name, target, n) for n in results.all_sizes)]
    classical = [name for name in tested if not results.is_learned(name)]
    learned = [name for name in tested if results.is_learned(name)]
    listed = [
        ("no training", classical, UNADAPTED_SIZE),
        *((results.size_words(target, size), learned, size) for size in results.all_sizes),
    ]
    groups: list[Group] = []
    left, reference = 0.0, results.experiment.reference
    for words, names, size in listed:
        entries = {name: results.entry(name, target, size) for name in names}
        if any(entries.values()):
            differences = {
                name: difference(results.entries, (name, target, size), (reference, target, size))
                for name in names
                if results.is_learned(name) and name != reference
            }
            groups.append(Group(words, left, entries, differences))
            left += len(names) + _GAP
    return groups


def _figure(results: Results, target: str, groups: list[Group]) -> Figure:
    entries = [entry for group in groups for entry in group.entries.values() if entry is not None]
    width = 1.2 + 0.17 * (sum(len(group.entries) for group in groups) + _GAP * len(groups))
    subjects_are = results.subjects_are(target)
    explained = interval_words((_interval(entry, "psnr") for entry in entries), subjects_are)
    figure = new_figure(
        max(5.0, width),
        6.2,
        f"{results.experiment.title}: {target}",
        f"{basis_words(entries, subjects_are)}\nmean and {explained}",
    )
    *axes, lowest = (row[0] for row in panels(figure, len(METRICS) + 1, 1, sharex=True))
    for ax, metric in zip(axes, METRICS, strict=True):
        label, step = METRICS[metric]
        start = _start([_interval(entry, metric) for entry in entries], step)
        _bars(ax, results, groups, metric, start)
        ax.set_ylim(bottom=start)
        ax.set_ylabel(f"{label}, axis from {start:g}")
    _differences(lowest, results, groups)
    for ax in (*axes, lowest):
        ax.set_xticks([group.left + (len(group.entries) - 1) / 2 for group in groups], [g.words for g in groups])
        ax.tick_params(axis="x", length=0)
        ax.grid(axis="x", visible=False)
        ax.margins(x=0.01)
    add_legend(figure, axes)
    return figure


def _interval(entry: Entry, metric: str) -> PairedDifference:
    return interval(getattr(entry, metric).mean(0), entry.subjects)


def _bars(ax: Axes, results: Results, groups: list[Group], metric: str, start: float) -> None:
    """Draw the bars of one metric; a place without a result says so."""
    for group in groups:
        for name, entry in group.entries.items():
            if entry is None:
                _write(ax, group.places[name], start, "no result")
            else:
                one = _interval(entry, metric)
                _bar(ax, group.places[name], one, literal(results.titles[name]), results.looks[name])


def _bar(ax: Axes, left: float, one: PairedDifference, label: str, look: Look) -> None:
    ax.bar(left, one.mean, _WIDTH, label=label, **look.bar())
    # hatches have the colour of the edge; this one is dark on all bars
    ax.bar(left, one.mean, _WIDTH, fill=False, edgecolor="#222222", linewidth=0.5)
    if not math.isnan(one.low):
        # white below black is seen on every colour
        ax.vlines(left, one.low, one.high, color="white", linewidth=3.0, zorder=3)
        ax.vlines(left, one.low, one.high, color="black", linewidth=1.2, zorder=4)


def _differences(ax: Axes, results: Results, groups: list[Group]) -> None:
    """Draw how far the others are from the method compared with, each below its bar."""
    reference = results.experiment.reference
    ax.axhline(0, color=results.looks[reference].colour)
    for group in groups:
        for name, one in group.differences.items():
            left = group.places[name]
            if one is None:
                _write(ax, left, -NEAR, "no result")
            elif one.mean < -NEAR:
                _write(ax, left, -NEAR, f"← {one.mean:.2f}")
            elif one.mean > NEAR:
                _write(ax, left, NEAR, f"{one.mean:.2f} →", end="top")
            else:
                ax.plot(left, one.mean, zorder=4, clip_on=False, **results.looks[name].points())
                ax.vlines(left, one.low, one.high, color=results.looks[name].colour, linewidth=1.2, zorder=3)
    ax.set_ylim(-NEAR, NEAR)
    ax.set_ylabel(f"PSNR minus that of\n{literal(results.titles[reference])}, by slice (dB)")


def _write(ax: Axes, left: float, height: float, text: str, end: Literal["bottom", "top"] = "bottom") -> None:
    """Write upwards in the place of a bar; an end of the text is at a height."""
    ax.text(left, height, f" {text} ", rotation=90, ha="center", va=end, fontsize=6, color="#444444")


def _start(found: list[PairedDifference], step: float) -> float:
    """Return where an axis begins: a round number below all bars, since the differences are small beside zero."""
    lows = [min(one.mean, one.low) if not math.isnan(one.low) else one.mean for one in found]
    highs = [one.mean for one in found]
    room = max(_ROOM * (max(highs) - min(lows)), step / 2)
    return max(0.0, float(np.floor((min(lows) - room) / step) * step))
