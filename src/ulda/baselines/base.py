"""The interface all reconstruction methods share, and what the iterative ones have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import torch

from ulda.errors import UldaError

if TYPE_CHECKING:
    from torch import Tensor

    from ulda.physics import Physics

Progress = Callable[[int], object]
"""Called after every iteration with the number of iterations done, e.g. to drive a progress bar."""


class Method(ABC):
    """A reconstruction method: ``x_hat = method(y, physics)``.

    A method is deterministic, and the result for a slice does not depend on the other slices of its batch.

    Examples
    --------
    >>> import torch
    >>> from ulda.baselines import Method
    >>> class Silence(Method):
    ...     name = "silence"
    ...
    ...     def __call__(self, y, physics):
    ...         return torch.zeros_like(physics.A_adjoint(y))
    >>> Silence().name
    'silence'
    """

    name: ClassVar[str]
    """The name that stands in tables and figures."""

    @abstractmethod
    def __call__(self, y: Tensor, physics: Physics) -> Tensor:
        """Reconstruct images from masked k-space.

        Parameters
        ----------
        y
            Complex k-space, ``(..., H, W)`` or ``(..., coils, H, W)``, zero where it was not sampled.
        physics
            The operator that measured `y`.

        Returns
        -------
            Complex images, ``(..., H, W)``.
        """


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
    >>> from ulda.baselines.base import normalise_measurement
    >>> from ulda.physics import CartesianMRI, cartesian_mask, fft2c
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


def check_settings(method: str, weight: float, iterations: int) -> None:
    """Refuse a negative (or NaN) weight and a run without iterations."""
    if not weight >= 0:
        raise UldaError(f"the weight of {method} must be at least 0, but it is {weight:g}")
    if iterations < 1:
        raise UldaError(f"{method} needs at least 1 iteration, but {iterations} were asked for")
