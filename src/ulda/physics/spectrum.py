"""A filter of spatial frequencies by their distance from zero."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

KNOTS = (0.0, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""Where the gains of a filter are given: frequencies as parts of the highest one of an axis, half a cycle per pixel."""


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


@lru_cache(maxsize=16)
def _hat_functions(height: int, width: int) -> Tensor:
    """Return the weight of each knot at each frequency, ``(6, H, W)``; the weights of a frequency add up to 1."""
    rows, columns = (2 * torch.fft.fftfreq(n, dtype=torch.float64) for n in (height, width))
    radius = (rows[:, None].square() + columns.square()).sqrt().clamp(max=KNOTS[-1])
    knots = torch.tensor(KNOTS, dtype=torch.float64)
    upper = torch.bucketize(radius, knots).clamp(1, len(knots) - 1)
    share = (radius - knots[upper - 1]) / (knots[upper] - knots[upper - 1])
    with torch.inference_mode(False):  # it is kept, also for training
        weights = torch.zeros(len(knots), height, width, dtype=torch.float64)
    weights.scatter_(0, (upper - 1)[None], (1 - share)[None])
    return weights.scatter_(0, upper[None], share[None])
