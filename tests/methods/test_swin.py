from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ulda.errors import UldaError
from ulda.methods.swin import (
    PatchExpanding,
    PatchMerging,
    ResidualSwinBlock,
    SwinLayer,
    WindowAttention,
    drawn,
    image_of,
    may_attend,
    relative_position_index,
    windows_of,
)

Array = NDArray[np.float64]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def features(*shape: int) -> Tensor:
    return torch.randn(shape, generator=seeded(sum(shape)), dtype=torch.float64)


def perturbed(module: nn.Module, scale: float = 0.3) -> nn.Module:
    """Move biases and scales away from 0 and 1, and everything to double precision."""
    generator = seeded(7)
    module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return module


def array(tensor: Tensor) -> Array:
    return tensor.detach().double().numpy()


def linear(layer: nn.Linear, x: Array) -> Array:
    return x @ array(layer.weight).T + (0 if layer.bias is None else array(layer.bias))


def layer_norm(layer: nn.LayerNorm, x: Array) -> Array:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    result: Array = (x - mean) / np.sqrt(variance + 1e-5) * array(layer.weight) + array(layer.bias)
    return result


@pytest.mark.parametrize(("size", "window"), [((8, 12), (4, 4)), ((6, 6), (3, 2)), ((5, 4), (5, 4))])
def test_windows_against_indexing(size: tuple[int, int], window: tuple[int, int]) -> None:
    x = features(2, *size, 3)
    found = windows_of(x, window)
    (height, width), (rows, columns) = size, window
    corners = list(product(range(0, height, rows), range(0, width, columns)))
    assert found.shape == (2, len(corners), rows * columns, 3)
    for number, (top, left) in enumerate(corners):
        expected = x.numpy()[:, top : top + rows, left : left + columns].reshape(2, rows * columns, 3)
        np.testing.assert_array_equal(found[:, number].numpy(), expected)
    assert torch.equal(image_of(found, window, size), x)


@pytest.mark.parametrize(("window", "largest"), [((3, 3), 3), ((2, 4), 4), ((1, 1), 8)])
def test_every_offset_has_its_bias(window: tuple[int, int], largest: int) -> None:
    index = relative_position_index(window, largest)
    pixels = list(product(range(window[0]), range(window[1])))
    table = {
        offset: row for row, offset in enumerate(product(range(1 - largest, largest), range(1 - largest, largest)))
    }
    for (i, here), (j, there) in product(enumerate(pixels), enumerate(pixels)):
        assert index[i, j] == table[here[0] - there[0], here[1] - there[1]]


def test_the_published_index_of_a_full_window() -> None:
    """Offsets (-1, -1), (-1, 0), ... (1, 1) of a 2 x 2 window are rows 0 to 8, as in the code of Swin transformers."""
    assert relative_position_index((2, 2), 2).tolist() == [[4, 3, 1, 0], [5, 4, 2, 1], [7, 6, 4, 3], [8, 7, 5, 4]]


def test_who_attends_to_whom_after_a_cyclic_shift() -> None:
    """Rows 0 1 2 3 | 4 5 (6 7 padded) rolled by 2: 2 3 4 5 | 6 7 0 1, where 6 7 and 0 1 are strangers."""
    allowed = may_attend((6, 1), (4, 1), (2, 0))
    assert allowed.shape == (2, 4, 4)
    assert allowed[0].all()
    expected = np.kron(np.eye(2, dtype=bool), np.ones((2, 2), dtype=bool))
    np.testing.assert_array_equal(allowed[1].numpy(), expected)


def attention_by_hand(layer: WindowAttention, x: Array, side: int, shift: tuple[int, int]) -> Array:
    """Let every pixel look at those of its window, found in the image as it is: nothing is rolled or padded."""
    height, width, channels = x.shape
    per_head = channels // layer.heads
    query, key, value = np.split(linear(layer.query_key_value, x), 3, axis=-1)
    bias = array(layer.offset_bias)
    gathered = np.zeros_like(x)

    def window_of(i: int, j: int) -> tuple[int, int]:
        return math.floor((i - shift[0]) / side), math.floor((j - shift[1]) / side)

    pixels = list(product(range(height), range(width)))
    for i, j in pixels:
        seen = [pixel for pixel in pixels if window_of(*pixel) == window_of(i, j)]
        for head in range(layer.heads):
            part = slice(head * per_head, (head + 1) * per_head)
            score = np.array(
                [
                    query[i, j, part] @ key[above, left, part] / math.sqrt(per_head)
                    + bias[(i - above + side - 1) * (2 * side - 1) + (j - left + side - 1), head]
                    for above, left in seen
                ]
            )
            weight = np.exp(score) / np.exp(score).sum()
            gathered[i, j, part] = sum(w * value[*pixel, part] for w, pixel in zip(weight, seen, strict=True))
    return linear(layer.project, gathered)


CASES: dict[str, tuple[tuple[int, int], bool, tuple[int, int]]] = {
    "whole windows": ((8, 12), False, (0, 0)),
    "shifted": ((8, 12), True, (2, 2)),
    "shifted, last windows not full": ((7, 9), True, (2, 2)),
    "one window high": ((4, 8), True, (0, 2)),
    "lower than a window": ((3, 10), True, (0, 2)),
    "smaller than a window": ((2, 3), True, (0, 0)),
}


@pytest.mark.parametrize("case", CASES)
def test_attention_against_loops_over_pixels(case: str) -> None:
    size, shifted, shift = CASES[case]
    layer = perturbed(WindowAttention(6, 2, 4, shifted=shifted, generator=seeded()))
    assert isinstance(layer, WindowAttention)
    x = features(2, *size, 6)
    found = layer(x)
    for number in range(2):
        expected = attention_by_hand(layer, x[number].numpy(), 4, shift)
        np.testing.assert_allclose(array(found[number]), expected, atol=1e-10)


def test_a_pixel_reaches_its_shifted_window_and_no_further() -> None:
    """Rows 0 and 1 form a window of their own: a change there is not seen by rows 6 and 7, rolled beside them."""
    layer = perturbed(WindowAttention(4, 2, 4, shifted=True, generator=seeded()))
    x = features(1, 8, 8, 4)
    changed = x.clone()
    changed[0, 0, 3] += 1
    moved = (layer(changed) - layer(x)).abs().amax(-1)[0] > 1e-12
    expected = torch.zeros(8, 8, dtype=torch.bool)
    expected[:2, 2:6] = True
    assert torch.equal(moved, expected)


def test_a_layer_adds_attention_and_then_two_linear_layers() -> None:
    layer = perturbed(SwinLayer(6, 2, 4, shifted=True, mlp_ratio=1.5, generator=seeded()))
    assert isinstance(layer, SwinLayer)
    x = features(1, 8, 5, 6)
    middle = array(x[0])
    middle = middle + attention_by_hand(layer.attention, layer_norm(layer.norm_attention, middle), 4, (2, 2))
    inner = linear(layer.widen, layer_norm(layer.norm_mlp, middle))
    assert inner.shape[-1] == 9
    gelu = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
    np.testing.assert_allclose(array(layer(x)[0]), middle + linear(layer.narrow, gelu), atol=1e-9)


def test_a_block_shifts_every_other_layer_and_adds_a_convolution() -> None:
    block = perturbed(ResidualSwinBlock(4, 3, 2, 4, mlp_ratio=2.0, generator=seeded()), 0.1)
    assert isinstance(block, ResidualSwinBlock)
    attentions = [layer.attention for layer in block.layers if isinstance(layer, SwinLayer)]
    assert [attention.shift for attention in attentions] == [0, 2, 0]
    x = features(1, 5, 6, 4)
    refined = np.pad(array(block.layers(x)[0]), ((1, 1), (1, 1), (0, 0)))
    kernel = array(block.convolution.weight)
    assert block.convolution.bias is not None
    expected = array(x[0]) + array(block.convolution.bias)
    for i, j in product(range(3), range(3)):
        expected = expected + refined[i : i + 5, j : j + 6] @ kernel[:, :, i, j].T
    np.testing.assert_allclose(array(block(x)[0]), expected, atol=1e-9)


def test_merging_against_indexing() -> None:
    layer = perturbed(PatchMerging(3, generator=seeded()))
    assert isinstance(layer, PatchMerging)
    x = features(2, 4, 6, 3)
    found = layer(x)
    assert found.shape == (2, 2, 3, 6)
    for n, i, j in product(range(2), range(2), range(3)):
        a = array(x)[n, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2]
        patch = np.concatenate([a[0, 0], a[1, 0], a[0, 1], a[1, 1]])
        np.testing.assert_allclose(array(found[n, i, j]), linear(layer.linear, layer_norm(layer.norm, patch)))


def test_expanding_against_indexing() -> None:
    layer = perturbed(PatchExpanding(3, generator=seeded()))
    assert isinstance(layer, PatchExpanding)
    x, skip = features(2, 2, 3, 6), features(2, 4, 6, 3)
    found = layer(x, skip)
    assert found.shape == skip.shape
    for n, i, j in product(range(2), range(4), range(6)):
        four = linear(layer.expand, array(x)[n, i // 2, j // 2]).reshape(2, 2, 3)
        mixed = linear(layer.mix, np.concatenate([four[i % 2, j % 2], array(skip)[n, i, j]]))
        np.testing.assert_allclose(array(found[n, i, j]), layer_norm(layer.norm, mixed))


KINDS: list[tuple[Any, tuple[int, ...], dict[str, Any], int]] = [
    (nn.Linear, (40, 50), {}, 40),
    (nn.Conv2d, (10, 20, 3), {"padding": 1}, 90),
    (nn.ConvTranspose2d, (40, 20, 2), {"stride": 2, "bias": False}, 40),
]


@pytest.mark.parametrize(("kind", "sizes", "options", "n_in"), KINDS, ids=lambda value: getattr(value, "__name__", ""))
def test_weights_come_from_the_generator(kind: Any, sizes: tuple[int, ...], options: dict[str, Any], n_in: int) -> None:
    state = torch.get_rng_state()
    layer = drawn(kind, *sizes, generator=seeded(1), **options)
    again = drawn(kind, *sizes, generator=seeded(1), **options)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(layer.weight, again.weight)
    assert layer.weight.abs().max() <= n_in**-0.5
    assert layer.weight.std().item() == pytest.approx((3 * n_in) ** -0.5, rel=0.05)
    assert layer.bias is None or not layer.bias.any()


def test_state_files_hold_parameters_only() -> None:
    block = ResidualSwinBlock(4, 2, 2, 4, mlp_ratio=2.0, generator=seeded())
    assert not list(block.buffers())
    with torch.device("meta"):
        assert {
            p.device.type for p in ResidualSwinBlock(4, 2, 2, 4, mlp_ratio=2.0, generator=seeded()).parameters()
        } == {"meta"}


def test_channels_must_be_shared_evenly() -> None:
    with pytest.raises(UldaError, match="10 channels cannot be shared by 3 attention heads"):
        WindowAttention(10, 3, 4, shifted=False, generator=seeded())
