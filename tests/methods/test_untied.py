from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import ulda
from tests.methods.test_dncn import knee_task
from tests.methods.test_lda import complex_convolution, smoothed_relu
from tests.methods.test_methods import images
from ulda.errors import UldaError
from ulda.methods import METHODS, ULDA, load_method, method_class
from ulda.methods.untied import Untied, UntiedRegularizer
from ulda.models import Adapter, FeatureExtractor, Regularizer
from ulda.physics import CartesianMRI, cartesian_mask
from ulda.solvers import certify, verify
from ulda.training.schedule import rate_multiplier
from ulda.training.settings import Settings
from ulda.training.tasks import Batch, Task, draw, step_generator

SMALL: dict[str, Any] = {"width": 4, "depth": 2, "phases": 3, "proposal": "accelerated", "steps_per_phase": 5}
SOURCES = ("brain", "knee")
NONE = Settings(batch_size=2)


def task(domain: str) -> Task:
    return replace(knee_task(2, size=32), domain=domain)


def parts(seed: int) -> tuple[FeatureExtractor, Adapter]:
    generator = torch.Generator().manual_seed(seed)
    g, h = FeatureExtractor(3, 2, delta=0.2), Adapter(3)
    with torch.no_grad():
        for parameter in (*g.parameters(), *h.parameters()):
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return g.double(), h.double()


def kernels(g: FeatureExtractor, h: Adapter) -> list[NDArray[Any]]:
    pairs = [*g.parameters(), *h.parameters()]
    found = [(a.detach().numpy(), b.detach().numpy()) for a, b in zip(pairs[::2], pairs[1::2], strict=True)]
    return [real + 1j * imag for real, imag in found]


def derivative(x: NDArray[Any], delta: float) -> NDArray[Any]:
    return np.clip((x + delta) / (2 * delta), 0, 1)


def split(f: Any, z: NDArray[Any]) -> NDArray[Any]:
    """Apply a real function to the real and the imaginary parts."""
    result: NDArray[Any] = f(z.real) + 1j * f(z.imag)
    return result


def adjoint(kernel: NDArray[Any]) -> NDArray[Any]:
    """Return the kernel whose convolution is the adjoint: channels exchanged, taps reversed, conjugate."""
    return kernel.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1].conj()


def test_the_way_back_uses_the_other_kernels() -> None:
    """Against complex sums of shifted images: forward with one set of kernels, back with the adjoints of another."""
    (g, h), (g_back, h_back) = parts(0), parts(1)
    x, eps, delta = images(1, 9, 8).to(torch.complex128), 0.05, 0.2
    s, before = x.numpy(), []
    *layers, last = kernels(g, h)
    for kernel in layers:
        before.append(complex_convolution(s, kernel))
        s = split(lambda part: smoothed_relu(part, delta), before[-1])
    q = complex_convolution(s, last)
    length = np.sqrt((np.abs(q) ** 2).sum(0))
    value = np.where(length <= eps, length**2 / (2 * eps), length - eps / 2).sum()
    *layers_back, last_back = kernels(g_back, h_back)
    back = complex_convolution(q / np.maximum(length, eps), adjoint(last_back))
    for a, kernel in zip(reversed(before), reversed(layers_back), strict=True):
        slope = derivative(a.real, delta), derivative(a.imag, delta)
        back = complex_convolution(slope[0] * back.real + 1j * slope[1] * back.imag, adjoint(kernel))
    found = UntiedRegularizer(g, h, g_back, h_back).value_and_grad(x, eps)
    assert found[0].item() == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(found[1][0].detach().numpy(), back[0], atol=1e-12)


def jacobian(regularizer: Regularizer) -> Tensor:
    """Return the derivative of what stands for the gradient, of an image of 4 x 4 pixels, as a real matrix."""
    start = torch.view_as_real(images(1, 4, 4).to(torch.complex128))

    def field(real: Tensor) -> Tensor:
        return torch.view_as_real(regularizer.grad(torch.view_as_complex(real.reshape(1, 4, 4, 2)), 0.05)).flatten()

    flat, step = start.flatten(), 1e-6
    columns = [(field(flat + step * e) - field(flat - step * e)) / (2 * step) for e in torch.eye(32).double()]
    return torch.stack(columns, 1).detach()


def test_it_is_the_gradient_of_nothing() -> None:
    """The derivative of a gradient is symmetric; that of the untied field is not."""
    (g, h), (g_back, h_back) = parts(0), parts(1)
    tied, untied = jacobian(Regularizer(g, h)), jacobian(UntiedRegularizer(g, h, g_back, h_back))
    assert (tied - tied.T).norm() < 1e-6 * tied.norm()
    assert (untied - untied.T).norm() > 0.1 * untied.norm()


def test_it_starts_where_u_lda_does() -> None:
    physics = CartesianMRI(cartesian_mask(33, 0.4))
    y = physics.A(images(2, 33, 27))
    with torch.no_grad():
        found = Untied(sources=SOURCES, seed=3, **SMALL)(y, physics, "knee")
        expected = ULDA(sources=SOURCES, seed=3, safeguard=False, **SMALL)(y, physics, "knee")
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_twice_the_kernels_and_each_learns() -> None:
    model, tied = Untied(sources=SOURCES), ULDA(sources=SOURCES)
    steps = sum(p.numel() for p in tied.proposals.parameters())
    assert model.n_parameters - steps == 2 * (tied.n_parameters - steps) == 2 * (14_112 + 2 * 4608)
    # it has no extractor of its own, but transposed kernels of the adapter
    assert model.n_trainable(adapt=True) == 2 * 4608 + steps // 2
    small, tasks, reached = Untied(sources=SOURCES, **SMALL), [task(source) for source in SOURCES], set()
    for step in range(8):
        batch = draw(tasks, NONE, step_generator(NONE, step))
        small.loss(tasks[batch.task], batch, NONE, step)[0].backward()
        reached |= {n for n, p in small.named_parameters() if p.grad is not None and bool((p.grad != 0).any())}
    assert reached == dict(small.named_parameters()).keys()
    assert rate_multiplier("transposed.adapters.knee.layer.real", NONE) == NONE.adapter_multiplier
    assert rate_multiplier("transposed.extractor.layers.0.real", NONE) == 1


def test_mean_adapter_steps_use_the_means_of_both_kinds_of_kernels() -> None:
    model, settings = Untied(sources=SOURCES, **SMALL), NONE.changed(mean_adapter=1.0)
    data = task(SOURCES[0])
    batch = draw([data], settings, step_generator(settings, 0))
    loss, x = model.loss(data, batch, settings, 0)
    loss.backward()
    first, second = (f"transposed.adapters.{source}.layer.real" for source in SOURCES)
    gradient = model.get_parameter(first).grad
    assert gradient is not None
    assert bool((gradient != 0).any())
    torch.testing.assert_close(gradient, model.get_parameter(second).grad)
    model.add_domain("hip")
    torch.testing.assert_close(model.loss(task("hip"), batch, settings, 0)[1], x)


def test_trained_adapted_saved_and_loaded(tmp_path: Path) -> None:
    model = Untied(sources=SOURCES, **SMALL)
    model.fit([task(source) for source in SOURCES], Settings(steps=4, batch_size=2))
    own = model.transposed["extractor"].get_parameter("layers.0.real")
    assert not torch.equal(own, model.prior.extractor.get_parameter("layers.0.real"))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model.adapt(task("hip"), Settings(steps=3, batch_size=2))
    added = dict(model.named_parameters()).keys() - before.keys()
    assert all(model.is_adapted(name, "hip") for name in added)
    assert all(torch.equal(model.get_parameter(name), value) for name, value in before.items())
    model.save(tmp_path)
    again = load_method(tmp_path)
    physics = CartesianMRI(cartesian_mask(32, 0.4))
    y = physics.A(images(2, 32, 32))
    with torch.no_grad():
        assert torch.equal(again(y, physics), model(y, physics))


def test_a_new_domain_starts_from_the_means() -> None:
    model = Untied(sources=SOURCES, **SMALL)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator))
    model.add_domain("hip")
    for prefix in ("prior.adapters", "transposed.adapters"):
        sources = [model.get_parameter(f"{prefix}.{source}.layer.imag") for source in SOURCES]
        torch.testing.assert_close(model.get_parameter(f"{prefix}.hip.layer.imag"), (sources[0] + sources[1]) / 2)


def test_it_has_no_certificate_and_says_so() -> None:
    model = Untied(sources=["knee"], **SMALL)
    model.domain = "knee"
    physics = CartesianMRI(cartesian_mask(32, 0.4))
    with pytest.raises(UldaError, match=r"no objective .* no certificate"):
        ulda.reconstruct(model, physics.A(images(1, 32, 32)), physics)
    y = physics.A(images(1, 32, 32))
    with torch.no_grad():
        x, trace = model(y, physics, "knee", return_trace=True)
    with pytest.raises(UldaError, match=r"no gradient, .* no certificate"):
        certify(trace, y, physics, model.regularizer("knee"), x)
    certificate = certify(trace, y, physics, Regularizer(model.prior.extractor, model.adapter("knee")), x)
    problems = verify(certificate, y, physics, model.regularizer("knee"), x).problems
    assert any("there is no certificate" in problem for problem in problems)
    with pytest.raises(UldaError, match=r"no certificate.* or set penalty_weight to 0"):
        model.loss(task("knee"), Batch(0, (0,), 0), Settings(penalty_weight=0.1), 0)
    assert not Untied(safeguard=True, rank=4).network.safeguard


def test_it_is_built_by_name_but_not_among_the_methods() -> None:
    assert method_class("untied") is Untied
    assert "untied" not in METHODS
