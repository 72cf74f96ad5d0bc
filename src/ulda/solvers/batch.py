"""The bookkeeping of a batch: which samples still run, where they are, and where an iteration leads each of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ulda.errors import UldaError
from ulda.solvers.objective import Evaluation, SmoothedObjective
from ulda.solvers.options import Options
from ulda.solvers.proposals import Candidate, Memory, Proposal

PROPOSAL, LINE_SEARCH, STALLED = 0, 1, 2
BRANCHES = ("u", "v", "stalled")
"""The names of the branches: a proposal, a line-search step, or no step since none descends in finite precision."""


@dataclass(frozen=True)
class Outcome:
    """Where an iteration leads, per sample, and how.

    Attributes
    ----------
    x, at_x
        The next iterate, and the objective there at this iteration's eps.
    memory
        What the proposal remembers.
    branch, line_search_steps, proposal_steps
        As in `ulda.solvers.Step`, ``(n,)``.
    """

    x: Tensor
    at_x: Evaluation
    memory: Memory
    branch: Tensor
    line_search_steps: Tensor
    proposal_steps: Tensor

    def take(self, index: Tensor) -> Outcome:
        """Keep some samples."""
        memory = tuple(part[index] for part in self.memory)
        counts = self.branch[index], self.line_search_steps[index], self.proposal_steps[index]
        return Outcome(self.x[index], self.at_x.take(index), memory, *counts)

    def replace(self, index: Tensor, other: Outcome) -> Outcome:
        """Put the samples of `other` in the place of those at `index`, which is in ascending order."""
        if len(index) == len(self.x):
            return other  # nothing of what is replaced may take part in a derivative: it need not be finite

        def put(ours: Tensor, theirs: Tensor) -> Tensor:
            return ours.index_copy(0, index, theirs)

        return Outcome(
            put(self.x, other.x),
            self.at_x.replace(index, other.at_x),
            tuple(map(put, self.memory, other.memory)),
            put(self.branch, other.branch),
            put(self.line_search_steps, other.line_search_steps),
            put(self.proposal_steps, other.proposal_steps),
        )


@dataclass(frozen=True)
class Batch:
    """The samples that still run.

    Attributes
    ----------
    objective
        Their problems.
    samples
        Which samples of the whole batch they are ``(n,)``.
    x, at_x
        Their iterates, and the objective there.
    eps
        Their smoothing ``(n,)``, in double precision.
    memory
        What the proposal remembers of them.
    """

    objective: SmoothedObjective
    samples: Tensor
    x: Tensor
    at_x: Evaluation
    eps: Tensor
    memory: Memory

    @classmethod
    def start(cls, objective: SmoothedObjective, x0: Tensor, proposal: Proposal, options: Options) -> Batch:
        """Begin at `x0`, or say in one sentence why that cannot be."""
        if x0.ndim < 2 or x0.shape[0] == 0:
            raise UldaError(
                f"the solver needs a batch (n, ...) with at least one sample, but got shape {tuple(x0.shape)}"
            )
        if not torch.isfinite(torch.view_as_real(x0) if x0.is_complex() else x0).all():
            raise UldaError("the starting point holds NaN or infinite values")
        objective.check(x0)
        eps = torch.full(x0.shape[:1], options.eps_0, dtype=torch.float64, device=x0.device)
        at_x0 = objective.evaluate(x0, eps)
        if not torch.isfinite(at_x0.phi + at_x0.grad_norm).all():
            raise UldaError("the objective is not finite at the starting point; scale the data, or check the weights")
        samples = torch.arange(x0.shape[0], device=x0.device)
        return cls(objective, samples, x0, at_x0, eps, proposal.first_memory(x0, at_x0))

    def take(self, index: Tensor) -> Batch:
        """Keep some samples."""
        return Batch(
            self.objective.take(index),
            self.samples[index],
            self.x[index],
            self.at_x.take(index),
            self.eps[index],
            tuple(part[index] for part in self.memory),
        )

    def advance(self, outcome: Outcome, stopped: Tensor, eps: Tensor, *, is_last: bool) -> Batch:
        """Go where an iteration leads; drop the samples that have stopped, and evaluate where eps is another."""
        batch = replace(self, x=outcome.x, at_x=outcome.at_x, eps=eps, memory=outcome.memory)
        changed = eps != self.eps
        if stopped.any():
            batch, changed = batch.take((~stopped).nonzero().squeeze(1)), changed[~stopped]
        if changed.any() and not is_last:
            index = changed.nonzero().squeeze(1)
            again = batch.objective.take(index).evaluate(batch.x[index], batch.eps[index])
            batch = replace(batch, at_x=batch.at_x.replace(index, again))
        return batch

    def write(self, result: Tensor, x_next: Tensor) -> Tensor:
        """Put the next iterates of the running samples into the result of the whole batch."""
        return x_next if len(self.samples) == len(result) else result.index_copy(0, self.samples, x_next)

    def proposed(self, candidate: Candidate, n_steps: int) -> Outcome:
        """Return what it means to take a candidate that is so many steps of its proposal away."""
        if candidate.x.shape != self.x.shape or candidate.x.dtype != self.x.dtype:
            raise UldaError(
                f"the proposal has shape {tuple(candidate.x.shape)} and type {candidate.x.dtype}, "
                f"but the iterate {tuple(self.x.shape)} and {self.x.dtype}"
            )
        counts = (torch.full_like(self.samples, count) for count in (PROPOSAL, 0, n_steps))
        return Outcome(candidate.x, self.objective.evaluate(candidate.x, self.eps), candidate.memory, *counts)
