"""What training minimises."""

from __future__ import annotations

import torch
from torch import Tensor

from ulda.metrics import ssim
from ulda.solvers import Reconstruction, Status
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
