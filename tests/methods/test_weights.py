from __future__ import annotations

from dataclasses import dataclass
from math import log10
from typing import TYPE_CHECKING, ClassVar

import pytest
import torch

from ulda.errors import UldaError
from ulda.methods import Method, TotalVariation
from ulda.methods.weights import WEIGHTS, chosen_weight, climb
from ulda.physics import CartesianMRI, cartesian_mask

if TYPE_CHECKING:
    from torch import Tensor

    from ulda.physics import Physics


@dataclass(frozen=True)
class Constant(Method):
    """An image that is its weight everywhere."""

    name: ClassVar[str] = "constant"
    weight: float

    def __call__(self, y: Tensor, physics: Physics) -> Tensor:
        return torch.full_like(physics.A_adjoint(y), self.weight)


def test_the_mean_psnr_is_that_of_all_slices() -> None:
    """Slices of 1 and of 1j, one batch of two and one of one; the error of the constant 0.9 is 0.1: 20 dB."""
    physics = CartesianMRI(cartesian_mask(16, 0.5))
    two, one = torch.ones(2, 16, 16, dtype=torch.complex64), 2j * torch.ones(1, 16, 16)
    found = chosen_weight(Constant, [(physics.A(x), physics, x) for x in (two, one)], (0.5, 0.9, 1.5))
    expected = {
        0.5: (2 * 20 * log10(1 / 0.5) + 20 * log10(2 / 1.5)) / 3,
        0.9: (2 * 20 * log10(1 / 0.1) + 20 * log10(2 / 1.1)) / 3,
        1.5: (2 * 20 * log10(1 / 0.5) + 20 * log10(2 / 0.5)) / 3,
    }
    assert found.mean_psnr == pytest.approx(expected, abs=1e-4)
    assert found.weight == 0.9


def test_more_noise_needs_a_larger_weight() -> None:
    physics = CartesianMRI(cartesian_mask(48, 0.4))
    image = torch.zeros(1, 48, 48, dtype=torch.complex64)
    image[:, 12:30, 10:40] = 1
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(0), dtype=image.dtype)
    weights = [
        chosen_weight(TotalVariation, [(physics.A(image + 2**0.5 * std * noise), physics, image)], WEIGHTS[3:]).weight
        for std in (0.0, 0.05, 0.15)
    ]
    assert weights[0] < weights[1] < weights[2]


def test_nothing_to_choose_from() -> None:
    with pytest.raises(UldaError, match="at least one example"):
        chosen_weight(TotalVariation, [])


@pytest.mark.parametrize("best", range(7))
def test_the_climb_finds_the_peak(best: int) -> None:
    weights = [10.0 ** (i - 6) for i in range(7)]
    found, tried = climb(weights, lambda weight: -abs(log10(weight) + 6 - best))
    assert found == pytest.approx(weights[best])
    assert len(tried) <= abs(best - 3) + 3
