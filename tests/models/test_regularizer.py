from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from tests.linear_checks import complex_normal
from tests.models.reference import feature_lengths, smoothed_value
from tests.models.regularizer_cases import (
    DOUBLE,
    Case,
    assert_parameter_gradients,
    autograd_of_value,
    cases,
    log_uniform,
    parameter_gradients,
    relative_error,
)
from ulda.errors import UldaError
from ulda.models import Adapter, ComplexConv2d, FeatureExtractor, Regularizer


@given(cases())
def test_value_is_the_formula(case: Case) -> None:
    values = case.regularizer.value(case.x, case.eps).detach()
    joint = case.regularizer.value_and_grad(case.x, case.eps)[0].detach()
    for n, x in enumerate(case.x):
        expected = smoothed_value(case.regularizer, x, case.eps[n].item())
        assert values[n].item() == pytest.approx(expected, rel=1e-10)
        assert joint[n].item() == pytest.approx(expected, rel=1e-10)


@given(cases())
def test_grad_is_the_gradient_in_double_precision(case: Case) -> None:
    gradient = case.regularizer.grad(case.x, case.eps)
    assert gradient.dtype == DOUBLE
    assert relative_error(gradient, autograd_of_value(case.regularizer, case.x, case.eps)) < 1e-9


@given(cases())
def test_grad_is_the_gradient_in_single_precision(case: Case) -> None:
    regularizer, x, eps = case.regularizer.float(), case.x.to(torch.complex64), case.eps.float()
    gradient = regularizer.grad(x, eps)
    assert gradient.dtype == torch.complex64
    assert relative_error(gradient, autograd_of_value(regularizer, x, eps)) < 1e-4


@given(cases(), st.integers(0, 99))
def test_grad_is_the_limit_of_finite_differences(case: Case, seed: int) -> None:
    regularizer, x, eps = case.regularizer.requires_grad_(False), case.x, case.eps.clamp_min(0.05)
    direction = complex_normal(*x.shape, dtype=DOUBLE, seed=seed)
    step = 1e-6
    difference = (regularizer.value(x + step * direction, eps) - regularizer.value(x - step * direction, eps)) / (
        2 * step
    )
    gradient = regularizer.grad(x, eps)
    slope = (gradient.conj() * direction).real.sum((-2, -1))
    scale = gradient.abs().mul(direction.abs()).sum((-2, -1)) + 1e-6
    assert float(((slope - difference).abs() / scale).max()) < 2e-5


def exact_regularizer(*, with_adapter: bool, kernel_size: int, dtype: torch.dtype = torch.float64) -> Regularizer:
    """Return a network that computes in powers of two: ``q = 2 s(x)`` with an adapter, ``q = s(x)`` without."""
    extractor = FeatureExtractor(1, 1, kernel_size, 0.25)
    adapter = Adapter(1, kernel_size) if with_adapter else None
    regularizer = Regularizer(extractor, adapter).to(dtype)
    first = extractor.layers[0]
    assert isinstance(first, ComplexConv2d)
    with torch.no_grad():
        for parameter in regularizer.parameters():
            parameter.zero_()
        first.real[0, 0, kernel_size // 2, kernel_size // 2] = 1
        if adapter is not None:
            adapter.layer.real[0, 0, kernel_size // 2, kernel_size // 2] = 2
    return regularizer


# image pixel, its gradient without adapter for eps = 5 by hand: q = s(Re x) + i s(Im x), gradient q s' / max(|q|, 5)
EXACT = [
    (3 + 4j, 0.6 + 0.8j),  # ||q|| = eps
    (-1 - 2j, 0),  # q = 0, no slope
    (-0.25 - 0.25j, 0),  # q = 0, both parts at -delta
    (0.25 - 0.25j, 0.05),  # parts at +delta and -delta
    (0.25 + 0.25j, 0.05 + 0.05j),  # both parts at +delta
    (5 - 0.25j, 1),  # ||q|| = eps and one part at -delta
    (6 + 8j, 0.6 + 0.8j),  # beyond eps
    (0, 0.00625 + 0.00625j),  # q = delta / 4, slope 1/2
]


@pytest.mark.parametrize("kernel_size", [1, 3])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_grad_at_the_joints_by_hand(kernel_size: int, dtype: torch.dtype) -> None:
    x = torch.tensor([pixel for pixel, _ in EXACT], dtype=dtype).reshape(2, 4)
    expected = torch.tensor([gradient for _, gradient in EXACT], dtype=dtype).reshape(2, 4)
    regularizer = exact_regularizer(with_adapter=False, kernel_size=kernel_size, dtype=x.real.dtype)
    lengths = regularizer.features(x[None]).square().sum(1).sqrt()
    assert int((lengths == 5).sum()) == 2
    assert int((lengths == 0).sum()) == 2
    value, gradient = regularizer.value_and_grad(x, 5.0)
    torch.testing.assert_close(gradient.detach(), expected)
    hand = [2.5, 0, 0, 0.25**2 / 10, 2 * 0.25**2 / 10, 2.5, 7.5, 2 * 0.0625**2 / 10]
    assert value.item() == pytest.approx(sum(hand), rel=1e-6)


@pytest.mark.parametrize("with_adapter", [False, True])
@pytest.mark.parametrize("kernel_size", [1, 3, 5])
@pytest.mark.parametrize("shape", [(1, 8), (8, 1), (2, 4)])
def test_derivatives_at_the_joints(with_adapter: bool, kernel_size: int, shape: tuple[int, int]) -> None:
    x = torch.tensor([pixel for pixel, _ in EXACT], dtype=DOUBLE).reshape(1, *shape)
    eps = torch.tensor(10.0 if with_adapter else 5.0)
    regularizer = exact_regularizer(with_adapter=with_adapter, kernel_size=kernel_size)
    assert relative_error(regularizer.grad(x, eps), autograd_of_value(regularizer, x, eps)) < 1e-12
    assert_parameter_gradients(Case(regularizer, x, eps))
    with torch.no_grad():
        step, direction = 1e-6, complex_normal(1, *shape, dtype=DOUBLE)
        ends = [regularizer.value(x + sign * step * direction, eps) for sign in (1, -1)]
        slope = (regularizer.grad(x, eps).conj() * direction).real.sum()
        assert ((ends[0] - ends[1]) / (2 * step)).item() == pytest.approx(slope.item(), abs=1e-5)


def test_zero_features_give_zero() -> None:
    regularizer = Regularizer(FeatureExtractor(4), Adapter(4, weight=0.0)).double()
    x = complex_normal(2, 5, 5, dtype=DOUBLE)
    value, gradient = regularizer.value_and_grad(x, 0.1)
    assert not value.any()
    assert not gradient.any()
    assert_parameter_gradients(Case(regularizer, x, torch.tensor(0.1)))


IMAGES = {
    "zero": torch.zeros(2, 9, 7, dtype=DOUBLE),
    "constant": torch.full((2, 9, 7), 1 - 2j, dtype=DOUBLE),
    "negative": torch.full((2, 9, 7), -1 - 1j, dtype=DOUBLE),
    "noise": complex_normal(2, 9, 7, dtype=DOUBLE),
}


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e10])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("with_adapter", [False, True])
def test_everything_is_finite(name: str, scale: float, dtype: torch.dtype, with_adapter: bool) -> None:
    regularizer = Regularizer(FeatureExtractor(4), Adapter(4) if with_adapter else None).to(dtype.to_real())
    x = (IMAGES[name] * scale).to(dtype)
    for eps in (1e-8, 1e-4, 1.0, 1e2):
        value, gradient = regularizer.value_and_grad(x, eps)
        assert bool(value.isfinite().all())
        assert bool(gradient.isfinite().all())
        for coded in (False, True):
            derivatives = parameter_gradients(regularizer, x, eps, 0, coded=coded, with_value=True)
            assert all(d is not None and bool(d.isfinite().all()) for d in derivatives)


@given(cases())
def test_smoothing_bounds(case: Case) -> None:
    values, n_pixels = case.regularizer.value(case.x, case.eps).detach(), case.x[0].numel()
    for x, eps, value in zip(case.x, case.eps.tolist(), values.tolist(), strict=True):
        exact = float(feature_lengths(case.regularizer, x).sum())
        slack = 1e-12 * (exact + n_pixels * eps)
        assert value <= exact + slack
        assert exact <= value + n_pixels * eps / 2 + slack


@given(cases(), log_uniform(1, 100))
def test_monotone_in_eps(case: Case, factor: float) -> None:
    half = case.x[0].numel() / 2
    small, large = case.eps, factor * case.eps
    at_small, at_large = (case.regularizer.value(case.x, eps).detach() for eps in (small, large))
    slack = 1e-12 * (at_small + half * large)
    # r_eps falls as eps grows; r_eps + d1 eps / 2 grows, so that it falls when the solver reduces eps
    assert bool((at_large <= at_small + slack).all())
    assert bool((at_small + half * small <= at_large + half * large + slack).all())


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_a_sample_does_not_depend_on_its_batch(dtype: torch.dtype) -> None:
    regularizer = Regularizer(FeatureExtractor(), Adapter()).to(dtype.to_real()).requires_grad_(False)
    x = torch.stack([10.0**n * complex_normal(24, 17, dtype=dtype, seed=n) for n in range(-2, 3)])
    eps = torch.tensor([0.1, 1, 0.01, 3, 1e-3], dtype=dtype.to_real())
    value, gradient = regularizer.value_and_grad(x, eps)
    tolerance = 1e-5 if dtype == torch.complex64 else 1e-12
    for n in range(5):
        for alone in (regularizer.value_and_grad(x[n], eps[n]), regularizer.value_and_grad(x[n], eps[n].item())):
            assert alone[0].shape == ()
            assert alone[0].item() == pytest.approx(value[n].item(), rel=tolerance)
            assert relative_error(alone[1], gradient[n]) < tolerance


def test_leading_axes_are_kept() -> None:
    regularizer = Regularizer(FeatureExtractor(2), Adapter(2)).double().requires_grad_(False)
    x = complex_normal(2, 3, 5, 4, dtype=DOUBLE)
    eps = torch.rand(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for shaped in (eps, eps[0], eps[:, :1], 0.3):
        value, gradient = regularizer.value_and_grad(x, shaped)
        assert value.shape == regularizer.value(x, shaped).shape == (2, 3)
        assert gradient.shape == x.shape
        each = torch.as_tensor(shaped, dtype=torch.float64).expand(2, 3)
        for i, j in itertools.product(range(2), range(3)):
            expected = regularizer.value_and_grad(x[i, j], each[i, j])
            assert value[i, j].item() == pytest.approx(expected[0].item(), rel=1e-12)
            assert relative_error(gradient[i, j], expected[1]) < 1e-12


def test_any_order_in_memory_will_do() -> None:
    regularizer = Regularizer(FeatureExtractor(2), Adapter(2)).double()
    x = complex_normal(2, 5, 4, dtype=DOUBLE)
    expected = regularizer.grad(x, 0.1)
    for same in (x.mT.contiguous().mT, x.conj().resolve_conj().conj(), x.repeat(1, 2, 1)[:, :5]):
        assert torch.equal(same, x)
        assert relative_error(regularizer.grad(same, 0.1), expected) < 1e-12
        assert_parameter_gradients(Case(regularizer, same, torch.tensor(0.1)))


def test_the_value_is_in_double_precision() -> None:
    regularizer = Regularizer(FeatureExtractor(), Adapter())
    x = complex_normal(2, 64, 64)
    value = regularizer.value_and_grad(x, 0.1)[0].detach()
    assert value.dtype == regularizer.value(x, 0.1).dtype == torch.float64
    expected = [smoothed_value(regularizer, image, 0.1) for image in x]
    np.testing.assert_allclose(value.numpy(), expected, rtol=1e-6)


class ConvolutionCounter(TorchDispatchMode):
    """Counts the convolutions that reach PyTorch, plain and transposed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.plain = self.transposed = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution.default:
            self.transposed += args[6]
            self.plain += not args[6]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("depth", "with_adapter"), [(1, False), (1, True), (4, True)])
def test_value_and_grad_takes_one_pass(depth: int, with_adapter: bool) -> None:
    regularizer = Regularizer(FeatureExtractor(2, depth), Adapter(2) if with_adapter else None)
    n_layers = depth + with_adapter
    x = complex_normal(2, 6, 6)
    with ConvolutionCounter() as counter:
        _, gradient = regularizer.value_and_grad(x, 0.1)
    assert (counter.plain, counter.transposed) == (n_layers, n_layers)
    with ConvolutionCounter() as counter:
        gradient.abs().sum().backward()
    assert (counter.plain, counter.transposed) == (n_layers, n_layers)
    with ConvolutionCounter() as counter:
        regularizer.value(x, 0.1)
    assert (counter.plain, counter.transposed) == (n_layers, 0)


def test_wrong_arguments_are_clear_errors() -> None:
    with pytest.raises(UldaError, match="8 channels and the feature extractor 16"):
        Regularizer(FeatureExtractor(), Adapter(8))
    regularizer = Regularizer(FeatureExtractor(2), Adapter(2))
    for method in (regularizer.value, regularizer.grad, regularizer.value_and_grad):
        with pytest.raises(UldaError, match="complex images"):
            method(torch.zeros(2, 8, 8), 0.1)
        with pytest.raises(UldaError, match="complex images"):
            method(torch.zeros(8, dtype=torch.complex64), 0.1)
        with pytest.raises(UldaError, match="complex images"):
            method(torch.zeros(0, 8, 8, dtype=torch.complex64), 0.1)
        for eps in (0.0, -0.1, math.nan, torch.tensor([0.1, 0.0])):
            with pytest.raises(UldaError, match="eps must be positive"):
                method(complex_normal(2, 8, 8), eps)


def test_unequal_precisions_and_wrong_eps_are_clear_errors() -> None:
    r = Regularizer(FeatureExtractor(2, 1))
    with pytest.raises(UldaError, match="bring both to one precision"):
        r.grad(torch.ones(1, 4, 4, dtype=torch.complex128), 0.1)
    with pytest.raises(UldaError, match="give one eps, or one per image"):
        r.grad(torch.ones(2, 4, 4, dtype=torch.complex64), torch.ones(3))
