from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from benchmarks.promises import GroupShrinkage, learned_problem, shrinkage_problem
from tests.linear_checks import complex_normal
from ulda.data import demo
from ulda.errors import UldaError
from ulda.models import Adapter, FeatureExtractor, Regularizer
from ulda.physics import CartesianMRI, Mask, MultiCoilMRI, cartesian_mask, espirit_maps
from ulda.physics.spectrum import LINE_KNOTS
from ulda.solvers import Evaluation, Options, Reconstruction, Status, Trace, beta_from_gamma, elda
from ulda.solvers.elda import is_downhill
from ulda.solvers.objective import square_norm


def knee_problem(n: int, side: int = 128, **options: Any) -> tuple[Reconstruction, torch.Tensor, Options]:
    """Return real slices, a start, and options with which both branches occur."""
    images = torch.stack(list(demo("knee").take(range(0, 4 * n, 4)).images()))[:, :side, :side]
    physics = CartesianMRI(cartesian_mask(side, 0.2))
    y = physics.A(images)
    regularizer = Regularizer(FeatureExtractor(8, 2), Adapter(8, weight=0.01))
    settings: dict[str, Any] = {"beta": [0.2, 50.0] * 4, "eps_0": 0.003, "eps_tol": 1e-5, "iterations": 8} | options
    return Reconstruction(physics, y, regularizer), physics.A_adjoint(y), Options(**settings)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kappa": 0.5, "momentum": 0.9, "spectrum": [4.0, 3.0, 2.5, 2.0, 1.0, 0.5]},
        {"steps_per_phase": 3, "beta": [0.2, 2.0, 50.0] * 4 + [50.0] * 12, "momentum": 0.5},
        {"kappa": 0.5, "lines": [0.5, 1.0, 2.0] * 5, "channels": [[0.5, 1.5] * 4, [2.0] * 8, [1.0] * 8]},
    ],
    ids=["plain", "extrapolated", "several steps", "gains"],
)
@torch.no_grad()
def test_a_slice_is_the_same_alone_and_in_any_batch(changes: dict[str, Any]) -> None:
    problem, x0, options = knee_problem(5, **changes)
    together, trace = elda(problem, x0, options)
    branches = {step.branch for i in range(5) for step in trace.steps(i)}
    assert branches == {"u", "v"}
    for group in ([0], [3], [4, 1], [2, 0, 3]):
        index = torch.tensor(group)
        apart, parts = elda(problem.take(index), x0[index], options)
        assert float((apart - together[index]).abs().max()) < 1e-5
        for i, sample in enumerate(group):
            assert [s.branch for s in parts.steps(i)] == [s.branch for s in trace.steps(sample)]


class Counted(GroupShrinkage):
    """Counts the samples that are evaluated."""

    evaluated: list[int]

    def evaluate(self, x: torch.Tensor, eps: torch.Tensor) -> Any:
        Counted.evaluated.append(len(x))
        return super().evaluate(x, eps)

    def regularizer_grad(
        self, x: torch.Tensor, eps: torch.Tensor, channels: torch.Tensor | None = None
    ) -> torch.Tensor:
        del channels
        return GroupShrinkage(self.y, self.weight).evaluate(x, eps).grad_r


@torch.no_grad()
def test_samples_that_have_stopped_cost_nothing() -> None:
    shrinkage = shrinkage_problem()
    y = shrinkage.y.clone()
    y[1] = 0
    problem = Counted(y, 0.5)
    Counted.evaluated = []
    _, trace = elda(problem, y, Options(eps_0=0.5, eps_tol=0.05, iterations=500, gamma=0.7))
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
    problem, x0, options = knee_problem(2, side=32, beta=0.1, iterations=5)
    _, trace = elda(problem, x0, options)
    assert trace.accepted_fraction() == 1
    assert counts == {"conv2d": 3 * (1 + 2 * 5), "conv_transpose2d": 3 * (1 + 2 * 5)}


@torch.no_grad()
def test_the_steps_are_those_of_the_algorithm() -> None:
    """One iteration by hand."""
    problem, x0 = learned_problem(1)
    options = Options(alpha=0.3, beta=0.02, eps_0=0.5, iterations=1)
    x, trace = elda(problem, x0, options)
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
    gains = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, 0.0])
    extra = replace(options, kappa=0.01, spectrum=gains)
    slope = problem.regularizer.grad(z, eps)
    frequencies = [2 * torch.fft.fftfreq(n, dtype=torch.float64) for n in x0.shape[-2:]]
    radius = (frequencies[0][:, None].square() + frequencies[1].square()).sqrt()
    kept = (2 - 4 * radius).clamp(0, 1)
    unmeasured = slope - problem.physics.A_adjoint(problem.physics.A(slope))
    expected = u - 0.01 * torch.fft.ifft2(kept * torch.fft.fft2(unmeasured))
    assert torch.allclose(elda(problem, x0, extra)[0], expected, atol=1e-14)

    # with gains of lines: the wave of each line is multiplied by what NumPy interpolates
    lines = torch.linspace(0.5, 2.0, 15, dtype=torch.float64).square()
    lined = replace(options, kappa=0.01, lines=lines)
    response = np.interp(frequencies[0].numpy(), LINE_KNOTS, lines.numpy())
    assert problem.physics.axis == -2
    of_lines = torch.fft.ifft2(torch.from_numpy(response)[:, None] * torch.fft.fft2(unmeasured))
    assert torch.allclose(elda(problem, x0, lined)[0], u - 0.01 * of_lines, atol=1e-14)

    # with gains of channels: the step follows another regulariser, and is judged by this one
    amplified = problem.regularizer.materialize()
    layers = [*amplified.extractor.layers, amplified.adapter.layer]  # type: ignore[union-attr]
    channels = torch.linspace(0.5, 1.5, len(layers) * amplified.extractor.width, dtype=torch.float64)
    channels = channels.reshape(len(layers), -1)
    for layer, gains in zip(layers, channels, strict=True):
        for part in layer.parameters():
            part.mul_(gains[:, None, None, None])
    x, trace = elda(problem, x0, replace(options, channels=channels))
    (step,) = trace.steps(0)
    assert torch.allclose(x, z - 0.02 * amplified.grad(z, eps), atol=1e-14)
    assert float((x - u).abs().max()) > 1e-4
    assert step.phi_before == pytest.approx(phi(x0), rel=1e-12)
    assert step.phi == pytest.approx(phi(x), rel=1e-12)

    rejected = replace(options, beta=1e4)
    x, trace = elda(problem, x0, rejected)
    (step,) = trace.steps(0)
    gradient = problem.physics.fidelity_grad(x0, problem.y) + problem.regularizer.grad(x0, eps)
    length = rejected.alpha_bar * rejected.rho**step.line_search_steps
    assert step.branch == "v"
    assert torch.allclose(x, x0 - length * gradient, atol=1e-13)


def test_gradients_flow_through_the_accepted_branch() -> None:
    """The derivative of the result by a weight and by a step size equals a finite difference, on both branches."""
    problem, x0 = learned_problem(2)
    weight = problem.regularizer.adapter.layer.real  # type: ignore[union-attr]
    target = torch.ones_like(x0)

    def loss(beta: torch.Tensor) -> torch.Tensor:
        x, trace = elda(problem, x0, Options(alpha=0.3, beta=beta, eps_0=0.5, iterations=3))
        loss.branches = [s.branch for s in trace.steps(0)]  # type: ignore[attr-defined]
        return torch.view_as_real(x - target).square().sum()

    for first, branch in ((0.02, "u"), (30.0, "v")):
        beta = torch.tensor([first, 0.02, 0.02], dtype=torch.float64, requires_grad=True)
        d_beta, d_weight = torch.autograd.grad(loss(beta), [beta, weight])
        assert loss.branches[0] == branch  # type: ignore[attr-defined]
        h = 1e-6
        with torch.no_grad():
            for tensor, gradient, at in ((weight, d_weight, (1, 2, 0, 1)), (beta, d_beta, (1,))):
                tensor[at] += h
                above = float(loss(beta))
                tensor[at] -= 2 * h
                below = float(loss(beta))
                tensor[at] += h
                assert float(gradient[at]) == pytest.approx((above - below) / (2 * h), rel=1e-5, abs=1e-7)
        if branch == "v":
            assert float(d_beta[0]) == 0


@pytest.mark.parametrize("track_values", [False, True])
def test_gradients_flow_through_mixed_batches(track_values: bool) -> None:
    """Two samples on different branches, stopping at different times, with eps reduced on the way."""
    problem, x0 = learned_problem(2)
    problem.track_values = track_values
    x0 = x0 + 0.3 * complex_normal(*x0.shape, seed=5).to(x0.dtype)
    names = ("extractor.layers.0.imag", "adapter.layer.real")
    first, last = (problem.regularizer.get_parameter(name) for name in names)
    beta = torch.full((25, 2), 0.1, dtype=torch.float64)
    beta[::2, 1] = 1e3
    beta.requires_grad_()
    options = Options(alpha=0.1, beta=beta, eta1=0.04, eps_0=3.0, gamma=0.7, eps_tol=0.5, iterations=25)

    def loss() -> tuple[torch.Tensor, Trace]:
        terms: list[torch.Tensor] = []

        def callback(status: Status) -> None:
            terms.append(((1 + status.samples) * status.at_next.phi).sum() + status.at_next.grad_norm.square().sum())

        x, trace = elda(problem, x0, options, callback)
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
            (first, last, beta), gradients, ((0, 0, 1, 1), (1, 2, 0, 1), (1, 1)), strict=True
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
    problem, x0, options = knee_problem(1, side=32, beta=1e4, iterations=1)
    problem.track_values = track_values
    x, trace = elda(problem, x0, options)
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

    def regularizer_grad(
        self, x: torch.Tensor, eps: torch.Tensor, channels: torch.Tensor | None = None
    ) -> torch.Tensor:
        del eps, channels
        return torch.zeros_like(x)

    def unmeasured(self, x: torch.Tensor, lines: torch.Tensor | None = None) -> torch.Tensor:
        del lines
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
    _, trace = elda(Flat(1e-5), x0, Options(iterations=100))
    steps = trace.steps(0)
    assert {step.branch for step in steps} == {"stalled"}
    assert all(after.eps == pytest.approx(0.8 * before.eps) for before, after in pairwise(steps))
    assert 0.9 * steps[-1].eps < 1e-3 <= 0.9 * steps[-2].eps


def test_norms_do_not_overflow_or_vanish_in_single_precision() -> None:
    for scale in (1e-30, 1.0, 1e30):
        x = torch.full((1, 2, 2), scale * (3 + 4j), dtype=torch.complex64)
        assert float(square_norm(x)) == pytest.approx(100 * scale**2, rel=1e-6)
    x = torch.zeros(1, 2, 2, dtype=torch.complex64, requires_grad=True)
    (gradient,) = torch.autograd.grad(square_norm(x).sum(), x)
    assert torch.equal(gradient, torch.zeros_like(x))


@torch.no_grad()
def test_a_phase_of_several_steps_is_those_steps_one_after_the_other() -> None:
    problem, x0 = learned_problem(2)
    betas = torch.linspace(0.01, 0.04, 6, dtype=torch.float64)
    momenta = torch.tensor([0.0, 0.5, 0.4, 0.3, 0.2, 0.6], dtype=torch.float64)
    options = Options(alpha=0.3, beta=betas, momentum=momenta, eta1=1e-4, eta2=1e-4, eps_0=0.5, iterations=6)
    one_by_one: list[torch.Tensor] = []

    def keep(status: Status) -> None:
        one_by_one.append(status.x_next)

    _, short = elda(problem, x0, options, keep)
    x, trace = elda(problem, x0, replace(options, steps_per_phase=3, iterations=2))
    assert torch.allclose(x, one_by_one[-1], atol=1e-13)
    for sample in range(2):
        assert [step.branch for step in trace.steps(sample)] == ["u", "u"]
        values = [step.phi for step in short.steps(sample)]
        assert [step.phi for step in trace.steps(sample)] == pytest.approx([values[2], values[5]], rel=1e-12)


@torch.no_grad()
def test_steps_may_climb_within_a_phase_but_no_phase_climbs() -> None:
    """The middle one of three steps raises the objective so much that it would be refused alone."""
    problem, x0 = learned_problem(2)
    options = Options(alpha=0.5, beta=[0.02, 2.0, 0.02], eps_0=0.5, iterations=3)
    _, alone = elda(problem, x0, replace(options, safeguard=False))
    assert all(alone.steps(i)[1].phi > alone.steps(i)[1].phi_before for i in range(2))
    assert all(elda(problem, x0, options)[1].steps(i)[1].branch == "v" for i in range(2))

    _, free = elda(problem, x0, replace(options, safeguard=False, steps_per_phase=3, iterations=1))
    _, trace = elda(problem, x0, replace(options, steps_per_phase=3, iterations=4))
    for i in range(2):
        assert all(step.phi < step.phi_before for step in trace.steps(i))
        assert trace.steps(i)[0].branch == "u"
        assert trace.steps(i)[0].phi == free.steps(i)[0].phi


def test_where_the_last_steps_of_a_phase_fail_the_ones_before_are_taken() -> None:
    """With gradients, and from there on with the momentum of the last step that was taken."""
    problem, x0 = learned_problem(2)
    good = torch.tensor([0.02, 0.03, 0.02, 0.03], dtype=torch.float64, requires_grad=True)
    bad = torch.full((2,), 1e4, dtype=torch.float64)
    options = Options(alpha=0.3, momentum=0.5, eps_0=0.5, steps_per_phase=4, iterations=2)
    x, trace = elda(problem, x0, replace(options, beta=torch.cat([good[:2], bad, good[2:], bad])))
    expected, _ = elda(problem, x0, replace(options, beta=good, steps_per_phase=2))
    assert {step.branch for i in range(2) for step in trace.steps(i)} == {"u"}
    assert [step.learned_steps for i in range(2) for step in trace.steps(i)] == [2] * 4
    assert torch.allclose(x, expected, atol=1e-12)
    found, by_hand = (torch.autograd.grad(point.abs().sum(), good)[0] for point in (x, expected))
    assert torch.allclose(found, by_hand, rtol=1e-8)
    assert (found != 0).all()

    x, trace = elda(problem, x0, replace(options, beta=1e4, iterations=1))
    assert {step.branch for i in range(2) for step in trace.steps(i)} == {"v"}
    assert [step.learned_steps for i in range(2) for step in trace.steps(i)] == [0, 0]
    assert torch.equal(x, elda(problem, x0, replace(options, beta=1e4, iterations=1, steps_per_phase=1))[0])


def test_a_spectrum_needs_images() -> None:
    problem = shrinkage_problem()
    with pytest.raises(UldaError, match="a spectrum is one of complex images"):
        elda(problem, problem.y, Options(kappa=0.1, spectrum=[1.0] * 6))
    with pytest.raises(UldaError, match="lines are those of complex images"):
        elda(problem, problem.y, Options(kappa=0.1, lines=[1.0] * 15))


@torch.no_grad()
def test_inner_points_are_evaluated_only_where_a_phase_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = count_convolutions(monkeypatch)
    problem, x0, options = knee_problem(2, side=32, beta=0.1, iterations=2, steps_per_phase=4)
    _, trace = elda(problem, x0, options)
    assert trace.accepted_fraction() == 1
    assert counts["conv2d"] == 3 * (1 + 2 * (4 + 1))


def test_step_sizes_per_phase_and_sample() -> None:
    problem = shrinkage_problem()
    one = elda(problem, problem.y, Options(alpha=0.3, beta=0.2, iterations=3))[0]
    many = elda(problem, problem.y, Options(alpha=[0.3] * 3, beta=torch.full((3, 3), 0.2), iterations=3))[0]
    assert torch.allclose(one, many, atol=1e-7)
    apart = elda(problem, problem.y, Options(alpha=0.3, beta=torch.tensor([[0.2, 0.1, 0.2]]), iterations=3))[0]
    assert torch.allclose(one[[0, 2]], apart[[0, 2]], atol=1e-7)
    assert not torch.allclose(one[1], apart[1], atol=1e-3)
    for n in (2, 4):
        with pytest.raises(UldaError, match=f"beta is given for {n} samples, but the batch has 3"):
            elda(problem, problem.y, Options(beta=torch.ones(1, n)))
    assert beta_from_gamma(0.5, 1.5) == pytest.approx(0.375)


def test_the_callback_sees_and_stops() -> None:
    problem = shrinkage_problem()
    seen: list[Status] = []

    def callback(status: Status) -> bool:
        seen.append(status)
        return status.iteration < 2

    x, trace = elda(problem, problem.y, Options(iterations=50), callback)
    assert [status.iteration for status in seen] == [0, 1, 2]
    assert len(trace) == 3
    assert torch.equal(x, seen[-1].x_next)
    assert trace.options.iterations == 3


def test_without_safeguard_every_proposal_is_taken() -> None:
    problem, x0 = learned_problem(1)
    with torch.no_grad():
        x, trace = elda(problem, x0, Options(beta=3.0, eps_0=0.5, iterations=4, safeguard=False))
    assert trace.accepted_fraction() == 1
    assert any(step.phi > step.phi_before for step in trace.steps(0))
    assert torch.isfinite(x.abs()).all()


@torch.no_grad()
def test_a_proposal_that_is_not_finite_is_rejected() -> None:
    problem, x0 = learned_problem(1)
    x, trace = elda(problem, x0, Options(beta=1e308, eps_0=0.5, iterations=3))
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
    options = Options(beta=0.5, eps_0=0.003, iterations=2)
    together, trace = elda(problem, physics.A_adjoint(y), options)
    second = torch.tensor([1])
    alone, _ = elda(problem.take(second), physics.A_adjoint(y)[second], options)
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

    def regularizer_grad(
        self, x: torch.Tensor, eps: torch.Tensor, channels: torch.Tensor | None = None
    ) -> torch.Tensor:
        del eps, channels
        return self.stiffness * (x - 1)

    def unmeasured(self, x: torch.Tensor, lines: torch.Tensor | None = None) -> torch.Tensor:
        del lines
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


def distance_after(n: int, **changes: Any) -> tuple[float, float]:
    problem = quadratic()
    options = Options(alpha=0.9, beta=0.9, eps_0=10.0, eps_tol=1e-9, sigma=0.01, iterations=n, **changes)
    with torch.no_grad():
        x, trace = elda(problem, torch.zeros_like(problem.y), options)
    return float((x - problem.minimiser()).norm()), trace.accepted_fraction()


def test_the_extra_step_and_momentum_reach_the_minimiser_in_fewer_iterations() -> None:
    """In what is not measured the curvature is that of r alone, here at most 0.05: steps of 20 are right there."""
    plain, _ = distance_after(15)
    extra, accepted = distance_after(15, kappa=19.0)
    both, accepted_both = distance_after(15, kappa=19.0, momentum=0.3)
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
    heavy, _ = distance_after(12, kappa=10.0, momentum=0.95)
    without, _ = distance_after(12, kappa=10.0)
    assert heavy < 0.5 * without


@pytest.mark.parametrize("axis", [-2, -1])
def test_lines_are_those_of_the_phase_encode_axis(axis: int) -> None:
    """What is left of a wave in a line that was not sampled is its gain, along the axis of the mask."""
    mask = Mask(tuple(line == 8 for line in range(16)))
    physics = CartesianMRI(mask, axis)
    places = torch.arange(16, dtype=torch.float64)
    wave = torch.exp(2j * math.pi * 3 * places / 16)
    wave = (wave[:, None] if axis == -2 else wave).expand(16, 16)[None].to(torch.complex128)
    lines = torch.linspace(0.5, 2.0, 15, dtype=torch.float64)
    problem = Reconstruction(physics, physics.A(wave), Regularizer(FeatureExtractor(2, 1), Adapter(2)).double())
    expected = float(np.interp(2 * 3 / 16, LINE_KNOTS, lines.numpy()))
    assert torch.allclose(problem.unmeasured(wave, lines), expected * wave, atol=1e-12)
    assert torch.allclose(problem.unmeasured(wave), wave, atol=1e-12)
