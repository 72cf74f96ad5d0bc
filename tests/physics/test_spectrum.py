from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.methods.test_methods import images
from ulda.physics.spectrum import KNOTS, radial_filter

GAINS = torch.tensor([4.0, 3.0, 2.5, 2.0, 1.0, 0.5], dtype=torch.float64)


@pytest.mark.parametrize("shape", [(32, 32), (33, 27), (64, 20)])
@pytest.mark.parametrize(("row", "column"), [(0, 0), (1, 0), (0, 3), (4, 2), (9, 9), (13, 10)])
def test_a_wave_is_multiplied_by_the_interpolated_gain(shape: tuple[int, int], row: int, column: int) -> None:
    """A wave of so many periods over the image has one frequency; its gain is interpolated with NumPy."""
    h, w = np.mgrid[: shape[0], : shape[1]]
    wave = torch.from_numpy(np.exp(2j * np.pi * (row * h / shape[0] + column * w / shape[1])))
    frequency = np.hypot(2 * row / shape[0], 2 * column / shape[1])
    expected = np.interp(frequency, KNOTS, GAINS.numpy())
    torch.testing.assert_close(radial_filter(wave, GAINS), wave * expected, atol=1e-12, rtol=0)


def test_gain_one_changes_nothing() -> None:
    x = images(2, 33, 28, dtype=torch.complex128)
    torch.testing.assert_close(radial_filter(x, torch.ones(6, dtype=torch.float64)), x)


def test_the_filter_is_self_adjoint() -> None:
    a, b = images(33, 28, dtype=torch.complex128), images(28, 33, dtype=torch.complex128).mT
    torch.testing.assert_close(
        torch.vdot(radial_filter(a, GAINS).flatten(), b.flatten()),
        torch.vdot(a.flatten(), radial_filter(b, GAINS).flatten()),
    )


def test_gradients_reach_the_gains_and_the_image() -> None:
    gains = GAINS.clone().requires_grad_()
    x = images(8, 9, dtype=torch.complex128).requires_grad_()
    assert torch.autograd.gradcheck(radial_filter, (x, gains))


def test_what_is_kept_serves_a_training_after_an_inference() -> None:
    x = images(1, 47, 45, dtype=torch.complex128)
    with torch.inference_mode():
        radial_filter(x, GAINS)
    gains = GAINS.clone().requires_grad_()
    radial_filter(x, gains).abs().sum().backward()
    assert gains.grad is not None
