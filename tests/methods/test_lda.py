from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from ulda.training.network import WITHOUT_GAINS

from tests.methods.test_dncn import knee_task
from tests.methods.test_methods import images
from ulda.errors import UldaError
from ulda.methods.lda import LDA
from ulda.physics import CartesianMRI, cartesian_mask
from ulda.training import ULDA, Architecture
from ulda.training.loop import Task, rate_factor
from ulda.training.settings import Settings

SMALL: dict[str, Any] = {"width": 4, "depth": 3, "phases": 3}


def task(domain: str, n: int = 2) -> Task:
    return replace(knee_task(n, size=32), domain=domain)


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def spoil(model: LDA, domain: str) -> None:
    """Make a net whose regulariser is far too strong."""
    with torch.no_grad():
        for parameter in model.net(domain).adapters.parameters():
            parameter.mul_(300)


@pytest.mark.parametrize(("width", "depth", "kernels"), [(16, 4, 288 + 3 * 4608), (8, 3, 2 * 9 * (8 + 64 + 64))])
def test_parameter_count(width: int, depth: int, kernels: int) -> None:
    model = LDA(width=width, depth=depth, sources=["brain"])
    step_sizes = (4 + 6) * 15  # alpha, beta, kappa and momentum, and gains at six frequencies
    assert model.n_parameters == kernels + step_sizes
    assert sum(p.numel() for name, p in model.named_parameters() if ".steps." not in name) == kernels
    assert LDA(width=width, depth=depth, sources=["brain", "knee"]).n_parameters == 2 * (kernels + step_sizes)
    assert model.n_trainable(adapt=True) == kernels + step_sizes
    assert LDA().n_parameters == 0


def complex_convolution(x: NDArray[Any], kernel: NDArray[Any]) -> NDArray[Any]:
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    height, width = x.shape[1:]
    shifts = np.stack([[padded[:, i : i + height, j : j + width] for j in range(3)] for i in range(3)])
    result: NDArray[Any] = np.einsum("ocij,ijchw->ohw", kernel, shifts)
    return result


def smoothed_relu(x: NDArray[Any], delta: float) -> NDArray[Any]:
    inner = x**2 / (4 * delta) + x / 2 + delta / 4
    return np.where(np.abs(x) <= delta, inner, np.maximum(x, 0))


def test_the_features_are_convolutions_with_the_activation_between_them() -> None:
    """Against complex sums of shifted images: three convolutions, two activations, and the last one linear."""
    model = LDA(delta=0.2, sources=["knee"], **SMALL)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    kernels = [p.detach().double().numpy() for name, p in model.named_parameters() if ".steps." not in name]
    assert len(kernels) == 6
    x = images(1, 12, 10)
    q = x.numpy().astype(complex)
    for number, (real, imag) in enumerate(zip(kernels[::2], kernels[1::2], strict=True)):
        q = complex_convolution(q, real + 1j * imag)
        if number < 2:
            q = smoothed_relu(q.real, 0.2) + 1j * smoothed_relu(q.imag, 0.2)
    found = model.net("knee").regularizer("knee").features(x)[0].detach().numpy()
    np.testing.assert_allclose(found[:4] + 1j * found[4:], q, atol=1e-5)


@pytest.mark.parametrize("gains", [{}, {"line_steps": True}, {"channel_steps": True}])
def test_it_is_the_solver_of_the_unrolled_network(gains: dict[str, bool]) -> None:
    physics = CartesianMRI(cartesian_mask(33, 0.4))
    y = physics.A(images(2, 33, 27))
    model = LDA(seed=3, sources=["brain", "knee"], **SMALL, **gains)
    same = ULDA(Architecture(width=4, depth=2, phases=3, **WITHOUT_GAINS | gains), ["knee"], seed=3)
    names = dict(same.steps["knee"].named_parameters())
    assert ("log_lines" in names, "log_channels" in names) == ("line_steps" in gains, "channel_steps" in gains)
    assert dict(model.net("knee").steps["knee"].named_parameters()).keys() == names.keys()
    with torch.no_grad():
        expected = same(y, physics, "knee")
        assert torch.equal(model(y, physics, "knee"), expected)
        model.domain = "brain"
        assert torch.equal(model(y, physics), expected)  # all nets start alike
        spoil(model, "brain")
        assert not torch.allclose(model(y, physics), expected)


def test_every_part_learns_at_its_own_rate() -> None:
    """The last convolution is small and learns slowly, the step sizes are few and learn fast."""
    settings = Settings()
    rates = {name: rate_factor(name, settings) for name in weights(LDA(sources=["knee"], **SMALL))}
    assert rates["nets.knee.adapters.knee.layer.real"] == settings.adapter_rate == 0.003
    assert rates["nets.knee.steps.knee.log_alpha"] == settings.step_size_rate == 5.0
    assert rates["nets.knee.extractor.layers.1.imag"] == 1.0


def test_a_step_moves_the_net_of_its_domain_only() -> None:
    model = LDA(sources=["brain", "knee"], **SMALL)
    before = weights(model)
    model.fit([task("knee")], Settings(steps=2, batch_size=2))
    for name, parameter in weights(model).items():
        assert torch.equal(parameter, before[name]) == name.startswith("nets.brain.")


def numpy_psnr(model: LDA, domain: str, data: Task) -> float:
    physics = CartesianMRI(data.masks[0])
    with torch.no_grad():
        x = model(physics.A(data.images), physics, domain).abs().numpy()
    errors = np.mean((x - data.images.abs().numpy()) ** 2, axis=(1, 2))
    return float(np.mean(-10 * np.log10(errors)))


@pytest.mark.parametrize("sources", [("brain", "prostate"), ("prostate", "brain")])
def test_a_new_domain_starts_from_the_nearest_source(sources: tuple[str, str]) -> None:
    model = LDA(sources=sources, **SMALL)
    spoil(model, "brain")
    hip = task("hip")
    assert numpy_psnr(model, "prostate", hip) > numpy_psnr(model, "brain", hip) + 1
    assert model.nearest_source(hip) == "prostate"
    before = weights(model)
    training = model.adapt(hip, Settings(steps=1, batch_size=2, learning_rate=1e-9))
    assert (model.domain, model.nearest, training.spent.steps) == ("hip", "prostate", 1)
    after = weights(model)
    for name, parameter in after.items():
        if name.startswith("nets.hip."):
            start = before[name.replace("hip", "prostate")]
            torch.testing.assert_close(parameter, start, atol=1e-7, rtol=0)
        else:
            assert torch.equal(parameter, before[name])
    assert len(after) == 3 * len(before) // 2


def test_a_few_slices_decide_which_source_is_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = LDA(sources=["brain", "knee"], **SMALL), []

    def spy(_: object, tasks: list[Task]) -> dict[str, dict[str, float]]:
        seen.extend(tasks)
        return {"brain": {"psnr": 20.0, "ssim": 0.9}, "knee": {"psnr": 21.0, "ssim": 0.1}}

    monkeypatch.setattr("ulda.methods.lda.validate", spy)
    numbered = torch.arange(20.0)[:, None, None].expand(20, 8, 8).to(torch.complex64)
    assert model.nearest_source(replace(task("hip"), images=numbered)) == "knee"
    assert [entry.domain for entry in seen] == ["brain", "knee"]
    assert [int(x[0, 0].real) for x in seen[0].validation] == [0, 3, 6, 9, 12, 15, 18]
    seen.clear()
    model.nearest_source(replace(task("hip"), images=numbered[:8]))
    assert len(seen[0].validation) == 8


def test_everything_of_the_new_net_is_trained_at_a_lower_rate() -> None:
    model = LDA(sources=["brain"], **SMALL)
    model.adapt(task("hip"), Settings(steps=3, batch_size=2))
    own = {name: p for name, p in weights(model).items() if model.is_adapted(name, "hip")}
    source = {name: p for name, p in weights(model).items() if not model.is_adapted(name, "hip")}
    assert sum(p.numel() for p in own.values()) == model.n_trainable(adapt=True) == model.n_parameters // 2
    for (name, adapted), start in zip(own.items(), source.values(), strict=True):
        assert not torch.equal(adapted, start), name
    assert LDA.adaptation_defaults["learning_rate"] == 4e-3 < LDA.training_defaults["learning_rate"]


def test_the_start_of_a_domain_without_an_adaptation() -> None:
    """It is the first source's net, or an untrained one."""
    model = LDA(sources=["brain", "knee"], **SMALL)
    spoil(model, "brain")
    model.add_domain("hip")
    physics = CartesianMRI(cartesian_mask(32, 0.4))
    y = physics.A(images(1, 32, 32))
    with torch.no_grad():
        assert torch.equal(model(y, physics, "hip"), model(y, physics, "brain"))
        alone = LDA(**SMALL)
        alone.add_domain("hip")
        assert torch.equal(alone(y, physics, "hip"), model(y, physics, "knee"))
    model.add_domain("knee")
    assert tuple(model.nets) == ("brain", "knee", "hip")


def test_impossible_requests() -> None:
    with pytest.raises(UldaError, match="at least 2 convolutions, the last one without activation"):
        LDA(depth=1)
    model = LDA(sources=["knee"], **SMALL)
    y, physics = torch.zeros(1, 32, 32, dtype=torch.complex64), CartesianMRI(cartesian_mask(32, 0.4))
    with pytest.raises(UldaError, match="name a domain; this LDA has nets for: knee"):
        model(y, physics)
    with pytest.raises(UldaError, match="no net for the domain 'hip'; it has nets for: knee"):
        model(y, physics, "hip")
    with pytest.raises(UldaError, match="knee is a source of this LDA"):
        model.adapt(task("knee"), Settings(steps=1, batch_size=1))
    for name, message in {"a.b": "without dots", "": "without dots", "keys": "a meaning of its own"}.items():
        with pytest.raises(UldaError, match=message):
            LDA(sources=[name], **SMALL)
        with pytest.raises(UldaError, match=message):
            model.add_domain(name)
