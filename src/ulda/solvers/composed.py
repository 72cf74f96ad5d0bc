"""Proposals made of others, and proposals built from their descriptions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ulda.errors import UldaError
from ulda.solvers.objective import Evaluation, SmoothedObjective
from ulda.solvers.proposals import (
    MOST_NUMBERS,
    AcceleratedProposal,
    Candidate,
    GradientProposal,
    Memory,
    Proposal,
    checked_count,
)
from ulda.solvers.total_variation import total_variation

MOST_ITERATIONS = 1_000
"""More iterations than a total variation needs as a start."""


class TotalVariationFirst(Proposal):
    """The total variation reconstruction in the first phase, another proposal in those that follow.

    Parameters
    ----------
    proposal
        What proposes from the second phase on; its memory begins there.
    weight, iterations
        Of the total variation, for images whose zero-filled peak is 1.

    Examples
    --------
    >>> TotalVariationFirst(GradientProposal(3)).n_phases
    4
    """

    kind: ClassVar[str] = "total variation first"

    def __init__(self, proposal: Proposal, weight: float = 0.002, iterations: int = 100) -> None:
        super().__init__()
        self.proposal, self.weight, self.iterations = proposal, weight, iterations
        self.n_phases = proposal.n_phases + 1

    def first_memory(self, x0: Tensor, at_x0: Evaluation) -> Memory:
        """Return that of the other proposal."""
        return self.proposal.first_memory(x0, at_x0)

    def forward(
        self, problem: SmoothedObjective, x: Tensor, at_x: Evaluation, eps: Tensor, t: int, memory: Memory
    ) -> list[Candidate]:
        """Return the candidates of a phase."""
        if t > 0:
            candidates: list[Candidate] = self.proposal(problem, x, at_x, eps, t - 1, memory)
            return candidates
        with torch.no_grad():
            zero_filled = -problem.fidelity_grad(torch.zeros_like(x))
            u = total_variation(lambda v: v - problem.unmeasured(v), zero_filled, self.weight, self.iterations)
            at_u = replace(at_x, grad_f=problem.fidelity_grad(u))
        return [Candidate(u, self.proposal.first_memory(u, at_u))]

    def as_dict(self) -> dict[str, Any]:
        """Return the kind, the total variation and the other proposal."""
        own = {"kind": self.kind, "weight": self.weight, "iterations": self.iterations}
        return own | {"proposal": self.proposal.as_dict()}


class Repeated(Proposal):
    """The last phase of another proposal, again and again: for runs that are continued beyond T.

    Examples
    --------
    >>> Repeated(GradientProposal(3)).as_dict()["kind"]
    'repeated'
    """

    kind: ClassVar[str] = "repeated"

    def __init__(self, proposal: Proposal) -> None:
        super().__init__()
        self.proposal = proposal

    def first_memory(self, x0: Tensor, at_x0: Evaluation) -> Memory:
        """Return that of the other proposal."""
        return self.proposal.first_memory(x0, at_x0)

    def forward(
        self, problem: SmoothedObjective, x: Tensor, at_x: Evaluation, eps: Tensor, t: int, memory: Memory
    ) -> list[Candidate]:
        """Return the candidates of a phase beyond the last."""
        candidates: list[Candidate] = self.proposal(problem, x, at_x, eps, t + self.proposal.n_phases, memory)
        return candidates

    def as_dict(self) -> dict[str, Any]:
        """Return the kind and the other proposal."""
        return {"kind": self.kind, "proposal": self.proposal.as_dict()}


def proposal_from_dict(content: dict[str, Any]) -> Proposal:
    """Build the proposal that `Proposal.as_dict` describes; the description may come from anywhere.

    Examples
    --------
    >>> proposal_from_dict(GradientProposal(2, beta=0.25).as_dict()).log_beta.exp().tolist()
    [0.25, 0.25]
    """
    content = dict(content)
    kind = content.pop("kind", None)
    if kind == Repeated.kind and set(content) == {"proposal"}:
        return Repeated(_from_dict_within(content["proposal"], also=TotalVariationFirst.kind))
    if kind == TotalVariationFirst.kind and set(content) == {"weight", "iterations", "proposal"}:
        weight, iterations = content["weight"], checked_count("iterations", content["iterations"], MOST_ITERATIONS)
        if type(weight) is not float or not 0 < weight < math.inf:
            raise UldaError(f"the weight of the total variation must be positive and finite, but it is {weight!r}")
        return TotalVariationFirst(_from_dict_within(content["proposal"]), weight, iterations)
    if kind not in (GradientProposal.kind, AcceleratedProposal.kind):
        raise UldaError(f"a proposal of the kind {kind!r} cannot be built from its description; pass the proposal")
    dtype = {"float32": torch.float32, "float64": torch.float64}.get(content.pop("precision", None))
    if dtype is None:
        raise UldaError("the proposal does not say whether its parameters are float32 or float64")
    log_alpha = content.get("log_alpha")
    n_steps = len(log_alpha) if isinstance(log_alpha, list) else 0
    if kind == GradientProposal.kind:
        proposal: Proposal = GradientProposal(n_steps)
    else:
        proposal = AcceleratedProposal(n_steps, content.pop("steps_per_phase", 1), gains="log_gains" in content)
    proposal = proposal.to(dtype)
    expected = dict(proposal.named_parameters())
    if set(content) != set(expected):
        raise UldaError(f"a proposal of the kind {kind!r} needs the parameters {', '.join(sorted(expected))}")
    if sum(parameter.numel() for parameter in expected.values()) > MOST_NUMBERS:
        raise UldaError(f"the proposal has more than {MOST_NUMBERS} parameters")
    with torch.no_grad():
        for name, parameter in expected.items():
            parameter.copy_(_described_numbers(name, content[name], parameter))
    return proposal


def _from_dict_within(content: Any, also: str | None = None) -> Proposal:
    """Build the proposal that another is made of; those that are made of others are few and not nested further."""
    if not isinstance(content, dict) or content.get("kind") not in (
        GradientProposal.kind,
        AcceleratedProposal.kind,
        also,
    ):
        raise UldaError("what a proposal is made of cannot be built from its description; pass the proposal")
    return proposal_from_dict(content)


def _described_numbers(name: str, values: Any, like: Tensor) -> Tensor:
    """Return the numbers of a description, once they are known to be as many as expected, and finite."""
    if not isinstance(values, list) or len(values) != len(like):
        raise UldaError(f"{name} of the proposal must be a list of {len(like)}")
    try:
        found = torch.tensor(values, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UldaError(f"{name} of the proposal must hold numbers only, in rows of equal length") from error
    if found.shape != like.shape or not torch.isfinite(found).all():
        raise UldaError(f"{name} of the proposal must hold finite numbers in the shape {tuple(like.shape)}")
    return found
