"""The weight of a classical method, chosen on measurements with references."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ulda.errors import UldaError
from ulda.metrics import psnr

if TYPE_CHECKING:
    from torch import Tensor

    from ulda.methods.base import Method
    from ulda.physics import Physics

WEIGHTS = tuple(1e-4 * 10 ** (i / 2) for i in range(7))
"""From 0.0001, for images without noise, to 0.1: two weights per decade."""

Example = tuple["Tensor", "Physics", "Tensor"]
"""Measurements ``(n, ...)``, their operator, and the reference images ``(n, H, W)``, complex or magnitudes."""


@dataclass(frozen=True)
class ChosenWeight:
    """What `chosen_weight` found.

    Attributes
    ----------
    weight
        The best one.
    mean_psnr
        The mean PSNR of every weight that was tried.
    """

    weight: float
    mean_psnr: dict[float, float]


def chosen_weight(
    method: Callable[[float], Method], examples: Iterable[Example], weights: Sequence[float] = WEIGHTS
) -> ChosenWeight:
    """Choose the weight with the best mean PSNR over all slices of some examples; see `climb`.

    A classical method gets the same information as a learned one when its weight is chosen on the slices that the
    other learned from, with the same masks and noise.

    Parameters
    ----------
    method
        Makes the method of a weight, such as the class `ulda.methods.TotalVariation`.
    examples
        Batches of measurements with their operators and references.
    weights
        The weights to choose from, in ascending order.

    Examples
    --------
    >>> import torch
    >>> from ulda.methods import TotalVariation, chosen_weight
    >>> from ulda.physics import CartesianMRI, cartesian_mask
    >>> image, physics = torch.zeros(1, 32, 32, dtype=torch.complex64), CartesianMRI(cartesian_mask(32, 0.4))
    >>> image[:, 8:24, 8:24] = 1
    >>> chosen_weight(TotalVariation, [(physics.A(image), physics, image)], weights=(0.001, 0.1)).weight
    0.001
    """
    examples = list(examples)
    if not examples or not weights:
        raise UldaError("to choose a weight, give at least one example with its reference and at least one weight")
    return ChosenWeight(*climb(weights, lambda weight: _mean_psnr(method(weight), examples)))


def climb(weights: Sequence[float], quality: Callable[[float], float]) -> tuple[float, dict[float, float]]:
    """Return the best weight of a grid, from its middle uphill, and the quality of those tried.

    It stops at the first peak. Where all weights were tried, on low-field slices, wavelets had a second, lower one,
    0.1 dB high, at the far end of the grid.
    """
    tried: dict[float, float] = {}
    at, step = len(weights) // 2, 0

    def value(index: int) -> float:
        if not 0 <= index < len(weights):
            return -math.inf
        if weights[index] not in tried:
            tried[weights[index]] = quality(weights[index])
        return tried[weights[index]]

    while True:
        step = max((0, step or -1, step or 1), key=lambda move: value(at + move))
        if step == 0:
            return weights[at], tried
        at += step


def _mean_psnr(method: Method, examples: Sequence[Example]) -> float:
    values: list[float] = []
    for y, physics, reference in examples:
        truth = reference.abs()
        values += psnr(method(y, physics).abs(), truth, data_range=truth.amax((-2, -1))).reshape(-1).tolist()
    return sum(values) / len(values)
