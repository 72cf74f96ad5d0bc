"""Checks of linear operators that every operator test shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

TOLERANCE = {torch.complex64: 1e-5, torch.complex128: 1e-12}


def complex_normal(*shape: int, dtype: torch.dtype = torch.complex64, seed: int = 0) -> Tensor:
    """Draw a complex Gaussian tensor."""
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def inner(a: Tensor, b: Tensor) -> complex:
    """Return ``<a, b>``, conjugate-linear in `a`."""
    return complex((a.conj() * b).sum().item())


def assert_adjoint(
    forward: Callable[[Tensor], Tensor], adjoint: Callable[[Tensor], Tensor], u: Tensor, v: Tensor
) -> None:
    """Assert ``<A u, v> = <u, A^H v>`` relative to the norms of both sides."""
    left = inner(forward(u), v)
    right = inner(u, adjoint(v))
    scale = float(u.norm() * v.norm()) + 1e-30
    assert abs(left - right) / scale < TOLERANCE[u.dtype]
