"""How alike two sets of features are: normalised cross-correlation and linear centred kernel alignment."""

from __future__ import annotations

import torch
from torch import Tensor

from ulda.errors import UldaError


def normalised_cross_correlation(a: Tensor, b: Tensor) -> float:
    """Return the mean correlation of feature maps ``(n, channels, H, W)`` with their counterparts, from -1 to 1.

    Each map is compared with that of the same slice and channel, over the pixels: neither its scale, if positive, nor
    its mean matters. A pair of which one is constant has correlation 0; one of which both are is left out.

    Examples
    --------
    >>> maps = torch.arange(12.0).reshape(1, 3, 2, 2).square()
    >>> round(normalised_cross_correlation(maps, 5 * maps + 1), 6)
    1.0
    """
    if a.shape != b.shape or a.ndim != 4:
        raise UldaError(f"feature maps (n, channels, H, W) are compared, but they are {_shapes(a, b)}")
    centred = [maps.double().flatten(2) - maps.double().mean((-2, -1))[..., None] for maps in (a, b)]
    norms = [_norm_or_zero(maps, original) for maps, original in zip(centred, (a, b), strict=True)]
    product, scale = (centred[0] * centred[1]).sum(-1), norms[0] * norms[1]
    counted = (norms[0] > 0) | (norms[1] > 0)
    if not counted.any():
        raise UldaError("all feature maps are constant, so they have no correlation")
    correlation = torch.where(scale > 0, product / scale.clamp_min(torch.finfo(torch.float64).tiny), 0.0)
    return float(correlation[counted].mean())


def _norm_or_zero(centred: Tensor, original: Tensor) -> Tensor:
    """Return the norm of each map, and 0 where it is only what rounding left of a constant."""
    norm = torch.linalg.vector_norm(centred, dim=-1)
    rounding = 1e-6 * torch.linalg.vector_norm(original.double().flatten(2), dim=-1)
    return torch.where(norm > rounding, norm, 0.0)


def centred_kernel_alignment(a: Tensor, b: Tensor) -> float:
    """Return the linear CKA of features ``(n, channels, H, W)``, from 0 to 1 (Kornblith et al. 2019).

    Every pixel of every slice is an example, its channels are what is known of it. Neither scale nor mean nor an
    orthogonal transform of the channels matters, and the numbers of channels may differ.

    Examples
    --------
    >>> maps = torch.arange(12.0).reshape(1, 3, 2, 2).square()
    >>> round(centred_kernel_alignment(maps, maps.flip(1)), 6)
    1.0
    """
    if a.ndim != 4 or b.ndim != 4 or a.shape[0] != b.shape[0] or a.shape[2:] != b.shape[2:]:
        raise UldaError(f"features (n, channels, H, W) of the same slices are compared, but they are {_shapes(a, b)}")
    x, y = (_examples(features) for features in (a, b))
    scale = (x.T @ x).norm() * (y.T @ y).norm()
    if scale == 0:
        raise UldaError("the features are the same in every pixel, so they have no alignment")
    return float((x.T @ y).norm().square() / scale)


def _examples(features: Tensor) -> Tensor:
    """Return a centred row per pixel."""
    rows = features.double().movedim(1, -1).flatten(0, 2)
    return rows - rows.mean(0)


def _shapes(a: Tensor, b: Tensor) -> str:
    return f"{tuple(a.shape)} and {tuple(b.shape)}"
