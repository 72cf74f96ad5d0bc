from __future__ import annotations

import math

import pytest
import torch

from tests.linear_checks import assert_adjoint, complex_normal
from ulda.physics import CartesianMRI, MultiCoilMRI, Physics, cartesian_mask, fft2c, low_resolution_phase, noise_level


def smooth_phase(n: int = 64) -> torch.Tensor:
    place = torch.linspace(-1, 1, n)
    angle = 1.2 * place[:, None] + 0.8 * place**2 + 0.4
    return torch.polar(torch.ones(n, n), angle)[None]


def test_a_smooth_phase_is_found() -> None:
    x = torch.ones(1, 64, 64) * smooth_phase()
    error = (low_resolution_phase(x, 16) * smooth_phase().conj()).angle()
    assert float(error[:, 6:-6, 6:-6].abs().max()) < 0.15


def test_it_is_that_of_the_windowed_centre() -> None:
    """The image of the centre of k-space under a Hann window, written out for one line along each axis."""
    x = complex_normal(2, 16, 16, dtype=torch.complex128, seed=1)
    kspace, window = fft2c(x), torch.zeros(16, dtype=torch.float64)
    for k in range(-3, 4):
        window[8 + k] = 0.5 * (1 + math.cos(2 * math.pi * k / 8))
    place = torch.arange(16, dtype=torch.float64) - 8
    wave = torch.exp(2j * math.pi * torch.outer(place, place) / 16)
    low = torch.einsum("ik,nkl,jl->nij", wave, kspace * window[:, None] * window, wave)
    assert torch.allclose(low_resolution_phase(x, 8), low / low.abs(), atol=1e-10)


def test_the_global_phase_alone() -> None:
    x = complex_normal(1, 8, 8, dtype=torch.complex128, seed=2)
    phase = low_resolution_phase(x, 1)
    assert torch.allclose(phase, (x.sum() / x.sum().abs()).expand_as(phase))
    assert torch.equal(low_resolution_phase(torch.zeros(1, 8, 8) + 0j, 4), torch.ones(1, 8, 8) + 0j)


@pytest.mark.parametrize("n_coils", [1, 3])
def test_an_operator_with_a_phase(n_coils: int) -> None:
    """It is that without, after the phase: a unitary change of variable, whose adjoint and norm fit."""
    mask = cartesian_mask(16, 0.4)
    plain: Physics = CartesianMRI(mask)
    if n_coils > 1:
        maps = complex_normal(2, n_coils, 16, 12, dtype=torch.complex128, seed=5)
        plain = MultiCoilMRI(mask, maps / maps.abs().square().sum(1, keepdim=True).sqrt())
    x = complex_normal(2, 16, 12, dtype=torch.complex128, seed=3)
    factor = complex_normal(2, 16, 12, dtype=torch.complex128, seed=4)
    physics = plain.with_knowledge(factor / factor.abs(), torch.tensor([0.1, 0.2]))
    y = physics.A(x)
    assert torch.allclose(y, plain.A(x * factor / factor.abs()), atol=1e-12)
    assert_adjoint(physics.A, physics.A_adjoint, x, complex_normal(*y.shape, dtype=torch.complex128, seed=6))
    assert physics.norm() == plain.norm()
    second = physics.take(torch.tensor([1]))
    assert torch.allclose(second.A(x[1:]), y[1:], atol=1e-12)
    assert second.noise is not None
    assert second.noise.tolist() == pytest.approx([0.2])
    assert plain.phase is None


@pytest.mark.parametrize("axis", [-2, -1])
@pytest.mark.parametrize("n_coils", [1, 4])
def test_the_noise_is_found(axis: int, n_coils: int) -> None:
    mask = cartesian_mask(128, 0.4, seed=1)
    place = torch.linspace(-1, 1, 128).square()
    x = torch.exp(-10 * (place[:, None] + place)).expand(2, 128, 128)  # no signal in the corners of k-space
    if n_coils > 1:
        x = x[:, None].expand(-1, n_coils, -1, -1) / n_coils
    for std in (0.001, 0.05):
        noise = torch.view_as_complex(torch.randn(*x.shape, 2, generator=torch.Generator().manual_seed(2)))
        lines = mask.lines[:, None] if axis == -2 else mask.lines
        found = noise_level((fft2c(x + 0j) + std * noise) * lines, mask, axis)
        assert torch.allclose(found, torch.full((2,), std), rtol=0.08)
