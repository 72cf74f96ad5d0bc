"""Bars of the quality on each target by the number of target slices, with intervals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ulda.evaluation.paired import PairedDifference
from ulda.experiments.cells import UNADAPTED_SIZE
from ulda.experiments.figures.results import NothingToDrawError, Results, basis_words, interval, interval_words
from ulda.experiments.figures.style import Look, add_legend, literal, new_figure, panels
from ulda.experiments.tables import Entry

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METRICS = {"psnr": ("PSNR (dB)", 1.0), "ssim": ("SSIM", 0.05)}
"""The label of an axis, and the steps in which it may begin."""

_GAP = 1.0  # between groups, in bars
_WIDTH = 0.9  # of a bar
_ROOM = 0.15  # of the range, below the lowest end of an interval

Group = tuple[str, dict[str, Entry | None]]
"""What stands below a group, and the scores in it by method; None where there are none."""


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
    found = [(words, {name: results.entry(name, target, size) for name in names}) for words, names, size in listed]
    return [(words, by_method) for words, by_method in found if any(by_method.values())]


def _figure(results: Results, target: str, groups: list[Group]) -> Figure:
    entries = [entry for _, by_method in groups for entry in by_method.values() if entry is not None]
    width = 1.2 + 0.17 * (sum(len(by_method) for _, by_method in groups) + _GAP * len(groups))
    found = {
        metric: [{name: _interval(entry, metric) for name, entry in by_method.items()} for _, by_method in groups]
        for metric in METRICS
    }
    explained = interval_words(one for listed in found["psnr"] for one in listed.values() if one is not None)
    figure = new_figure(
        max(5.0, width),
        4.6,
        f"{results.experiment.title}: {target} by the number of target slices",
        f"{basis_words(entries)}\nbar: mean; line: {explained}",
    )
    axes = [row[0] for row in panels(figure, len(METRICS), 1, sharex=True)]
    for ax, metric in zip(axes, METRICS, strict=True):
        label, step = METRICS[metric]
        start = _start([one for listed in found[metric] for one in listed.values() if one is not None], step)
        middles = _bars(ax, results, found[metric], start)
        ax.set_xticks(middles, [words for words, _ in groups])
        ax.tick_params(axis="x", length=0)
        ax.set_ylim(bottom=start)
        ax.set_ylabel(f"{label}, axis from {start:g}")
        ax.grid(axis="x", visible=False)
        ax.margins(x=0.01)
    add_legend(figure, axes)
    return figure


def _interval(entry: Entry | None, metric: str) -> PairedDifference | None:
    return None if entry is None else interval(getattr(entry, metric).mean(0), entry.subjects)


def _bars(ax: Axes, results: Results, groups: list[dict[str, PairedDifference | None]], start: float) -> list[float]:
    """Draw the bars of one metric and return the middles of their groups; a place without a result says so."""
    left, middles = 0.0, []
    for group in groups:
        for name, one in group.items():
            if one is None:
                ax.text(left, start, " no result", rotation=90, ha="center", va="bottom", fontsize=6, color="#666666")
            else:
                _bar(ax, left, one, literal(results.titles[name]), results.looks[name])
            left += 1
        middles.append(left - (len(group) + 1) / 2)
        left += _GAP
    return middles


def _bar(ax: Axes, left: float, one: PairedDifference, label: str, look: Look) -> None:
    ax.bar(left, one.mean, _WIDTH, label=label, **look.bar())
    # hatches have the colour of the edge; this one is dark on all bars
    ax.bar(left, one.mean, _WIDTH, fill=False, edgecolor="#222222", linewidth=0.5)
    if not math.isnan(one.low):
        # white below black is seen on every colour
        ax.vlines(left, one.low, one.high, color="white", linewidth=3.0, zorder=3)
        ax.vlines(left, one.low, one.high, color="black", linewidth=1.2, zorder=4)


def _start(found: list[PairedDifference], step: float) -> float:
    """Return where an axis begins: a round number below all bars, since the differences are small beside zero."""
    lows = [min(one.mean, one.low) if not math.isnan(one.low) else one.mean for one in found]
    highs = [one.mean for one in found]
    room = max(_ROOM * (max(highs) - min(lows)), step / 2)
    return max(0.0, float(np.floor((min(lows) - room) / step) * step))
