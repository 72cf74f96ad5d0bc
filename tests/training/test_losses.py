from __future__ import annotations

import pytest
import torch

from ulda.training import reconstruction_loss


@pytest.mark.parametrize("weight", [0.0, 0.01, 0.5])
def test_the_loss_is_its_formula(weight: float) -> None:
    """By hand for constant images, whose local variances vanish: SSIM = (2 a b + c) / (a^2 + b^2 + c), c = 0.01^2."""
    a, b, c = 0.8, 0.5, 0.01**2
    x = torch.full((2, 16, 16), a * 1j, dtype=torch.complex64)
    reference = torch.full((2, 16, 16), b, dtype=torch.complex64)
    expected = a**2 + b**2 - weight * (2 * a * b + c) / (a**2 + b**2 + c)
    assert reconstruction_loss(x, reference, weight).tolist() == pytest.approx([expected] * 2, abs=1e-6)


def test_the_derivative_is_finite_at_zero() -> None:
    zeros = torch.zeros(1, 16, 16, dtype=torch.complex64, requires_grad=True)
    (gradient,) = torch.autograd.grad(reconstruction_loss(zeros, zeros.detach()).sum(), zeros)
    assert torch.isfinite(gradient.abs()).all()
