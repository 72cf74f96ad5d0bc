"""Learning curves: validations along the trainings and adaptations, from their logs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ulda.errors import UldaError
from ulda.evaluation.histories import History, validation_curves
from ulda.evaluation.paired import counted
from ulda.experiments.figures.results import NothingToDrawError, Results
from ulda.experiments.figures.style import add_legend, literal, new_figure, panels

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

LOG = "log.csv"
_LETTERS = 36  # in a line above a panel
_BAND = 0.2  # the opacity of the range of the draws
Panel = tuple[str, list[tuple[str, History]]]
"""What a panel shows, and the curves in it by method; one method has one per draw."""


def draw(results: Results) -> dict[str, Figure]:
    """Draw the trainings, a panel per source, and the adaptations, a panel per target and number of slices."""
    learned = [variant for variant in results.experiment.variants if variant.is_learned]
    figures = {}
    training = _training(results)
    if training:
        expected = [variant.name for variant in learned if not variant.trained_as]
        figures["learning-training"] = _figure(results, "training on the sources", [training], expected)
    adaptation = [row for target in results.targets if (row := _adaptation(results, target))]
    if adaptation:
        expected = [variant.name for variant in learned if variant.transfer]
        figures["learning-adaptation"] = _figure(results, "adaptation to the targets", adaptation, expected)
    if not figures:
        raise NothingToDrawError("the folder holds no log of a training with validations")
    return figures


def _training(results: Results) -> list[Panel]:
    logs = {name: _read(_models(results) / name / "training" / LOG) for name in results.methods}
    found = [
        (entry.name, [(name, curves) for name, curves in logs.items() if entry.name in curves])
        for entry in results.experiment.sources
    ]
    return [panel for panel in found if panel[1]]


def _adaptation(results: Results, target: str) -> list[Panel]:
    found = []
    for size in results.sizes:
        curves = [
            (name, log)
            for name in results.methods
            for result in results.runs_of(name, target, size)
            if target
            in (
                log := _read(_models(results) / name / "adapted" / results.key(name, target, size, _draw(result)) / LOG)
            )
        ]
        found.append((f"{target}, {results.size_words(target, size)}", curves))
    return [panel for panel in found if panel[1]]


def _draw(result: dict[str, Any]) -> int:
    return int(result["run"]["draw"])


def _models(results: Results) -> Path:
    return results.folder / "models"


def _read(log: Path) -> History:
    """Return the curves of a log; none where there is none, or no validation in it."""
    try:
        return validation_curves(log)
    except UldaError:
        return {}


def _figure(results: Results, what: str, rows: list[list[Panel]], expected: list[str]) -> Figure:
    n_columns = max(len(row) for row in rows)
    drawn = {name for row in rows for _, curves in row for name, _ in curves}
    unknown = [name for name in expected if name not in drawn]
    figure = new_figure(
        max(5.0, 0.6 + 2.6 * n_columns),
        1.5 + 2.0 * len(rows),
        f"{results.experiment.title}: {what}",
        _basis(results, rows) + (f"\nno log of {results.named(unknown)}" if unknown else ""),
    )
    grid = panels(figure, len(rows), n_columns, sharey="row")
    for row, shown in zip(grid, rows, strict=True):
        for ax in row[len(shown) :]:
            ax.set_axis_off()
        for ax, (title, curves) in zip(row, shown, strict=False):
            domain = title.partition(",")[0]
            here = {name: [log[domain] for other, log in curves if other == name] for name, _ in curves}
            for name, draws in here.items():
                look = results.looks[name]
                steps, values = over_draws(draws)
                ax.plot(steps, values.mean(0), label=literal(results.titles[name]), **look.line())
                if len(draws) > 1:
                    ax.fill_between(steps, values.min(0), values.max(0), color=look.colour, alpha=_BAND, linewidth=0)
            absent = [name for name in expected if name in drawn and name not in here]
            lines = [title, *textwrap.wrap(f"no log of {results.named(absent)}" if absent else "", _LETTERS)]
            ax.set(title=literal("\n".join(lines)), xlabel="gradient step")
        row[0].set_ylabel("validation PSNR (dB)")
    add_legend(figure, [ax for row in grid for ax in row])
    return figure


def over_draws(curves: Sequence[tuple[list[float], list[float]]]) -> tuple[list[float], NDArray[np.float64]]:
    """Return the steps at which all draws of a method were validated, and the values there ``(draws, steps)``.

    Examples
    --------
    >>> steps, values = over_draws([([0, 2, 4], [20.0, 22.0, 24.0]), ([0, 4], [20.0, 25.0])])
    >>> steps, values.tolist()
    ([0, 4], [[20.0, 24.0], [20.0, 25.0]])
    """
    found = [dict(zip(*curve, strict=True)) for curve in curves]
    shared = sorted(set.intersection(*(set(one) for one in found)))
    return shared, np.array([[one[step] for step in shared] for one in found])


def _basis(results: Results, rows: list[list[Panel]]) -> str:
    """Say how many slices a validation has; the number of subjects is not in the logs."""
    n_slices = max((int(r["scale"]["validation_slices"]) for r in results.runs.values()), default=0)
    shown = [curves for row in rows for _, curves in row]
    most = max(sum(name == other for other, _ in curves) for curves in shown for name, _ in curves)
    drawn = f"\nline: mean over up to {most} draws of the target slices; band: from the least to the most"
    basis = f"at most {counted(n_slices, 'validation slice')}, of other subjects than those trained on"
    return basis + (drawn if most > 1 else "")
