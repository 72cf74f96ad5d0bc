"""Parts of a Swin transformer (Liu et al. 2021), for feature maps of any size.

Feature maps are ``(n, H, W, channels)``: the channels of a pixel lie side by side, as linear layers want them, and seen
as ``(n, channels, H, W)`` that is PyTorch's channels-last layout, so that convolutions take it without a copy.
"""

from __future__ import annotations

import math
from itertools import product
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ulda.errors import UldaError

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d, nn.ConvTranspose2d)


def drawn(kind: type[Layer], *sizes: int, generator: torch.Generator, **options: int | bool) -> Layer:
    """Return a layer on the default device with weights from `generator`, uniform with variance ``1 / (3 n_in)``.

    It is PyTorch's own start of these layers, except that the biases are zero. The global generator is left alone.
    """
    layer = nn.utils.skip_init(kind, *sizes, device=torch.get_default_device(), **options)
    weight = layer.weight
    # a transposed convolution whose stride is its kernel size sums over its input channels alone
    n_in = weight.shape[0] if isinstance(layer, nn.ConvTranspose2d) else weight[0].numel()
    _draw_(weight, n_in**-0.5, generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    if weight.ndim == 4:
        weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    assert isinstance(layer, kind)
    return layer


def _draw_(parameter: Tensor, bound: float, generator: torch.Generator) -> Tensor:
    # on the meta device there are no values, and to draw them PyTorch would import its compiler
    return parameter if parameter.is_meta else nn.init.uniform_(parameter, -bound, bound, generator=generator)


def windows_of(x: Tensor, window: tuple[int, int]) -> Tensor:
    """Cut ``(n, H, W, channels)`` into windows: ``(n, windows, pixels, channels)``, both row by row.

    Examples
    --------
    >>> import torch
    >>> windows_of(torch.arange(16).reshape(1, 4, 4, 1), (2, 2))[0, 1, :, 0]
    tensor([2, 3, 6, 7])
    """
    n, height, width, channels = x.shape
    rows, columns = window
    grid = x.reshape(n, height // rows, rows, width // columns, columns, channels)
    return grid.transpose(2, 3).reshape(n, -1, rows * columns, channels)


def image_of(windows: Tensor, window: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Put windows back together: the inverse of `windows_of` for a feature map of this size."""
    n, channels = windows.shape[0], windows.shape[-1]
    (rows, columns), (height, width) = window, size
    grid = windows.reshape(n, height // rows, width // columns, rows, columns, channels)
    return grid.transpose(2, 3).reshape(n, height, width, channels)


def relative_position_index(window: tuple[int, int], largest: int) -> Tensor:
    """Return for all pairs of pixels of a window which row of the table of biases is theirs.

    Row ``(dy + largest - 1) * (2 * largest - 1) + dx + largest - 1`` belongs to the offset ``(dy, dx)`` from the pixel
    that is attended to, to the one that attends.

    Parameters
    ----------
    window
        Rows and columns of the window, at most `largest`.
    largest
        The window size that the table is for.

    Examples
    --------
    >>> relative_position_index((1, 3), largest=3)
    tensor([[12, 11, 10],
            [13, 12, 11],
            [14, 13, 12]])
    """
    pixels = torch.tensor(list(product(range(window[0]), range(window[1]))))
    offset = pixels[:, None] - pixels[None, :] + largest - 1
    return offset[..., 0] * (2 * largest - 1) + offset[..., 1]


def may_attend(size: tuple[int, int], window: tuple[int, int], shift: tuple[int, int]) -> Tensor:
    """Return who attends to whom in the windows of a feature map that was padded and then rolled.

    The map is padded at its end to a whole number of windows and rolled towards its beginning by the shift. Its last
    windows then hold the padding, and pixels from the other end of the image that are no neighbours: these only attend
    to their own kind.

    Parameters
    ----------
    size
        Rows and columns of the feature map, without padding.
    window
        Of the windows.
    shift
        By how many rows and columns it was rolled.

    Returns
    -------
        Boolean, ``(windows, pixels, pixels)``.
    """
    kinds = []
    for length, side, rolled in zip(size, window, shift, strict=True):
        position = torch.arange(rolled, rolled + _whole(length, side))
        kinds.append((position >= length).long() + (position >= _whole(length, side)).long())
    kind = windows_of((3 * kinds[0][:, None] + kinds[1])[None, :, :, None], window)[0, :, :, 0]
    return kind[:, :, None] == kind[:, None, :]


def _whole(length: int, side: int) -> int:
    return math.ceil(length / side) * side


class WindowAttention(nn.Module):
    """Multi-head self-attention within windows, with a learned bias per offset between two pixels.

    The windows are shifted by half their size, or not at all. A map is padded inside to a whole number of windows,
    which has no influence on its pixels; along an axis where it is not larger than a window, it is one window of its
    own size, and not shifted. So the parameters do not depend on the size of the images.

    Parameters
    ----------
    width
        Channels; a multiple of the heads.
    heads
        Attention heads.
    window
        Side of the windows.
    shifted
        Whether the windows are shifted.
    generator
        Source of the weights.
    """

    def __init__(self, width: int, heads: int, window: int, *, shifted: bool, generator: torch.Generator) -> None:
        super().__init__()
        if width % heads:
            raise UldaError(f"{width} channels cannot be shared by {heads} attention heads; give a multiple of {heads}")
        self.heads, self.window, self.shift = heads, window, window // 2 if shifted else 0
        self.query_key_value = drawn(nn.Linear, width, 3 * width, generator=generator)
        self.offset_bias = nn.Parameter(_draw_(torch.empty((2 * window - 1) ** 2, heads), 0.02, generator))
        self.project = drawn(nn.Linear, width, width, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return what each pixel of ``(n, H, W, channels)`` gathers from its window."""
        height, width = size = (x.shape[1], x.shape[2])
        window = (min(self.window, height), min(self.window, width))
        shift = (self.shift if height > self.window else 0, self.shift if width > self.window else 0)
        padded = (_whole(height, window[0]), _whole(width, window[1]))
        index = relative_position_index(window, self.window).to(x.device)
        bias = self.offset_bias[index].permute(2, 0, 1)
        if padded != size or any(shift):
            allowed = may_attend(size, window, shift).to(x.device)
            bias = bias.masked_fill(~allowed[:, None], -torch.inf)
        x = functional.pad(x, (0, 0, 0, padded[1] - width, 0, padded[0] - height))
        x = self._attend(windows_of(x.roll((-shift[0], -shift[1]), (1, 2)), window), bias)
        return image_of(x, window, padded).roll(shift, (1, 2))[:, :height, :width]

    def _attend(self, x: Tensor, bias: Tensor) -> Tensor:
        """Attend within windows ``(n, windows, pixels, channels)``; the bias is added before the softmax."""
        parts = self.query_key_value(x).unflatten(-1, (3, self.heads, -1))
        query, key, value = parts.transpose(2, 4).unbind(3)  # each (n, windows, heads, pixels, channels per head)
        weight = (query * query.shape[-1] ** -0.5 @ key.transpose(-2, -1) + bias).softmax(-1)
        gathered: Tensor = self.project((weight @ value).transpose(2, 3).flatten(-2))
        return gathered


class SwinLayer(nn.Module):
    """Attention within windows, then two linear layers per pixel; each on normalised features, and added.

    Parameters
    ----------
    width, heads, window, shifted, generator
        See `WindowAttention`.
    mlp_ratio
        Inner width of the linear layers, relative to `width`.
    """

    def __init__(
        self, width: int, heads: int, window: int, *, shifted: bool, mlp_ratio: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        inner = int(width * mlp_ratio)
        self.norm_attention = nn.LayerNorm(width)
        self.attention = WindowAttention(width, heads, window, shifted=shifted, generator=generator)
        self.norm_mlp = nn.LayerNorm(width)
        self.widen = drawn(nn.Linear, width, inner, generator=generator)
        self.narrow = drawn(nn.Linear, inner, width, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the shape of the given ones, ``(n, H, W, channels)``."""
        x = x + self.attention(self.norm_attention(x))
        refined: Tensor = self.narrow(functional.gelu(self.widen(self.norm_mlp(x))))
        return x + refined


class ResidualSwinBlock(nn.Module):
    """Swin layers with windows shifted in every other one, then a convolution, added to the input (SwinIR's RSTB).

    Parameters
    ----------
    width, heads, window, mlp_ratio, generator
        See `SwinLayer`.
    depth
        The number of Swin layers.
    """

    def __init__(
        self, width: int, depth: int, heads: int, window: int, *, mlp_ratio: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(
                SwinLayer(width, heads, window, shifted=i % 2 == 1, mlp_ratio=mlp_ratio, generator=generator)
                for i in range(depth)
            )
        )
        self.convolution = drawn(nn.Conv2d, width, width, 3, padding=1, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the shape of the given ones, ``(n, H, W, channels)``."""
        refined: Tensor = self.convolution(self.layers(x).permute(0, 3, 1, 2))
        return x + refined.permute(0, 2, 3, 1)


class PatchMerging(nn.Module):
    """Half as many rows and columns, twice as many channels: 2 x 2 pixels side by side, normalised, then linear.

    Parameters
    ----------
    width
        Channels of the input.
    generator
        Source of the weights.
    """

    def __init__(self, width: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.linear = drawn(nn.Linear, 4 * width, 2 * width, bias=False, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Turn ``(n, 2 H, 2 W, channels)`` into ``(n, H, W, 2 channels)``."""
        # of a 2 x 2 patch, the pixels come column by column
        patches = torch.cat([x[:, i::2, j::2] for j, i in product(range(2), range(2))], dim=-1)
        merged: Tensor = self.linear(self.norm(patches))
        return merged


class PatchExpanding(nn.Module):
    """Twice as many rows and columns, half as many channels, mixed with the features of the encoder at this size.

    Parameters
    ----------
    width
        Channels of the output.
    generator
        Source of the weights.
    """

    def __init__(self, width: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.expand = drawn(nn.Linear, 2 * width, 4 * width, bias=False, generator=generator)
        self.mix = drawn(nn.Linear, 2 * width, width, bias=False, generator=generator)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """Turn ``(n, H, W, 2 channels)``, with a skip connection, into ``(n, 2 H, 2 W, channels)``, like the skip."""
        n, height, width, channels = x.shape
        patches = self.expand(x).reshape(n, height, width, 2, 2, channels // 2)
        pixels = patches.transpose(2, 3).reshape(n, 2 * height, 2 * width, channels // 2)
        mixed: Tensor = self.norm(self.mix(torch.cat([pixels, skip], dim=-1)))
        return mixed
