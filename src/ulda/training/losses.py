"""What training minimises."""

from __future__ import annotations

import torch
from torch import Tensor

from ulda.evaluation.metrics import ssim
from ulda.solvers import Status
from ulda.solvers.objective import square_norm


def reconstruction_loss(x: Tensor, reference: Tensor, ssim_weight: float = 0.01) -> Tensor:
    """Return ``mean |x - reference|^2 - ssim_weight * SSIM`` per slice, for complex images ``(n, H, W)``."""
    error = torch.view_as_real(x - reference).square().sum(-1).mean((-2, -1))
    if ssim_weight == 0:
        return error
    return error - ssim_weight * ssim(magnitude(x), reference.abs(), data_range=1.0)


def magnitude(x: Tensor) -> Tensor:
    """Return ``|x|`` of complex numbers with a derivative that stays finite at zero."""
    return (x.real.square() + x.imag.square() + 1e-12).sqrt()


class DescentPenalty:
    """A callback that adds up by how much the phases fail to descend, relative to the objective."""

    def __init__(self, eta2: float) -> None:
        self.eta2 = eta2
        self.terms: list[Tensor] = []

    def __call__(self, status: Status) -> None:
        """Record one phase."""
        needed = self.eta2 / 2 * square_norm(status.x_next - status.x)
        excess = torch.relu(status.at_next.phi - status.at_x.phi + needed) / status.at_x.phi.detach().clamp_min(1e-12)
        self.terms.append(excess.mean())

    def mean(self) -> Tensor:
        """Return the mean over the phases."""
        return torch.stack(self.terms).mean()
