from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from tests.methods.test_dncn import centred_fft, knee_task
from tests.methods.test_methods import coil_maps, images
from ulda.errors import UldaError
from ulda.methods.unet import UNet, _activated
from ulda.physics import CartesianMRI, MultiCoilMRI, cartesian_mask
from ulda.training.settings import Settings
from ulda.training.tasks import Batch

Array = NDArray[Any]


def convolved(x: Array, weight: Array) -> Array:
    """Convolve ``(channels, H, W)`` with zeros around it, as a sum of shifted images."""
    height, width = x.shape[1:]
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    shifts = np.stack([[padded[:, i : i + height, j : j + width] for j in range(3)] for i in range(3)])
    return np.einsum("ocij,ijchw->ohw", weight, shifts)


def activated(x: Array) -> Array:
    centred = x - x.mean((1, 2), keepdims=True)
    normalised = centred / np.sqrt((centred**2).mean((1, 2), keepdims=True) + 1e-5)
    return np.where(normalised > 0, normalised, 0.2 * normalised)


def block(x: Array, weights: dict[str, Array], name: str) -> Array:
    for layer in ("first", "second"):
        x = activated(convolved(x, weights[f"{name}.{layer}.weight"]))
    return x


def enlarged(x: Array, weight: Array, height: int, width: int) -> Array:
    """Put a 2 x 2 patch in the place of each pixel; repeat the last but one line where one is missing."""
    patches = np.einsum("chw,coij->ohiwj", x, weight)
    x = activated(patches.reshape(weight.shape[1], 2 * x.shape[1], 2 * x.shape[2]))
    x = np.concatenate([x, x[:, -2:-1]], axis=1) if x.shape[1] < height else x
    return np.concatenate([x, x[:, :, -2:-1]], axis=2) if x.shape[2] < width else x


def unet(x: Array, weights: dict[str, Array], pools: int) -> Array:
    skipped = []
    for level in range(pools):
        skipped.append(x := block(x, weights, f"down.{level}"))
        height, width = x.shape[1] // 2, x.shape[2] // 2
        x = x[:, : 2 * height, : 2 * width].reshape(-1, height, 2, width, 2).mean((2, 4))
    x = block(x, weights, f"down.{pools}")
    for level, skip in enumerate(reversed(skipped)):
        x = enlarged(x, weights[f"enlarge.{level}.weight"], *skip.shape[1:])
        x = block(np.concatenate([x, skip]), weights, f"up.{level}")
    return np.einsum("oc,chw->ohw", weights["last.weight"][:, :, 0, 0], x) + weights["last.bias"][:, None, None]


@pytest.mark.parametrize("shape", [(16, 12), (15, 11), (14, 9)])
@pytest.mark.parametrize("channels", [1, 2])
def test_against_numpy(shape: tuple[int, int], channels: int) -> None:
    """From the measurement to the image, with sums and means that are written out."""
    model = UNet(channels=3, pools=2, inputs=channels, outputs=channels, seed=4)
    weights = {name: p.detach().double().numpy() for name, p in model.named_parameters()}
    physics = CartesianMRI(cartesian_mask(shape[0], 0.5, seed=3))
    y = 7.0 * physics.A(images(1, *shape))
    zero_filled = centred_fft(y[0].numpy(), inverse=True)
    parts = np.stack([zero_filled.real, zero_filled.imag]) if channels == 2 else np.abs(zero_filled)[None]
    mean = parts.mean((1, 2), keepdims=True)
    std = np.sqrt(((parts - mean) ** 2).sum() / (channels * (parts[0].size - 1)))
    found = unet((parts - mean) / std, weights, 2) * std + mean
    expected = found[0] + 1j * found[1] if channels == 2 else found[0]
    np.testing.assert_allclose(model(y, physics)[0].detach().numpy(), expected, atol=2e-4)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_each_channel_of_each_slice_is_normalised_alone(memory_format: torch.memory_format) -> None:
    x = (
        torch.randn(2, 3, 7, 5, generator=torch.Generator().manual_seed(1))
        * torch.tensor([1.0, 10.0, 0.1])[:, None, None]
    )
    expected = np.stack([activated(one) for one in x.double().numpy()])
    np.testing.assert_allclose(_activated(x.contiguous(memory_format=memory_format)).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({}, 7_756_097),
        ({"inputs": 2, "outputs": 2}, 7_756_097 + 9 * 32 + 33),
        ({"channels": 4, "pools": 1}, 9 * (4 + 16 + 32 + 64) + 4 * 32 + 9 * (32 + 16) + 4 + 1),
    ],
)
def test_parameter_count(sizes: dict[str, Any], expected: int) -> None:
    model = UNet(**sizes)
    assert model.n_parameters == model.n_trainable(adapt=True) == expected


def test_the_start_is_that_of_pytorch_but_from_a_generator() -> None:
    state = torch.get_rng_state()
    model = UNet(channels=16, pools=2, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    own, other = dict(model.named_parameters()), dict(UNet(channels=16, pools=2, seed=4).named_parameters())
    assert not any(torch.equal(own[name], other[name]) for name in own)
    for name, reference in [
        ("down.2.second", nn.Conv2d(64, 64, 3, bias=False)),
        ("enlarge.0", nn.ConvTranspose2d(64, 32, 2, stride=2, bias=False)),
        ("last", nn.Conv2d(16, 1, 1)),
    ]:
        for part, value in reference.named_parameters():
            found = own[f"{name}.{part}"]
            assert found.shape == value.shape
            limit = 1 / np.sqrt(nn.init._calculate_fan_in_and_fan_out(reference.weight)[0])
            assert found.abs().max() <= limit
            if value.numel() > 1000:
                assert found.std().item() == pytest.approx(limit / np.sqrt(3), rel=0.05)


def test_a_magnitude_comes_out_and_is_trained_against_magnitudes() -> None:
    """Whatever the phase of the slices, it has no part in the loss."""
    model, task = UNet(channels=2, pools=2), knee_task(size=32)
    phase = torch.exp(1j * torch.linspace(0, 3, 32)).to(torch.complex64)
    settings = Settings(ssim_weight=0.0)
    loss, x = model.loss(replace(task, images=task.images * phase), Batch(0, (0, 1), 0), settings, 0)
    assert not x.requires_grad
    assert torch.equal(x.imag, torch.zeros(2, 32, 32))
    assert loss.item() == pytest.approx(np.mean((x.real.numpy() - task.images.abs().numpy()) ** 2), rel=1e-5)
    both = UNet(channels=2, pools=2, inputs=2, outputs=2)
    turned = task.images * phase
    loss, x = both.loss(replace(task, images=turned), Batch(0, (0, 1), 0), settings, 0)
    assert x.imag.abs().max() > 0
    assert loss.item() == pytest.approx(np.mean(np.abs(x.numpy() - turned.numpy()) ** 2), rel=1e-5)


@pytest.mark.parametrize("channels", [1, 2])
def test_no_signal_gives_no_image(channels: int) -> None:
    nothing = torch.zeros(2, 32, 32, dtype=torch.complex64)
    physics = CartesianMRI(cartesian_mask(32, 0.4))
    assert torch.equal(UNet(channels=2, pools=2, inputs=channels, outputs=channels)(nothing, physics), nothing)


def test_coils_are_combined_before_the_network() -> None:
    mask, x, model = cartesian_mask(32, 1.0), images(2, 2, 32, 24), UNet(channels=2, pools=3)
    single, multi = CartesianMRI(mask), MultiCoilMRI(mask, coil_maps(3, 32, 24))
    found = model(multi.A(x), multi)
    assert found.shape == (2, 2, 32, 24)
    torch.testing.assert_close(found, model(single.A(x), single), atol=1e-4, rtol=0)


@pytest.mark.parametrize("shape", [(31, 31), (16, 16), (15, 64), (64, 15)])
def test_images_that_are_too_small_to_pool(shape: tuple[int, int]) -> None:
    y = torch.ones(1, *shape, dtype=torch.complex64)
    with pytest.raises(UldaError, match=rf"at least 32 x 16 pixels, but got {shape[0]} x {shape[1]}"):
        UNet(channels=1)(y, CartesianMRI(cartesian_mask(shape[0], 1.0)))


@pytest.mark.parametrize("shape", [(32, 16), (16, 32), (47, 17)])
def test_the_smallest_images(shape: tuple[int, int]) -> None:
    physics = CartesianMRI(cartesian_mask(shape[0], 1.0))
    x = UNet(channels=1)(physics.A(images(1, *shape)), physics)
    assert torch.isfinite(x.real).all()


def test_impossible_sizes() -> None:
    with pytest.raises(UldaError, match="at least 1 channel and 1 pooling, but it is asked for 32 and 0"):
        UNet(pools=0)
    with pytest.raises(UldaError, match="asked for 2 in and 1 out"):
        UNet(inputs=2)
