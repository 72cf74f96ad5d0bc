from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.methods.test_dncn import centred_fft
from tests.methods.test_methods import coil_maps, images
from ulda.errors import UldaError
from ulda.methods.humus import PUBLISHED, Cascade, HUMUSNet, HybridBlock, MultiScaleTransformer
from ulda.physics import CartesianMRI, MultiCoilMRI, cartesian_mask


def small(seed: int = 0, cascades: int = 2) -> HUMUSNet:
    sizes = {"depths": (2, 2), "heads": (2, 2), "bottleneck_depth": 1, "bottleneck_heads": 4}
    return HUMUSNet(cascades=cascades, embed=8, window=4, seed=seed, **sizes)  # type: ignore[arg-type]


def cascade_of(model: HUMUSNet, number: int = 0) -> Cascade:
    cascade = model.cascades[number]
    assert isinstance(cascade, Cascade)
    return cascade


def published_block() -> int:
    """Count the parameters of a block of the paper by hand, for one complex slice."""

    def swin_layer(d: int, heads: int) -> int:
        norms, attention = 2 * 2 * d, (3 * d * d + 3 * d) + (d * d + d) + 15 * 15 * heads
        return norms + attention + (2 * d * d + 2 * d) + (2 * d * d + d)

    def residual_block(d: int, heads: int) -> int:
        return 2 * swin_layer(d, heads) + 9 * d * d + d

    levels = [(66, 3), (132, 6), (264, 12)]
    convolutions = (
        (9 * 2 * 33 + 33)
        + (9 * 33 * 66 + 9 * 66 * 66)
        + 4 * 66 * 66
        + (9 * 66 * 66 + 66)
        + 4 * 66 * 33
        + (9 * 66 * 33 + 9 * 33 * 33)
        + (9 * 33 * 2 + 2)
    )
    encoder_and_decoder = sum(2 * residual_block(d, heads) for d, heads in levels)
    merging = sum(2 * 4 * d + 4 * d * 2 * d for d, _ in levels)
    expanding = sum(2 * d * 4 * d + 2 * d * d + 2 * d for d, _ in levels)
    norms = 2 * 66 + 2 * 528 + 2 * 66
    return convolutions + encoder_and_decoder + residual_block(528, 24) + merging + expanding + norms


def test_the_published_size() -> None:
    with torch.device("meta"):
        model = HUMUSNet(**PUBLISHED)
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    per_block = sum(parameter.numel() for parameter in cascade_of(model).block.parameters())
    assert per_block == published_block()
    assert per_block > 1e7
    assert model.n_parameters == 8 * (published_block() + 1)
    assert model.n_parameters > 1e8


def without_blocks(model: HUMUSNet) -> HUMUSNet:
    with torch.no_grad():
        for number in range(len(model.cascades)):
            block = cascade_of(model, number).block
            block.last.weight.zero_()
            assert block.last.bias is not None
            block.last.bias.zero_()
    return model


@pytest.mark.parametrize(("shape", "axis"), [((24, 32), -2), ((23, 31), -1)])
def test_the_data_consistency_step(shape: tuple[int, int], axis: int) -> None:
    """With one coil a step of 0.3 leaves 0.7 of the difference to the measured k-space."""
    mask = cartesian_mask(shape[axis], 0.4, seed=2)
    physics = CartesianMRI(mask, axis)
    truth, x = images(3, *shape), images(4, *shape)[:3]
    y = physics.A(truth)
    cascade = cascade_of(without_blocks(small()))
    nn.init.constant_(cascade.step, 0.3)
    sampled = np.array(mask.sampled)[:, None] if axis == -2 else np.array(mask.sampled)
    kspace = centred_fft(x.numpy())
    kspace = np.where(sampled, 0.7 * kspace + 0.3 * centred_fft(truth.numpy()), kspace)
    np.testing.assert_allclose(cascade(x, y, physics).detach().numpy(), centred_fft(kspace, inverse=True), atol=1e-6)


def test_the_data_consistency_step_of_several_coils() -> None:
    maps, x, truth = coil_maps(3, 16, 24), images(5, 16, 24)[:2], images(2, 16, 24)
    physics = MultiCoilMRI(cartesian_mask(16, 0.4), maps)
    cascade = cascade_of(without_blocks(small()))
    nn.init.constant_(cascade.step, 0.5)
    sampled = np.array(physics.mask.sampled)[:, None]
    residual = sampled * centred_fft(maps.numpy() * (x - truth).numpy()[:, None])
    expected = x.numpy() - 0.5 * (maps.numpy().conj() * centred_fft(residual, inverse=True)).sum(1)
    found = cascade(x, physics.A(truth), physics).detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_block_sees_each_slice_with_mean_zero_and_spread_one() -> None:
    """The whole network, with its blocks as they are, against cascades written with NumPy."""
    model, physics = small(), CartesianMRI(cartesian_mask(24, 0.4, seed=3))
    y = physics.A(images(2, 24, 20)) * torch.tensor([7.0, 0.02])[:, None, None]
    sampled = np.array(physics.mask.sampled)[:, None]
    found = model(y, physics).detach().numpy()
    for number in range(2):
        x = centred_fft(y[number].numpy(), inverse=True)
        peak = np.abs(x).max()
        measurement, x = y[number].numpy() / peak, x / peak
        for cascade in (cascade_of(model, 0), cascade_of(model, 1)):
            channels = np.stack([x.real, x.imag]).astype(np.float64)
            centred = channels - channels.mean((1, 2), keepdims=True)
            spread = np.sqrt((centred**2).mean())
            with torch.no_grad():
                added = cascade.block(torch.from_numpy(centred / spread).float()[None])[0].numpy() * spread
            consistent = centred_fft(np.where(sampled, measurement, centred_fft(x)), inverse=True)
            x = consistent + added[0] + 1j * added[1]
        np.testing.assert_allclose(found[number] / peak, x, atol=2e-5)


def test_a_block_is_convolutions_around_the_transformer() -> None:
    """Its path by hand, with PyTorch's functions: the fine features skip the transformer, which has half the size."""
    block = cascade_of(small()).block
    seen: list[Tensor] = []
    block.transformer.register_forward_hook(lambda _, inputs, output: seen.extend([inputs[0], output]))
    x = torch.randn(1, 2, 32, 24, generator=torch.Generator().manual_seed(1))
    found = block(x)
    tokens, refined = seen
    assert tokens.shape == refined.shape == (1, 16, 12, 8)

    def activated(y: Tensor) -> Tensor:
        mean, variance = y.mean((2, 3), keepdim=True), y.var((2, 3), keepdim=True, correction=0)
        normalised = (y - mean) / (variance + 1e-5).sqrt()
        return torch.where(normalised > 0, normalised, 0.2 * normalised)

    conv = nn.functional.conv2d
    down = [layer.weight for layer in block.down if isinstance(layer, nn.Conv2d)]
    fine = conv(x, block.first.weight, block.first.bias, padding=1)
    coarse = activated(conv(activated(conv(fine, down[0], padding=1)), down[1], padding=1))
    coarse = activated(conv(coarse, down[2], stride=2))
    torch.testing.assert_close(tokens.permute(0, 3, 1, 2), coarse, atol=1e-5, rtol=0)
    coarse = conv(refined.permute(0, 3, 1, 2), block.body.weight, block.body.bias, padding=1)
    (up,) = (layer.weight for layer in block.up if isinstance(layer, nn.ConvTranspose2d))
    raised = activated(nn.functional.conv_transpose2d(coarse, up, stride=2))
    mix = [layer.weight for layer in block.synthesis if isinstance(layer, nn.Conv2d)]
    wide = activated(conv(torch.cat([raised, fine], 1), mix[0], padding=1))
    expected = conv(activated(conv(wide, mix[1], padding=1)), block.last.weight, block.last.bias, padding=1)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_the_transformer_goes_down_and_up() -> None:
    """Sizes at each level, and the skip connections: the decoder gets what the encoder had at its size."""
    transformer = cascade_of(small()).block.transformer
    assert isinstance(transformer, MultiScaleTransformer)
    shapes: list[tuple[str, tuple[int, ...]]] = []
    skips: dict[str, Tensor] = {}
    for name, module in transformer.named_children():
        for part in module if isinstance(module, nn.ModuleList) else [module]:

            def note(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor, name: str = name) -> None:
                shapes.append((name, tuple(output.shape[1:])))
                if name == "encoder":
                    skips[str(output.shape)] = output
                if name == "expanding":
                    assert inputs[1] is skips[str(output.shape)]

            part.register_forward_hook(note)
    transformer(torch.randn(1, 16, 12, 8, generator=torch.Generator().manual_seed(0)))
    assert shapes == [
        ("norm_in", (16, 12, 8)),
        ("encoder", (16, 12, 8)),
        ("merging", (8, 6, 16)),
        ("encoder", (8, 6, 16)),
        ("merging", (4, 3, 32)),
        ("norm_coarsest", (4, 3, 32)),
        ("bottleneck", (4, 3, 32)),
        ("expanding", (8, 6, 16)),
        ("decoder", (8, 6, 16)),
        ("expanding", (16, 12, 8)),
        ("decoder", (16, 12, 8)),
        ("norm_out", (16, 12, 8)),
    ]


@pytest.mark.parametrize("size", [(33, 27), (40, 50), (5, 3)])
def test_any_size_is_padded_by_reflection_and_cropped(size: tuple[int, int]) -> None:
    block = cascade_of(small()).block
    assert isinstance(block, HybridBlock)
    x = torch.randn(1, 2, *size, generator=torch.Generator().manual_seed(0))
    found = block(x)
    assert found.shape == x.shape
    before = [-n % 8 // 2 for n in size]
    after = [-n % 8 - b for n, b in zip(size, before, strict=True)]
    mode = "edge" if min(size) < 5 else "reflect"
    padded = np.pad(x.numpy(), [(0, 0), (0, 0), *zip(before, after, strict=True)], mode=mode)  # type: ignore[call-overload]
    assert [n % 8 for n in padded.shape[2:]] == [0, 0]
    whole = block(torch.from_numpy(padded))
    expected = whole[..., before[0] : before[0] + size[0], before[1] : before[1] + size[1]]
    torch.testing.assert_close(found, expected)


def test_an_untrained_network_changes_the_zero_filled_image_little() -> None:
    physics = CartesianMRI(cartesian_mask(32, 0.4))
    y = physics.A(images(2, 32, 30))
    zero_filled = physics.A_adjoint(y)
    change = (small()(y, physics) - zero_filled).norm() / zero_filled.norm()
    assert 1e-3 < change < 0.2


def test_scale_batch_and_silence() -> None:
    physics = CartesianMRI(cartesian_mask(32, 0.4))
    y, model = physics.A(images(3, 32, 27)), small()
    y[2] = 0
    together = model(y, physics)
    assert not together[2].any()
    torch.testing.assert_close(model(1e3 * y, physics) / 1e3, together, atol=1e-5, rtol=0)
    torch.testing.assert_close(model(y[1], physics), together[1], atol=1e-5, rtol=0)
    together.abs().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() and p.grad.any() for p in model.parameters())


def test_saved_and_loaded(tmp_path: Path) -> None:
    physics = CartesianMRI(cartesian_mask(33, 0.4))
    model, y = small(seed=4), physics.A(images(1, 33, 27))
    model.save(tmp_path)
    again = HUMUSNet.load(tmp_path)
    assert again.sizes == model.sizes
    assert torch.equal(again(y, physics), model(y, physics))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"cascades": 0}, "at least 1 cascade"),
        ({"depths": (2, 2)}, "layers and heads for each of its levels"),
        ({"embed": 33}, "even number of channels"),
        ({"embed": 22}, "22 channels cannot be shared by 3 attention heads"),
        ({"window": 1}, "windows of at least 2 pixels"),
    ],
)
def test_impossible_sizes(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(UldaError, match=message):
        HUMUSNet(**sizes)  # type: ignore[arg-type]
