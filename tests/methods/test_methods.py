"""What every method promises, whatever its prior."""

from __future__ import annotations

import doctest
import importlib

import pytest
import torch
from torch import Tensor

from ulda.errors import UldaError
from ulda.methods import Method, TotalVariation, Wavelet, ZeroFilled
from ulda.physics import CartesianMRI, MultiCoilMRI, cartesian_mask

METHODS: list[Method] = [
    ZeroFilled(),
    TotalVariation(iterations=30),
    TotalVariation(iterations=60, tolerance=1e-2),
    Wavelet(iterations=15),
    Wavelet(iterations=15, wavelet="db4", levels=2, random_shifts=False),
]
every_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m.name} {METHODS.index(m)}")


def images(*shape: int, dtype: torch.dtype = torch.complex64) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, dtype=torch.complex128, generator=generator).cumsum(-1).cumsum(-2)
    return (x / x.abs().amax((-2, -1), keepdim=True)).to(dtype)


def coil_maps(n_coils: int, height: int, width: int, dtype: torch.dtype = torch.complex64) -> Tensor:
    """Smooth sensitivities whose squares add up to 1 at every pixel."""
    generator = torch.Generator().manual_seed(n_coils)
    waves = torch.randn(n_coils, 3, dtype=torch.complex128, generator=generator)
    h = torch.linspace(-1, 1, height, dtype=torch.float64)[:, None]
    w = torch.linspace(-1, 1, width, dtype=torch.float64)
    maps = waves[:, 0, None, None] + waves[:, 1, None, None] * h + waves[:, 2, None, None] * w
    return (maps / maps.abs().square().sum(0).sqrt()).to(dtype)


@every_method
@pytest.mark.parametrize("shape", [(32, 32), (33, 27)])
def test_batch_independence(method: Method, shape: tuple[int, int]) -> None:
    physics = CartesianMRI(cartesian_mask(shape[0], 0.4))
    y = physics.A(images(2, 3, *shape))
    y[1] *= torch.tensor([1e-3, 0.0, 50.0])[:, None, None]
    together = method(y, physics)
    assert together.shape == y.shape
    for index in [(0, 1), (1, 0), (1, 1), (1, 2)]:
        alone = method(y[index], physics)
        assert (together[index] - alone).norm() <= 1e-5 * alone.norm()


@every_method
@pytest.mark.parametrize("factor", [1e-6, -3.0, 1e4j])
def test_scaling_the_measurement_scales_the_result(method: Method, factor: complex) -> None:
    physics = CartesianMRI(cartesian_mask(32, 0.4))
    y = physics.A(images(32, 32))
    torch.testing.assert_close(method(factor * y, physics) / factor, method(y, physics), atol=1e-5, rtol=0)


@every_method
def test_deterministic(method: Method) -> None:
    physics = CartesianMRI(cartesian_mask(32, 0.4))
    y = physics.A(images(32, 32))
    assert torch.equal(method(y, physics), method(y, physics))


@every_method
def test_no_measurement_gives_zeros(method: Method) -> None:
    physics = CartesianMRI(cartesian_mask(32, 0.4))
    nothing = torch.zeros(2, 32, 30, dtype=torch.complex64)
    assert torch.equal(method(nothing, physics), nothing)


@every_method
def test_one_coil_that_sees_everything_is_the_single_coil_problem(method: Method) -> None:
    mask = cartesian_mask(32, 0.4)
    x = images(2, 32, 30)
    single, multi = CartesianMRI(mask), MultiCoilMRI(mask, torch.ones(1, 32, 30, dtype=torch.complex64))
    torch.testing.assert_close(method(multi.A(x), multi), method(single.A(x), single), atol=1e-5, rtol=0)


@every_method
def test_coils_at_full_sampling_are_the_single_coil_problem(method: Method) -> None:
    """Maps with unit squares make A^H A the identity, so that both minimise the same denoising problem."""
    mask = cartesian_mask(32, 1.0)
    x = images(3, 32, 32)
    single, multi = CartesianMRI(mask), MultiCoilMRI(mask, coil_maps(4, 32, 32))
    torch.testing.assert_close(method(multi.A(x), multi), method(single.A(x), single), atol=1e-5, rtol=0)


@every_method
def test_batches_of_coils(method: Method) -> None:
    physics = MultiCoilMRI(cartesian_mask(32, 0.4), coil_maps(3, 32, 24))
    y = physics.A(images(2, 2, 32, 24))
    together = method(y, physics)
    assert together.shape == (2, 2, 32, 24)
    torch.testing.assert_close(together[1, 0], method(y[1, 0], physics), atol=1e-5, rtol=0)


@every_method
def test_maps_that_see_nothing(method: Method) -> None:
    physics = MultiCoilMRI(cartesian_mask(32, 0.4), torch.zeros(2, 32, 32, dtype=torch.complex64))
    x_hat = method(physics.A(images(32, 32)), physics)
    assert torch.equal(x_hat, torch.zeros(32, 32, dtype=torch.complex64))


@every_method
def test_double_precision(method: Method) -> None:
    physics = CartesianMRI(cartesian_mask(32, 0.4))
    y = physics.A(images(32, 32, dtype=torch.complex128))
    x_hat = method(y, physics)
    assert x_hat.dtype == torch.complex128
    single = method(y.to(torch.complex64), physics)
    torch.testing.assert_close(single, x_hat.to(torch.complex64), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", [TotalVariation, Wavelet])
class TestSettings:
    def test_negative_weight(self, kind: type[TotalVariation | Wavelet]) -> None:
        with pytest.raises(UldaError, match="must be at least 0"):
            kind(weight=-1.0)

    def test_weight_nan(self, kind: type[TotalVariation | Wavelet]) -> None:
        with pytest.raises(UldaError, match="must be at least 0"):
            kind(weight=float("nan"))

    def test_no_iterations(self, kind: type[TotalVariation | Wavelet]) -> None:
        with pytest.raises(UldaError, match="at least 1 iteration"):
            kind(iterations=0)

    def test_real_measurement(self, kind: type[TotalVariation | Wavelet]) -> None:
        with pytest.raises(UldaError, match="complex k-space"):
            kind()(torch.ones(32, 32), CartesianMRI(cartesian_mask(32, 0.4)))

    def test_without_weight_the_data_are_kept(self, kind: type[TotalVariation | Wavelet]) -> None:
        physics = CartesianMRI(cartesian_mask(32, 0.4))
        y = physics.A(images(32, 32))
        torch.testing.assert_close(physics.A(kind(weight=0.0)(y, physics)), y, atol=1e-5, rtol=0)


@pytest.mark.parametrize("module", ["base", "zero_filled", "total_variation", "wavelet", "_wavelet_transform"])
def test_doctests(module: str) -> None:
    outcome = doctest.testmod(importlib.import_module(f"ulda.methods.{module}"))
    assert outcome.attempted > 0
    assert outcome.failed == 0
