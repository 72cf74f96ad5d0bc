from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.linear_checks import TOLERANCE, assert_adjoint, complex_normal
from ulda.errors import UldaError
from ulda.physics import CartesianMRI, MultiCoilMRI, Physics, cartesian_mask, fft2c, root_sum_of_squares

dtypes = st.sampled_from([torch.complex64, torch.complex128])


@st.composite
def problems(draw: st.DrawFn) -> tuple[Physics, torch.Tensor, torch.Tensor]:
    """Draw an operator, an image batch and a measurement of its shape (not in its range)."""
    height, width, batch = draw(st.integers(3, 15)), draw(st.integers(3, 15)), draw(st.integers(1, 3))
    dtype, axis, seed = draw(dtypes), draw(st.sampled_from([-2, -1])), draw(st.integers(0, 99))
    n_lines = height if axis == -2 else width
    mask = cartesian_mask(n_lines, draw(st.floats(1 / n_lines, 1.0)), center=0.0, seed=seed)
    x = complex_normal(batch, height, width, dtype=dtype, seed=seed)
    if draw(st.booleans()):
        return CartesianMRI(mask, axis), x, complex_normal(batch, height, width, dtype=dtype, seed=seed + 1)
    n_coils = draw(st.integers(1, 5))
    maps = complex_normal(n_coils, height, width, dtype=dtype, seed=seed + 2)
    maps = maps / root_sum_of_squares(maps)
    y = complex_normal(batch, n_coils, height, width, dtype=dtype, seed=seed + 3)
    return MultiCoilMRI(mask, maps, axis), x, y


@given(problems())
def test_adjoint(problem: tuple[Physics, torch.Tensor, torch.Tensor]) -> None:
    physics, x, y = problem
    assert_adjoint(physics.A, physics.A_adjoint, x, y)


@given(problems())
def test_norm_bounds_the_operator_and_is_at_most_one(
    problem: tuple[Physics, torch.Tensor, torch.Tensor],
) -> None:
    physics, x, _ = problem
    assert physics.norm() <= 1 + TOLERANCE[x.dtype]
    for _ in range(30):
        x = physics.A_adjoint(physics.A(x))
        x = x / x.norm().clamp_min(1e-30)
    assert float(physics.A(x).norm()) <= physics.norm() * (1 + TOLERANCE[x.dtype])


@given(problems())
def test_fidelity_gradient_is_that_of_autograd(problem: tuple[Physics, torch.Tensor, torch.Tensor]) -> None:
    physics, x, y = problem
    x.requires_grad_()
    value = physics.fidelity(x, y)
    assert value.shape == x.shape[:1]
    (expected,) = torch.autograd.grad(value.sum(), x)
    assert float((physics.fidelity_grad(x.detach(), y) - expected).abs().max()) < 100 * TOLERANCE[x.dtype]


@given(problems())
def test_a_batch_is_its_slices(problem: tuple[Physics, torch.Tensor, torch.Tensor]) -> None:
    physics, x, y = problem
    assert torch.allclose(physics.A(x)[-1], physics.A(x[-1]), atol=1e-5)
    assert torch.allclose(physics.fidelity(x, y)[-1], physics.fidelity(x[-1], y[-1]), rtol=1e-5)


@given(problems(), st.booleans())
def test_the_normal_operator_is_the_adjoint_after_the_operator(
    problem: tuple[Physics, torch.Tensor, torch.Tensor], with_phase: bool
) -> None:
    physics, x, _ = problem
    if with_phase:
        angle = complex_normal(*x.shape, dtype=x.dtype, seed=7).real
        physics = physics.with_knowledge(phase=torch.polar(torch.ones_like(angle), angle))
    assert torch.allclose(physics.normal_operator()(x), physics.A_adjoint(physics.A(x)), atol=10 * TOLERANCE[x.dtype])


def test_norm_is_exact_with_all_lines() -> None:
    mask = cartesian_mask(12, 1.0)
    maps = complex_normal(3, 12, 10, dtype=torch.complex128)
    physics = MultiCoilMRI(mask, maps)
    matrix = physics.A(torch.eye(120, dtype=torch.complex128).reshape(120, 12, 10)).reshape(120, -1)
    assert float(torch.linalg.matrix_norm(matrix, 2)) == pytest.approx(physics.norm(), rel=1e-12)


def test_unsampled_lines_are_zero_and_sampled_ones_are_the_fft() -> None:
    mask = cartesian_mask(16, 0.5, seed=2)
    x = complex_normal(16, 9)
    y = CartesianMRI(mask).A(x)
    assert torch.equal(y[~mask.lines], torch.zeros(8, 9, dtype=torch.complex64))
    assert torch.equal(y[mask.lines], fft2c(x)[mask.lines])
    across = CartesianMRI(mask, axis=-1).A(x.T)
    assert torch.allclose(across, y.T, atol=1e-6)


def test_real_images_are_measured_too() -> None:
    physics = CartesianMRI(cartesian_mask(8, 0.5))
    assert torch.equal(physics.A(torch.ones(8, 8)), physics.A(torch.ones(8, 8, dtype=torch.complex64)))


def test_the_meta_device_is_supported() -> None:
    """No operator makes a tensor of its own on the CPU: the same code runs on any device."""
    mask = cartesian_mask(16, 0.5)
    maps = complex_normal(3, 16, 16)
    x = torch.empty(2, 16, 16, dtype=torch.complex64, device="meta")
    for physics in (CartesianMRI(mask), MultiCoilMRI(mask, maps)):
        moved = physics.to("meta")
        assert moved.fidelity_grad(x, moved.A(x)).device.type == "meta"


_MASK = cartesian_mask(8, 0.5)
_SINGLE = CartesianMRI(_MASK)
_MULTI = MultiCoilMRI(_MASK, torch.ones(3, 8, 8, dtype=torch.complex64))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: _SINGLE.A(torch.zeros(9, 8)), "mask has 8 lines"),
        (lambda: _SINGLE.fidelity(torch.zeros(8, 8), torch.zeros(8, 7)), r"measurement has shape \(8, 7\)"),
        (lambda: CartesianMRI(_MASK, axis=0), "-2 or -1"),
        (lambda: _MULTI.A(torch.zeros(8, 9)), "sensitivity maps are for images"),
        (lambda: _MULTI.A_adjoint(torch.zeros(2, 8, 8)), "expected"),
        (lambda: MultiCoilMRI(_MASK, torch.zeros(3, 8, 8)), "must be complex"),
    ],
)
def test_wrong_shapes_are_clear_errors(call: Callable[[], object], message: str) -> None:
    with pytest.raises(UldaError, match=message):
        call()
