from __future__ import annotations

import pytest
import torch

from ulda.solvers.objective import square_norm


def test_norms_do_not_overflow_or_vanish_in_single_precision() -> None:
    for scale in (1e-30, 1.0, 1e30):
        x = torch.full((1, 2, 2), scale * (3 + 4j), dtype=torch.complex64)
        assert float(square_norm(x)) == pytest.approx(100 * scale**2, rel=1e-6)
    x = torch.zeros(1, 2, 2, dtype=torch.complex64, requires_grad=True)
    (gradient,) = torch.autograd.grad(square_norm(x).sum(), x)
    assert torch.equal(gradient, torch.zeros_like(x))
