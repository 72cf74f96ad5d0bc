"""What a measurement says of itself before it is reconstructed: its phase and its noise."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ulda.physics.fft import fft2c, ifft2c
from ulda.physics.masks import Mask

EDGE = 0.125
"""The part of the readout at each end that is taken for noise."""

OUTER = 3
"""One of so many sampled lines is taken, the outermost ones."""


def low_resolution_phase(images: Tensor, width: int) -> Tensor:
    """Return the phase factor ``(n, H, W)`` of images that keep the centre of k-space alone, under a Hann window.

    Dividing an image by it is a unitary change of variable: with ``x = phase * x'`` the objective in ``x'`` is that of
    the operator ``A phase``, so gradients and theory stay.

    Parameters
    ----------
    images
        Complex images ``(n, H, W)``.
    width
        The lines of the centre along both axes; 1 leaves the global phase alone.

    Examples
    --------
    >>> import torch
    >>> low_resolution_phase(1j * torch.ones(1, 32, 32), 1)[0, 0, 0]
    tensor(0.+1.j)
    """
    window = torch.ones((), dtype=images.real.dtype)
    for axis in (-2, -1):
        n = images.shape[axis]
        distance = (torch.arange(n) - n // 2).to(window.dtype).abs()
        hann = torch.where(distance < width / 2, (math.pi * distance / width).cos().square(), 0.0)
        window = window * (hann[:, None] if axis == -2 else hann)
    low = ifft2c(fft2c(images) * window.to(images.device))
    size = low.abs()
    return torch.where(size > 0, low / size.clamp_min(torch.finfo(size.dtype).tiny), torch.ones_like(low))


def noise_level(y: Tensor, mask: Mask, axis: int = -2) -> Tensor:
    """Estimate the standard deviation of real and imaginary part of the noise of each slice, ``(n,)``.

    It is taken from the corners of k-space, where there is little signal: the ends of the readout of the outermost
    sampled lines. The median of the magnitude of complex Gaussian noise is ``sqrt(2 ln 2)`` standard deviations. What
    signal there is counts as noise, so it is rather too high than too low.

    Parameters
    ----------
    y
        K-space ``(n, H, W)`` or ``(n, coils, H, W)``.
    mask, axis
        The sampled lines and their axis.
    """
    sampled = mask.lines.nonzero().flatten()
    outermost = (sampled - mask.n_lines // 2).abs().argsort(descending=True)[: -(-len(sampled) // OUTER)]
    lines = y.index_select(axis, sampled[outermost].to(y.device))
    readout = -1 if axis == -2 else -2
    n = lines.shape[readout]
    edge = max(1, round(EDGE * n))
    ends = torch.cat([lines.narrow(readout, 0, edge), lines.narrow(readout, n - edge, edge)], readout)
    return ends.abs().flatten(1).median(1).values / math.sqrt(2 * math.log(2))
