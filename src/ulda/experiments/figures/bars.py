"""Bars of the quality on each target by the number of target slices, with intervals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ulda.evaluation.paired import PairedDifference
from ulda.experiments.figures.results import (
    NothingToDrawError,
    Results,
    basis_words,
    interval,
    interval_words,
    size_words,
)
from ulda.experiments.figures.style import add_legend, literal, new_figure, panels
from ulda.experiments.tables import Entry

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METRICS = {"psnr": ("PSNR (dB)", 1.0), "ssim": ("SSIM", 0.05)}
"""The label of an axis, and the steps in which it may begin."""

_GAP = 1.0  # between groups, in bars
_ROOM = 0.15  # of the range, below the lowest end of an interval

Group = tuple[str, list[tuple[str, Entry]]]


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
    """Return the scores to draw by what stands below them: methods without training, then each number of slices."""
    classical = [name for name in results.methods if not results.is_learned(name)]
    learned = [name for name in results.methods if results.is_learned(name)]
    listed = [("no training", classical, 0), *((size_words(size), learned, size) for size in results.all_sizes)]
    found = [
        (words, [(name, entry) for name in names if (entry := results.entry(name, target, size)) is not None])
        for words, names, size in listed
    ]
    return [(words, entries) for words, entries in found if entries]


def _figure(results: Results, target: str, groups: list[Group]) -> Figure:
    entries = [entry for _, listed in groups for _, entry in listed]
    width = 2.2 + 0.17 * (len(entries) + _GAP * len(groups))
    found = {
        metric: [
            [interval(getattr(entry, metric).mean(0), entry.subjects) for _, entry in listed] for _, listed in groups
        ]
        for metric in METRICS
    }
    words = interval_words(one for listed in found["psnr"] for one in listed)
    figure = new_figure(
        max(5.0, width),
        4.6,
        f"{results.experiment.title}: {target} by the number of target slices",
        f"{basis_words(entries)}\nbar: mean; line: {words}",
    )
    axes = [row[0] for row in panels(figure, len(METRICS), 1, sharex=True)]
    for ax, metric in zip(axes, METRICS, strict=True):
        _bars(ax, results, groups, found[metric])
        label, step = METRICS[metric]
        start = _start([one for listed in found[metric] for one in listed], step)
        ax.set_ylim(bottom=start)
        ax.set_ylabel(f"{label}, axis from {start:g}")
        ax.grid(axis="x", visible=False)
    add_legend(figure, axes)
    return figure


def _bars(ax: Axes, results: Results, groups: list[Group], found: list[list[PairedDifference]]) -> None:
    left, middles = 0.0, []
    for (_, listed), intervals in zip(groups, found, strict=True):
        for (name, _), one in zip(listed, intervals, strict=True):
            ax.bar(left, one.mean, 0.9, label=literal(results.titles[name]), **results.looks[name].bar())
            if not math.isnan(one.low):
                # white below black is seen on every colour
                ax.vlines(left, one.low, one.high, color="white", linewidth=2.4, zorder=3)
                ax.vlines(left, one.low, one.high, color="black", linewidth=1.0, zorder=4)
            left += 1
        middles.append(left - (len(listed) + 1) / 2)
        left += _GAP
    ax.set_xticks(middles, [words for words, _ in groups])
    ax.tick_params(axis="x", length=0)


def _start(found: list[PairedDifference], step: float) -> float:
    """Return where an axis begins: a round number below all bars, since the differences are small beside zero."""
    lows = [min(one.mean, one.low) if not math.isnan(one.low) else one.mean for one in found]
    highs = [one.mean for one in found]
    room = max(_ROOM * (max(highs) - min(lows)), step / 2)
    return max(0.0, float(np.floor((min(lows) - room) / step) * step))
