"""What a domain has for itself: the adapter h and, where it is wanted, a low-rank update of g."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ulda.errors import UldaError
from ulda.models.extractor import NOISE, FeatureExtractor, set_pair_difference
from ulda.models.layers import ComplexConv2d, real_kernel

FIRST_LOG_NOISE = math.log(0.02)
"""Of an image with peak 1."""


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
    noise_aware
        Learn by how much the weight grows with the noise: it is multiplied by ``sqrt(1 + (noise / e^log_noise)^2)``.
    seed
        Seed of the noise on the start.

    Examples
    --------
    >>> sum(p.numel() for p in Adapter().parameters())
    4608
    """

    def __init__(
        self, width: int = 16, kernel_size: int = 3, *, weight: float = 0.1, noise_aware: bool = False, seed: int = 0
    ) -> None:
        super().__init__()
        self.log_noise = nn.Parameter(torch.tensor(FIRST_LOG_NOISE)) if noise_aware else None
        generator = torch.Generator().manual_seed(seed)
        self.width, self.kernel_size = width, kernel_size
        self.layer = ComplexConv2d(width, width, kernel_size, generator=generator)
        set_pair_difference(self.layer)
        with torch.no_grad():
            for parameter in self.layer.parameters():
                parameter.add_(NOISE * torch.randn(parameter.shape, generator=generator)).mul_(weight)

    def forward(self, features: Tensor) -> Tensor:
        """Map features ``(N, 2 width, H, W)`` to features of the same shape."""
        return self.layer(features)

    def materialize(self) -> Adapter:
        """Return an adapter that owns its kernel as it is now."""
        plain = Adapter(self.width, self.kernel_size)
        plain.layer = self.layer.materialize()
        log_noise = self.noise_scale()
        plain.log_noise = None if log_noise is None else nn.Parameter(log_noise.detach().clone())
        return plain

    def strength(self, noise: Tensor) -> Tensor | None:
        """Return by what the noise of each slice ``(n,)`` multiplies the regulariser; None for 1."""
        log_noise = self.noise_scale()
        return None if log_noise is None else (1 + (noise * torch.exp(-log_noise)).square()).sqrt()

    def noise_scale(self) -> Tensor | None:
        """Return the logarithm of the noise from which on the weight grows; None where it does not."""
        return self.log_noise


class DerivedAdapter(Adapter):
    """An adapter without parameters of its own: its kernel is computed from those of others.

    Parameters
    ----------
    like
        An adapter of the same sizes.
    kernel, log_noise
        Compute the kernel and the noise scale.
    """

    def __init__(self, like: Adapter, kernel: Callable[[], Tensor], log_noise: Callable[[], Tensor | None]) -> None:
        nn.Module.__init__(self)  # that of the adapter would draw a kernel
        self.width, self.kernel_size = like.width, like.kernel_size
        self.layer = DerivedConv2d(like.layer, kernel)
        self._derived_noise = log_noise

    def noise_scale(self) -> Tensor | None:
        """Return the noise scale as the others are now."""
        return self._derived_noise()


class DerivedConv2d(ComplexConv2d):
    """A convolution without parameters of its own: its kernel is computed from those of others."""

    def __init__(self, like: ComplexConv2d, kernel: Callable[[], Tensor]) -> None:
        nn.Module.__init__(self)
        self.in_channels, self.out_channels, self.kernel_size = like.in_channels, like.out_channels, like.kernel_size
        self._derived = kernel

    def kernel(self) -> Tensor:
        """Return the kernel as the others are now."""
        return self._derived()


class LowRankUpdate(nn.Module):
    """A low-rank update of every layer of g (LoRA): ``W + B A``, where only A and B of a domain learn.

    A has `rank` kernels of the size of the layer's and sees what the layer sees; B is a convolution of a single pixel
    that adds what A finds to every channel. B starts as zero, so at first nothing changes.

    Parameters
    ----------
    width
        Complex channels of every layer.
    depth
        Number of layers.
    rank
        Kernels of A.
    kernel_size
        The odd side of the kernels, that of the layers.
    seed
        Seed of A.

    Examples
    --------
    >>> sum(p.numel() for p in LowRankUpdate(rank=4).parameters())
    4040
    """

    def __init__(self, width: int = 16, depth: int = 4, rank: int = 4, kernel_size: int = 3, *, seed: int = 0) -> None:
        super().__init__()
        if rank < 1:
            raise UldaError(f"a low-rank update has rank 1 or more, but it is asked for {rank}")
        self.rank = rank
        generator = torch.Generator().manual_seed(seed)
        seen = [1, *[width] * (depth - 1)]
        self.down = nn.ModuleList(ComplexConv2d(n_in, rank, kernel_size, generator=generator) for n_in in seen)
        self.up = nn.ModuleList(ComplexConv2d(rank, width, 1, generator=generator) for _ in seen)
        with torch.no_grad():
            for parameter in self.up.parameters():
                parameter.zero_()

    def applied_to(self, extractor: FeatureExtractor) -> FeatureExtractor:
        """Return the extractor with the update on every layer; the new one has no parameters of its own."""
        layers = (layer for layer in extractor.layers if isinstance(layer, ComplexConv2d))
        return extractor.with_layers(self._updated(number, layer) for number, layer in enumerate(layers))

    def _updated(self, number: int, layer: ComplexConv2d) -> ComplexConv2d:
        """Return a layer with its update, as one convolution."""

        def kernel() -> Tensor:
            # of the parts: equal blocks of the real kernel stay equal to the last bit
            real, imag = _composed(self.up[number], self.down[number])
            return real_kernel(layer.real + real, layer.imag + imag)

        return DerivedConv2d(layer, kernel)


def _composed(outer: nn.Module, inner: nn.Module) -> tuple[Tensor, Tensor]:
    """Return real and imaginary part of a convolution followed by one of a single pixel, as one kernel."""
    assert isinstance(outer, ComplexConv2d)
    assert isinstance(inner, ComplexConv2d)
    real, imag = outer.real[:, :, 0, 0], outer.imag[:, :, 0, 0]
    return (
        torch.tensordot(real, inner.real, 1) - torch.tensordot(imag, inner.imag, 1),
        torch.tensordot(real, inner.imag, 1) + torch.tensordot(imag, inner.real, 1),
    )
