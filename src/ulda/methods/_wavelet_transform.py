"""Orthonormal, periodised 2-D discrete wavelet transform (the same as PyWavelets' ``"periodization"``)."""

from __future__ import annotations

from functools import cache
from math import sqrt
from typing import TYPE_CHECKING, Literal, get_args

import torch

from ulda.errors import UldaError

if TYPE_CHECKING:
    from torch import Tensor

WaveletName = Literal["haar", "db2", "db4"]
Pyramid = list["Tensor"]
"""Detail bands ``(..., 3, H / 2^l, W / 2^l)``, finest level first: high-pass along H, along W, along both."""

_SCALING: dict[WaveletName, tuple[float, ...]] = {
    "haar": (1 / sqrt(2), 1 / sqrt(2)),
    "db2": tuple(
        c / (4 * sqrt(2)) for c in (1 + sqrt(3), 3 + sqrt(3), 3 - sqrt(3), 1 - sqrt(3))
    ),  # Daubechies 1988; db4 has no such closed form
    "db4": (
        0.23037781330889650,
        0.71484657055291565,
        0.63088076792985891,
        -0.02798376941685985,
        -0.18703481171909308,
        0.03084138183556076,
        0.03288301166688520,
        -0.01059740178506903,
    ),
}


def dwt2(x: Tensor, wavelet: WaveletName, levels: int) -> tuple[Tensor, Pyramid]:
    """Decompose images into an approximation and the details of each level.

    Parameters
    ----------
    x
        Real or complex images, ``(..., H, W)``, both sides divisible by ``2**levels``.
    wavelet
        ``"haar"``, ``"db2"`` or ``"db4"``.
    levels
        Number of times the approximation is split.

    Returns
    -------
        The approximation, ``(..., H / 2**levels, W / 2**levels)``, and the detail bands, finest first.

    Examples
    --------
    >>> import torch
    >>> from ulda.methods._wavelet_transform import dwt2, idwt2
    >>> x = torch.arange(64.0).reshape(8, 8)
    >>> approximation, details = dwt2(x, "db2", levels=2)
    >>> approximation.shape, len(details)
    (torch.Size([2, 2]), 2)
    >>> torch.allclose(idwt2(approximation, details, "db2"), x, atol=1e-4)
    True
    """
    if any(side % 2**levels for side in x.shape[-2:]):
        raise UldaError(
            f"a wavelet transform of {levels} levels needs sides divisible by {2**levels}, "
            f"but the image has {x.shape[-2]} by {x.shape[-1]} pixels"
        )
    details: Pyramid = []
    for _ in range(levels):
        bands = _analysis(x, wavelet)
        x = bands[..., 0, :, :]
        details.append(bands[..., 1:, :, :])
    return x, details


def idwt2(approximation: Tensor, details: Pyramid, wavelet: WaveletName) -> Tensor:
    """Put an image together again; the inverse, and the adjoint, of `dwt2`.

    Parameters
    ----------
    approximation, details
        What `dwt2` returns.
    wavelet
        The wavelet they were made with.

    Returns
    -------
        Images, ``(..., H, W)``.

    Examples
    --------
    >>> import torch
    >>> from ulda.methods._wavelet_transform import idwt2
    >>> idwt2(torch.ones(1, 1), [torch.zeros(3, 1, 1)], "haar")
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """
    x = approximation
    for bands in reversed(details):
        x = _synthesis(torch.cat((x.unsqueeze(-3), bands), dim=-3), wavelet)
    return x


def check_wavelet(wavelet: str, levels: int) -> None:
    """Refuse an unknown wavelet and a transform without levels."""
    if wavelet not in get_args(WaveletName):
        raise UldaError(f"the wavelet must be one of {', '.join(get_args(WaveletName))}, but it is {wavelet!r}")
    if levels < 1:
        raise UldaError(f"a wavelet transform needs at least 1 level, but {levels} were asked for")


def _analysis(x: Tensor, wavelet: WaveletName) -> Tensor:
    """Split images into four bands of half the size: ``(..., H, W) -> (..., 4, H / 2, W / 2)``."""
    height, width = x.shape[-2:]
    y = _sandwich(_matrix(wavelet, height, x), x, _matrix(wavelet, width, x).mT)
    quarters = y.unflatten(-1, (2, width // 2)).unflatten(-3, (2, height // 2))
    return quarters.movedim(-2, -4).flatten(-4, -3)


def _synthesis(bands: Tensor, wavelet: WaveletName) -> Tensor:
    """Inverse and transpose of `_analysis`: ``(..., 4, H / 2, W / 2) -> (..., H, W)``."""
    height, width = 2 * bands.shape[-2], 2 * bands.shape[-1]
    y = bands.unflatten(-3, (2, 2)).movedim(-4, -2).flatten(-4, -3).flatten(-2)
    return _sandwich(_matrix(wavelet, height, bands).mT, y, _matrix(wavelet, width, bands))


def _sandwich(left: Tensor, x: Tensor, right: Tensor) -> Tensor:
    """Multiply real or complex images with real matrices from both sides."""
    if x.is_complex():
        return torch.complex(left @ x.real @ right, left @ x.imag @ right)
    return left @ x @ right


def _matrix(wavelet: WaveletName, n: int, like: Tensor) -> Tensor:
    """One level along one axis as an orthonormal matrix: low-pass rows, then high-pass rows.

    At the sizes of MR slices a dense product is as fast as convolutions, and its transpose is the inverse.
    """
    return _double_matrix(wavelet, n).to(device=like.device, dtype=like.real.dtype)


@cache
def _double_matrix(wavelet: WaveletName, n: int) -> Tensor:
    low = _SCALING[wavelet]
    high = [c if tap % 2 == 0 else -c for tap, c in enumerate(reversed(low))]  # the quadrature mirror
    matrix = torch.zeros(n, n, dtype=torch.float64)
    for k in range(n // 2):
        for tap, (c_low, c_high) in enumerate(zip(low, high, strict=True)):
            sample = (2 * k + tap + 1 - len(low) // 2) % n  # PyWavelets centres the filter on its pair
            matrix[k, sample] += c_low
            matrix[n // 2 + k, sample] += c_high
    return matrix
