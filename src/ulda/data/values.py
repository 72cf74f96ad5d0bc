"""The range of numbers that slices may hold: what is computed from them must stay finite in single precision."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ulda.errors import UldaError

LARGEST = 1e15
"""Sums of squares of larger values are infinite in single precision."""

SMALLEST = 1e-18
"""Squares of smaller values lose their digits in single precision."""

SCALES = 1e-30, 1e30
"""The least and the largest factor that restores the values of a file."""

_AXES = {2: ("row", "column"), 3: ("coil", "row", "column")}


def is_sound(array: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Tell which values are finite and of a size that can be computed with.

    Examples
    --------
    >>> is_sound(np.array([1, -2, 3e38, np.nan]))
    array([ True,  True, False, False])
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.abs(array) <= LARGEST)


def check_values(array: NDArray[np.generic], where: str) -> None:
    """Refuse NaN, infinite and absurd values, with their position.

    Parameters
    ----------
    array
        ``(H, W)`` or ``(coils, H, W)``.
    where
        Which slice of which file, for the message.

    Examples
    --------
    >>> check_values(np.array([[1, 3e38]]), "slice 2 of a.npy")
    Traceback (most recent call last):
    ...
    ulda.errors.UldaError: slice 2 of a.npy holds 1 NaN, infinite or absurdly large values (above 1e+15), ...
    """
    sound = is_sound(array)
    if not sound.all():
        position = tuple(int(i) for i in np.argwhere(~sound)[0])
        place = ", ".join(f"{name} {i}" for name, i in zip(_AXES[array.ndim], position, strict=True))
        raise UldaError(
            f"{where} holds {int((~sound).sum())} NaN, infinite or absurdly large values (above {LARGEST:g}), the "
            f"first at {place}: {array[position]:g}; repair or leave out that file"
        )
    peak = float(np.abs(array).max()) if array.size else 0.0
    if 0 < peak < SMALLEST:
        raise UldaError(f"{where} has the peak {peak:g}, too small to compute with; multiply the data by a constant")


def check_scale(scale: float, where: str) -> None:
    """Refuse a factor that restores no values."""
    if not (math.isfinite(scale) and SCALES[0] <= scale <= SCALES[1]):
        raise UldaError(f"{where} has the scale {scale:g}; expected one from {SCALES[0]:g} to {SCALES[1]:g}")
