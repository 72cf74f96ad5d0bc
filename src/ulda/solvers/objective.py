"""What the solver minimises: ``phi_eps(x) = f(x; y) + r_eps(x)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self

import torch
from torch import Tensor

from ulda.errors import UldaError
from ulda.models import Regularizer
from ulda.physics import Physics


@dataclass(frozen=True)
class Evaluation:
    """The two terms and their gradients at one point per sample.

    Attributes
    ----------
    f, r
        Values ``(n,)`` in double precision.
    grad_f, grad_r
        Gradients, with the shape of the point.
    """

    f: Tensor
    grad_f: Tensor
    r: Tensor
    grad_r: Tensor

    @property
    def phi(self) -> Tensor:
        """The objective ``(n,)``."""
        return self.f + self.r

    @property
    def grad(self) -> Tensor:
        """The gradient of the objective."""
        return self.grad_f + self.grad_r

    @property
    def grad_norm(self) -> Tensor:
        """The norm of the gradient of the objective ``(n,)``."""
        return square_norm(self.grad).sqrt()

    def take(self, index: Tensor) -> Evaluation:
        """Keep some samples."""
        return Evaluation(self.f[index], self.grad_f[index], self.r[index], self.grad_r[index])

    def replace(self, index: Tensor, other: Evaluation) -> Evaluation:
        """Put the samples of `other` in the place of those at `index`."""
        return Evaluation(
            *(
                ours.index_copy(0, index, theirs)
                for ours, theirs in (
                    (self.f, other.f),
                    (self.grad_f, other.grad_f),
                    (self.r, other.r),
                    (self.grad_r, other.grad_r),
                )
            )
        )


class SmoothedObjective(Protocol):
    """What `ulda.solvers.elda` needs to know of a problem; every sample of a batch is a problem of its own."""

    def evaluate(self, x: Tensor, eps: Tensor) -> Evaluation:
        """Return both terms and their gradients at `x` for the smoothing `eps` ``(n,)``."""

    def fidelity_grad(self, x: Tensor) -> Tensor:
        """Return the gradient of the first term alone."""

    def regularizer_grad(self, x: Tensor, eps: Tensor) -> Tensor:
        """Return the gradient of the second term alone."""

    def unmeasured(self, x: Tensor) -> Tensor:
        """Return the part of `x` that the first term does not see."""

    def take(self, index: Tensor) -> Self:
        """Keep some samples of the batch."""

    def check(self, x: Tensor) -> None:
        """Raise a clear error if the problem cannot be solved from `x`."""


class Reconstruction:
    """The objective of a reconstruction, for a batch of measurements.

    Parameters
    ----------
    physics
        The measurement operator.
    y
        Measurements ``(n, H, W)`` or ``(n, coils, H, W)``.
    regularizer
        The learned regulariser.
    track_values
        Let gradients of the parameters flow through the values and ``grad_r`` of `evaluate`, too (for a loss on the
        descent). Without it they flow through `regularizer_grad` only, which is all that a step of the solver needs.
    """

    def __init__(self, physics: Physics, y: Tensor, regularizer: Regularizer, *, track_values: bool = False) -> None:
        self.physics, self.y, self.regularizer, self.track_values = physics, y, regularizer, track_values

    def evaluate(self, x: Tensor, eps: Tensor) -> Evaluation:
        """Return both terms and their gradients."""
        residual = self.physics.A(x) - self.y
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.track_values):
            f = 0.5 * square_norm(residual)
            r, grad_r = self._regularizer(x, eps)
        return Evaluation(f, self.physics.A_adjoint(residual), r, grad_r)

    def fidelity_grad(self, x: Tensor) -> Tensor:
        """Return the gradient of the data fidelity."""
        return self._normal(x) - self._zero_filled

    def regularizer_grad(self, x: Tensor, eps: Tensor) -> Tensor:
        """Return the gradient of the regulariser; differentiable with respect to its parameters."""
        return self._regularizer(x, eps)[1]

    def _regularizer(self, x: Tensor, eps: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``r_eps`` and its gradient for the features times their strength."""
        strength = self.regularizer.strength(self.physics.noise)
        if strength is None:
            return self.regularizer.value_and_grad(x, eps)
        r, grad_r = self.regularizer.value_and_grad(x, eps / strength.detach())
        return r * strength, grad_r * strength.to(x.real.dtype).reshape(-1, *(1,) * (x.ndim - 1))

    def unmeasured(self, x: Tensor) -> Tensor:
        """Return ``(I - A^H A) x``: for a single coil the lines of k-space that were not sampled."""
        return x - self._normal(x)

    @cached_property
    def _normal(self) -> Callable[[Tensor], Tensor]:
        return self.physics.normal_operator()

    @cached_property
    def _zero_filled(self) -> Tensor:
        return self.physics.A_adjoint(self.y)

    def take(self, index: Tensor) -> Self:
        """Keep some samples of the batch."""
        return type(self)(self.physics.take(index), self.y[index], self.regularizer, track_values=self.track_values)

    def check(self, x: Tensor) -> None:
        """Raise a clear error for measurements that cannot be reconstructed."""
        if self.y.shape[0] == 0:
            raise UldaError("there is no measurement to reconstruct: the batch is empty")
        if not torch.isfinite(torch.view_as_real(self.y) if self.y.is_complex() else self.y).all():
            raise UldaError("the measurement holds NaN or infinite values; repair it before the reconstruction")
        if x.shape[0] != self.y.shape[0]:
            raise UldaError(f"there are {self.y.shape[0]} measurements, but {x.shape[0]} images to start from")
        with torch.no_grad():
            self.physics.fidelity(x, self.y)


def square_norm(x: Tensor) -> Tensor:
    """Return ``||x_i||^2`` of every sample, ``(n,)``, in double precision."""
    real = torch.view_as_real(x) if x.is_complex() else x
    # squares of single precision would overflow from 1e19 on, and vanish below 1e-23
    return torch.linalg.vector_norm(real.flatten(1), dim=1, dtype=torch.float64).square()
