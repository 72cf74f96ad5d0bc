"""A colour map for errors: even steps to the eye, and no red against green.

The map is a path through CIELAB from black over blue and grey to yellow and almost white. Its lightness only grows, so
it can be read in grey; it stays close to the blue-yellow axis, which the common forms of colour blindness leave intact;
and its colours are equally far apart along it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PATH = ((2.0, 0.0, -2.0), (24.0, 8.0, -36.0), (54.0, 0.0, -4.0), (80.0, -2.0, 58.0), (97.0, -6.0, 26.0))
"""Lightness, green-red and blue-yellow of the points it passes."""

_WHITE = np.array([0.95047, 1.0, 1.08883])  # D65
_XYZ_TO_RGB = np.array([[3.2406, -1.5372, -0.4986], [-0.9689, 1.8758, 0.0415], [0.0557, -0.2040, 1.0570]])


def error_colours(n_colours: int = 256) -> NDArray[np.uint8]:
    """Return the colours of the map from no error to the largest ``(n_colours, 3)``.

    Examples
    --------
    >>> error_colours()[[0, 255]].tolist()
    [[5, 7, 12], [255, 248, 196]]
    """
    return np.round(255 * _linear_to_srgb(_lab_to_linear(lab_path(n_colours)))).astype(np.uint8)


def lab_path(n_colours: int) -> NDArray[np.float64]:
    """Return points at equal distances along the path ``(n_colours, 3)``."""
    corners = np.array(PATH)
    travelled = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(corners, axis=0), axis=1))])
    at = np.linspace(0.0, travelled[-1], n_colours)
    return np.stack([np.interp(at, travelled, corners[:, axis]) for axis in range(3)], axis=1)


def _lab_to_linear(lab: NDArray[np.float64]) -> NDArray[np.float64]:
    """Convert to linear RGB of the sRGB primaries."""
    y = (lab[:, 0] + 16) / 116
    f = np.stack([y + lab[:, 1] / 500, y, y - lab[:, 2] / 200], axis=1)
    xyz = _WHITE * np.where(f > 6 / 29, f**3, 3 * (6 / 29) ** 2 * (f - 4 / 29))
    rgb: NDArray[np.float64] = xyz @ _XYZ_TO_RGB.T
    return rgb


def _linear_to_srgb(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    inside = np.clip(rgb, 0.0, 1.0)
    return np.where(inside <= 0.0031308, 12.92 * inside, 1.055 * inside ** (1 / 2.4) - 0.055)
