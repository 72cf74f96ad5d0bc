"""U-LDA: a phase is an iteration of the solver, a domain has an adapter, and both are files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ulda.data import demo
from ulda.errors import UldaError
from ulda.methods import ULDA, DnCn, TotalVariation, new_method
from ulda.models.ulda import MEAN
from ulda.physics import (
    CartesianMRI,
    MultiCoilMRI,
    cartesian_mask,
    espirit_maps,
    low_resolution_phase,
    noise_level,
    normalise_measurement,
)
from ulda.reconstruction import reconstruct
from ulda.solvers import Options, Reconstruction, Repeated, elda
from ulda.training import DescentPenalty, reconstruction_loss

SMALL: dict[str, Any] = {"width": 4, "depth": 2}
BOTH = pytest.mark.parametrize("name", ["ulda", "ulda-paper"])


def small(sources: list[str], name: str = "ulda", **sizes: Any) -> ULDA:
    model = new_method(name, sources, **SMALL | sizes)
    assert isinstance(model, ULDA)
    return model


def knee(side: int = 64) -> torch.Tensor:
    return torch.stack(list(demo("knee").take([6, 12]).images()))[:, 32 : 32 + side, 32 : 32 + side]


def same(a: ULDA, b: ULDA) -> bool:
    first, second = dict(a.named_parameters()), dict(b.named_parameters())
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@BOTH
def test_a_phase_is_an_iteration_of_the_solver(name: str) -> None:
    model = small(["knee"], name)
    physics = CartesianMRI(cartesian_mask(64, 0.3))
    y = 7 * physics.A(knee())
    scaled, zero_filled, peak = normalise_measurement(y, physics)
    net = model.network
    phase = low_resolution_phase(zero_filled, net.phase_lines) if net.phase_lines else torch.ones_like(zero_filled)
    noise = noise_level(scaled, physics.mask) if net.noise_aware else None
    demodulated = physics.with_knowledge(phase, noise)
    with torch.no_grad():
        x, trace = model(y, physics, "knee", return_trace=True)
        options = model.options("knee")
        problem = Reconstruction(demodulated, scaled, model.regularizer("knee"))
        expected, _ = elda(problem, model.start(scaled, demodulated), model.proposal("knee"), options)
        if net.noise_aware:  # the noise of the measurement is kept
            expected = expected + demodulated.A_adjoint(scaled - demodulated.A(expected))
    assert torch.allclose(x, expected * phase * peak, atol=1e-5)
    assert torch.allclose(physics.A_adjoint(scaled), zero_filled, atol=1e-6)
    assert len(trace) == model.n_phases == {"ulda": 3, "ulda-paper": 15}[name]
    assert options.eps_0 == pytest.approx(net.eps_ratio * net.adapter_weight * math.sqrt(2), rel=0.1)


def test_the_default_starts_from_total_variation_and_the_paper_from_zero_filling() -> None:
    """Both in the image without its phase; the run file keeps a start that does not follow from the measurement."""
    physics = CartesianMRI(cartesian_mask(64, 0.3))
    scaled, zero_filled, _ = normalise_measurement(physics.A(knee()), physics)
    demodulated = physics.with_knowledge(low_resolution_phase(zero_filled, 16))
    expected = TotalVariation(weight=0.002, iterations=100, tolerance=0)(scaled, demodulated)
    torch.testing.assert_close(small(["knee"]).start(scaled, demodulated), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(small(["knee"], "ulda-paper").start(scaled, physics), zero_filled)
    result = reconstruct(small(["knee"]), physics.A(knee()), physics, domain="knee")
    assert result.certificate["start"] == "given"
    assert result.verify().ok
    assert not replace(result, start=zero_filled).verify().ok


def test_the_parameters_are_those_of_the_method() -> None:
    """G has 14,112 and h 4,608; the paper has alpha_t and beta_t, the default also kappa, momentum and six gains.

    And the noise from which on the weight grows.
    """
    paper, default = (new_method(name, ["brain", "prostate"]) for name in ("ulda-paper", "ulda"))
    assert isinstance(paper, ULDA)
    assert isinstance(default, ULDA)
    for model, steps, scale in ((paper, 2 * 15, 0), (default, (4 + 6) * 15, 1)):
        assert sum(p.numel() for p in model.prior.extractor.parameters()) == 14112
        assert sum(p.numel() for p in model.prior.adapters["brain"].parameters()) == 4608 + scale
        assert sum(p.numel() for p in model.proposals["brain"].parameters()) == steps
    assert paper.n_trainable(adapt=True) == 4608 + 30
    update = 2 * (1 * 4 * 9 + 4 * 16) + 3 * 2 * (16 * 4 * 9 + 4 * 16)
    assert default.n_trainable(adapt=True) == 4608 + 1 + 150 + update
    assert default.n_used("brain") == 14112 + 4608 + 1 + 150
    assert default.n_trainable(adapt=True) <= default.n_used("brain") / 2
    shared = ULDA(sources=["brain"], shared_steps=True)
    assert sum(p.numel() for p in shared.proposals.parameters()) == 2


def test_a_new_domain_starts_from_the_mean_of_the_sources() -> None:
    model = small(["a", "b"], rank=3)
    with torch.no_grad():
        model.proposals["a"].get_parameter("log_beta").add_(1)
    model.add_domain("c")
    for name, parameter in model.prior.adapters["c"].named_parameters():
        a, b = (model.prior.adapters[source].get_parameter(name) for source in "ab")
        assert torch.allclose(parameter, (a + b) / 2)
    second, third = (model.proposals[name].get_parameter("log_beta").detach() for name in "bc")
    assert torch.allclose(third, second + 0.5)
    assert model.prior.rank("c") == 3
    assert model.prior.rank("a") == 0
    x = knee(32)
    torch.testing.assert_close(model.regularizer("c").value(x, 0.01), model.regularizer(MEAN).value(x, 0.01))
    with torch.no_grad():
        for parameter in model.prior.updates["c"].parameters():
            parameter.add_(0.1)
    assert not torch.allclose(model.regularizer("c").value(x, 0.01), model.regularizer(MEAN).value(x, 0.01))


def test_a_low_rank_update_has_the_rank_it_says() -> None:
    """The update of a layer, as a matrix from what a pixel sees to its channels, has this complex rank."""
    model = small(["a"], width=8, rank=2)
    model.add_domain("b")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.prior.updates["b"].parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    before, after = model.prior.extractor.materialize(), model.prior.extractor_of("b").materialize()
    real = after.layers[1].get_parameter("real") - before.layers[1].get_parameter("real")
    imag = after.layers[1].get_parameter("imag") - before.layers[1].get_parameter("imag")
    assert int(torch.linalg.matrix_rank(torch.complex(real, imag).flatten(1), rtol=1e-4)) == 2


@BOTH
def test_training_reaches_every_parameter_and_lowers_the_loss(name: str) -> None:
    model = small(["knee"], name, phases=4)
    physics = CartesianMRI(cartesian_mask(64, 0.3))
    reference = knee()
    y, noisy = physics.A(reference), physics.with_knowledge(noise=torch.full((len(reference),), 0.01))
    groups = [
        {"params": list(model.prior.extractor.parameters()), "lr": 5e-3},
        {"params": list(model.prior.adapters.parameters()), "lr": 5e-3 * model.network.adapter_weight},
        {"params": list(model.proposals.parameters()), "lr": 2e-2},
    ]
    optimiser, losses = torch.optim.Adam(groups), list[float]()
    for _ in range(12):
        tracked = Reconstruction(noisy, y, model.regularizer("knee"), track_values=True)
        penalty = DescentPenalty(tracked, Options().eta2)
        x, _ = model.solve(y, noisy, "knee", callback=penalty)
        loss = reconstruction_loss(x, reference).mean() + 0.03 * penalty.mean()
        optimiser.zero_grad()
        loss.backward()
        if not losses:
            assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 1e-4


def test_other_sizes_and_several_coils() -> None:
    brain = demo("brain-multicoil")
    kspace = brain.kspace(0)[None, :, :200, :150]
    physics = MultiCoilMRI(cartesian_mask(200, 0.3, center=0.1), espirit_maps(kspace)[0])
    with torch.no_grad():
        x = small(["brain"])(kspace * physics.mask.lines[:, None], physics, "brain")
    assert x.shape == (1, 200, 150)


@pytest.mark.parametrize("safeguard", [False, True])
def test_the_penalty_counts_proposals_that_do_not_descend_and_teaches_them(safeguard: bool) -> None:
    """Refused proposals count, too: without that nothing would teach their step sizes."""
    physics = CartesianMRI(cartesian_mask(64, 0.3))
    y, found = physics.A(knee()), {}
    for log_kappa in (0.0, 7.0):
        model = small(["knee"], phases=3)
        with torch.no_grad():
            model.proposals["knee"].get_parameter("log_kappa").fill_(log_kappa)
        tracked = Reconstruction(physics, y, model.regularizer("knee"), track_values=True)
        penalty = DescentPenalty(tracked, Options().eta2)
        model.solve(y, physics, "knee", model.options("knee", safeguard=safeguard), callback=penalty)
        found[log_kappa] = float(penalty.mean().detach())
    assert found[0.0] == 0
    assert found[7.0] > 0.1
    penalty.mean().backward()
    gradient = model.proposals["knee"].get_parameter("log_kappa").grad
    assert gradient is not None
    assert float(gradient[0]) > 0


def test_beyond_t_the_steps_of_the_last_phase_are_repeated() -> None:
    model = small(["knee"], phases=3)
    with torch.no_grad():
        model.proposals["knee"].get_parameter("log_kappa").copy_(torch.linspace(-1, 0, 15))
    physics = CartesianMRI(cartesian_mask(64, 0.3))
    y, start = physics.A(knee()), knee()
    repeated, one = Repeated(model.proposal("knee")), model.options("knee", iterations=1)
    with torch.no_grad():
        x, _ = model.solve(y, physics, "knee", one, proposal=repeated, x0=start)
        last = small(["knee"], phases=1)
        last.load_state_dict({k: v[-5:] if k.startswith("proposals.") else v for k, v in model.state_dict().items()})
        expected, _ = last.solve(y, physics, "knee", one, x0=start)
    assert torch.equal(x, expected)


def test_an_unknown_domain_names_the_known() -> None:
    y, physics = torch.zeros(1, 8, 8, dtype=torch.complex64), CartesianMRI(cartesian_mask(8, 0.5))
    with pytest.raises(UldaError, match="without dots"):
        small(["a.b"])
    with pytest.raises(UldaError, match="name a domain; the model has adapters for: knee"):
        small(["knee"])(y, physics)
    with pytest.raises(UldaError, match="no adapter for the domain 'heart'; it has: knee"):
        small(["knee"])(y, physics, "heart")
    with pytest.raises(UldaError, match="one step per phase"):
        ULDA(proposal="gradient", steps_per_phase=5)
    with pytest.raises(UldaError, match="did you mean 'width'"):
        ULDA(widht=3)


@pytest.mark.parametrize("rank", [0, 4])
def test_an_adapter_is_small_and_fits_its_base_only(tmp_path: Path, rank: int) -> None:
    model = new_method("ulda", ["brain"], rank=rank)
    assert isinstance(model, ULDA)
    model.save(tmp_path / "base")
    fingerprint = model.fingerprint
    model.add_domain("knee")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".knee." in name:
                parameter.add_(0.1)
    assert model.fingerprint == fingerprint
    model.save_adapter("knee", tmp_path / "knee", {"n_slices": 5})
    assert sum(path.stat().st_size for path in (tmp_path / "knee").iterdir()) < 50_000
    facts = json.loads((tmp_path / "knee" / "adapter.json").read_text())
    assert facts["parameters"]["trained"] == model.n_adapted("knee")
    fresh = ULDA.load(tmp_path / "base")
    assert fresh.load_adapter(tmp_path / "knee") == "knee"
    assert same(fresh, model)
    with pytest.raises(UldaError, match="load it on the base it was trained on"):
        ULDA(sources=["brain"], seed=1).load_adapter(tmp_path / "knee")


@pytest.mark.parametrize("rank", [-1, 10**9, "4", True, 65])
def test_an_adapter_with_an_impossible_rank_is_refused(tmp_path: Path, rank: object) -> None:
    model = small(["brain"], rank=2)
    model.add_domain("knee")
    model.save_adapter("knee", tmp_path)
    facts = json.loads((tmp_path / "adapter.json").read_text())
    (tmp_path / "adapter.json").write_text(json.dumps(facts | {"rank": rank}))
    with pytest.raises(UldaError, match="the rank of an adapter is a whole number from 0 to 64"):
        model.load_adapter(tmp_path)


@pytest.mark.parametrize(
    "name", ["brain", "unadapted", "Brain ", "UNADAPTED", "bra\u200bin", "\uff42rain", "un\x1badapted"]
)
def test_an_adapter_cannot_take_a_name_of_the_base(tmp_path: Path, name: str) -> None:
    model = small(["brain"])
    model.add_domain("knee")
    model.save_adapter("knee", tmp_path)
    facts = json.loads((tmp_path / "adapter.json").read_text())
    (tmp_path / "adapter.json").write_text(json.dumps(facts | {"domain": name}))
    with pytest.raises(UldaError, match="which belongs to the base"):
        model.load_adapter(tmp_path)


def test_a_changed_weight_of_an_adapter_is_refused(tmp_path: Path) -> None:
    model = small(["brain"])
    model.add_domain("knee")
    model.save_adapter("knee", tmp_path / "knee")
    weights = tmp_path / "knee" / "adapter.safetensors"
    tensors = load_file(weights)
    tensors["adapter.layer.real"][0, 0, 1, 1] *= 1.01
    save_file(tensors, weights)
    with pytest.raises(UldaError, match=r"weights in knee are not those adapter\.json was written for"):
        model.load_adapter(tmp_path / "knee")


def test_a_model_of_another_method_is_called_one(tmp_path: Path) -> None:
    DnCn(filters=2, layers=2, cascades=1, sources=["brain"]).save(tmp_path)
    with pytest.raises(UldaError, match="is a dncn, not a ulda"):
        ULDA.load(tmp_path)


def test_all_that_reconstructs_a_domain_is_in_its_fingerprint() -> None:
    model = small(["brain"], rank=2)
    model.add_domain("knee")
    before = {name: model.domain_fingerprint(name) for name in ("brain", "knee")}
    names = ("proposals.knee.log_alpha", "prior.updates.knee.up.0.real", "prior.adapters.knee.layer.real")
    for name in names:
        with torch.no_grad():
            model.get_parameter(name).add_(0.01)
        assert model.domain_fingerprint("knee") not in before.values()
        assert model.domain_fingerprint("brain") == before["brain"]
        before["knee"] = model.domain_fingerprint("knee")


def test_damaged_files_are_clear_errors(tmp_path: Path) -> None:
    base = tmp_path / "base"
    with pytest.raises(UldaError, match=r"no model\.json"):
        ULDA.load(base)
    small(["brain"]).save(base)
    weights, facts = base / "model.safetensors", base / "model.json"
    content, text = weights.read_bytes(), facts.read_text()
    tensors = load_file(weights)
    tensors["prior.extractor.layers.0.real"][0, 0, 0, 0] += 1
    save_file(tensors, weights)
    with pytest.raises(UldaError, match=r"not those model\.json was written for"):
        ULDA.load(base)
    tensors.pop("prior.extractor.layers.0.imag")
    save_file(tensors, weights)
    with pytest.raises(UldaError, match=r"describes a larger model than model\.safetensors holds"):
        ULDA.load(base)
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(UldaError, match="cannot be read as safetensors"):
        ULDA.load(base)
    weights.write_bytes(content)
    for wrong, message in (
        ("{", "is not JSON"),
        ("{}", "does not describe"),
        (text.replace('"version": 1', '"version": 9'), "upgrade"),
        (text.replace('"width"', '"wide"'), "did you mean 'width'"),
        (text.replace('"width": 4', '"width": 40000'), "describes a larger model than model.safetensors holds"),
    ):
        facts.write_text(wrong)
        with pytest.raises(UldaError, match=message):
            ULDA.load(base)
