"""Draws figures, and reads them."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from ulda.experiments.figures import KINDS, Results
from ulda.experiments.figures.style import styled
from ulda.experiments.running import Runner
from ulda.experiments.runs import read_runs


def results_of(one: Runner, **changes: Any) -> Results:
    """Return what has been run, with changes of the experiment."""
    experiment = one.experiment.model_copy(update=changes)
    return Results(experiment, one.data.scale.sizes, one.folder, read_runs(one.runs_folder))


def drawn(results: Results, kind: str, stem: str) -> list[Axes]:
    """Return the panels of a figure."""
    with styled():
        return KINDS[kind](results)[stem].axes


def line_of(ax: Axes, label: str) -> tuple[list[float], list[float]]:
    """Return the points of the line with a label."""
    (line,) = [line for line in ax.get_lines() if line.get_label() == label]
    return list(np.asarray(line.get_xdata())), list(np.asarray(line.get_ydata()))


def vertical_lines(ax: Axes) -> list[tuple[float, float]]:
    """Return the ends of the intervals of a plot."""
    found = [c.get_segments()[0][:, 1] for c in ax.collections if isinstance(c, LineCollection)]
    return [(float(low), float(high)) for low, high in found]


def title_of(ax: Axes) -> str:
    """Return the words above a figure; their lines may be broken anywhere."""
    return " ".join(cast(Any, ax.figure).get_suptitle().split())


def by_subject(values: Any, subjects: list[str]) -> tuple[float, float]:
    """Bootstrap subjects the plain way, one resample after the other."""
    generator, names = np.random.default_rng(1), sorted(set(subjects))
    places = [np.flatnonzero([subject == name for subject in subjects]) for name in names]
    means = [
        np.mean(np.concatenate([values[places[i]] for i in generator.integers(len(names), size=len(names))]))
        for _ in range(4000)
    ]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def scores(psnr: list[float], subjects: list[str]) -> dict[str, Any]:
    """Return the scores of a domain in a result, the SSIM in proportion to the PSNR."""
    return {"psnr": psnr, "ssim": [value / 40 for value in psnr], "subjects": subjects}
