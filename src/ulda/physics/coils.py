"""Coil sensitivities from the calibration lines (ESPIRiT) and coil compression."""

from __future__ import annotations

import torch
from torch import Tensor

from ulda.errors import UldaError
from ulda.physics.fft import center_crop_or_pad, ifft2c
from ulda.physics.masks import Mask
from ulda.physics.operators import MultiCoilMRI

LARGEST_PATCH = 6
"""Side of the calibration patches where there are enough centre lines."""

SMALLEST_PATCH = 3


def coil_physics(y: Tensor, mask: Mask, axis: int = -2) -> MultiCoilMRI:
    """Return the operator of several coils, with sensitivities estimated from the calibration lines.

    Patches of more than a third of the centre lines lose much of the signal, so fewer lines have smaller patches.

    Parameters
    ----------
    y
        K-space ``(..., coils, H, W)``.
    mask, axis
        The sampled lines and their axis.
    """
    patch = min(LARGEST_PATCH, max(SMALLEST_PATCH, mask.n_center // 3 + 1))
    if mask.n_center >= patch:
        return MultiCoilMRI(mask, espirit_maps(y, mask, axis, kernel_size=patch), axis)
    raise UldaError(
        f"only {mask.n_center} lines around the centre of k-space are sampled, but coil sensitivities need "
        f"{SMALLEST_PATCH}; sample more of them"
    )


def espirit_maps(
    kspace: Tensor,
    mask: Mask | None = None,
    axis: int = -2,
    *,
    kernel_size: int = 6,
    max_calibration: int = 24,
    threshold: float = 0.02,
    crop: float = 0.8,
) -> Tensor:
    """Estimate coil sensitivities from the fully sampled centre of k-space.

    ESPIRiT (Uecker et al. 2014): the signal space of the calibration patches gives, at every pixel, a
    matrix whose eigenvector to the eigenvalue 1 holds the sensitivities.

    Parameters
    ----------
    kspace
        Multi-coil k-space ``(..., coils, H, W)``.
    mask
        The sampled lines; None when all are. The calibration region is its contiguous centre.
    axis
        The phase-encode axis of the mask.
    kernel_size
        Side of the calibration patches.
    max_calibration
        Largest side of the calibration region.
    threshold
        Singular values below this fraction of the largest are noise.
    crop
        Where the eigenvalue is below this there is no signal and the maps are zero.

    Returns
    -------
    Tensor
        Maps ``(..., coils, H, W)`` with ``sum_c |S_c|^2`` equal to 1 where there is signal and 0 elsewhere.
        The phase is relative to the strongest virtual coil.
    """
    if kspace.ndim < 3 or not kspace.is_complex():
        raise UldaError(
            f"coil sensitivities need complex k-space of shape (..., coils, H, W), but this is {kspace.dtype} "
            f"with shape {tuple(kspace.shape)}"
        )
    if kspace.ndim > 3:
        flat = kspace.reshape(-1, *kspace.shape[-3:])
        options = {"kernel_size": kernel_size, "max_calibration": max_calibration}
        maps = [espirit_maps(k, mask, axis, threshold=threshold, crop=crop, **options) for k in flat]
        return torch.stack(maps).reshape(kspace.shape)

    calibration = _calibration(kspace, mask, axis, max_calibration, kernel_size)
    kernels = _signal_space(calibration, kernel_size, threshold)
    gram = _pixelwise_gram(kernels, (kspace.shape[-2], kspace.shape[-1]))
    eigenvalues, eigenvectors = torch.linalg.eigh(gram)
    maps = eigenvectors[..., -1].movedim(-1, 0)
    maps = maps * _reference_phase(calibration, maps)
    return maps * (eigenvalues[..., -1] > crop)


def compress_coils(kspace: Tensor, n_virtual: int) -> Tensor:
    """Compress coils ``(..., coils, H, W)`` to `n_virtual` by principal components, strongest first.

    Examples
    --------
    >>> import torch
    >>> k = torch.randn(1, 8, 8, dtype=torch.complex64).repeat(5, 1, 1)
    >>> float((compress_coils(k, 1).norm() - k.norm()).abs()) < 1e-4
    True
    """
    n_coils = kspace.shape[-3]
    if not 1 <= n_virtual <= n_coils:
        raise UldaError(f"cannot compress {n_coils} coils to {n_virtual}")
    samples = kspace.movedim(-3, 0).reshape(n_coils, -1)
    _, basis = torch.linalg.eigh(samples @ samples.mH)
    strongest = basis[:, -n_virtual:].flip(1)
    return torch.einsum("cv,...chw->...vhw", strongest.conj(), kspace)


def _calibration(kspace: Tensor, mask: Mask | None, axis: int, largest: int, kernel_size: int) -> Tensor:
    """Return the fully sampled centre of k-space; one that no patch fits into is refused."""
    height, width = kspace.shape[-2:]
    if mask is not None:
        height, width = (mask.n_center, width) if axis == -2 else (height, mask.n_center)
    height, width = min(height, largest), min(width, largest)
    if min(height, width) < kernel_size:
        raise UldaError(
            f"the calibration region is {height} x {width}, smaller than the {kernel_size} x {kernel_size} "
            "patches; sample more centre lines or lower kernel_size"
        )
    return center_crop_or_pad(kspace, (height, width))


def _signal_space(calibration: Tensor, size: int, threshold: float) -> Tensor:
    """Return an orthonormal basis ``(n, coils, size, size)`` of the calibration patches."""
    n_coils = calibration.shape[0]
    patches = calibration.unfold(1, size, 1).unfold(2, size, 1)
    matrix = patches.permute(1, 2, 0, 3, 4).reshape(-1, n_coils * size * size)
    _, singular, vectors = torch.linalg.svd(matrix, full_matrices=False)
    signal = vectors[singular > threshold * singular[0]]
    return signal.reshape(-1, n_coils, size, size)


def _pixelwise_gram(kernels: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return the coil-by-coil matrix of every pixel ``(H, W, coils, coils)``.

    The products of the kernels' images are the image of their correlation, which is small; so the sum
    over kernels is taken before the zero-padded transform.
    """
    size = kernels.shape[-1]
    spectrum = torch.fft.fft2(kernels, s=(2 * size, 2 * size))
    correlation = torch.fft.ifft2(torch.einsum("nchw,ndhw->cdhw", spectrum, spectrum.conj()))
    correlation = torch.fft.fftshift(correlation, dim=(-2, -1))
    side = (shape[0] * shape[1]) ** 0.5
    gram: Tensor = ifft2c(_pad_or_alias(correlation, shape)).permute(2, 3, 0, 1) * (side / size**2)
    return gram


def _pad_or_alias(correlation: Tensor, shape: tuple[int, int]) -> Tensor:
    if min(shape) < correlation.shape[-1]:
        raise UldaError(f"images of shape {shape} are too small for the calibration patches; lower kernel_size")
    return center_crop_or_pad(correlation, shape)


def _reference_phase(calibration: Tensor, maps: Tensor) -> Tensor:
    """Return the phase factor ``(H, W)`` that makes the strongest virtual coil real and positive."""
    samples = calibration.reshape(calibration.shape[0], -1)
    strongest = torch.linalg.eigh(samples @ samples.mH)[1][:, -1]
    projection = torch.einsum("c,chw->hw", strongest.conj(), maps)
    return torch.polar(torch.ones_like(projection.real), -projection.angle())
