"""A certified run for each proposal."""

from __future__ import annotations

import torch

from ulda.data import demo
from ulda.models import Adapter, FeatureExtractor, Regularizer
from ulda.physics import CartesianMRI, Physics, cartesian_mask
from ulda.solvers import (
    AcceleratedProposal,
    GradientProposal,
    Options,
    Proposal,
    Reconstruction,
    Run,
    Trace,
    certify,
    elda,
)

OPTIONS = Options(eps_0=0.003, eps_tol=1e-5, iterations=4)

PROPOSALS = {
    "gradient": GradientProposal(4, alpha=0.5, beta=[0.5, 50.0, 0.5, 0.5]),
    "accelerated": AcceleratedProposal(
        8, 2, alpha=0.5, beta=[0.5, 0.5, 50.0, 50.0, 0.5, 50.0, 0.5, 0.5], kappa=0.2, momentum=0.5
    ),
}


def solve(
    run: Run, proposal: Proposal | None = None, options: Options = OPTIONS, x0: torch.Tensor | None = None
) -> tuple[torch.Tensor, Trace]:
    """Solve the problem of a run in another way."""
    x0 = run.physics.A_adjoint(run.y) if x0 is None else x0
    with torch.no_grad():
        return elda(Reconstruction(run.physics, run.y, run.regularizer), x0, proposal or GradientProposal(), options)


def certified(proposal: Proposal) -> Run:
    """Return a run on two real slices that takes both branches."""
    images = torch.stack(list(demo("knee").take([6, 12]).images()))[:, 32:64, 32:64]
    physics = CartesianMRI(cartesian_mask(32, 0.25, seed=2))
    y = physics.A(images)
    regularizer = Regularizer(FeatureExtractor(6, 2), Adapter(6, weight=0.01))
    with torch.no_grad():
        x, trace = elda(Reconstruction(physics, y, regularizer), physics.A_adjoint(y), proposal, OPTIONS)
    return Run(y, physics, regularizer, x, None, certify(trace, y, physics, regularizer, x))


def parts(run: Run) -> tuple[torch.Tensor, Physics, Regularizer]:
    """Return what a run is about."""
    return run.y, run.physics, run.regularizer
