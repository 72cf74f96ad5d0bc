from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from ulda.data import demo
from ulda.errors import UldaError
from ulda.metrics import ssim
from ulda.physics import CartesianMRI, MultiCoilMRI, cartesian_mask, espirit_maps, normalise_measurement
from ulda.physics.spectrum import KNOTS
from ulda.solvers import Options, Reconstruction, elda
from ulda.training import ULDA, Architecture, DescentPenalty, reconstruction_loss
from ulda.training.network import FIRST_GAINS

SMALL = Architecture(width=4, depth=2, phases=3)


def knee(side: int = 64) -> torch.Tensor:
    return torch.stack(list(demo("knee").take([6, 12]).images()))[:, 32 : 32 + side, 32 : 32 + side]


def tracked(model: ULDA, y: torch.Tensor, physics: CartesianMRI) -> Reconstruction:
    return Reconstruction(physics, y, model.regularizer("knee"), track_values=True)


def test_a_phase_is_an_iteration_of_the_solver() -> None:
    model = ULDA(SMALL, ["knee"])
    physics = CartesianMRI(cartesian_mask(64, 0.3))
    y = 7 * physics.A(knee())
    scaled, zero_filled, peak = normalise_measurement(y, physics)
    with torch.no_grad():
        x, trace = model(y, physics, "knee", return_trace=True)
        options = model.options("knee")
        problem = Reconstruction(physics, scaled, model.regularizer("knee"))
        expected, _ = elda(problem, physics.A_adjoint(scaled), options)
    assert torch.equal(x, expected * peak)
    assert torch.allclose(physics.A_adjoint(scaled), zero_filled, atol=1e-6)
    assert len(trace) == 3
    assert options.eps_0 == pytest.approx(0.1 * 0.003 * math.sqrt(2), rel=0.1)


def test_the_default_network_has_the_parameters_it_should() -> None:
    model = ULDA(sources=["brain", "prostate"])
    assert sum(p.numel() for p in model.extractor.parameters()) == 14112
    assert sum(p.numel() for p in model.adapters["brain"].parameters()) == 4608
    assert sum(p.numel() for p in model.steps["brain"].parameters()) == (4 + 6 + 15 + 5 * 16) * 15
    shared = ULDA(Architecture(shared_steps=True), ["brain"])
    assert sum(p.numel() for p in shared.steps.parameters()) == 4 + 6 + 15 + 5 * 16
    plain = Architecture(
        shared_steps=True, tied_steps=True, spectral_steps=False, line_steps=False, channel_steps=False
    )
    tied = ULDA(plain, ["brain"])
    assert sum(p.numel() for p in tied.steps.parameters()) == 3
    sizes = tied.steps["brain"]()
    assert torch.equal(sizes["alpha"], sizes["beta"])


def test_a_new_domain_starts_from_the_mean_of_the_others() -> None:
    model = ULDA(SMALL, ["a", "b"])
    with torch.no_grad():
        model.steps["a"].get_parameter("log_beta").add_(1)
    model.add_domain("c")
    model.add_domain("d")
    assert model.sources == ("a", "b")
    for parameter, same in zip(model.adapters["c"].parameters(), model.adapters["d"].parameters(), strict=True):
        assert torch.equal(parameter, same)
    for name, parameter in model.adapters["c"].named_parameters():
        mean = (model.adapters["a"].get_parameter(name) + model.adapters["b"].get_parameter(name)) / 2
        assert torch.allclose(parameter, mean)
    b, c = (model.steps[name].get_parameter("log_beta").detach() for name in "bc")
    assert torch.allclose(c, b + 0.5)


def test_training_reaches_every_parameter_and_lowers_the_loss() -> None:
    model = ULDA(replace(SMALL, phases=4), ["knee"])
    physics = CartesianMRI(cartesian_mask(64, 0.3))
    reference = knee()
    y = physics.A(reference)
    groups = [
        {"params": list(model.extractor.parameters()), "lr": 5e-3},
        {"params": list(model.adapters.parameters()), "lr": 5e-3 * model.architecture.adapter_weight},
        {"params": list(model.steps.parameters()), "lr": 2e-2},
    ]
    optimiser = torch.optim.Adam(groups)
    losses: list[float] = []
    for _ in range(12):
        penalty = DescentPenalty(tracked(model, y, physics), Options().eta2)
        x, _ = model.solve(y, physics, "knee", callback=penalty)
        loss = reconstruction_loss(x, reference).mean() + 0.03 * penalty.mean()
        optimiser.zero_grad()
        loss.backward()
        if not losses:
            assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 1e-4


def test_other_sizes_and_several_coils() -> None:
    model = ULDA(SMALL, ["brain"])
    brain = demo("brain-multicoil")
    kspace = brain.kspace(0)[None, :, :200, :150]
    physics = MultiCoilMRI(cartesian_mask(200, 0.3, center=0.1), espirit_maps(kspace)[0])
    with torch.no_grad():
        x = model(kspace * physics.mask.lines[:, None], physics, "brain")
    assert x.shape == (1, 200, 150)


def test_the_loss_is_its_formula() -> None:
    x, reference = knee(), knee().flip(0)
    expected = (x - reference).abs().square().mean((-2, -1)) - 0.01 * ssim(x.abs(), reference.abs(), data_range=1.0)
    assert torch.allclose(reconstruction_loss(x, reference), expected, atol=1e-6)
    zeros = torch.zeros(1, 16, 16, dtype=torch.complex64, requires_grad=True)
    (gradient,) = torch.autograd.grad(reconstruction_loss(zeros, zeros.detach()).sum(), zeros)
    assert torch.isfinite(gradient.abs()).all()


@pytest.mark.parametrize("safeguard", [False, True])
def test_the_penalty_counts_proposals_that_do_not_descend_and_teaches_them(safeguard: bool) -> None:
    """Refused proposals count, too: without that nothing would teach their step sizes."""
    physics = CartesianMRI(cartesian_mask(64, 0.3))
    y = physics.A(knee())
    found = {}
    for log_kappa in (0.0, 7.0):
        model = ULDA(SMALL, ["knee"])
        with torch.no_grad():
            model.steps["knee"].get_parameter("log_kappa").fill_(log_kappa)
        penalty = DescentPenalty(tracked(model, y, physics), Options().eta2)
        model.solve(y, physics, "knee", model.options("knee", safeguard=safeguard), callback=penalty)
        found[log_kappa] = float(penalty.mean().detach())
    assert found[0.0] == 0
    assert found[7.0] > 0.1
    penalty.mean().backward()
    gradient = model.steps["knee"].get_parameter("log_kappa").grad
    assert gradient is not None
    assert float(gradient[0]) > 0


def test_beyond_t_the_step_sizes_of_the_last_phase_count() -> None:
    model = ULDA(SMALL, ["knee"])
    with torch.no_grad():
        model.steps["knee"].get_parameter("log_kappa").copy_(torch.linspace(0, 1.4, 15))
    options = model.options("knee", beyond=True)
    assert options.steps_per_phase == 5
    assert isinstance(options.kappa, torch.Tensor)
    assert options.kappa.detach().log().tolist() == pytest.approx([1.0, 1.1, 1.2, 1.3, 1.4])
    assert isinstance(options.spectrum, torch.Tensor)
    assert options.spectrum.shape == (5, 6)
    assert isinstance(options.lines, torch.Tensor)
    assert isinstance(options.channels, torch.Tensor)
    assert options.lines.shape == (5, 15)
    assert options.channels.shape == (5, SMALL.depth + 1, SMALL.width)
    plain = ULDA(replace(SMALL, spectral_steps=False, line_steps=False, channel_steps=False), ["knee"]).options("knee")
    assert (plain.spectrum, plain.lines, plain.channels) == (None, None, None)


def test_low_frequencies_begin_with_longer_steps() -> None:
    """About one over the frequency: halving it doubles the gain, until far below the lowest of an image."""
    gains = dict(zip(KNOTS, FIRST_GAINS, strict=True))
    assert gains[1 / 4] / gains[1 / 2] == pytest.approx(2, rel=0.1)
    assert gains[1 / 2] / gains[1.0] == pytest.approx(2, rel=0.05)
    assert all(a > b for a, b in pairwise(FIRST_GAINS))


def test_an_unknown_domain_names_the_known() -> None:
    with pytest.raises(UldaError, match="without dots"):
        ULDA(SMALL, ["a.b"])
    with pytest.raises(UldaError, match="name a domain; the model has adapters for: knee"):
        ULDA(SMALL, ["knee"])(torch.zeros(1, 8, 8, dtype=torch.complex64), CartesianMRI(cartesian_mask(8, 0.5)))
    with pytest.raises(UldaError, match="no adapter for the domain 'heart'; it has: knee"):
        ULDA(SMALL, ["knee"])(
            torch.zeros(1, 8, 8, dtype=torch.complex64), CartesianMRI(cartesian_mask(8, 0.5)), "heart"
        )
