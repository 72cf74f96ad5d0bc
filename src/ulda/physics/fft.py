"""The orthonormal, centred two-dimensional Fourier transform and resizing in it."""

from __future__ import annotations

import torch
from torch import Tensor

from ulda.errors import UldaError

_AXES = (-2, -1)


def fft2c(image: Tensor) -> Tensor:
    """Transform images ``(..., H, W)`` to centred k-space; an isometry.

    Examples
    --------
    >>> import torch
    >>> k = fft2c(torch.ones(4, 4, dtype=torch.complex64))
    >>> k[2, 2].real.item(), round(k.abs().sum().item(), 5)
    (4.0, 4.0)
    """
    shifted = torch.fft.ifftshift(image, dim=_AXES)
    return torch.fft.fftshift(torch.fft.fft2(shifted, norm="ortho"), dim=_AXES)


def ifft2c(kspace: Tensor) -> Tensor:
    """Transform centred k-space ``(..., H, W)`` to images: the inverse and the adjoint of `fft2c`.

    Examples
    --------
    >>> import torch
    >>> x = torch.eye(3, dtype=torch.complex64)
    >>> torch.allclose(ifft2c(fft2c(x)), x, atol=1e-6)
    True
    """
    shifted = torch.fft.ifftshift(kspace, dim=_AXES)
    return torch.fft.fftshift(torch.fft.ifft2(shifted, norm="ortho"), dim=_AXES)


def center_crop_or_pad(array: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut or zero-pad the last two axes around their centre ``n // 2``, where k-space has its origin.

    Examples
    --------
    >>> import torch
    >>> center_crop_or_pad(torch.arange(5.0).expand(5, 5), (1, 3))
    tensor([[1., 2., 3.]])
    """
    if min(size) < 1:
        raise UldaError(f"cannot crop to size {size}: both numbers must be at least 1")
    for axis, n_out in zip(_AXES, size, strict=True):
        n_in = array.shape[axis]
        start = n_in // 2 - n_out // 2
        if n_out <= n_in:
            array = array.narrow(axis, start, n_out)
        else:
            before, after = -start, n_out - n_in + start
            pad = (before, after) if axis == -1 else (0, 0, before, after)
            array = torch.nn.functional.pad(array, pad)
    return array


def fourier_resize(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Resample images ``(..., H, W)`` by cutting or zero-padding their k-space.

    The field of view stays, the resolution changes; intensities are preserved.

    Examples
    --------
    >>> import torch
    >>> fourier_resize(torch.ones(8, 8, dtype=torch.complex64), (4, 4)).real.unique()
    tensor([1.])
    """
    height, width = image.shape[-2:]
    gain = (size[0] * size[1] / (height * width)) ** 0.5
    return ifft2c(center_crop_or_pad(fft2c(image), size)) * gain
