from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ulda.methods import TotalVariation
from ulda.physics import CartesianMRI, cartesian_mask
from ulda.solvers.total_variation import gradient, gradient_adjoint


def objective(x: Tensor, y: Tensor, physics: CartesianMRI, weight: float) -> Tensor:
    strength = weight * physics.A_adjoint(y).abs().amax((-2, -1))
    variation: Tensor = torch.linalg.vector_norm(gradient(x), dim=0).sum((-2, -1))
    return physics.fidelity(x, y) + strength * variation


def phantom(n: int = 48) -> Tensor:
    x = torch.zeros(n, n, dtype=torch.complex128)
    x[n // 6 : n // 2, n // 4 : 3 * n // 4] = 1
    x[n // 3 : 2 * n // 3, n // 3 : n // 2] += 0.5j
    return x


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (6, 7), (2, 3, 9, 8)])
def test_gradient_adjoint(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, dtype=torch.complex128, generator=generator)
    u = torch.randn((2, *shape), dtype=torch.complex128, generator=generator)
    left = torch.vdot(u.flatten(), gradient(x).flatten())
    right = torch.vdot(gradient_adjoint(u).flatten(), x.flatten())
    torch.testing.assert_close(left, right)


def test_gradient_norm_is_below_8() -> None:
    x = torch.randn(32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for _ in range(200):
        x = gradient_adjoint(gradient(x / x.norm()))
    assert 7.9 < x.norm().item() <= 8


@pytest.mark.parametrize(("weight", "expected"), [(0.1, (0.1, 0.9)), (0.3, (0.3, 0.7)), (0.8, (0.5, 0.5))])
def test_two_pixels(weight: float, expected: tuple[float, float]) -> None:
    """Both pixels of (0, 1) move by lambda towards each other until they meet in the middle."""
    physics = CartesianMRI(cartesian_mask(2, 1.0))
    x = torch.tensor([[0.0], [1.0]], dtype=torch.complex128)
    x_hat = TotalVariation(weight=weight, iterations=400, tolerance=0)(physics.A(x), physics)
    torch.testing.assert_close(x_hat[:, 0], torch.tensor(expected, dtype=torch.complex128), atol=1e-6, rtol=0)


def test_a_complex_step() -> None:
    """The two sides of a step between constant halves move by lambda over their length, along its phase."""
    n, weight = 8, 0.2
    signal = torch.cat((torch.zeros(n), torch.full((2 * n,), 1.0))).to(torch.complex128) * (0.6 + 0.8j)
    physics = CartesianMRI(cartesian_mask(3 * n, 1.0))
    x_hat = TotalVariation(weight=weight, iterations=2000, tolerance=0)(physics.A(signal[:, None]), physics)[:, 0]
    low, high = weight / n, 1 - weight / (2 * n)
    expected = torch.cat((torch.full((n,), low), torch.full((2 * n,), high))) * (0.6 + 0.8j)
    torch.testing.assert_close(x_hat, expected.to(torch.complex128), atol=1e-6, rtol=0)


def test_an_isotropic_corner() -> None:
    """Optimality where the gradient does not vanish: A^H(Ax - y) = lambda div(grad x / |grad x|)."""
    weight = 0.05
    physics = CartesianMRI(cartesian_mask(3, 1.0))
    generator = torch.Generator().manual_seed(4)
    image = torch.randn(3, 3, dtype=torch.complex128, generator=generator)
    y = physics.A(image)
    x = TotalVariation(weight=weight, iterations=5000, tolerance=0)(y, physics)
    field = gradient(x)
    length = torch.linalg.vector_norm(field, dim=0)
    assert length[:2, :2].min() > 1e-3
    field = torch.where(length > 1e-6, field / length.clamp_min(1e-6), torch.zeros_like(field))
    strength = weight * image.abs().max()
    torch.testing.assert_close(x - image, -strength * gradient_adjoint(field), atol=1e-6, rtol=0)


def test_objective_reaches_its_minimum() -> None:
    weight = 0.01
    physics = CartesianMRI(cartesian_mask(48, 0.4))
    y = physics.A(phantom())
    values = [
        objective(TotalVariation(weight=weight, iterations=n, tolerance=0)(y, physics), y, physics, weight).item()
        for n in (30, 100, 300, 1000, 2500)
    ]
    excess = [value / values[-1] - 1 for value in values]
    assert excess[0] > excess[1] > excess[2] > excess[3] > 0
    assert excess[2] < 5e-2
    assert excess[3] < 1e-3


def test_no_smaller_value_nearby() -> None:
    weight = 0.01
    physics = CartesianMRI(cartesian_mask(48, 0.4))
    y = physics.A(phantom())
    x = TotalVariation(weight=weight, iterations=1500, tolerance=0)(y, physics)
    best = objective(x, y, physics, weight).item()
    generator = torch.Generator().manual_seed(0)
    for size in (1e-1, 1e-3):
        for _ in range(20):
            step = torch.randn(x.shape, dtype=x.dtype, generator=generator)
            assert objective(x + size * step, y, physics, weight).item() > best


def test_a_piecewise_constant_image_is_recovered_from_few_lines() -> None:
    physics = CartesianMRI(cartesian_mask(48, 0.4))
    y = physics.A(phantom())
    error = (TotalVariation(weight=1e-4, iterations=1000, tolerance=0)(y, physics) - phantom()).norm()
    assert error < 0.1 * (physics.A_adjoint(y) - phantom()).norm()


@pytest.mark.parametrize("weight", [0.001, 0.01, 0.1])
def test_the_default_has_converged_on_noise(weight: float) -> None:
    """Noise of a tenth of the peak; the minimiser is that of a run six times as long."""
    generator = torch.Generator().manual_seed(5)
    image = phantom() + 0.1 * torch.randn(48, 48, dtype=torch.complex128, generator=generator)
    physics = CartesianMRI(cartesian_mask(48, 1 / 3))
    y = physics.A(image)
    methods = TotalVariation(weight=weight), TotalVariation(weight=weight, iterations=3000, tolerance=0)
    short, long = ((method(y, physics).abs() - image.abs()).norm() for method in methods)
    assert 20 * abs(float(torch.log10(short / long))) < 0.05


def test_tolerance_stops_each_slice_on_its_own() -> None:
    physics = CartesianMRI(cartesian_mask(48, 0.4))
    images = torch.stack((phantom(), phantom() + 0.3 * phantom().roll(7, -1), torch.zeros_like(phantom())))
    done: list[int] = []
    method = TotalVariation(tolerance=1e-3, iterations=1000, progress=done.append)
    together = method(physics.A(images), physics)
    steps_together = len(done)
    assert done == list(range(1, steps_together + 1))
    assert steps_together < 1000
    steps = []
    for image, joint in zip(images, together, strict=True):
        done.clear()
        torch.testing.assert_close(method(physics.A(image), physics), joint, atol=1e-9, rtol=0)
        steps.append(len(done))
    assert max(steps) == steps_together
    assert len(set(steps)) == 3
