"""Reconstructions side by side, with a zoom into the part with most detail, and their errors on one scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ulda.evaluation.paired import counted
from ulda.experiments.examples import Examples
from ulda.experiments.figures.results import NothingToDrawError, Results, size_words
from ulda.experiments.figures.style import ERROR_MAP, HIGHLIGHT, literal, new_figure, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PERCENTILE = 99.5
"""The error scale ends there, for the method with the largest errors; single pixels would make all others dark."""

_ZOOM = 5  # the part of a side that is magnified is one in so many
_INSET = 0.45  # and is shown on this part of a side
_TILE = 1.15  # inches

Image = NDArray[np.float32]


@dataclass(frozen=True)
class Shown:
    """What one method made of the examples.

    Attributes
    ----------
    title
        Its name for people.
    examples
        The images.
    psnr
        Of every test slice.
    """

    title: str
    examples: Examples
    psnr: list[float]


def draw(results: Results) -> dict[str, Figure]:
    """Draw a figure per target and number of target slices: a column per method, two rows per example."""
    figures = {}
    for target in results.targets:
        for size in results.all_sizes:
            shown = _shown(results, target, size)
            if shown:
                key = results.key(results.experiment.reference, target, size)
                subjects = results.cells[key]["results"][target]["subjects"]
                figures[f"reconstructions-{target}-{size}"] = _figure(results, target, size, shown, subjects)
    if not figures:
        raise NothingToDrawError("no cell on a target has kept example reconstructions of the method compared with")
    return figures


def _shown(results: Results, target: str, size: int) -> list[Shown]:
    """Return the methods with examples, the first draw of each; none if the one compared with has none."""
    found = {}
    for name in results.methods:
        key = results.key(name, target, size)
        examples = results.examples(key).get(target)
        if examples is not None:
            psnr = results.cells[key]["results"][target]["psnr"]
            found[name] = Shown(results.titles[name], examples, psnr)
    return list(found.values()) if results.experiment.reference in found else []


def error_scale(shown: list[Shown]) -> float:
    """Return the end of the error scale of a figure."""
    ends = [float(np.percentile(np.abs(one.examples.images - one.examples.reference), PERCENTILE)) for one in shown]
    return max(ends) or 1.0


def _figure(results: Results, target: str, size: int, shown: list[Shown], subjects: list[str]) -> Figure:
    examples = shown[0].examples
    n_rows, n_columns, end = len(examples.indices), len(shown) + 1, error_scale(shown)
    n_subjects = len({subjects[i] for i in examples.indices})
    figure = new_figure(
        max(5.0, _TILE * n_columns + 0.8),
        2 * (_TILE + 0.12) * n_rows + 0.7,
        f"{results.experiment.title}: {target}, {size_words(size)}",
        f"{counted(n_rows, 'example')} of {counted(n_subjects, 'subject')}, PSNR of the slice; box: the window with "
        f"most detail in the reference; below: absolute errors, all from 0 to {end:.3g}",
        pad=0.02,
    )
    grid = panels(figure, 2 * n_rows, n_columns)
    mappable = None
    for number, index in enumerate(examples.indices):
        above, below = grid[2 * number], grid[2 * number + 1]
        reference = examples.reference[number]
        window = zoom_window(reference)
        corner = inset_corner(reference, window)
        _show(above[0], reference, window, corner)
        _blank(below[0])
        text = f"slice {index}\nsubject {subjects[index]}"
        below[0].text(0.5, 0.5, literal(text), ha="center", va="center", transform=below[0].transAxes, fontsize=7)
        for column, one in enumerate(shown, start=1):
            image = one.examples.images[number]
            _show(above[column], image, window, corner)
            above[column].set_xlabel(f"{one.psnr[index]:.2f} dB", labelpad=2, fontsize=7)
            _blank(below[column])
            error = np.abs(image - one.examples.reference[number])
            mappable = below[column].imshow(error, cmap=ERROR_MAP, vmin=0, vmax=end)
    for ax, title in zip(grid[0], ["reference", *(one.title for one in shown)], strict=True):
        ax.set_title(literal(title), pad=3)
    if mappable is not None:
        everything = [ax for row in grid for ax in row]
        bar = figure.colorbar(mappable, ax=everything, extend="max", shrink=0.6, aspect=30, pad=0.01)
        bar.set_label("absolute error; the reference has peak 1")
    return figure


def zoom_window(reference: Image) -> tuple[int, int, int]:
    """Return row, column and side of the square with the largest sum of squared differences between neighbours.

    It depends on the reference alone, so that it favours no method.

    Examples
    --------
    >>> image = np.zeros((40, 40), np.float32)
    >>> image[20:28:2, 10:18] = 1
    >>> row, column, side = zoom_window(image)
    >>> row <= 20 and row + side >= 27, column <= 10 and column + side >= 18
    (True, True)
    """
    side = max(8, min(reference.shape) // _ZOOM)
    side = min(side, *reference.shape)
    energy = np.zeros(reference.shape)
    energy[1:] += np.diff(reference, axis=0) ** 2
    energy[:, 1:] += np.diff(reference, axis=1) ** 2
    total = np.pad(energy.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    sums = total[side:, side:] - total[:-side, side:] - total[side:, :-side] + total[:-side, :-side]
    row, column = np.unravel_index(int(sums.argmax()), sums.shape)
    return int(row), int(column), side


def inset_corner(reference: Image, window: tuple[int, int, int]) -> int:
    """Return the corner that hides least, apart from the window itself: 0 to 3, row by row."""
    height, width = reference.shape
    h, w = round(_INSET * height), round(_INSET * width)
    row, column, side = window
    hidden = []
    for top, left in ((0, 0), (0, width - w), (height - h, 0), (height - h, width - w)):
        overlaps = row < top + h and row + side > top and column < left + w and column + side > left
        hidden.append((overlaps, float(reference[top : top + h, left : left + w].sum())))
    return hidden.index(min(hidden))


def _show(ax: Axes, image: Image, window: tuple[int, int, int], corner: int) -> None:
    """Show an image with its window in a corner."""
    from matplotlib.patches import Rectangle

    row, column, side = window
    _blank(ax)
    grey: dict[str, Any] = {"cmap": "gray", "vmin": 0, "vmax": 1}
    ax.imshow(image, **grey)
    ax.add_patch(Rectangle((column - 0.5, row - 0.5), side, side, fill=False, edgecolor=HIGHLIGHT, linewidth=0.8))
    inset = ax.inset_axes(((1 - _INSET) * (corner % 2), (1 - _INSET) * (corner < 2), _INSET, _INSET))
    _blank(inset)
    inset.imshow(image[row : row + side, column : column + side], **grey)
    for spine in inset.spines.values():
        spine.set(visible=True, color=HIGHLIGHT, linewidth=0.8)


def _blank(ax: Axes) -> None:
    ax.set(xticks=[], yticks=[])
    ax.grid(visible=False)
    for spine in ax.spines.values():
        spine.set_visible(False)
