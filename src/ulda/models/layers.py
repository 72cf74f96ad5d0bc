"""The two layers of the regulariser: a smoothed ReLU and a complex convolution.

Complex feature maps are real tensors with stacked channels, all real parts first: ``(N, 2 C, H, W)``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight

from ulda.errors import UldaError

_FEW_CHANNELS = 8
"""Below this, matrix products over the channels are too narrow to be fast."""


class SmoothedReLU(nn.Module):
    """A ReLU whose kink is a parabola on ``[-delta, delta]``.

    It is 0 below ``-delta``, the identity above ``delta``, and ``x^2 / (4 delta) + x / 2 + delta / 4`` between.

    Examples
    --------
    >>> import torch
    >>> SmoothedReLU(0.5)(torch.tensor([-1.0, 0.0, 0.5, 2.0]))
    tensor([0.0000, 0.1250, 0.5000, 2.0000])
    """

    def __init__(self, delta: float = 0.1) -> None:
        super().__init__()
        if not 0 < delta < math.inf:
            raise UldaError(f"the width delta of the smoothed ReLU must be positive, but it is {delta:g}")
        self.delta = delta

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation to every number."""
        return self.from_shifted(torch.relu(x + self.delta))

    def from_shifted(self, z: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the activation of ``x`` from ``z = relu(x + delta)``, the one tensor its derivatives need."""
        # z^2 / (4 delta) up to 2 delta, z - delta beyond: what PyTorch calls the smooth l1 loss against zero
        zero = torch.zeros((), dtype=z.dtype, device=z.device).expand_as(z)
        if out is None:
            return F.smooth_l1_loss(z, zero, reduction="none", beta=2 * self.delta)
        return torch.ops.aten.smooth_l1_loss.out(z, zero, 0, 2 * self.delta, out=out)

    def derivative_from_shifted(self, z: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the derivative at ``x`` from ``z = relu(x + delta)``."""
        return torch.clamp(z, max=2 * self.delta, out=out).mul_(1 / (2 * self.delta))

    @property
    def curvature(self) -> float:
        """The second derivative on the parabola; it is zero elsewhere."""
        return 1 / (2 * self.delta)

    def keep_inside_parabola_(self, z: Tensor, x: Tensor) -> Tensor:
        """Set `x` to zero, in place, where the activation is not curved, from ``z = relu(x + delta)``."""
        return torch.ops.aten.hardtanh_backward.grad_input(x, z, 0, 2 * self.delta, grad_input=x)

    def extra_repr(self) -> str:
        """Show the width."""
        return f"delta={self.delta:g}"


class ComplexConv2d(nn.Module):
    """A complex convolution without bias, stride 1, zero padding that keeps the size.

    Parameters
    ----------
    in_channels, out_channels
        Numbers of complex channels.
    kernel_size
        The odd side of the kernel.
    generator
        Draws the initial weights (Glorot, over real and imaginary part together).

    Examples
    --------
    >>> import torch
    >>> conv = ComplexConv2d(1, 16)
    >>> conv(torch.zeros(1, 2, 8, 8)).shape, sum(p.numel() for p in conv.parameters())
    (torch.Size([1, 32, 8, 8]), 288)
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int = 3, *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise UldaError(f"the kernel size must be odd, so that the image keeps its size, but it is {kernel_size}")
        if in_channels < 1 or out_channels < 1:
            raise UldaError(f"a convolution needs channels, but {in_channels} to {out_channels} were asked for")
        self.in_channels, self.out_channels, self.kernel_size = in_channels, out_channels, kernel_size
        shape = (out_channels, in_channels, kernel_size, kernel_size)
        std = math.sqrt(1 / ((in_channels + out_channels) * kernel_size**2))
        self.real = nn.Parameter(std * torch.randn(shape, generator=generator))
        self.imag = nn.Parameter(std * torch.randn(shape, generator=generator))

    def kernel(self) -> Tensor:
        """Return the kernel of the equivalent real convolution, ``[[Wr, -Wi], [Wi, Wr]]``."""
        return real_kernel(self.real, self.imag)

    @torch.no_grad()
    def materialize(self) -> ComplexConv2d:
        """Return a layer with the kernel of this one, as it is now, for its own."""
        kernel = self.kernel()
        plain = ComplexConv2d(self.in_channels, self.out_channels, self.kernel_size).to(kernel)
        real, imag = kernel[:, : self.in_channels].split(self.out_channels)
        plain.real.copy_(real)
        plain.imag.copy_(imag)
        return plain

    def forward(self, x: Tensor) -> Tensor:
        """Convolve stacked channels ``(N, 2 in, H, W)`` to ``(N, 2 out, H, W)``."""
        return convolve(x, self.kernel())

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"


def real_kernel(real: Tensor, imag: Tensor) -> Tensor:
    """Return the kernel of the real convolution that a complex one is, ``[[Wr, -Wi], [Wi, Wr]]``."""
    return torch.cat([torch.cat([real, -imag], 1), torch.cat([imag, real], 1)], 0)


def convolve(x: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolve with zero padding that keeps the size."""
    return F.conv2d(x, kernel, bias, padding=kernel.shape[-1] // 2)


def convolve_adjoint(y: Tensor, kernel: Tensor) -> Tensor:
    """Apply the adjoint of `convolve`: the transposed convolution with the same kernel."""
    return F.conv_transpose2d(y, kernel, padding=kernel.shape[-1] // 2)


def kernel_gradient(x: Tensor, g: Tensor, size: int) -> Tensor:
    """Return the gradient of ``<g, convolve(x, kernel)>`` with respect to a kernel of side `size`; it overwrites `g`.

    On a CPU and for enough channels, one matrix product per tap is faster than the library's routine: in
    channels-last order, shifting an image by a tap is an offset in memory.
    """
    n_out, n_in, pad = g.shape[1], x.shape[1], size // 2
    if x.device.type != "cpu" or n_in < _FEW_CHANNELS:
        return conv2d_weight(x, [n_out, n_in, size, size], g, padding=pad)
    height, width = x.shape[-2:]
    n_pixels = height * width
    columns = g.permute(0, 2, 3, 1).contiguous()
    sources = x.permute(0, 2, 3, 1).reshape(-1, n_pixels, n_in)
    targets = columns.view(-1, n_pixels, n_out)
    taps = x.new_zeros(size, size, n_out, n_in)
    # taps that reach beyond a small image meet only zeros
    rows, reach = min(pad, height - 1), min(pad, width - 1)

    def add_taps(shift: int) -> None:
        for row in range(-rows, rows + 1):
            offset = row * width + shift
            first, last = max(0, -offset), min(n_pixels, n_pixels - offset)
            products = torch.bmm(targets[:, first:last].mT, sources[:, first + offset : last + offset])
            torch.sum(products, 0, out=taps[pad + row, pad + shift])

    # pixels whose neighbour lies outside of the image must not meet the pixel that follows it in memory
    add_taps(0)
    right = columns[:, :, width - reach :].clone()
    for shift in range(1, reach + 1):
        columns[:, :, width - shift] = 0
        add_taps(shift)
    columns[:, :, width - reach :] = right
    for shift in range(1, reach + 1):
        columns[:, :, shift - 1] = 0
        add_taps(-shift)
    return taps.permute(2, 3, 0, 1)
