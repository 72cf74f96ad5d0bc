"""UNet: from the zero-filled image to the reconstruction, without data consistency (Zbontar et al. 2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ulda.errors import UldaError
from ulda.methods.trainable import TrainableMethod
from ulda.models.regularizer import stacked, unstacked
from ulda.physics import Physics, normalise_measurement
from ulda.training.settings import Settings
from ulda.training.supervised import supervised_loss
from ulda.training.tasks import Batch, Task

_SLOPE = 0.2  # of the leaky ReLU, below zero
_EPS = 1e-11  # added to the standard deviation of a slice, which may be zero


class UNet(TrainableMethod):
    """The U-Net of fastMRI: an image goes in, an image comes out.

    There is no data consistency: nothing keeps the result close to the measurement but the training. The zero-filled
    image is normalised by its mean and standard deviation and the result is put back with them. With one channel in
    and out, both are magnitudes, and the phase of the result is zero; it is trained against magnitudes, too. With two
    they are the real and the imaginary part, each with a mean of its own and both with one standard deviation, so that
    an imaginary part of almost nothing is not blown up.

    One set of weights serves all domains. An adaptation tunes all of them. Its rate is 1e-3 by default: the 1e-5 that
    the comparison in the literature uses belongs to 100 epochs, and leaves the network where it was in the hundreds of
    steps that are usual here.

    Parameters
    ----------
    channels
        Channels of the first level; each further one has twice as many.
    pools
        Average-poolings, each by 2.
    inputs, outputs
        Both 1 for magnitudes, or both 2 for complex images.
    sources
        The source domains; the network is the same for all.
    seed
        Seed of the start, which is that of PyTorch's convolutions.

    Examples
    --------
    >>> import torch
    >>> from ulda.methods.unet import UNet
    >>> from ulda.physics import CartesianMRI, cartesian_mask
    >>> UNet().n_parameters
    7756097
    >>> physics = CartesianMRI(cartesian_mask(48, 0.4))
    >>> y = physics.A(torch.ones(2, 48, 33, dtype=torch.complex64))
    >>> UNet(channels=4)(y, physics).shape
    torch.Size([2, 48, 33])
    """

    name: ClassVar[str] = "unet"
    title: ClassVar[str] = "UNet"
    citation: ClassVar[str] = (
        "Zbontar et al. 2018, fastMRI: an open dataset and benchmarks for accelerated MRI, arXiv:1811.08839"
    )

    def __init__(
        self,
        *,
        channels: int = 32,
        pools: int = 4,
        inputs: int = 1,
        outputs: int = 1,
        sources: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        super().__init__(sources, {"channels": channels, "pools": pools, "inputs": inputs, "outputs": outputs})
        if min(channels, pools) < 1:
            raise UldaError(f"UNet needs at least 1 channel and 1 pooling, but it is asked for {channels} and {pools}")
        if inputs != outputs or inputs not in (1, 2):
            raise UldaError(
                "UNet takes and returns 1 channel (magnitudes) or 2 (complex images), "
                f"but it is asked for {inputs} in and {outputs} out"
            )
        self.pools, self.is_complex = pools, outputs == 2
        generator = torch.Generator().manual_seed(seed)
        widths = [channels * 2**level for level in range(pools + 1)]
        self.down = nn.ModuleList(_Block(a, b, generator) for a, b in pairwise([inputs, *widths]))
        rising = widths[-2::-1]
        self.enlarge = nn.ModuleList(_layer(nn.ConvTranspose2d, generator, 2 * n, n, 2, stride=2) for n in rising)
        self.up = nn.ModuleList(_Block(2 * n, n, generator) for n in rising)
        self.last = _layer(nn.Conv2d, generator, channels, outputs, 1, bias=True)

    def forward(self, y: Tensor, physics: Physics, domain: str | None = None) -> Tensor:  # noqa: ARG002
        """Reconstruct measurements ``(n, H, W)`` or ``(n, coils, H, W)``; the domain makes no difference.

        Without a phase (``outputs=1``) the imaginary part of the result is zero, and its real part may be negative
        where the network errs.
        """
        _, zero_filled, peak = normalise_measurement(y, physics)
        parts = stacked(zero_filled) if self.is_complex else zero_filled.abs().unsqueeze(-3)
        mean, std = _moments(parts)
        normalised = (parts - mean) / (std + _EPS)
        found = self.network(normalised.reshape(-1, *parts.shape[-3:]).contiguous()).reshape(parts.shape) * std + mean
        x = unstacked(found) if self.is_complex else torch.complex(found, torch.zeros_like(found)).squeeze(-3)
        return x * peak

    def network(self, x: Tensor) -> Tensor:
        """Apply the U alone, to normalised real images ``(n, channels, H, W)``."""
        self._check_size(*x.shape[-2:])
        *levels, bottom = self.down
        skipped = []
        for block in levels:
            skipped.append(x := block(x))
            x = F.avg_pool2d(x, 2)
        x = bottom(x)
        for enlarge, block, skip in zip(self.enlarge, self.up, reversed(skipped), strict=True):
            x = _activated(enlarge(x))
            # pooling drops the last line of an odd size
            missing = (0, skip.shape[-1] - x.shape[-1], 0, skip.shape[-2] - x.shape[-2])
            x = F.pad(x, missing, mode="reflect") if any(missing) else x
            x = block(torch.cat([x, skip], dim=1))
        return self.last(x)

    def loss(self, task: Task, batch: Batch, settings: Settings, step: int) -> tuple[Tensor, Tensor]:
        """Return the loss of one batch, and the images without gradient."""
        return supervised_loss(self, task, batch, settings, step, magnitude=not self.is_complex)

    def _check_size(self, height: int, width: int) -> None:
        """Refuse images of which less than two pixels would be left: there is nothing to normalise in one."""
        smallest = 2**self.pools
        if min(height, width) < smallest or max(height, width) < 2 * smallest:
            raise UldaError(
                f"UNet with {self.pools} poolings needs images of at least {2 * smallest} x {smallest} pixels, "
                f"but got {height} x {width}"
            )


class _Block(nn.Module):
    """Two convolutions, each with instance normalisation and activation."""

    def __init__(self, n_in: int, n_out: int, generator: torch.Generator) -> None:
        super().__init__()
        self.first = _layer(nn.Conv2d, generator, n_in, n_out, 3, padding=1)
        self.second = _layer(nn.Conv2d, generator, n_out, n_out, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return _activated(self.second(_activated(self.first(x))))


def _activated(x: Tensor) -> Tensor:
    # a group per channel is instance normalisation, and faster on a CPU than the function of this name
    return F.leaky_relu(F.group_norm(x, x.shape[1]), _SLOPE, inplace=True)


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of each channel of ``(..., channels, H, W)``, and the standard deviation of all about them."""
    mean = x.mean((-2, -1), keepdim=True)
    variance = x.var((-2, -1), keepdim=True)
    return mean, variance.mean(-3, keepdim=True).sqrt()


def _layer(
    kind: type[nn.Conv2d | nn.ConvTranspose2d],
    generator: torch.Generator,
    n_in: int,
    n_out: int,
    size: int,
    *,
    bias: bool = False,
    **options: int,
) -> nn.Module:
    """Return a convolution that starts as PyTorch's, but from a generator."""
    # skip_init: nothing is drawn from the global generator
    layer = nn.utils.skip_init(kind, n_in, n_out, size, bias=bias, device=torch.get_default_device(), **options)
    nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=generator)
    if bias:
        bound = 1 / math.sqrt(n_in * size**2)
        nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return layer
