"""Tell centred k-space from a complex image when a file does not say which one it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

CENTRE_FRACTION = 8
"""The central box spans one part in this many of each axis."""

KSPACE_ENERGY = 0.15
"""Least share of the energy in the central box of k-space.

Measured k-space of single coils at 0.055 T and 3 T holds 0.27 to 0.93 there, and images 0.13 at most.
"""


def central_energy(array: NDArray[np.generic]) -> float:
    """Share of the energy of ``(..., H, W)`` that lies in the central 1/8 x 1/8 box (at least 3 x 3).

    Examples
    --------
    >>> central_energy(np.ones((16, 16)))  # 3 x 3 of 256 pixels
    0.03515625
    """
    energy = np.square(np.abs(array, dtype=np.float64)).sum(axis=tuple(range(array.ndim - 2)))
    total = energy.sum()
    if total == 0:
        return 0.0
    box = []
    for size in energy.shape:
        width = max(3, size // CENTRE_FRACTION)
        start = max(0, size // 2 - width // 2)
        box.append(slice(start, start + width))
    return float(energy[tuple(box)].sum() / total)


def guess_kind(array: NDArray[np.generic]) -> Literal["complex", "kspace"]:
    """Decide whether a complex ``(..., H, W)`` array is centred k-space or an image.

    K-space has its energy at the centre and its Fourier transform has not; for an image it is the other
    way round. Comparing the two needs no tuned threshold for a bright object in the middle of an image.

    Examples
    --------
    >>> image = np.zeros((32, 32), np.complex64)
    >>> image[6:25, 9:22] = 1
    >>> guess_kind(image)
    'complex'
    >>> guess_kind(np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(image))))
    'kspace'
    """
    axes = (-2, -1)
    with np.errstate(all="ignore"):  # values out of range are refused where the slices are read
        transformed = np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(array, axes=axes), axes=axes), axes=axes)
        own, other = central_energy(array), central_energy(transformed)
    return "kspace" if own > KSPACE_ENERGY and own > other else "complex"
