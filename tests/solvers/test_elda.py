from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise, product
from typing import Any, Self

import pytest
import torch
from torch.nn import functional as F

from benchmarks.promises import GroupShrinkage, learned_problem, shrinkage_problem
from tests.linear_checks import complex_normal
from ulda.data import demo
from ulda.errors import UldaError
from ulda.models import Adapter, FeatureExtractor, Regularizer
from ulda.physics import CartesianMRI, MultiCoilMRI, cartesian_mask, espirit_maps
from ulda.solvers import (
    AcceleratedProposal,
    Candidate,
    Evaluation,
    GradientProposal,
    Options,
    Proposal,
    Reconstruction,
    Status,
    Trace,
    elda,
)

OPTIONS = Options(eps_0=0.003, eps_tol=1e-5, iterations=8)


def knee_problem(n: int, side: int = 128) -> tuple[Reconstruction, torch.Tensor]:
    """Return real slices and a start."""
    images = torch.stack(list(demo("knee").take(range(0, 4 * n, 4)).images()))[:, :side, :side]
    physics = CartesianMRI(cartesian_mask(side, 0.2))
    y = physics.A(images)
    regularizer = Regularizer(FeatureExtractor(8, 2), Adapter(8, weight=0.01))
    return Reconstruction(physics, y, regularizer), physics.A_adjoint(y)


@pytest.mark.parametrize(
    "proposal",
    [
        GradientProposal(8, beta=[0.2, 50.0] * 4),
        AcceleratedProposal(8, beta=[0.2, 50.0] * 4, kappa=0.5),
        AcceleratedProposal(24, 3, beta=[0.2, 2.0, 50.0] * 4 + [50.0] * 12, kappa=0.01, momentum=0.5, gains=False),
    ],
    ids=["gradient", "accelerated", "several steps"],
)
@torch.no_grad()
def test_a_slice_is_the_same_alone_and_in_any_batch(proposal: Proposal) -> None:
    problem, x0 = knee_problem(5)
    together, trace = elda(problem, x0, proposal, OPTIONS)
    branches = {step.branch for i in range(5) for step in trace.steps(i)}
    assert branches == {"u", "v"}
    for group in ([0], [3], [4, 1], [2, 0, 3]):
        index = torch.tensor(group)
        apart, parts = elda(problem.take(index), x0[index], proposal, OPTIONS)
        assert float((apart - together[index]).abs().max()) < 1e-5
        for i, sample in enumerate(group):
            assert [s.branch for s in parts.steps(i)] == [s.branch for s in trace.steps(sample)]


class Counted(GroupShrinkage):
    """Counts the samples that are evaluated."""

    evaluated: list[int]

    def evaluate(self, x: torch.Tensor, eps: torch.Tensor) -> Any:
        Counted.evaluated.append(len(x))
        return super().evaluate(x, eps)

    def regularizer_grad(self, x: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
        return GroupShrinkage(self.y, self.weight).evaluate(x, eps).grad_r


@torch.no_grad()
def test_samples_that_have_stopped_cost_nothing() -> None:
    shrinkage = shrinkage_problem()
    y = shrinkage.y.clone()
    y[1] = 0
    problem = Counted(y, 0.5)
    Counted.evaluated = []
    _, trace = elda(problem, y, options=Options(eps_0=0.5, eps_tol=0.05, iterations=500, gamma=0.7))
    lengths = [len(trace.steps(i)) for i in range(3)]
    assert lengths[1] < min(lengths[0], lengths[2])
    steps = [step for i in range(3) for step in trace.steps(i)]
    n_trials = sum(1 + step.line_search_steps for step in steps if step.branch == "v")
    n_reductions = sum(
        after.eps < before.eps
        for i in range(3)
        for before, after in zip(trace.steps(i), trace.steps(i)[1:], strict=False)
    )
    assert sum(Counted.evaluated) == 3 + len(steps) + n_trials + n_reductions


def count_convolutions(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    counts = {"conv2d": 0, "conv_transpose2d": 0}

    def counted(name: str) -> Any:
        original = getattr(F, name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            counts[name] += 1
            return original(*arguments, **keywords)

        return call

    for name in counts:
        monkeypatch.setattr(F, name, counted(name))
    return counts


@torch.no_grad()
def test_nothing_is_evaluated_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Per accepted proposal: one value and gradient at z and one at u, of depth + 1 convolutions each way."""
    counts = count_convolutions(monkeypatch)
    problem, x0 = knee_problem(2, side=32)
    _, trace = elda(problem, x0, GradientProposal(beta=0.1), replace(OPTIONS, iterations=5))
    assert trace.accepted_fraction() == 1
    assert counts == {"conv2d": 3 * (1 + 2 * 5), "conv_transpose2d": 3 * (1 + 2 * 5)}


@torch.no_grad()
def precise(proposal: Proposal, **sizes: float) -> Proposal:
    """Set step sizes in double precision."""
    proposal = proposal.double()
    for name, size in sizes.items():
        proposal.get_parameter(f"log_{name}").fill_(math.log(size))
    return proposal


@torch.no_grad()
def test_the_steps_are_those_of_the_algorithm() -> None:
    """One iteration by hand."""
    problem, x0 = learned_problem(1)
    options = Options(eps_0=0.5, iterations=1)
    sizes: dict[str, Any] = {"alpha": 0.3, "beta": 0.02}
    x, trace = elda(problem, x0, precise(GradientProposal(), **sizes), options)
    eps = torch.tensor([0.5], dtype=torch.float64)
    z = x0 - 0.3 * problem.physics.fidelity_grad(x0, problem.y)
    u = z - 0.02 * problem.regularizer.grad(z, eps)
    (step,) = trace.steps(0)

    def phi(point: torch.Tensor) -> float:
        return float(problem.physics.fidelity(point, problem.y) + problem.regularizer.value(point, eps))

    assert step.branch == "u"
    assert torch.allclose(x, u, atol=1e-14)
    assert step.phi_before == pytest.approx(phi(x0), rel=1e-12)
    assert step.phi == pytest.approx(phi(u), rel=1e-12)
    assert step.f + step.r == pytest.approx(step.phi, rel=1e-12)
    assert step.step_length == pytest.approx(float((u - x0).norm()), rel=1e-12)

    # with the extra step: beyond the knot at half of the highest frequency nothing of it is left
    slope = problem.regularizer.grad(z, eps)
    frequencies = [2 * torch.fft.fftfreq(n, dtype=torch.float64) for n in x0.shape[-2:]]
    radius = (frequencies[0][:, None].square() + frequencies[1].square()).sqrt()
    kept = (2 - 4 * radius).clamp(0, 1)
    unmeasured = slope - problem.physics.A_adjoint(problem.physics.A(slope))
    expected = u - 0.01 * torch.fft.ifft2(kept * torch.fft.fft2(unmeasured))
    proposal = precise(AcceleratedProposal(), **sizes, kappa=0.01)
    proposal.get_parameter("log_gains").copy_(torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, 0.0]).log())
    assert torch.allclose(elda(problem, x0, proposal, options)[0], expected, atol=1e-14)

    x, trace = elda(problem, x0, GradientProposal(beta=1e4).double(), options)
    (step,) = trace.steps(0)
    gradient = problem.physics.fidelity_grad(x0, problem.y) + problem.regularizer.grad(x0, eps)
    length = options.alpha_bar * options.rho**step.line_search_steps
    assert step.branch == "v"
    assert torch.allclose(x, x0 - length * gradient, atol=1e-13)


def test_gradients_flow_through_the_accepted_branch() -> None:
    """The derivative of the result by a weight and by a step size equals a finite difference, on both branches."""
    problem, x0 = learned_problem(2)
    weight = problem.regularizer.adapter.layer.real  # type: ignore[union-attr]
    target = torch.ones_like(x0)

    for (first, branch), make in product(((0.02, "u"), (30.0, "v")), (GradientProposal, AcceleratedProposal)):
        sizes: dict[str, Any] = {"beta": [first, 0.02, 0.02]}
        if make is AcceleratedProposal:
            sizes |= {"kappa": 0.01, "momentum": 0.5}
        proposal = make(3, alpha=0.3, **sizes).double()
        beta = proposal.get_parameter("log_beta")

        def loss(proposal: Proposal = proposal) -> tuple[torch.Tensor, list[str]]:
            x, trace = elda(problem, x0, proposal, Options(eps_0=0.5, iterations=3))
            return torch.view_as_real(x - target).square().sum(), [s.branch for s in trace.steps(0)]

        value, branches = loss()
        d_beta, d_weight = torch.autograd.grad(value, [beta, weight])
        assert branches[0] == branch
        h = 1e-6
        with torch.no_grad():
            for tensor, gradient, at in ((weight, d_weight, (1, 2, 0, 1)), (beta, d_beta, (1,))):
                tensor[at] += h
                above = float(loss()[0])
                tensor[at] -= 2 * h
                below = float(loss()[0])
                tensor[at] += h
                assert float(gradient[at]) == pytest.approx((above - below) / (2 * h), rel=1e-5, abs=1e-7)
        if branch == "v":
            assert float(d_beta[0]) == 0


class Uneven(GradientProposal):
    """Overshoots in even phases where the measurement is that of the second sample."""

    def forward(self, problem: Any, x: Any, at_x: Any, eps: Any, t: int, memory: Any) -> Any:
        ((u, _),) = super().forward(problem, x, at_x, eps, t, memory)
        is_second = (problem.y == self.second).all((-2, -1))
        overshoots = is_second if t % 2 == 0 else torch.zeros_like(is_second)
        return [Candidate(torch.where(overshoots[:, None, None], x + 1e3 * (u - x), u))]


@pytest.mark.parametrize("track_values", [False, True])
def test_gradients_flow_through_mixed_batches(track_values: bool) -> None:
    """Two samples on different branches, stopping at different times, with eps reduced on the way."""
    problem, x0 = learned_problem(2)
    problem.track_values = track_values
    x0 = x0 + 0.3 * complex_normal(*x0.shape, seed=5).to(x0.dtype)
    names = ("extractor.layers.0.imag", "adapter.layer.real")
    first, last = (problem.regularizer.get_parameter(name) for name in names)
    proposal = Uneven(25, alpha=0.1, beta=0.1).double()
    proposal.second = problem.y[1]
    beta = proposal.log_beta
    options = Options(eta1=0.04, eps_0=3.0, gamma=0.7, eps_tol=0.5, iterations=25)

    def loss() -> tuple[torch.Tensor, Trace]:
        terms: list[torch.Tensor] = []

        def callback(status: Status) -> None:
            terms.append(((1 + status.samples) * status.at_next.phi).sum() + status.at_next.grad_norm.square().sum())

        x, trace = elda(problem, x0, proposal, options, callback)
        total = torch.view_as_real(x).pow(3).sum()
        return (total + torch.stack(terms).sum() if track_values else total), trace

    value, trace = loss()
    for sample, branches in enumerate(({"u"}, {"u", "v"})):
        steps = trace.steps(sample)
        assert {step.branch for step in steps} == branches
        assert len({step.eps for step in steps}) > 3
    assert len(trace.steps(0)) != len(trace.steps(1))
    gradients = torch.autograd.grad(value, [first, last, beta])
    h = 1e-6
    with torch.no_grad():
        for tensor, gradient, at in zip(
            (first, last, beta), gradients, ((0, 0, 1, 1), (1, 2, 0, 1), (1,)), strict=True
        ):
            tensor[at] += h
            above = float(loss()[0])
            tensor[at] -= 2 * h
            below = float(loss()[0])
            tensor[at] += h
            assert float(gradient[at]) == pytest.approx((above - below) / (2 * h), rel=1e-5)


@pytest.mark.parametrize("track_values", [False, True])
def test_training_adds_one_evaluation_to_a_line_search(track_values: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = count_convolutions(monkeypatch)
    problem, x0 = knee_problem(1, side=32)
    problem.track_values = track_values
    x, trace = elda(problem, x0, GradientProposal(beta=1e4), replace(OPTIONS, iterations=1))
    (step,) = trace.steps(0)
    assert step.branch == "v"
    assert x.requires_grad
    at_x0_z_and_u, trials = 3, 1 + step.line_search_steps
    assert counts["conv2d"] == 3 * (at_x0_z_and_u + trials + 1)


class Flat:
    """A gradient that no step can follow, as in finite precision close to a minimum."""

    def __init__(self, slope: float) -> None:
        self.slope = slope

    def evaluate(self, x: torch.Tensor, eps: torch.Tensor) -> Evaluation:
        del eps
        value = torch.ones(len(x), dtype=torch.float64)
        return Evaluation(value, torch.full_like(x, self.slope), value, torch.zeros_like(x))

    def fidelity_grad(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full_like(x, self.slope)

    def regularizer_grad(self, x: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
        del eps
        return torch.zeros_like(x)

    def unmeasured(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x)

    def take(self, index: torch.Tensor) -> Self:
        del index
        return self

    def check(self, x: torch.Tensor) -> None:
        """Accept every start."""


@torch.no_grad()
def test_a_sample_that_cannot_move_stops_unless_its_smoothing_can_be_reduced() -> None:
    x0 = torch.ones(1, 4, dtype=torch.float64)
    x, trace = elda(Flat(1.0), x0)
    (step,) = trace.steps(0)
    assert step.branch == "stalled"
    assert step.line_search_steps == 54  # 1 - 2^-54 rounds to 1
    assert torch.equal(x, x0)
    _, trace = elda(Flat(1e-5), x0, options=Options(iterations=100))
    steps = trace.steps(0)
    assert {step.branch for step in steps} == {"stalled"}
    assert all(after.eps == pytest.approx(0.8 * before.eps) for before, after in pairwise(steps))
    assert 0.9 * steps[-1].eps < 1e-3 <= 0.9 * steps[-2].eps


def test_the_callback_sees_and_stops() -> None:
    problem = shrinkage_problem()
    seen: list[Status] = []

    def callback(status: Status) -> bool:
        seen.append(status)
        return status.iteration < 2

    x, trace = elda(problem, problem.y, None, Options(iterations=50), callback)
    assert [status.iteration for status in seen] == [0, 1, 2]
    assert len(trace) == 3
    assert torch.equal(x, seen[-1].x_next)
    assert trace.options.iterations == 3


def test_without_safeguard_every_proposal_is_taken() -> None:
    problem, x0 = learned_problem(1)
    with torch.no_grad():
        x, trace = elda(problem, x0, GradientProposal(beta=3.0), Options(eps_0=0.5, iterations=4, safeguard=False))
    assert trace.accepted_fraction() == 1
    assert any(step.phi > step.phi_before for step in trace.steps(0))
    assert torch.isfinite(x.abs()).all()


@torch.no_grad()
def test_a_proposal_that_is_not_finite_is_rejected() -> None:
    problem, x0 = learned_problem(1)
    x, trace = elda(problem, x0, GradientProposal(beta=1e300), Options(eps_0=0.5, iterations=3))
    assert {step.branch for step in trace.steps(0)} == {"v"}
    assert torch.isfinite(x.abs()).all()


@torch.no_grad()
def test_multicoil_data_with_maps_of_each_sample() -> None:
    brain = demo("brain-multicoil")
    kspace = torch.stack([brain.kspace(0), brain.kspace(0).flip(-1)])
    maps = espirit_maps(kspace)
    physics = MultiCoilMRI(cartesian_mask(224, 0.25, center=0.1), maps)
    y = kspace * physics.mask.lines[:, None]
    problem = Reconstruction(physics, y, Regularizer(FeatureExtractor(4, 1), Adapter(4, weight=0.01)))
    options = Options(eps_0=0.003, iterations=2)
    together, trace = elda(problem, physics.A_adjoint(y), options=options)
    second = torch.tensor([1])
    alone, _ = elda(problem.take(second), physics.A_adjoint(y)[second], options=options)
    assert torch.allclose(alone[0], together[1], atol=1e-5)
    assert all(step.phi < step.phi_before for i in range(2) for step in trace.steps(i))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": torch.full((1, 8, 8), torch.nan, dtype=torch.complex64)}, "measurement holds NaN"),
        ({"y": torch.full((1, 8, 8), math.inf + 0j, dtype=torch.complex64)}, "measurement holds NaN or infinite"),
        ({"y": torch.zeros(1, 8, 9, dtype=torch.complex64)}, r"measurement has shape \(1, 8, 9\)"),
        ({"y": torch.zeros(2, 8, 8, dtype=torch.complex64)}, "2 measurements, but 1 images"),
        ({"y": torch.zeros(0, 8, 8, dtype=torch.complex64)}, "the batch is empty"),
        ({"x0": torch.zeros(0, 8, 8, dtype=torch.complex64)}, "at least one sample"),
        ({"x0": torch.full((1, 8, 8), torch.nan, dtype=torch.complex64)}, "starting point holds NaN"),
        ({"x0": torch.zeros(1, 9, 8, dtype=torch.complex64)}, "mask has 8 lines"),
    ],
)
def test_unsolvable_problems_are_clear_errors_before_any_iteration(change: dict[str, Any], message: str) -> None:
    given = {"y": torch.zeros(1, 8, 8, dtype=torch.complex64), "x0": complex_normal(1, 8, 8)} | change
    problem = Reconstruction(CartesianMRI(cartesian_mask(8, 0.5)), given["y"], Regularizer(FeatureExtractor(2, 1)))
    with pytest.raises(UldaError, match=message):
        elda(problem, given["x0"], callback=lambda _: pytest.fail("an iteration was made"))


def test_an_objective_that_is_not_finite_is_a_clear_error() -> None:
    problem, x0 = learned_problem(1)
    with torch.no_grad():
        problem.regularizer.extractor.layers[0].get_parameter("real")[0, 0, 0, 0] = torch.nan
    with pytest.raises(UldaError, match="not finite at the starting point"):
        elda(problem, x0)
