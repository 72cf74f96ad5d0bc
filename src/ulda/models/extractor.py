"""The universal feature extractor g and the small adapter h of a domain."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from ulda.errors import UldaError
from ulda.models.layers import ComplexConv2d, SmoothedReLU, real_kernel

Start = Literal["filter-bank", "random"]

_NOISE = 0.005
"""Noise on the filter-bank start, so that no two channels stay equal."""

OWN_KERNELS = 4
"""How many kernels a new domain adds to each layer of the feature extractor, at least."""

_ADDED = 0.1
"""The standard deviation of kernels that a domain adds, about that of the numbers in trained ones."""


class FeatureExtractor(nn.Module):
    """g: complex convolutions, each followed by the smoothed ReLU.

    Parameters
    ----------
    width
        Complex channels of every layer.
    depth
        Number of layers.
    kernel_size
        The odd side of the kernels.
    delta
        Width of the smoothed ReLU.
    start
        ``"filter-bank"``: plus and minus the cosine filters without the constant one as first kernels; the other
        layers take the difference of each such pair, which undoes the smoothed ReLU exactly, so the untrained
        regulariser is a generalised total variation. ``"random"``: Glorot.
    seed
        Seed of the random numbers.

    Examples
    --------
    >>> g = FeatureExtractor()
    >>> sum(p.numel() for p in g.parameters())
    14112
    """

    def __init__(
        self,
        width: int = 16,
        depth: int = 4,
        kernel_size: int = 3,
        delta: float = 0.1,
        *,
        start: Start = "filter-bank",
        seed: int = 0,
    ) -> None:
        super().__init__()
        if depth < 1:
            raise UldaError(f"the feature extractor needs at least one layer, but its depth is {depth}")
        if start not in ("filter-bank", "random"):
            raise UldaError(f'the start is "filter-bank" or "random", not {start!r}')
        generator = torch.Generator().manual_seed(seed)
        self.width, self.depth, self.kernel_size = width, depth, kernel_size
        self.activation = SmoothedReLU(delta)
        channels = [1, *[width] * depth]
        self.layers = nn.ModuleList(
            ComplexConv2d(n_in, n_out, kernel_size, generator=generator) for n_in, n_out in pairwise(channels)
        )
        if start == "filter-bank":
            self._start_as_filter_bank(generator)

    def forward(self, x: Tensor) -> Tensor:
        """Map stacked images ``(N, 2, H, W)`` to features ``(N, 2 width, H, W)``."""
        for layer in self.layers:
            x = self.activation(layer(x))
        return x

    def with_last_layer(self, layer: ComplexConv2d) -> FeatureExtractor:
        """Return an extractor with another last layer; all else is shared."""
        return self._with_layers([*self.layers[:-1], layer])

    def materialize(self) -> FeatureExtractor:
        """Return an extractor with the kernels of this one, as they are now, for its own."""
        return self._with_layers(layer.materialize() for layer in self.layers)  # type: ignore[operator]

    def mixed(self, mixing: ChannelMixing) -> FeatureExtractor:
        """Return an extractor whose layers are these as a domain changes them; it has no parameters of its own."""
        layers = (layer for layer in self.layers if isinstance(layer, ComplexConv2d))
        return self._with_layers(mixing.mixed(number, layer) for number, layer in enumerate(layers))

    def _with_layers(self, layers: Iterable[nn.Module]) -> FeatureExtractor:
        other = copy.copy(self)
        other._modules = self._modules.copy()
        other.layers = nn.ModuleList(layers)
        return other

    @torch.no_grad()
    def _start_as_filter_bank(self, generator: torch.Generator) -> None:
        filters = cosine_filters(self.kernel_size)
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, ComplexConv2d)
            if number == 0:
                signed = [filters[c // 2 % len(filters)] * (-1) ** c for c in range(self.width)]
                layer.real.copy_(torch.stack(signed)[:, None])
                layer.imag.zero_()
            else:
                set_pair_difference(layer)
            for parameter in layer.parameters():
                parameter.add_(_NOISE * torch.randn(parameter.shape, generator=generator))


class ChannelMixing(nn.Module):
    """What a domain changes in a feature extractor: it mixes the channels of every layer and adds a few of its own.

    A complex mixture of the output channels of every layer starts as the identity. Beside each layer, `rank` kernels of
    the domain's own see what the layer sees, and weights, which start as zero, add what they find to each channel. So
    nothing changes at first. It reaches every layer with few parameters: all kernels, ready made, stay what they are.

    Parameters
    ----------
    width
        Complex channels of every layer.
    depth
        Number of layers.
    rank
        Kernels of the domain's own beside each layer; 0 for the mixture alone.
    kernel_size
        The odd side of these kernels, that of the layers.
    seed
        Seed of these kernels.

    Examples
    --------
    >>> sum(p.numel() for p in ChannelMixing(rank=0).parameters())
    2048
    >>> sum(p.numel() for p in ChannelMixing().parameters())
    6088
    """

    def __init__(
        self, width: int = 16, depth: int = 4, rank: int = OWN_KERNELS, kernel_size: int = 3, *, seed: int = 0
    ) -> None:
        super().__init__()
        if rank < 0:
            raise UldaError(f"a domain adds 0 or more kernels of its own, but it is asked for {rank}")
        self.rank = rank
        self.layers = nn.ModuleList(ComplexConv2d(width, width, 1) for _ in range(depth))
        seen = [1, *[width] * (depth - 1)] if rank else []
        self.kernels = nn.ModuleList(ComplexConv2d(channels, rank, kernel_size) for channels in seen)
        self.weights = nn.ModuleList(ComplexConv2d(rank, width, 1) for _ in seen)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for layer in self.layers:
                assert isinstance(layer, ComplexConv2d)
                layer.real.copy_(torch.eye(width)[:, :, None, None])
                layer.imag.zero_()
            for kernel in self.kernels:
                for part in kernel.parameters():
                    part.normal_(0.0, _ADDED, generator=generator)
            for weights in self.weights:
                for part in weights.parameters():
                    part.zero_()

    def mixed(self, number: int, layer: ComplexConv2d) -> ComplexConv2d:
        """Return a layer, mixed and with what the domain adds, as one convolution."""

        def kernel() -> Tensor:
            # of the parts: equal blocks of the real kernel stay equal to the last bit
            real, imag = _composed(self.layers[number], layer)
            if self.rank:
                added_real, added_imag = _composed(self.weights[number], self.kernels[number])
                real, imag = real + added_real, imag + added_imag
            return real_kernel(real, imag)

        return _DerivedConv2d(layer, kernel)


def _composed(outer: nn.Module, inner: nn.Module) -> tuple[Tensor, Tensor]:
    """Return real and imaginary part of a convolution followed by one of a single pixel, as one kernel."""
    assert isinstance(outer, ComplexConv2d)
    assert isinstance(inner, ComplexConv2d)
    real, imag = outer.real[:, :, 0, 0], outer.imag[:, :, 0, 0]
    return (
        torch.tensordot(real, inner.real, 1) - torch.tensordot(imag, inner.imag, 1),
        torch.tensordot(real, inner.imag, 1) + torch.tensordot(imag, inner.real, 1),
    )


class Adapter(nn.Module):
    """h: one complex convolution without activation.

    Parameters
    ----------
    width
        Complex channels, in and out.
    kernel_size
        The odd side of the kernel.
    weight
        The adapter starts as this multiple of the difference of the pairs; it is the weight of the regulariser.
    seed
        Seed of the noise on the start.

    Examples
    --------
    >>> sum(p.numel() for p in Adapter().parameters())
    4608
    """

    def __init__(self, width: int = 16, kernel_size: int = 3, *, weight: float = 0.1, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.width, self.kernel_size = width, kernel_size
        self.layer = ComplexConv2d(width, width, kernel_size, generator=generator)
        set_pair_difference(self.layer)
        with torch.no_grad():
            for parameter in self.layer.parameters():
                parameter.add_(_NOISE * torch.randn(parameter.shape, generator=generator)).mul_(weight)

    def forward(self, features: Tensor) -> Tensor:
        """Map features ``(N, 2 width, H, W)`` to features of the same shape."""
        return self.layer(features)

    def materialize(self) -> Adapter:
        """Return an adapter with the kernel of this one, as it is now, for its own."""
        plain = Adapter(self.width, self.kernel_size)
        plain.layer = self.layer.materialize()
        return plain


class DerivedAdapter(Adapter):
    """An adapter without parameters of its own: its kernel is computed from those of others.

    Parameters
    ----------
    like
        An adapter of the same sizes.
    kernel
        Computes the kernel.
    """

    def __init__(self, like: Adapter, kernel: Callable[[], Tensor]) -> None:
        nn.Module.__init__(self)  # that of the adapter would draw a kernel
        self.width, self.kernel_size = like.width, like.kernel_size
        self.layer = _DerivedConv2d(like.layer, kernel)


class _DerivedConv2d(ComplexConv2d):
    def __init__(self, like: ComplexConv2d, kernel: Callable[[], Tensor]) -> None:
        nn.Module.__init__(self)
        self.in_channels, self.out_channels, self.kernel_size = like.in_channels, like.out_channels, like.kernel_size
        self._derived = kernel

    def kernel(self) -> Tensor:
        return self._derived()


def cosine_filters(size: int) -> Tensor:
    """Return the ``size^2 - 1`` two-dimensional cosine filters with zero mean and unit norm.

    Examples
    --------
    >>> filters = cosine_filters(3)
    >>> filters.shape, bool(filters.sum((-2, -1)).abs().max() < 1e-6)
    (torch.Size([8, 3, 3]), True)
    """
    if size == 1:
        return torch.ones(1, 1, 1)
    order = torch.arange(size, dtype=torch.float64)
    basis = torch.cos(math.pi * order[:, None] * (order[None, :] + 0.5) / size)
    basis = basis / basis.norm(dim=1, keepdim=True)
    products = torch.einsum("ih,jw->ijhw", basis, basis).reshape(size * size, size, size)
    return products[1:].float()


@torch.no_grad()
def set_pair_difference(layer: ComplexConv2d, weight: float = 1.0) -> None:
    """Make a layer with equally many channels in and out subtract, within each pair of channels, the other from each.

    If a pair of inputs is the smoothed ReLU of ``s`` and ``-s``, the outputs are ``s`` and ``-s`` again, whatever its
    width: ``relu(s) - relu(-s) = s``. A channel without a partner is passed on.
    """
    layer.real.zero_()
    layer.imag.zero_()
    middle, n = layer.kernel_size // 2, layer.out_channels
    for channel in range(n):
        layer.real[channel, channel, middle, middle] = weight
        if (partner := channel ^ 1) < n:
            layer.real[channel, partner, middle, middle] = -weight
