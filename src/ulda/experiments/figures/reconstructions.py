"""Reconstructions of the methods one below the other, with a zoom into a part with detail, and errors on one scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ulda.evaluation.paired import counted
from ulda.experiments.examples import Examples
from ulda.experiments.figures.results import NothingToDrawError, Results, subject_words
from ulda.experiments.figures.style import ERROR_MAP, HIGHLIGHT, literal, new_figure, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PERCENTILE = 99.0
"""The error scale ends there, for the learned method with the largest errors: single pixels, and the methods without
training, would make all others dark."""

WHITE = 99.0
"""The percentile of a reference that is shown white: a little bright fat would leave all else nearly black."""

_CENTRE = 0.25  # of a side, at each end, is left out when the zoom is chosen: the border, and fat of the chest wall
_ZOOM = 6  # the part of a side that is magnified is one in so many
_INSET = 1 / 3  # and is shown on this part of a side
_TILE = 1.05  # inches

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


@dataclass(frozen=True)
class View:
    """How a slice is shown, the same for all methods.

    Attributes
    ----------
    white
        The value that is shown white; 0 is black.
    window
        Row, column and side of the square that is magnified.
    corner
        Where it is shown: 0 to 3, row by row.
    """

    white: float
    window: tuple[int, int, int]
    corner: int

    @classmethod
    def of(cls, reference: Image) -> View:
        """Choose the view of a slice; it depends on the reference alone, so that it favours no method."""
        white = float(np.percentile(reference, WHITE)) or 1.0
        shown = np.minimum(reference, white)
        window = zoom_window(shown)
        return cls(white, window, inset_corner(shown, window))


def draw(results: Results) -> dict[str, Figure]:
    """Draw a figure per target and number of target slices: a row per method, two columns per example."""
    figures = {}
    for target in results.targets:
        for size in results.all_sizes:
            shown = _shown(results, target, size)
            if shown:
                key = results.key(results.experiment.reference, target, size)
                subjects = results.runs[key]["results"][target]["subjects"]
                figures[f"reconstructions-{target}-{size}"] = _figure(results, target, size, shown, subjects)
    if not figures:
        raise NothingToDrawError("no run on a target has kept example reconstructions of the method compared with")
    return figures


def _shown(results: Results, target: str, size: int) -> dict[str, Shown]:
    """Return the methods with examples of the same slices as the one compared with, the first draw of each."""
    found: dict[str, Shown] = {}
    wanted = results.examples(results.key(results.experiment.reference, target, size)).get(target)
    if wanted is None:
        return found
    for name in results.methods:
        key = results.key(name, target, size)
        examples = results.examples(key).get(target)
        if examples is not None and np.array_equal(examples.indices, wanted.indices):
            psnr = results.runs[key]["results"][target]["psnr"]
            found[name] = Shown(results.titles[name], examples, psnr)
    return found


def error_scale(learned: list[Examples]) -> float:
    """Return the end of the error scale of a figure with some learned methods."""
    return max(float(np.percentile(np.abs(one.images - one.reference), PERCENTILE)) for one in learned) or 1.0


def _figure(results: Results, target: str, size: int, by_name: dict[str, Shown], subjects: list[str]) -> Figure:
    shown = list(by_name.values())
    examples = shown[0].examples
    end = error_scale([one.examples for name, one in by_name.items() if results.is_learned(name)])
    n_examples = len(examples.indices)
    n_subjects = len({subjects[i] for i in examples.indices})
    # a variant that is not taken to the targets is not missed
    absent = [name for name in results.methods if name not in by_name and results.experiment.variant(name).transfer]
    figure = new_figure(
        max(5.0, _TILE * 2 * n_examples + 0.7),
        (_TILE + 0.15) * (len(shown) + 1) + 1.4,
        f"{results.experiment.title}: {target}, {results.size_words(target, size)}",
        f"{counted(n_examples, 'example')} of {subject_words([n_subjects], results.subjects_are(target))}; "
        "right of each: absolute errors, all on one scale\n"
        + (f"no examples of {results.named(absent)}" if absent else ""),
        pad=0.02,
    )
    grid = panels(figure, len(shown) + 1, 2 * n_examples)
    mappable = None
    for number, index in enumerate(examples.indices):
        view = View.of(examples.reference[number])
        column = [row[2 * number : 2 * number + 2] for row in grid]
        _show(column[0][0], examples.reference[number], view)
        white = f"white from the\n{WHITE:g}th percentile:\n{view.white:.2g} of the peak"
        _note(column[0][1], f"slice {index} of\n{subjects[index]}\n\n{white}")
        for (left, right), one in zip(column[1:], shown, strict=True):
            image = one.examples.images[number]
            _show(left, image, view)
            left.set_xlabel(f"{one.psnr[index]:.2f} dB", labelpad=2, fontsize=7)
            _blank(right)
            error = np.abs(image - one.examples.reference[number])
            mappable = right.imshow(error, cmap=ERROR_MAP, vmin=0, vmax=end)
    for row, title in zip(grid, ["reference", *(one.title for one in shown)], strict=True):
        row[0].set_ylabel(literal(title), labelpad=3)
    if mappable is not None:
        everything = [ax for row in grid for ax in row]
        place: dict[str, Any] = {"location": "bottom", "shrink": 0.6, "aspect": 40, "pad": 0.01}
        bar = figure.colorbar(mappable, ax=everything, extend="max", **place)
        bar.set_label(
            f"absolute error, the reference has peak 1; saturated from {end:.3g} on,\n"
            f"the {PERCENTILE:g}th percentile of the learned method with the largest errors"
        )
    return figure


def zoom_window(reference: Image) -> tuple[int, int, int]:
    """Return row, column and side of the square with most detail in the central half of an image.

    Detail is the sum of squared slopes in the direction in which it is smallest (the smaller eigenvalue of the
    structure tensor): a lone straight edge, as of fat below the skin, is none.

    Examples
    --------
    >>> image = np.zeros((64, 64), np.float32)
    >>> image[:, 40:] = 9  # a straight edge
    >>> image[30:34, 20:24] = 1
    >>> image[2:10:2, 2:10:2] = 9  # near the border
    >>> row, column, side = zoom_window(image)
    >>> row < 30 and row + side > 34, column < 20 and column + side > 24
    (True, True)
    """
    side = max(8, min(reference.shape) // _ZOOM)
    side = min(side, *reference.shape)
    down, right = (np.asarray(slope) for slope in np.gradient(reference.astype(np.float64)))
    rows, columns, mixed = (_sums(part, side) for part in (down * down, right * right, down * right))
    detail = (rows + columns) / 2 - np.hypot((rows - columns) / 2, mixed)
    top, left = (min(round(_CENTRE * length), (length - side) // 2) for length in reference.shape)
    central = detail[top : detail.shape[0] - top, left : detail.shape[1] - left]
    row, column = np.unravel_index(int(central.argmax()), central.shape)
    return int(row) + top, int(column) + left, side


def _sums(values: NDArray[np.float64], side: int) -> NDArray[np.float64]:
    """Return the sum over every square of a side."""
    total = np.pad(values.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    return total[side:, side:] - total[:-side, side:] - total[side:, :-side] + total[:-side, :-side]


def inset_corner(reference: Image, window: tuple[int, int, int]) -> int:
    """Return the corner that hides least, apart from the window itself: 0 to 3, row by row."""
    height, width = reference.shape
    h, w = round(_INSET * height), round(_INSET * width)
    row, column, side = window
    hidden = []
    for top, left in ((0, 0), (0, width - w), (height - h, 0), (height - h, width - w)):
        rows = max(0, min(row + side, top + h) - max(row, top))
        columns = max(0, min(column + side, left + w) - max(column, left))
        hidden.append((rows * columns, float(reference[top : top + h, left : left + w].sum())))
    return hidden.index(min(hidden))


def _show(ax: Axes, image: Image, view: View) -> None:
    """Show an image with its window in a corner."""
    from matplotlib.patches import Rectangle

    row, column, side = view.window
    _blank(ax)
    grey: dict[str, Any] = {"cmap": "gray", "vmin": 0, "vmax": view.white}
    ax.imshow(image, **grey)
    ax.add_patch(Rectangle((column - 0.5, row - 0.5), side, side, fill=False, edgecolor=HIGHLIGHT, linewidth=0.8))
    inset = ax.inset_axes(((1 - _INSET) * (view.corner % 2), (1 - _INSET) * (view.corner < 2), _INSET, _INSET))
    _blank(inset)
    inset.imshow(image[row : row + side, column : column + side], **grey)
    for spine in inset.spines.values():
        spine.set(visible=True, color=HIGHLIGHT, linewidth=0.8)


def _note(ax: Axes, text: str) -> None:
    _blank(ax)
    ax.text(0.5, 0.5, literal(text), ha="center", va="center", transform=ax.transAxes, fontsize=6)


def _blank(ax: Axes) -> None:
    ax.set(xticks=[], yticks=[])
    ax.grid(visible=False)
    for spine in ax.spines.values():
        spine.set_visible(False)
