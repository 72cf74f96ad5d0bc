"""What training minimises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ulda.errors import UldaError
from ulda.metrics import ssim
from ulda.physics import Physics
from ulda.solvers import Reconstruction, Status
from ulda.solvers.objective import square_norm
from ulda.training.settings import Settings

_TINY = 1e-12
"""Errors below this count as this; no slice of peak 1 is reconstructed so well."""


def reconstruction_loss(
    x: Tensor, reference: Tensor, ssim_weight: float = 0.01, *, logarithmic: bool = False
) -> Tensor:
    """Return ``mean |x - reference|^2 - ssim_weight * SSIM`` per slice, for complex images ``(n, H, W)``.

    With `logarithmic` the first term is its logarithm.
    """
    error = torch.view_as_real(x - reference).square().sum(-1).mean((-2, -1))
    error = error.clamp_min(_TINY).log() if logarithmic else error
    if ssim_weight == 0:
        return error
    return error - ssim_weight * ssim(magnitude(x), reference.abs(), data_range=1.0)


def magnitude(x: Tensor) -> Tensor:
    """Return ``|x|`` of complex numbers with a derivative that stays finite at zero."""
    return (x.real.square() + x.imag.square() + 1e-12).sqrt()


def relative_error(x: Tensor, y: Tensor, physics: Physics) -> Tensor:
    """Return ``||A x - y||^2 / ||y||^2`` per slice, for the lines of an operator; any scale gives the same.

    Examples
    --------
    >>> from ulda.physics import CartesianMRI, Mask
    >>> physics, x = CartesianMRI(Mask((False, True))), torch.ones(2, 2, dtype=torch.complex64)
    >>> round(relative_error(0.9 * x, physics.A(x), physics).item(), 4)
    0.01
    """
    energy = torch.view_as_real(y).square().sum(tuple(range(-physics.signal_dims - 1, 0)))
    return 2 * physics.fidelity(x, y) / energy.clamp_min(torch.finfo(energy.dtype).tiny)


class Judge(Protocol):
    """What judges the reconstructions of a batch."""

    def loss(self, x: Tensor, settings: Settings, *, magnitude: bool = False) -> Tensor:
        """Return the loss of complex images ``(n, H, W)`` per slice; `magnitude` for networks that return no phase."""


@dataclass(frozen=True)
class References:
    """Judges with fully sampled slices ``(n, H, W)``."""

    images: Tensor

    def loss(self, x: Tensor, settings: Settings, *, magnitude: bool = False) -> Tensor:
        """Return `reconstruction_loss`; with `magnitude` the references are the magnitudes."""
        references = self.images.abs() if magnitude else self.images
        return reconstruction_loss(x, references, settings.ssim_weight, logarithmic=settings.logarithmic)


@dataclass(frozen=True)
class JudgingLines:
    """Judges with sampled lines that the reconstruction was not given.

    Attributes
    ----------
    y, physics
        The lines, and their operator.
    """

    y: Tensor
    physics: Physics

    def loss(self, x: Tensor, settings: Settings, *, magnitude: bool = False) -> Tensor:
        """Return `relative_error` or its logarithm; there is no image that SSIM could compare with."""
        if magnitude:
            raise UldaError("a network that returns no phase predicts no k-space, so it cannot learn from lines alone")
        error = relative_error(x, self.y, self.physics)
        return error.clamp_min(_TINY).log() if settings.logarithmic else error


class DescentPenalty:
    """A callback that adds up by how much proposals fail to descend, relative to what a gradient step would gain.

    A refused proposal has no part in the reconstruction, so without this nothing would teach its step sizes, or the
    regulariser, to have it accepted. Only proposals that fail are differentiated.

    Parameters
    ----------
    objective
        The problem that is solved, with values that can be differentiated (``track_values``).
    eta2
        Of the acceptance test; see `ulda.solvers.Options`.
    """

    def __init__(self, objective: Reconstruction, eta2: float) -> None:
        self.objective, self.eta2 = objective, eta2
        self.terms: list[Tensor] = []
        self.n_proposals = 0

    def __call__(self, status: Status) -> None:
        """Record one phase."""
        self.n_proposals += len(status.samples)
        with torch.no_grad():
            square_step = square_norm(status.u - status.x)
            excess = status.at_u.phi - status.at_x.phi + self.eta2 / 2 * square_step
            failing = ((excess > 0) & torch.isfinite(excess)).nonzero().squeeze(1)
            if len(failing) == 0:
                return
            gain = (status.at_x.grad_norm * square_step.sqrt())[failing].clamp_min(1e-30)
        problem, eps = self.objective.take(status.samples[failing]), status.eps[failing]
        x, u = status.x[failing], status.u[failing]
        phi_x, phi_u = problem.evaluate(x, eps).phi, problem.evaluate(u, eps).phi
        self.terms.append(((phi_u - phi_x + self.eta2 / 2 * square_norm(u - x)) / gain).sum())

    def mean(self) -> Tensor:
        """Return the mean over all proposals."""
        return torch.stack(self.terms).sum() / self.n_proposals if self.terms else torch.zeros(())
