"""Proposals made of others, and proposals built from their descriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ulda.errors import UldaError
from ulda.solvers.objective import Evaluation, SmoothedObjective
from ulda.solvers.proposals import (
    MOST_NUMBERS,
    AcceleratedProposal,
    Candidate,
    GradientProposal,
    Memory,
    Proposal,
)


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


class MeanProposal(Proposal):
    """The mean of the proposals of several domains, which learns as they do.

    Parameters
    ----------
    proposals
        Proposals of one kind and size.
    """

    kind: ClassVar[str] = "mean"

    def __init__(self, proposals: Sequence[Proposal]) -> None:
        super().__init__()
        self.n_phases = proposals[0].n_phases
        self.proposals = nn.ModuleList(proposals)

    def first_memory(self, x0: Tensor, at_x0: Evaluation) -> Memory:
        """Return that of one of them."""
        first = self.proposals[0]
        assert isinstance(first, Proposal)
        return first.first_memory(x0, at_x0)

    def forward(
        self, problem: SmoothedObjective, x: Tensor, at_x: Evaluation, eps: Tensor, t: int, memory: Memory
    ) -> list[Candidate]:
        """Return the candidates of a proposal with the mean parameters."""
        each = [dict(proposal.named_parameters()) for proposal in self.proposals]
        means = {name: torch.stack([one[name] for one in each]).mean(0) for name in each[0]}
        found: list[Candidate] = functional_call(self.proposals[0], means, (problem, x, at_x, eps, t, memory))
        return found


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
        return Repeated(_repeated_from_dict(content["proposal"]))
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


def _repeated_from_dict(content: Any) -> Proposal:
    """Build the proposal that is repeated, which is not itself a repetition."""
    if not isinstance(content, dict) or content.get("kind") == Repeated.kind:
        raise UldaError("the proposal that is repeated cannot be built from its description; pass the proposal")
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
