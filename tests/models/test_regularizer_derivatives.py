"""The hand-written derivative of the gradient of the regulariser, against autograd."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.linear_checks import complex_normal
from tests.models.regularizer_cases import (
    DOUBLE,
    Case,
    assert_parameter_gradients,
    cases,
    parameter_gradients,
    relative_error,
)
from ulda.models import Adapter, FeatureExtractor, Regularizer


@given(cases(), st.integers(0, 99))
def test_derivatives_of_grad_are_those_of_the_double_backward(case: Case, seed: int) -> None:
    assert_parameter_gradients(case, seed)


@pytest.mark.parametrize("with_adapter", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
def test_derivatives_at_full_size(with_adapter: bool, recompute: bool) -> None:
    regularizer = Regularizer(FeatureExtractor(), Adapter() if with_adapter else None, recompute=recompute).double()
    assert_parameter_gradients(Case(regularizer, complex_normal(2, 13, 10, dtype=DOUBLE), torch.tensor(0.3)))


@pytest.mark.parametrize("recompute", [False, True])
def test_derivatives_in_single_precision(recompute: bool) -> None:
    regularizer = Regularizer(FeatureExtractor(), Adapter(), recompute=recompute)
    assert_parameter_gradients(Case(regularizer, complex_normal(2, 32, 24), torch.tensor(0.3)), tolerance=1e-4)


@pytest.mark.parametrize(("depth", "with_adapter", "recompute"), [(1, True, False), (2, False, False), (2, True, True)])
def test_gradcheck(depth: int, with_adapter: bool, recompute: bool) -> None:
    extractor = FeatureExtractor(2, depth, start="random")
    regularizer = Regularizer(extractor, Adapter(2, weight=1.0) if with_adapter else None, recompute=recompute).double()
    x = complex_normal(2, 3, 4, dtype=DOUBLE).requires_grad_()
    eps = torch.tensor([0.2, 2.0], dtype=torch.float64)

    def function(x: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        return regularizer.value_and_grad(x, eps)

    assert torch.autograd.gradcheck(function, (x, *regularizer.parameters()))


def test_only_the_adapter_learns_when_the_extractor_is_frozen() -> None:
    regularizer = Regularizer(FeatureExtractor(4), Adapter(4)).double()
    regularizer.extractor.requires_grad_(False)
    x, direction = complex_normal(2, 6, 7, dtype=DOUBLE), complex_normal(2, 6, 7, dtype=DOUBLE, seed=1)
    value, gradient = regularizer.value_and_grad(x, 0.1)
    ((gradient * direction).real.sum() + value.sum()).backward()
    assert all(p.grad is None for p in regularizer.extractor.parameters())
    case = Case(regularizer, x, torch.tensor(0.1))
    assert_parameter_gradients(case)
    adapter = regularizer.adapter
    assert adapter is not None
    regularizer.extractor.requires_grad_(True)
    expected = parameter_gradients(regularizer, x, 0.1, 5, coded=True, with_value=True)[-2:]
    regularizer.extractor.requires_grad_(False)
    for a, b in zip(
        parameter_gradients(regularizer, x, 0.1, 5, coded=False, with_value=True)[-2:], expected, strict=True
    ):
        assert a is not None
        assert b is not None
        assert relative_error(a, b) < 1e-9


def test_only_the_image_needs_a_derivative() -> None:
    regularizer = Regularizer(FeatureExtractor(4), Adapter(4)).double().requires_grad_(False)
    assert_parameter_gradients(Case(regularizer, complex_normal(2, 6, 7, dtype=DOUBLE), torch.tensor(0.1)))


def test_only_the_parameters_need_a_derivative() -> None:
    regularizer = Regularizer(FeatureExtractor(4), Adapter(4)).double()
    x, direction = complex_normal(2, 6, 7, dtype=DOUBLE), complex_normal(2, 6, 7, dtype=DOUBLE, seed=3)
    (regularizer.grad(x, 0.1) * direction).real.sum().backward()
    expected = parameter_gradients(regularizer, x, 0.1, 3, coded=True, with_value=False)[1:]
    for parameter, b in zip(regularizer.parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert b is not None
        assert relative_error(parameter.grad, b) < 1e-9


def test_nothing_needs_a_derivative() -> None:
    regularizer = Regularizer(FeatureExtractor(2), Adapter(2)).requires_grad_(False)
    value, gradient = regularizer.value_and_grad(complex_normal(4, 4), 0.1)
    assert not value.requires_grad
    assert not gradient.requires_grad


@pytest.mark.parametrize("recompute", [False, True])
def test_a_second_backward_pass_gives_the_same(recompute: bool) -> None:
    regularizer = Regularizer(FeatureExtractor(4), Adapter(4), recompute=recompute).double()
    x = complex_normal(2, 6, 7, dtype=DOUBLE).requires_grad_()
    value, gradient = regularizer.value_and_grad(x, 0.1)
    before = gradient.detach().clone()
    loss = value.sum() + (gradient * complex_normal(2, 6, 7, dtype=DOUBLE, seed=1)).real.sum()
    wanted = [x, *regularizer.parameters()]
    first = torch.autograd.grad(loss, wanted, retain_graph=True)
    second = torch.autograd.grad(loss, wanted)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(gradient, before)


def test_the_value_alone_has_the_gradient_as_derivative() -> None:
    regularizer = Regularizer(FeatureExtractor(3), Adapter(3)).double()
    x = complex_normal(2, 5, 6, dtype=DOUBLE).requires_grad_()
    value, gradient = regularizer.value_and_grad(x, 0.1)
    weights = torch.tensor([2.0, -3], dtype=torch.float64)
    (result,) = torch.autograd.grad((value * weights).sum(), x)
    assert relative_error(result, gradient * weights[:, None, None]) < 1e-12


@pytest.mark.parametrize("with_adapter", [True, False])
@pytest.mark.parametrize("recompute", [True, False])
def test_parameter_gradients_of_the_value_alone(with_adapter: bool, recompute: bool) -> None:
    """The value's own derivative takes no second-order pass, and is that of automatic differentiation."""
    adapter = Adapter(5, seed=1) if with_adapter else None
    r = Regularizer(FeatureExtractor(5, 3, seed=1), adapter, recompute=recompute).double()
    x = torch.randn(3, 7, 6, dtype=torch.complex128, generator=torch.Generator().manual_seed(0), requires_grad=True)
    weights = torch.tensor([0.3, -2.0, 1.0], dtype=torch.float64)
    wanted = [x, *r.parameters()]
    ours = torch.autograd.grad((weights * r.value_and_grad(x, 0.05)[0]).sum(), wanted)
    expected = torch.autograd.grad((weights * r.value(x, 0.05)).sum(), wanted)
    for a, b in zip(ours, expected, strict=True):
        assert float((a - b).abs().max()) < 1e-11 * max(1.0, float(b.abs().max()))
