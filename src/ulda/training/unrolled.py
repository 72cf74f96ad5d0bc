"""The loss of unrolled networks: T phases of the solver, or more of them from an iterate that persists."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ulda.models import Regularizer
from ulda.models.ulda import MEAN
from ulda.physics import Physics
from ulda.solvers import Options, Proposal, Reconstruction, Repeated, Trace
from ulda.solvers.trace import Callback
from ulda.training.losses import DescentPenalty
from ulda.training.schedule import phases_at
from ulda.training.settings import Settings
from ulda.training.tasks import Batch, Task


class Unrolled(Protocol):
    """A network whose phases are iterations of the solver, e.g. `ulda.methods.ulda.ULDA`."""

    sources: tuple[str, ...]
    trains_mean: bool

    @property
    def n_phases(self) -> int:
        """T."""

    def prepared(self, y: Tensor, physics: Physics) -> tuple[Tensor, Physics, Tensor]:
        """Return scaled measurements, their operator with what they say of phase and noise, and the scale."""

    def regularizer(self, domain: str) -> Regularizer:
        """Return the regulariser of a domain."""

    def proposal(self, domain: str) -> Proposal:
        """Return what proposes the steps of a domain."""

    def options(self, domain: str, **changes: Any) -> Options:
        """Return the options of the solver for a domain."""

    def solve(
        self,
        y: Tensor,
        physics: Physics,
        domain: str,
        options: Options | None = None,
        *,
        proposal: Proposal | None = None,
        x0: Tensor | None = None,
        callback: Callback | None = None,
    ) -> tuple[Tensor, Trace]:
        """Run the solver on scaled measurements."""


def unrolled_loss(model: Unrolled, task: Task, batch: Batch, settings: Settings, step: int) -> tuple[Tensor, Tensor]:
    """Return the loss of one batch and the images its last phase reached, ``(n, H, W)``, without gradient.

    The branch that the solver takes is part of the forward pass. Refused proposals have no part in the result; the
    penalty teaches them to descend.
    """
    y, physics, judge = task.measure(batch)
    y, physics, peak = model.prepared(y, physics)
    is_mean = batch.is_mean and model.trains_mean and task.domain in model.sources
    domain = MEAN if is_mean else task.domain
    proposal, n_phases = model.proposal(domain), phases_at(model.n_phases, settings, step)
    if batch.start is not None and settings.equilibrium is not None:
        proposal, n_phases = Repeated(proposal), settings.equilibrium.phases
    options, x0 = model.options(domain, iterations=n_phases), batch.start
    if batch.rollout > 0:
        rollout = replace(options, iterations=batch.rollout)
        with torch.no_grad():
            x0, _ = model.solve(y, physics, domain, rollout, proposal=proposal, x0=x0)
    penalty = None
    if settings.penalty_weight > 0:
        tracked = Reconstruction(physics, y, model.regularizer(domain), track_values=True)
        penalty = DescentPenalty(tracked, options.eta2)
    x, _ = model.solve(y, physics, domain, options, proposal=proposal, x0=x0, callback=penalty)
    # the loss is measured in the units of the measurements, and references have peak 1, as for the metrics
    loss = judge.loss(physics.shown(x, y) * peak, settings).mean()
    if penalty is not None:
        loss = loss + settings.penalty_weight * penalty.mean()
    return loss, x.detach()
