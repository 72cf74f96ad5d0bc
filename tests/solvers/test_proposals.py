from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from benchmarks.promises import learned_problem, shrinkage_problem
from ulda.errors import UldaError
from ulda.physics.spectrum import KNOTS
from ulda.solvers import (
    AcceleratedProposal,
    Evaluation,
    GradientProposal,
    Options,
    Proposal,
    Repeated,
    Status,
    elda,
    proposal_from_dict,
)
from ulda.solvers.proposals import inverse_frequency, is_downhill

MADE = [
    GradientProposal(),
    GradientProposal(3, alpha=0.3, beta=[0.1, 0.2, 0.3]).double(),
    AcceleratedProposal(),
    AcceleratedProposal(6, 3, kappa=0.2, momentum=0.5, gains=False).double(),
    Repeated(AcceleratedProposal(6, 3)),
]


@pytest.mark.parametrize("proposal", MADE, ids=lambda proposal: proposal.kind)
def test_a_proposal_survives_json_exactly(proposal: Proposal) -> None:
    with torch.no_grad():
        for parameter in proposal.parameters():
            parameter.add_(0.1 * torch.rand(parameter.shape, generator=torch.Generator().manual_seed(1)))
    again = proposal_from_dict(json.loads(json.dumps(proposal.as_dict())))
    assert type(again) is type(proposal)
    assert again.as_dict() == proposal.as_dict()
    for (name, ours), (other, theirs) in zip(proposal.state_dict().items(), again.state_dict().items(), strict=True):
        assert name == other
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


GOOD = AcceleratedProposal(2, 2).as_dict()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "unet"}, "kind 'unet' cannot be built from its description; pass the proposal"),
        ({"kind": ["gradient"]}, "cannot be built"),
        ({"kind": "repeated"}, "cannot be built"),
        ({"precision": "float16"}, "float32 or float64"),
        ({"steps_per_phase": 10**9}, "steps_per_phase must be a whole number from 1 to 100"),
        ({"steps_per_phase": True}, "steps_per_phase must be a whole number"),
        ({"steps_per_phase": 3}, "n_steps must be 1 or a multiple of steps_per_phase, 3, not 2"),
        ({"log_alpha": []}, "n_steps must be a whole number from 1 to 10000"),
        ({"log_alpha": 3.0}, "n_steps must be"),
        ({"log_alpha": [0.0] * 20_000}, "n_steps must be a whole number from 1 to 10000"),
        ({"log_alpha": [0.0] * 2000}, "more than 10000 parameters"),
        ({"log_beta": [0.0]}, "log_beta of the proposal must be a list of 2"),
        ({"log_beta": [math.nan, 0.0]}, "log_beta of the proposal must hold finite numbers"),
        ({"log_beta": ["0", 0.0]}, "log_beta of the proposal must hold numbers only"),
        ({"log_beta": [10**400, 0.0]}, "log_beta of the proposal must hold numbers only"),
        ({"log_gains": [[0.0] * 5] * 2}, r"in the shape \(2, 6\)"),
        ({"log_gains": [0.0, [1.0]]}, "must hold numbers only"),
        ({"extra": 1}, "needs the parameters log_alpha, log_beta, log_gains, log_kappa, logit_momentum"),
    ],
)
def test_descriptions_from_anywhere_are_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UldaError, match=message):
        proposal_from_dict(GOOD | change)


@pytest.mark.parametrize("content", [{"kind": "repeated", "proposal": GOOD}, [1], "gradient", {"kind": "repeated"}])
def test_what_is_repeated_is_checked(content: Any) -> None:
    with pytest.raises(UldaError, match="repeated cannot be built"):
        proposal_from_dict({"kind": "repeated", "proposal": content})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GradientProposal(0), "n_steps must be a whole number from 1"),
        (lambda: GradientProposal(2.0), "n_steps must be a whole number"),  # type: ignore[arg-type]
        (lambda: GradientProposal(alpha=-1.0), "alpha must be positive and finite"),
        (lambda: GradientProposal(beta=math.inf), "beta must be positive and finite"),
        (lambda: GradientProposal(3, beta=[0.1, 0.2]), "beta must be a number, or 3 of them"),
        (lambda: GradientProposal(beta="fast"), "beta must be a number"),  # type: ignore[arg-type]
        (lambda: AcceleratedProposal(momentum=1.0), "momentum must be positive and below 1"),
        (lambda: AcceleratedProposal(5, 2), "multiple of steps_per_phase"),
        (lambda: AcceleratedProposal(kappa=0.0), "kappa must be positive"),
    ],
)
def test_wrong_sizes_are_one_sentence(make: Any, message: str) -> None:
    with pytest.raises(UldaError, match=message):
        make()


def test_where_the_step_sizes_start() -> None:
    proposal = AcceleratedProposal(4, 2, alpha=0.5, beta=0.25, kappa=2.0, momentum=0.75)
    assert proposal.log_alpha.exp().tolist() == pytest.approx([0.5] * 4)
    assert proposal.log_beta.exp().tolist() == pytest.approx([0.25] * 4)
    assert proposal.log_kappa.exp().tolist() == pytest.approx([2.0] * 4)
    assert proposal.logit_momentum.sigmoid().tolist() == pytest.approx([0.75] * 4)
    assert proposal.log_gains is not None
    assert proposal.log_gains.exp()[3].tolist() == pytest.approx(inverse_frequency().tolist())
    # one over the frequency: at a quarter of the highest one about four times what it is there
    assert (inverse_frequency()[KNOTS.index(0.25)] / inverse_frequency()[-1]).item() == pytest.approx(4, rel=0.1)


def taken_betas(proposal: Proposal, phases: int) -> list[float]:
    """Return the beta of every step, read off where it leads: r has gradient 1, f has none."""
    problem, x = Constant(), torch.zeros(1, 4)
    at_x, found = problem.evaluate(x, torch.ones(1)), []
    memory = proposal.first_memory(x, at_x)
    for t in range(phases):
        ends = [candidate.x for candidate in proposal(problem, x, at_x, torch.ones(1), t, memory)][::-1]
        found += [-float((end - start)[0, 0]) for start, end in zip([x, *ends], ends, strict=False)]
    return found


class Constant:
    """``f = 0`` and ``r = sum x``."""

    def evaluate(self, x: torch.Tensor, eps: torch.Tensor) -> Evaluation:
        del eps
        return Evaluation(torch.zeros(len(x)), torch.zeros_like(x), x.sum(1), torch.ones_like(x))

    def fidelity_grad(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x)

    def regularizer_grad(self, x: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
        del eps
        return torch.ones_like(x)

    def unmeasured(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x)


@torch.no_grad()
def test_beyond_the_last_phase_its_steps_are_used_again() -> None:
    def accelerated(*sizes: float, steps_per_phase: int = 2) -> Proposal:
        return AcceleratedProposal(len(sizes), steps_per_phase, beta=sizes, momentum=1e-9, gains=False)

    one = accelerated(0.1, steps_per_phase=3)
    assert taken_betas(one, 2) == pytest.approx([0.1] * 6)
    four = accelerated(0.1, 0.2, 0.3, 0.4)
    assert taken_betas(four, 4) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.3, 0.4, 0.3, 0.4])
    assert taken_betas(Repeated(four), 2) == pytest.approx([0.3, 0.4, 0.3, 0.4])
    gradient = GradientProposal(3, beta=[0.1, 0.2, 0.3])
    assert taken_betas(gradient, 5) == pytest.approx([0.1, 0.2, 0.3, 0.3, 0.3])
    assert taken_betas(Repeated(gradient), 2) == pytest.approx([0.3, 0.3])


def several(*beta: float, steps: int, momentum: Any = 0.5, alpha: float = 0.3) -> AcceleratedProposal:
    return AcceleratedProposal(len(beta), steps, alpha, beta, 1e-9, momentum, gains=False).double()


@torch.no_grad()
def test_a_phase_of_several_steps_is_those_steps_one_after_the_other() -> None:
    problem, x0 = learned_problem(2)
    betas, momenta = torch.linspace(0.01, 0.04, 6).tolist(), [0.1, 0.5, 0.4, 0.3, 0.2, 0.6]
    options = Options(eta1=1e-4, eta2=1e-4, eps_0=0.5, iterations=6)
    one_by_one: list[torch.Tensor] = []

    def keep(status: Status) -> None:
        one_by_one.append(status.x_next)

    _, short = elda(problem, x0, several(*betas, steps=1, momentum=momenta), options, keep)
    x, trace = elda(
        problem, x0, several(*betas, steps=3, momentum=momenta), Options(**(options.as_dict() | {"iterations": 2}))
    )
    assert torch.allclose(x, one_by_one[-1], atol=1e-12)
    for sample in range(2):
        assert [step.branch for step in trace.steps(sample)] == ["u", "u"]
        values = [step.phi for step in short.steps(sample)]
        assert [step.phi for step in trace.steps(sample)] == pytest.approx([values[2], values[5]], rel=1e-12)


@torch.no_grad()
def test_steps_may_climb_within_a_phase_but_no_phase_climbs() -> None:
    """The middle one of three steps raises the objective so much that it would be refused alone."""
    problem, x0 = learned_problem(2)
    betas, sizes = (0.02, 2.0, 0.02), {"alpha": 0.5, "momentum": 1e-9}
    _, alone = elda(problem, x0, several(*betas, steps=1, **sizes), Options(eps_0=0.5, iterations=3, safeguard=False))
    assert all(alone.steps(i)[1].phi > alone.steps(i)[1].phi_before for i in range(2))
    _, tested = elda(problem, x0, several(*betas, steps=1, **sizes), Options(eps_0=0.5, iterations=3))
    assert all(tested.steps(i)[1].branch == "v" for i in range(2))
    _, trace = elda(problem, x0, several(*betas, steps=3, **sizes), Options(eps_0=0.5, iterations=4))
    for i in range(2):
        assert all(step.phi < step.phi_before for step in trace.steps(i))
        assert trace.steps(i)[0].proposal_steps == 3
        assert trace.steps(i)[0].phi == pytest.approx(alone.steps(i)[2].phi, rel=1e-8)


def test_where_the_last_steps_of_a_phase_fail_the_ones_before_are_taken() -> None:
    """With gradients, and from there on with the momentum of the last step that was taken."""
    problem, x0 = learned_problem(2)
    options = Options(eps_0=0.5, iterations=2)
    failing = several(0.02, 0.03, 1e4, 1e4, 0.02, 0.03, 1e4, 1e4, steps=4)
    good = several(0.02, 0.03, 0.02, 0.03, steps=2)
    x, trace = elda(problem, x0, failing, options)
    expected, _ = elda(problem, x0, good, options)
    assert {step.branch for i in range(2) for step in trace.steps(i)} == {"u"}
    assert [step.proposal_steps for i in range(2) for step in trace.steps(i)] == [2] * 4
    assert torch.allclose(x, expected, atol=1e-12)
    (found,) = torch.autograd.grad(x.abs().sum(), failing.log_beta)
    (by_hand,) = torch.autograd.grad(expected.abs().sum(), good.log_beta)
    assert torch.allclose(found[[0, 1, 4, 5]], by_hand, rtol=1e-8)
    assert (by_hand != 0).all()
    assert (found[[2, 3, 6, 7]] == 0).all()

    once = Options(eps_0=0.5, iterations=1)
    x, trace = elda(problem, x0, several(1e4, steps=4), once)
    assert {step.branch for i in range(2) for step in trace.steps(i)} == {"v"}
    assert [step.proposal_steps for i in range(2) for step in trace.steps(i)] == [0, 0]
    assert torch.equal(x, elda(problem, x0, GradientProposal(beta=1e4), once)[0])


def test_gains_need_images() -> None:
    problem = shrinkage_problem()
    with pytest.raises(UldaError, match="gains by spatial frequency need complex images"):
        elda(problem, problem.y, AcceleratedProposal())


class Quadratic:
    """``f = 1/2 ||P (x - y)||^2``, ``r = 1/2 sum s_k (x_k - 1)^2``, where P keeps the first half."""

    def __init__(self, y: torch.Tensor, stiffness: torch.Tensor) -> None:
        self.y, self.stiffness = y, stiffness
        self.seen = (torch.arange(y.shape[1]) < y.shape[1] // 2).to(y)

    def evaluate(self, x: torch.Tensor, eps: torch.Tensor) -> Evaluation:
        del eps
        residual = self.seen * (x - self.y)
        value = 0.5 * (self.stiffness * (x - 1).square()).sum(1)
        return Evaluation(0.5 * residual.square().sum(1), residual, value, self.stiffness * (x - 1))

    def fidelity_grad(self, x: torch.Tensor) -> torch.Tensor:
        return self.seen * (x - self.y)

    def regularizer_grad(self, x: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
        del eps
        return self.stiffness * (x - 1)

    def unmeasured(self, x: torch.Tensor) -> torch.Tensor:
        return (1 - self.seen) * x

    def take(self, index: torch.Tensor) -> Quadratic:
        return Quadratic(self.y[index], self.stiffness)

    def check(self, x: torch.Tensor) -> None:
        """Accept every start."""

    def minimiser(self) -> torch.Tensor:
        return (self.seen * self.y + self.stiffness) / (self.seen + self.stiffness)


def quadratic() -> Quadratic:
    generator = torch.Generator().manual_seed(5)
    y = torch.randn(3, 40, dtype=torch.float64, generator=generator)
    return Quadratic(y, 0.01 + 0.04 * torch.rand(40, dtype=torch.float64, generator=generator))


def distance_after(n: int, proposal: Proposal) -> tuple[float, float]:
    problem = quadratic()
    options = Options(eps_0=10.0, eps_tol=1e-9, sigma=0.01, iterations=n)
    with torch.no_grad():
        x, trace = elda(problem, torch.zeros_like(problem.y), proposal.double(), options)
    return float((x - problem.minimiser()).norm()), trace.accepted_fraction()


def test_the_extra_step_and_momentum_reach_the_minimiser_in_fewer_iterations() -> None:
    """In what is not measured the curvature is that of r alone, here at most 0.05: steps of 20 are right there."""
    sizes: dict[str, Any] = {"alpha": 0.9, "beta": 0.9, "kappa": 19.0, "gains": False}
    plain, _ = distance_after(15, GradientProposal(alpha=0.9, beta=0.9))
    extra, accepted = distance_after(15, AcceleratedProposal(momentum=1e-9, **sizes))
    both, accepted_both = distance_after(15, AcceleratedProposal(momentum=0.3, **sizes))
    assert plain > 3
    assert extra < 0.2
    assert both < 0.5 * extra
    assert accepted == accepted_both == 1


def test_momentum_is_dropped_where_it_leads_uphill() -> None:
    problem = quadratic()
    x = problem.minimiser() + 1
    at_x = problem.evaluate(x, torch.ones(3))
    step = torch.stack([-at_x.grad[0], at_x.grad[1], torch.zeros(40, dtype=torch.float64)])
    assert is_downhill(step, at_x).flatten().tolist() == [1, 0, 1]
    sizes: dict[str, Any] = {"alpha": 0.9, "beta": 0.9, "kappa": 10.0, "gains": False}
    heavy, _ = distance_after(12, AcceleratedProposal(momentum=0.95, **sizes))
    without, _ = distance_after(12, AcceleratedProposal(momentum=1e-9, **sizes))
    assert heavy < 0.5 * without
