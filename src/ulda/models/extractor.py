"""The universal feature extractor g, shared by all domains."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from ulda.errors import UldaError
from ulda.models.layers import ComplexConv2d, SmoothedReLU

Start = Literal["filter-bank", "random"]

NOISE = 0.005
"""Noise on the filter-bank start, so that no two channels stay equal."""


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

    def materialize(self) -> FeatureExtractor:
        """Return an extractor that owns its kernels as they are now."""
        return self.with_layers(layer.materialize() for layer in self.layers)  # type: ignore[operator]

    def with_layers(self, layers: Iterable[nn.Module]) -> FeatureExtractor:
        """Return an extractor of the same sizes with other layers."""
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
                channel = torch.arange(self.width)
                signs = (1 - 2 * (channel % 2)).to(filters.dtype)
                layer.real.copy_((signs[:, None, None] * filters[channel // 2 % len(filters)])[:, None])
                layer.imag.zero_()
            else:
                set_pair_difference(layer)
            for parameter in layer.parameters():
                parameter.add_(NOISE * torch.randn(parameter.shape, generator=generator))


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
    channel = torch.arange(n)
    paired = channel[: n - n % 2]
    layer.real[channel, channel, middle, middle] = weight
    layer.real[paired, paired ^ 1, middle, middle] = -weight
