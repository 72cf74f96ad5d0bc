"""Regularisers with images, and their derivatives in two ways."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.linear_checks import complex_normal
from ulda.models import Adapter, FeatureExtractor, Regularizer
from ulda.models.extractor import Start

DOUBLE = torch.complex128


def relative_error(result: Tensor, expected: Tensor) -> float:
    """Return the largest difference relative to the largest entry, or to 1e-5 where all entries are smaller."""
    assert result.shape == expected.shape
    scale = max(float(expected.detach().abs().max()), 1e-5)
    return float((result.detach() - expected.detach()).abs().max()) / scale


@dataclass
class Case:
    regularizer: Regularizer
    x: Tensor
    eps: Tensor


def log_uniform(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(math.exp)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a regulariser, a batch of images and one eps per image, in double precision."""
    width, depth = draw(st.sampled_from([1, 2, 3, 4, 5])), draw(st.integers(1, 4))
    size, seed = draw(st.sampled_from([1, 3, 5])), draw(st.integers(0, 9999))
    start: Start = draw(st.sampled_from(("filter-bank", "random")))
    extractor = FeatureExtractor(width, depth, size, draw(log_uniform(1e-2, 1)), start=start, seed=seed)
    adapter = Adapter(width, size, weight=draw(log_uniform(0.1, 2)), seed=seed) if draw(st.booleans()) else None
    batch, height, breadth = draw(st.integers(1, 3)), draw(st.integers(1, 8)), draw(st.integers(1, 8))
    x = draw(log_uniform(0.1, 10)) * complex_normal(batch, height, breadth, dtype=DOUBLE, seed=seed)
    eps = torch.tensor(draw(st.lists(log_uniform(1e-3, 10), min_size=batch, max_size=batch)), dtype=torch.float64)
    return Case(Regularizer(extractor, adapter, recompute=draw(st.booleans())).double(), x, eps)


def autograd_of_value(regularizer: Regularizer, x: Tensor, eps: float | Tensor) -> Tensor:
    x = x.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(regularizer.value(x, eps).sum(), x)
    return gradient


def parameter_gradients(
    regularizer: Regularizer, x: Tensor, eps: float | Tensor, seed: int, *, coded: bool, with_value: bool
) -> list[Tensor | None]:
    """Differentiate a random linear function of gradient (and value): by the image and by all parameters.

    `coded`: by the double backward of the coded value; otherwise by the hand-written derivative.
    """
    x = x.detach().clone().requires_grad_()
    if coded:
        value = regularizer.value(x, eps)
        (gradient,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    elif with_value:
        value, gradient = regularizer.value_and_grad(x, eps)
    else:
        value, gradient = torch.zeros(()), regularizer.grad(x, eps)
    loss = (gradient * complex_normal(*x.shape, dtype=x.dtype, seed=seed)).real.sum()
    if with_value:
        loss = loss + (value * torch.linspace(-1, 2, value.numel(), dtype=value.dtype).reshape(value.shape)).sum()
    wanted = [x, *(p for p in regularizer.parameters() if p.requires_grad)]
    return list(torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True))


def assert_parameter_gradients(case: Case, seed: int = 0, tolerance: float = 1e-9) -> None:
    for with_value in (False, True):
        result, expected = (
            parameter_gradients(case.regularizer, case.x, case.eps, seed, coded=coded, with_value=with_value)
            for coded in (False, True)
        )
        for a, b in zip(result, expected, strict=True):
            assert a is not None
            assert b is not None
            assert relative_error(a, b) < tolerance
