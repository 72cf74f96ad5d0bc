from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.methods.test_methods import coil_maps, images
from ulda.data import demo
from ulda.errors import UldaError
from ulda.methods import DnCn
from ulda.methods.dncn import data_consistency
from ulda.physics import CartesianMRI, MultiCoilMRI, cartesian_mask
from ulda.training.settings import Settings
from ulda.training.supervised import supervised_loss
from ulda.training.tasks import Batch, Task


def small(seed: int = 0) -> DnCn:
    """Return a network whose last layers are not zero, so that it does something."""
    model = DnCn(filters=6, layers=3, cascades=2, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def knee_task(n: int = 2, size: int = 64) -> Task:
    start = 64 - size // 2
    crops = torch.stack(list(demo("knee").take([6, 18][:n]).images()))[:, start : start + size, start : start + size]
    return Task("knee", crops / crops.abs().amax((-2, -1), keepdim=True), [cartesian_mask(size, 0.3, seed=1)])


@pytest.mark.parametrize(("filters", "expected"), [(32, 144_650), (64, 5 * (1_216 + 3 * 36_928 + 1_154))])
def test_parameter_count(filters: int, expected: int) -> None:
    assert sum(parameter.numel() for parameter in DnCn(filters).parameters()) == expected


def centred_fft(x: NDArray[Any], inverse: bool = False) -> NDArray[Any]:
    transform = np.fft.ifft2 if inverse else np.fft.fft2
    return np.fft.fftshift(transform(np.fft.ifftshift(x, axes=(-2, -1)), norm="ortho"), axes=(-2, -1))


@pytest.mark.parametrize(("shape", "axis"), [((24, 32), -2), ((23, 31), -2), ((24, 31), -1)])
def test_data_consistency_replaces_the_sampled_kspace(shape: tuple[int, int], axis: int) -> None:
    mask = cartesian_mask(shape[axis], 0.4, seed=2)
    physics = CartesianMRI(mask, axis)
    truth, x = images(3, *shape), images(4, *shape)[:3]
    y = physics.A(truth)
    sampled = np.array(mask.sampled)[:, None] if axis == -2 else np.array(mask.sampled)
    kspace = np.where(sampled, centred_fft(truth.numpy()), centred_fft(x.numpy()))
    expected = centred_fft(kspace, inverse=True)
    np.testing.assert_allclose(data_consistency(x, y, physics).numpy(), expected, atol=1e-6)


def test_a_cascade_is_residual_with_the_measurement_put_back() -> None:
    """The whole network against one written with NumPy's FFT and explicit sums of shifted images."""
    model, physics = small(), CartesianMRI(cartesian_mask(16, 0.4, seed=3))
    y = physics.A(images(1, 16, 14)) * 7.0
    sampled = np.array(physics.mask.sampled)[:, None]
    zero_filled = centred_fft(y[0].numpy(), inverse=True)
    peak = np.abs(zero_filled).max()
    x, measured = zero_filled / peak, y[0].numpy() / peak
    for cascade in model.cascades:
        weights = [(p.detach().double().numpy(), q.detach().double().numpy()) for p, q in _layers(cascade)]
        channels = np.stack([x.real, x.imag])
        for number, (weight, bias) in enumerate(weights):
            padded = np.pad(channels, ((0, 0), (1, 1), (1, 1)))
            shifts = np.stack([[padded[:, i : i + 16, j : j + 14] for j in range(3)] for i in range(3)])
            channels = np.einsum("ocij,ijchw->ohw", weight, shifts) + bias[:, None, None]
            if number < len(weights) - 1:
                channels = np.where(channels > 0, channels, 0.01 * channels)
        x = x + channels[0] + 1j * channels[1]
        x = centred_fft(np.where(sampled, measured, centred_fft(x)), inverse=True)
    np.testing.assert_allclose(model(y, physics)[0].detach().numpy(), x * peak, atol=1e-4)


def _layers(cascade: torch.nn.Module) -> list[tuple[Tensor, Tensor]]:
    parameters = list(cascade.parameters())
    return list(zip(parameters[::2], parameters[1::2], strict=True))


def test_an_untrained_network_returns_the_zero_filled_image() -> None:
    physics = CartesianMRI(cartesian_mask(32, 0.4))
    y = physics.A(images(2, 32, 30))
    torch.testing.assert_close(DnCn()(y, physics), physics.A_adjoint(y))


@pytest.mark.parametrize("shape", [(2, 33, 27), (1, 16, 41), (32, 32)])
def test_any_size_keeps_its_measurement(shape: tuple[int, ...]) -> None:
    physics = CartesianMRI(cartesian_mask(shape[-2], 0.4))
    y = physics.A(images(*shape))
    x = small()(y, physics)
    assert x.shape == shape
    assert (x - physics.A_adjoint(y)).norm() > 0.01 * x.norm()
    torch.testing.assert_close(physics.A(x), y, atol=1e-4, rtol=0)


def test_the_supervised_loss_is_error_minus_similarity() -> None:
    """The measured lines are exact, so that the error is that of the zero-filled image: by Parseval, its k-space."""
    task = knee_task()
    settings = Settings(ssim_weight=0.0)
    loss, x = supervised_loss(DnCn(), task, Batch(0, (0, 1), 0), settings, 0)
    missing = ~np.array(task.masks[0].sampled)[:, None] * centred_fft(task.images.numpy())
    assert loss.item() == pytest.approx(np.mean(np.abs(missing) ** 2), rel=1e-4)
    with_ssim, _ = supervised_loss(DnCn(), task, Batch(0, (0, 1), 0), Settings(ssim_weight=1.0), 0)
    assert 0 < loss.item() - with_ssim.item() < 1
    assert x.shape == task.images.shape
    with pytest.raises(UldaError, match="leave out equilibrium"):
        supervised_loss(DnCn(), task, Batch(0, (0,), 0), Settings(equilibrium={}), 0)


def test_one_coil_that_sees_everything_is_the_single_coil_problem() -> None:
    mask, x = cartesian_mask(32, 0.4), images(2, 32, 30)
    single, multi = CartesianMRI(mask), MultiCoilMRI(mask, torch.ones(1, 32, 30, dtype=torch.complex64))
    torch.testing.assert_close(small()(multi.A(x), multi), small()(single.A(x), single), atol=1e-5, rtol=0)


def test_several_coils() -> None:
    """Data consistency against NumPy; and at full sampling the measurement leaves nothing to the network."""
    maps, x = coil_maps(3, 32, 24), images(2, 32, 24)
    physics = MultiCoilMRI(cartesian_mask(32, 0.4), maps)
    y, other = physics.A(x), images(5, 32, 24)[:2]
    sampled = np.array(physics.mask.sampled)[:, None]
    residual = sampled * (centred_fft(maps.numpy() * other.numpy()[:, None]) - y.numpy())
    expected = other.numpy() - (maps.numpy().conj() * centred_fft(residual, inverse=True)).sum(1)
    np.testing.assert_allclose(data_consistency(other, y, physics).numpy(), expected, atol=1e-6)
    assert small()(y, physics).shape == x.shape
    full = MultiCoilMRI(cartesian_mask(32, 1.0), maps)
    torch.testing.assert_close(small()(full.A(x), full), x, atol=1e-5, rtol=0)


def test_impossible_sizes() -> None:
    with pytest.raises(UldaError, match="at least 1 filter, 2 layers and 1 cascade"):
        DnCn(layers=1)
