"""The objective and the norm of its gradient along the iterations of the solver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ulda.evaluation.paired import counted
from ulda.experiments.examples import Examples
from ulda.experiments.figures.results import NothingToDrawError, Results, subject_words
from ulda.experiments.figures.style import COLOURS, DASHES, add_legend, literal, log_axis, new_figure, panels
from ulda.solvers.batch import LINE_SEARCH

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROW = 0.03  # of the height of a panel: a row of ticks


def draw(results: Results) -> dict[str, Figure]:
    """Draw a figure per target, of the method that the others are compared with, adapted to the most slices."""
    figures = {}
    method = results.experiment.reference
    for target in results.targets:
        for size in reversed(results.all_sizes):
            key = results.key(method, target, size)
            found = results.examples(key).get(target)
            if found is not None and found.trace:
                subjects = results.runs[key]["results"][target]["subjects"]
                figures[f"convergence-{target}"] = _figure(results, target, size, found, subjects)
                break
    if not figures:
        raise NothingToDrawError(f"no example reconstruction of {results.titles[method]} has a record of its solver")
    return figures


def _figure(results: Results, target: str, size: int, examples: Examples, subjects: list[str]) -> Figure:
    n_pixels = examples.reference[0].size
    n_subjects = len({subjects[i] for i in examples.indices})
    title = results.titles[results.experiment.reference]
    searched = examples.trace["branch"] == LINE_SEARCH
    figure = new_figure(
        7.0,
        3.5,
        f"{title} along its iterations: {target}, {results.size_words(target, size)}",
        f"{counted(len(examples.indices), 'example slice')} of "
        f"{subject_words([n_subjects], results.subjects_are(target))}; "
        f"iteration 0: zero-filling; dotted line: T = {examples.phases}\n"
        f"objective φ with smoothing ε on N = {n_pixels} pixels: no step may raise φ + N ε / 2\n"
        "ticks above the gradients: the line search stepped",
    )
    ((left, right),) = panels(figure, 1, 2)
    # phi alone jumps where its smoothing changes
    bounded = examples.trace["phi"] + n_pixels * examples.trace["eps"] / 2
    for number, index in enumerate(examples.indices):
        look = {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}
        label = literal(f"slice {index} of {subjects[index]}")
        iterations = np.arange(len(bounded))
        left.plot(iterations, bounded[:, number], label=label, **look)
        right.plot(iterations, examples.trace["grad_norm"][:, number], label=label, **look)
        # a row of ticks for each slice, from the upper edge of the panel on
        height = 1.0 - _ROW * np.array([number, number + 0.8])
        for at in iterations[searched[:, number]]:
            right.plot([at, at], height, color=look["color"], linewidth=0.9, transform=right.get_xaxis_transform())
    for ax, values in ((left, bounded), (right, examples.trace["grad_norm"])):
        log_axis(ax, "y", values[np.isfinite(values)].tolist())
        ax.axvline(examples.phases, color="#444444", linestyle=":", linewidth=0.9)
        ax.set_xlabel("iteration")
    left.set_ylabel("φ + N ε / 2")
    right.set_ylabel("norm of the gradient of φ")
    add_legend(figure, [left, right])
    return figure
