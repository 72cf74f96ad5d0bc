"""What a measurement says of itself before it is reconstructed: its phase and its noise.

Both make the same network fit for more measurements. Dividing by a phase is a unitary change of variable: with
``x = phase * x'`` the objective in ``x'`` is that of an operator ``A' = A phase``, so gradients and theory stay.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ulda.physics.fft import fft2c, ifft2c
from ulda.physics.operators import Physics

EDGE = 0.125
"""The part of the readout at each end that is taken for noise."""


def calibrated(y: Tensor, physics: Physics, phase_lines: int = 0, *, noise: bool = False) -> Physics:
    """Return the operator of measurements with their low-resolution phase and noise level on record.

    Parameters
    ----------
    y, physics
        A batch of measurements and their operator.
    phase_lines
        The width of the centre of k-space that gives the phase; 1 for the global phase alone, 0 for none.
    noise
        Estimate the noise.

    Examples
    --------
    >>> import torch
    >>> from ulda.physics import CartesianMRI, cartesian_mask
    >>> physics = CartesianMRI(cartesian_mask(32, 0.5))
    >>> x = 1j * torch.ones(1, 32, 32)
    >>> calibrated(physics.A(x), physics, 1).phase[0, 0, 0]
    tensor(0.+1.j)
    """
    phase = low_resolution_phase(physics.A_adjoint(y), phase_lines) if phase_lines else None
    return physics.with_knowledge(phase, noise_level(y, physics) if noise else None)


def low_resolution_phase(images: Tensor, width: int) -> Tensor:
    """Return the phase factor ``(n, H, W)`` of images that keep the centre of k-space alone, under a Hann window."""
    window = torch.ones((), dtype=images.real.dtype)
    for axis in (-2, -1):
        n = images.shape[axis]
        distance = (torch.arange(n) - n // 2).to(window.dtype).abs()
        hann = torch.where(distance < width / 2, (math.pi * distance / width).cos().square(), 0.0)
        window = window * (hann[:, None] if axis == -2 else hann)
    low = ifft2c(fft2c(images) * window.to(images.device))
    size = low.abs()
    return torch.where(size > 0, low / size.clamp_min(torch.finfo(size.dtype).tiny), torch.ones_like(low))


def noise_level(y: Tensor, physics: Physics) -> Tensor:
    """Estimate the standard deviation of real and imaginary part of the noise of each slice, ``(n,)``.

    It is taken from the ends of the readout of the sampled lines, where there is little signal: the median of the
    magnitude of complex Gaussian noise is ``sqrt(2 ln 2)`` standard deviations.
    """
    lines = y.index_select(physics.axis, physics.mask.lines.nonzero().flatten().to(y.device))
    readout = -1 if physics.axis == -2 else -2
    n = lines.shape[readout]
    edge = max(1, round(EDGE * n))
    ends = torch.cat([lines.narrow(readout, 0, edge), lines.narrow(readout, n - edge, edge)], readout)
    return ends.abs().flatten(1).median(1).values / math.sqrt(2 * math.log(2))
