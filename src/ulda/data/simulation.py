"""What magnitude images lack: a smooth random phase."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def smooth_phase(shape: tuple[int, int], seed: int, strength: float = np.pi, degree: int = 3) -> NDArray[np.float32]:
    """Draw a smooth phase ``(H, W)`` in radians: a random cosine series of low degree.

    Parameters
    ----------
    shape
        Height and width.
    seed
        Seed of the coefficients.
    strength
        The largest absolute phase.
    degree
        The highest number of half periods along each axis.

    Examples
    --------
    >>> phase = smooth_phase((32, 32), seed=1)
    >>> float(abs(phase).max()) <= np.pi + 1e-6
    True
    """
    coefficients = np.random.default_rng(seed).normal(size=(degree + 1, degree + 1))
    order = np.arange(degree + 1)
    coefficients /= 1 + order[:, None] ** 2 + order[None, :] ** 2
    rows, columns = (np.cos(np.pi * order[:, None] * (np.arange(n) + 0.5) / n) for n in shape)
    series = np.einsum("ij,ih,jw->hw", coefficients, rows, columns)
    peak = np.abs(series).max()
    return (series * (strength / peak)).astype(np.float32)
