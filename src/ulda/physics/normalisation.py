"""The scale of a measurement: what a weight means must not depend on a scanner's units."""

from __future__ import annotations

import torch
from torch import Tensor

from ulda.errors import UldaError
from ulda.physics.operators import Physics


def normalise_measurement(y: Tensor, physics: Physics) -> tuple[Tensor, Tensor, Tensor]:
    """Scale every slice so that its zero-filled image peaks at 1: a weight then means the same in any unit.

    Parameters
    ----------
    y
        Complex k-space, ``(..., H, W)`` or ``(..., coils, H, W)``.
    physics
        The operator that measured `y`.

    Returns
    -------
        The scaled k-space, the shape of `y`; its zero-filled images, ``(..., H, W)``; and the peaks that were
        divided out, ``(..., 1, 1)``. A slice that is zero everywhere keeps the scale 1.

    Examples
    --------
    >>> import torch
    >>> from ulda.physics import CartesianMRI, cartesian_mask, fft2c, normalise_measurement
    >>> image = torch.full((16, 16), 5.0, dtype=torch.complex64)
    >>> _, zero_filled, peak = normalise_measurement(fft2c(image), CartesianMRI(cartesian_mask(16, 1.0)))
    >>> round(peak.item(), 3), round(zero_filled.abs().max().item(), 3)
    (5.0, 1.0)
    """
    if not y.is_complex():
        raise UldaError(f"the measurement must be complex k-space, but it is {y.dtype}")
    zero_filled = physics.A_adjoint(y)
    peak = zero_filled.abs().amax((-2, -1), keepdim=True)
    peak = torch.where(peak > 0, peak, torch.ones_like(peak))
    batch = zero_filled.shape[:-2]
    per_measurement = peak.reshape(*batch, *(1,) * (y.ndim - len(batch)))
    return y / per_measurement, zero_filled / peak, peak
