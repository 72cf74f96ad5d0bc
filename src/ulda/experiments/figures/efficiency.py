"""Quality against the number of parameters, the time of training and the time of a reconstruction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ulda.evaluation.paired import PairedDifference
from ulda.experiments.figures.results import NothingToDrawError, Results, basis_words, interval, interval_words
from ulda.experiments.figures.style import add_legend, literal, log_axis, new_figure, panels
from ulda.experiments.runs import UNADAPTED_SIZE, Run, cost_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Point:
    """A method on a target.

    Attributes
    ----------
    method
        The method.
    quality
        The mean PSNR and its interval.
    n_parameters
        How many parameters reconstruct the target.
    minutes
        The time of its training and its adaptation, the mean over the draws.
    milliseconds
        The time per slice, the mean over the draws.
    """

    method: str
    quality: PairedDifference
    n_parameters: int
    minutes: float
    milliseconds: float


COSTS = {
    "n_parameters": "parameters for the target",
    "minutes": "training and adaptation (min)",
    "milliseconds": "time per slice (ms)",
}
"""The columns of a figure: an attribute of its points, and the label of the axis."""


def draw(results: Results) -> dict[str, Figure]:
    """Draw a figure per target: a row per number of target slices, a point per method."""
    figures = {}
    for target in results.targets:
        rows = {size: points(results, target, size) for size in results.sizes}
        rows = {size: found for size, found in rows.items() if found}
        if rows:
            figures[f"efficiency-{target}"] = _figure(results, target, rows)
    if not figures:
        raise NothingToDrawError("no method has been trained and adapted to a target")
    return figures


def points(results: Results, target: str, size: int) -> list[Point]:
    """Return where the learned methods stand."""
    found = []
    for method in results.methods:
        training = results.runs.get(Run("train", method).key)
        adaptations = results.runs_of(method, target, size)
        if training is None or not adaptations or size == UNADAPTED_SIZE:
            continue
        entry = results.entries[(method, target, size)]
        seconds = cost_of(training) + np.mean([cost_of(run) for run in adaptations])
        quality = interval(entry.psnr.mean(0), entry.subjects)
        per_slice = np.mean([run["results"][target]["seconds_per_slice"] for run in adaptations])
        n_parameters = int(adaptations[0]["n_domain"])
        found.append(Point(method, quality, n_parameters, float(seconds) / 60, 1000 * float(per_slice)))
    return found


def _figure(results: Results, target: str, rows: dict[int, list[Point]]) -> Figure:
    everything = [point for found in rows.values() for point in found]
    entries = [results.entries[(point.method, target, size)] for size, found in rows.items() for point in found]
    subjects_are = results.subjects_are(target)
    figure = new_figure(
        9.0,
        1.5 + 1.9 * len(rows),
        f"{results.experiment.title}: {target}, what the quality costs",
        f"{basis_words(entries, subjects_are)}\n"
        f"mean and {interval_words((point.quality for point in everything), subjects_are)}",
    )
    grid = panels(figure, len(rows), len(COSTS), sharex="col", sharey="row")
    for row, (size, found) in zip(grid, rows.items(), strict=True):
        for ax, cost in zip(row, COSTS, strict=True):
            for point in found:
                at = getattr(point, cost)
                ax.plot(
                    [at],
                    [point.quality.mean],
                    label=literal(results.titles[point.method]),
                    zorder=3,
                    **results.looks[point.method].points() | {"markersize": 7, "linestyle": "none"},
                )
                if not math.isnan(point.quality.low):
                    ax.vlines(
                        at,
                        point.quality.low,
                        point.quality.high,
                        color=results.looks[point.method].colour,
                        linewidth=1.0,
                    )
            log_axis(ax, "x", [getattr(point, cost) for point in everything])
        row[0].set_ylabel(f"{results.size_words(target, size)}: PSNR (dB)")
    for ax, label in zip(grid[-1], COSTS.values(), strict=True):
        ax.set_xlabel(label)
    add_legend(figure, [ax for row in grid for ax in row])
    return figure
