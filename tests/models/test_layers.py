from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.signal import correlate2d
from torch import Tensor

from tests.linear_checks import assert_adjoint
from tests.models.reference import complex_kernel, smoothed_relu
from ulda.errors import UldaError
from ulda.models import ComplexConv2d, SmoothedReLU
from ulda.models.layers import convolve, convolve_adjoint, kernel_gradient

deltas = st.floats(1e-3, 10)


def real_normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(deltas, st.lists(st.floats(-100, 100), min_size=1))
def test_smoothed_relu_is_the_piecewise_formula(delta: float, numbers: list[float]) -> None:
    x = torch.tensor([*numbers, *(delta * np.linspace(-2, 2, 9))], dtype=torch.float64)
    expected = torch.from_numpy(smoothed_relu(x.numpy(), delta))
    torch.testing.assert_close(SmoothedReLU(delta)(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("delta", [0.001, 0.1, 0.25, 2.0])
def test_smoothed_relu_at_the_joints(delta: float) -> None:
    x = torch.tensor([-math.inf, -delta, 0, delta, math.inf], dtype=torch.float64)
    expected = torch.tensor([0, 0, delta / 4, delta, math.inf], dtype=torch.float64)
    torch.testing.assert_close(SmoothedReLU(delta)(x), expected, rtol=1e-14, atol=0)


@given(deltas, st.lists(st.floats(-100, 100), min_size=1))
def test_first_derivative_of_the_smoothed_relu(delta: float, numbers: list[float]) -> None:
    activation = SmoothedReLU(delta)
    x = torch.tensor([*numbers, -delta, 0, delta], dtype=torch.float64, requires_grad=True)
    expected = (x.detach() / (2 * delta) + 0.5).clamp(0, 1)
    (by_autograd,) = torch.autograd.grad(activation(x).sum(), x)
    torch.testing.assert_close(by_autograd, expected, rtol=0, atol=1e-12)
    shifted = torch.relu(x.detach() + delta)
    torch.testing.assert_close(activation.derivative_from_shifted(shifted), expected, rtol=0, atol=1e-12)


def test_second_derivative_of_the_smoothed_relu_is_the_one_of_autograd() -> None:
    activation = SmoothedReLU(0.25)
    x = torch.tensor([-1, -0.25, -0.1, 0, 0.2, 0.25, 3], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(activation(x).sum(), x, create_graph=True)
    (expected,) = torch.autograd.grad(slope.sum(), x)
    # at the joints, where it jumps, both take the side of zero
    assert expected.tolist() == [0, 0, 2, 2, 2, 0, 0]
    assert activation.curvature == 2
    inside = activation.keep_inside_parabola_(torch.relu(x.detach() + 0.25), torch.full_like(x.detach(), 3.0))
    assert (inside * activation.curvature).tolist() == [0, 0, 6, 6, 6, 0, 0]


@given(deltas, st.integers(0, 99))
def test_the_two_signs_of_the_smoothed_relu_differ_by_their_argument(delta: float, seed: int) -> None:
    x = real_normal(50, seed=seed)
    activation = SmoothedReLU(delta)
    torch.testing.assert_close(activation(x) - activation(-x), x, rtol=1e-12, atol=1e-12)


def test_smoothed_relu_shows_its_width() -> None:
    assert repr(SmoothedReLU(0.5)) == "SmoothedReLU(delta=0.5)"


@pytest.mark.parametrize("delta", [0.0, -0.1, math.inf, math.nan])
def test_a_width_that_is_not_positive_is_an_error(delta: float) -> None:
    with pytest.raises(UldaError, match="must be positive"):
        SmoothedReLU(delta)


@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([1, 3, 5]),
    st.tuples(st.integers(1, 3), st.integers(1, 7), st.integers(1, 7)),
    st.integers(0, 99),
)
def test_complex_convolution_is_that_of_scipy(
    n_in: int, n_out: int, size: int, shape: tuple[int, int, int], seed: int
) -> None:
    batch, height, width = shape
    conv = ComplexConv2d(n_in, n_out, size, generator=torch.Generator().manual_seed(seed)).double()
    x = real_normal(batch, 2 * n_in, height, width, seed=seed)
    images = (x[:, :n_in] + 1j * x[:, n_in:]).numpy()
    kernel = complex_kernel(conv)
    pad = size // 2
    result = conv(x).detach()
    for n in range(batch):
        for o in range(n_out):
            # SciPy conjugates the second argument of a correlation
            expected = sum(
                correlate2d(np.pad(images[n, i], pad), kernel[o, i].conj(), mode="valid") for i in range(n_in)
            )
            np.testing.assert_allclose(result[n, o].numpy(), np.real(expected), atol=1e-12)
            np.testing.assert_allclose(result[n, n_out + o].numpy(), np.imag(expected), atol=1e-12)


def test_the_real_kernel_has_the_documented_blocks() -> None:
    conv = ComplexConv2d(2, 3)
    expected = torch.cat([torch.cat([conv.real, -conv.imag], dim=1), torch.cat([conv.imag, conv.real], dim=1)], dim=0)
    assert conv.kernel().shape == (6, 4, 3, 3)
    assert torch.equal(conv.kernel(), expected)


def test_the_start_is_that_of_glorot() -> None:
    conv = ComplexConv2d(40, 60, 5, generator=torch.Generator().manual_seed(1))
    for part in (conv.real, conv.imag):
        assert float(part.detach().std()) == pytest.approx(math.sqrt(1 / (100 * 25)), rel=0.02)
    same = ComplexConv2d(40, 60, 5, generator=torch.Generator().manual_seed(1))
    assert torch.equal(conv.real, same.real)
    assert not torch.equal(conv.real, conv.imag)
    assert repr(conv) == "ComplexConv2d(40, 60, kernel_size=5)"


@pytest.mark.parametrize("size", [-1, 0, 2, 4])
def test_a_kernel_without_a_middle_is_an_error(size: int) -> None:
    with pytest.raises(UldaError, match="must be odd"):
        ComplexConv2d(1, 1, size)


@pytest.mark.parametrize(("n_in", "n_out"), [(0, 1), (1, 0), (-2, 3)])
def test_a_convolution_without_channels_is_an_error(n_in: int, n_out: int) -> None:
    with pytest.raises(UldaError, match="needs channels"):
        ComplexConv2d(n_in, n_out)


shapes = st.tuples(
    st.integers(1, 3), st.integers(1, 20), st.integers(1, 20), st.integers(1, 9), st.integers(1, 9)
)  # batch, channels in, channels out, height, width


@given(shapes, st.sampled_from([1, 3, 5]), st.integers(0, 99))
def test_the_transposed_convolution_is_the_adjoint(shape: tuple[int, int, int, int, int], size: int, seed: int) -> None:
    batch, n_in, n_out, height, width = shape
    kernel = real_normal(n_out, n_in, size, size, seed=seed) / (size * math.sqrt(n_in * n_out))
    u = real_normal(batch, n_in, height, width, seed=seed + 1)
    v = real_normal(batch, n_out, height, width, seed=seed + 2)
    # the shared check wants complex vectors; a real operator acts on both parts
    assert_adjoint(
        lambda x: torch.complex(convolve(x.real, kernel), convolve(x.imag, kernel)),
        lambda y: torch.complex(convolve_adjoint(y.real, kernel), convolve_adjoint(y.imag, kernel)),
        torch.complex(u, u.flip(-1)),
        torch.complex(v, -v.flip(-2)),
    )


def test_the_shift_of_a_convolution_is_added_everywhere() -> None:
    x, kernel = real_normal(2, 3, 4, 5), real_normal(2, 3, 3, 3, seed=1)
    bias = torch.tensor([0.5, -2], dtype=torch.float64)
    torch.testing.assert_close(convolve(x, kernel, bias), convolve(x, kernel) + bias[:, None, None])


@given(shapes, st.sampled_from([1, 3, 5, 7]), st.booleans(), st.booleans(), st.integers(0, 99))
@example((2, 16, 16, 6, 1), 3, True, True, 0)
@example((2, 16, 16, 1, 6), 3, True, True, 0)
@example((1, 16, 16, 6, 1), 5, True, True, 0)
@example((1, 16, 16, 1, 1), 5, True, True, 0)
@example((2, 16, 16, 6, 2), 7, True, True, 0)
@example((2, 16, 16, 2, 3), 5, True, True, 0)
@example((1, 7, 9, 5, 6), 3, True, True, 0)
@example((1, 8, 9, 5, 6), 3, True, True, 0)
@example((2, 16, 16, 5, 6), 3, False, False, 0)
@example((2, 16, 16, 5, 6), 3, True, False, 0)
def test_kernel_gradient_is_that_of_autograd(
    shape: tuple[int, int, int, int, int], size: int, x_last: bool, g_last: bool, seed: int
) -> None:
    batch, n_in, n_out, height, width = shape
    x = real_normal(batch, n_in, height, width, seed=seed)
    g = real_normal(batch, n_out, height, width, seed=seed + 1)
    kernel = torch.zeros(n_out, n_in, size, size, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(convolve(x, kernel), kernel, g)
    # the result must not depend on the order of the axes in memory
    x = x.contiguous(memory_format=torch.channels_last) if x_last else x
    g = g.contiguous(memory_format=torch.channels_last) if g_last else g
    torch.testing.assert_close(kernel_gradient(x, g, size), expected, rtol=1e-10, atol=1e-10)
