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
    return torch.stack([band for half in _split(x, wavelet, -1) for band in _split(half, wavelet, -2)], dim=-3)


def _synthesis(bands: Tensor, wavelet: WaveletName) -> Tensor:
    """Inverse and transpose of `_analysis`: ``(..., 4, H / 2, W / 2) -> (..., H, W)``."""
    low, high = (_join(bands[..., i, :, :], bands[..., i + 1, :, :], wavelet, -2) for i in (0, 2))
    return _join(low, high, wavelet, -1)


def _split(x: Tensor, wavelet: WaveletName, dim: int) -> tuple[Tensor, Tensor]:
    """Filter along one axis, low-pass and high-pass, and keep every second sample."""
    low_filter, high_filter = _filters(wavelet)
    if len(low_filter) > 2:
        x = x.index_select(dim, _wrapped(x.shape[dim], len(low_filter)).to(x.device))
    windows = x.unfold(dim, len(low_filter), 2)
    low, high = low_filter[0] * windows[..., 0], high_filter[0] * windows[..., 0]
    for tap in range(1, len(low_filter)):
        low.add_(windows[..., tap], alpha=low_filter[tap])
        high.add_(windows[..., tap], alpha=high_filter[tap])
    return low, high


def _join(low: Tensor, high: Tensor, wavelet: WaveletName, dim: int) -> Tensor:
    """Inverse and transpose of `_split`."""
    low_filter, high_filter = _filters(wavelet)
    shape, n = list(low.shape), 2 * low.shape[dim]
    shape[dim] = n + len(low_filter) - 2
    x = torch.zeros(shape, dtype=low.dtype, device=low.device)
    windows = x.unfold(dim, len(low_filter), 2)
    for tap in range(len(low_filter)):
        windows[..., tap].add_(low, alpha=low_filter[tap]).add_(high, alpha=high_filter[tap])
    if len(low_filter) == 2:
        return x
    shape[dim] = n
    return torch.zeros(shape, dtype=x.dtype, device=x.device).index_add_(
        dim, _wrapped(n, len(low_filter)).to(x.device), x
    )


def _filters(wavelet: WaveletName) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the low-pass filter and its quadrature mirror."""
    low = _SCALING[wavelet]
    return low, tuple(c if tap % 2 == 0 else -c for tap, c in enumerate(reversed(low)))


@cache
def _wrapped(n: int, taps: int) -> Tensor:
    """Return the samples under the filters, periodic; PyWavelets centres a filter on its pair."""
    return torch.arange(1 - taps // 2, n - 1 + taps // 2) % n
