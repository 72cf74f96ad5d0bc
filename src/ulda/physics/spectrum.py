"""Filters of spatial frequencies, by their distance from zero or by the line of k-space that they are in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

KNOTS = (0.0, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""Where the gains of a filter are given: frequencies as parts of the highest one of an axis, half a cycle per pixel."""

LINE_KNOTS = (-1.0, -0.75, -0.5, -0.375, -0.25, -0.125, -0.0625, 0.0, 0.0625, 0.125, 0.25, 0.375, 0.5, 0.75, 1.0)
"""Where the gains of lines are given, as parts of the highest frequency; a mask need not be symmetric."""


def radial_filter(images: Tensor, gains: Tensor) -> Tensor:
    """Multiply the spatial frequencies of images by gains; the filter is self-adjoint.

    Parameters
    ----------
    images
        Complex images ``(..., H, W)``.
    gains
        The gains at `KNOTS`, ``(6,)``. They are interpolated linearly, and the last one holds beyond it.

    Examples
    --------
    >>> import torch
    >>> flat = torch.ones(1, 8, 8, dtype=torch.complex64)
    >>> radial_filter(flat, torch.tensor([3.0, 1, 1, 1, 1, 1]))[0, 0, 0].real.item()
    3.0
    """
    height, width = images.shape[-2:]
    basis = _hat_functions(height, width).to(gains)
    response = torch.tensordot(gains, basis, 1)
    return torch.fft.ifft2(torch.fft.fft2(images) * response)


def line_filter(images: Tensor, gains: Tensor, axis: int) -> Tensor:
    """Multiply the lines of k-space of images by gains; the filter is self-adjoint.

    Parameters
    ----------
    images
        Complex images ``(..., H, W)``.
    gains
        The gains at `LINE_KNOTS`, ``(15,)``, interpolated linearly.
    axis
        The phase-encode axis, -2 or -1.

    Examples
    --------
    >>> import torch
    >>> flat = torch.ones(1, 8, 8, dtype=torch.complex64)
    >>> line_filter(flat, torch.tensor([1.0] * 7 + [3.0] + [1.0] * 7), -2)[0, 0, 0].real.item()
    3.0
    """
    response = torch.tensordot(gains, _line_hat_functions(images.shape[axis]).to(gains), 1)
    response = response[:, None] if axis == -2 else response
    return torch.fft.ifft(torch.fft.fft(images, dim=axis) * response, dim=axis)


@lru_cache(maxsize=16)
def _hat_functions(height: int, width: int) -> Tensor:
    """Return the weight of each knot at each frequency, ``(6, H, W)``; the weights of a frequency add up to 1."""
    rows, columns = (2 * torch.fft.fftfreq(n, dtype=torch.float64) for n in (height, width))
    radius = (rows[:, None].square() + columns.square()).sqrt().clamp(max=KNOTS[-1])
    return _interpolation(radius, KNOTS)


@lru_cache(maxsize=16)
def _line_hat_functions(n_lines: int) -> Tensor:
    """Return the weight of each knot at each line, ``(15, n_lines)``; the weights of a line add up to 1."""
    return _interpolation(2 * torch.fft.fftfreq(n_lines, dtype=torch.float64), LINE_KNOTS)


def _interpolation(places: Tensor, at: Sequence[float]) -> Tensor:
    """Return the weights of knots that interpolate linearly at some places between them, ``(n_knots, ...)``."""
    knots = torch.tensor(at, dtype=torch.float64)
    upper = torch.bucketize(places, knots).clamp(1, len(knots) - 1)
    share = (places - knots[upper - 1]) / (knots[upper] - knots[upper - 1])
    with torch.inference_mode(False):  # it is kept, also for training
        weights = torch.zeros(len(knots), *places.shape, dtype=torch.float64)
    weights.scatter_(0, (upper - 1)[None], (1 - share)[None])
    return weights.scatter_(0, upper[None], share[None])
