from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.methods.test_methods import images
from ulda.physics.spectrum import KNOTS, LINE_KNOTS, line_filter, radial_filter

GAINS = torch.tensor([4.0, 3.0, 2.5, 2.0, 1.0, 0.5], dtype=torch.float64)
LINE_GAINS = torch.linspace(0.2, 3.0, 15, dtype=torch.float64).square()


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


@pytest.mark.parametrize("axis", [-2, -1])
@pytest.mark.parametrize("shape", [(32, 32), (33, 27)])
@pytest.mark.parametrize("periods", [0, 1, -1, 5, -9, 13, -13])
def test_a_line_is_multiplied_by_its_gain(shape: tuple[int, int], periods: int, axis: int) -> None:
    """A wave along the phase-encode axis is in one line, whatever it does along the other; lines have a sign."""
    places = np.mgrid[: shape[0], : shape[1]]
    wave = np.exp(2j * np.pi * periods * places[axis] / shape[axis]) * (1 + places[-3 - axis])
    expected = np.interp(2 * periods / shape[axis], LINE_KNOTS, LINE_GAINS.numpy())
    found = line_filter(torch.from_numpy(wave), LINE_GAINS, axis)
    torch.testing.assert_close(found, torch.from_numpy(wave * expected), atol=1e-11, rtol=0)


def test_the_filter_of_lines_is_self_adjoint_and_differentiable() -> None:
    a, b = images(33, 28, dtype=torch.complex128), images(28, 33, dtype=torch.complex128).mT
    torch.testing.assert_close(
        torch.vdot(line_filter(a, LINE_GAINS, -2).flatten(), b.flatten()),
        torch.vdot(a.flatten(), line_filter(b, LINE_GAINS, -2).flatten()),
    )
    gains, x = LINE_GAINS.clone().requires_grad_(), images(8, 9, dtype=torch.complex128).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, gains: line_filter(x, gains, -1), (x, gains))


def test_what_is_kept_serves_a_training_after_an_inference() -> None:
    x = images(1, 47, 45, dtype=torch.complex128)
    with torch.inference_mode():
        line_filter(x, LINE_GAINS, -2)
        radial_filter(x, GAINS)
    lines, radii = LINE_GAINS.clone().requires_grad_(), GAINS.clone().requires_grad_()
    (line_filter(x, lines, -2).abs().sum() + radial_filter(x, radii).abs().sum()).backward()
    assert lines.grad is not None
    assert radii.grad is not None
