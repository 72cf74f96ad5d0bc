"""Measurement operators: from an image to undersampled k-space and back.

Images are complex ``(..., H, W)``; single-coil k-space has the same shape and multi-coil k-space is
``(..., coils, H, W)``. Measurements live on the full grid with zeros at the lines that were not sampled.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from ulda.errors import UldaError
from ulda.physics.fft import fft2c, ifft2c
from ulda.physics.masks import Mask


class Physics(ABC):
    """A linear measurement with its data fidelity ``f(x) = 1/2 ||A x - y||^2``.

    Parameters
    ----------
    mask
        The sampled phase-encode lines.
    axis
        The phase-encode axis of the image, -2 or -1.
    """

    signal_dims: int
    """The number of trailing axes of a measurement that belong to one slice."""

    phase: Tensor | None = None
    """Phase factors ``(n, H, W)`` that the images lack: it measures ``phase * x``. None for 1."""

    noise: Tensor | None = None
    """The standard deviation of real and imaginary part of the noise ``(n,)``; None where it is not known."""

    keeps_noise: bool = False
    """Whether an image is to have the noise of the measurements, as that of a full scan has; see `shown`."""

    def __init__(self, mask: Mask, axis: int = -2) -> None:
        if axis not in (-2, -1):
            raise UldaError(f"the phase-encode axis must be -2 or -1, but it is {axis}")
        self.mask = mask
        self.axis = axis
        self._sampled = mask.along(axis)

    @abstractmethod
    def _measured(self, x: Tensor) -> Tensor:
        """Measure an image with its phase."""

    @abstractmethod
    def _back(self, y: Tensor) -> Tensor:
        """Apply the adjoint of `_measured`."""

    def A(self, x: Tensor) -> Tensor:
        """Measure the image `x`, without noise."""
        return self._measured(self.phased(x))

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Apply the adjoint of `A`; for a measurement, the zero-filled reconstruction."""
        x = self._back(y)
        return x if self.phase is None else x * self.phase.conj()

    def phased(self, x: Tensor) -> Tensor:
        """Return images with the phase that they lack."""
        return x if self.phase is None else x * self.phase

    def shown(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the image that a solution ``(n, H, W)`` of measurements stands for: with its phase and its noise.

        A regularised solution does not explain all of the measurements. What is left, ``y - A x``, is mostly noise,
        and a full scan would show it: where the noise is to be kept, ``A^H (y - A x)`` is put back.
        """
        return self.phased(x - self.fidelity_grad(x, y) if self.keeps_noise else x)

    def with_knowledge(
        self, phase: Tensor | None = None, noise: Tensor | None = None, *, keeps_noise: bool = False
    ) -> Self:
        """Return the operator for images without a phase, with a known level of noise."""
        other = copy.copy(self)
        other.phase, other.noise, other.keeps_noise = phase, noise, keeps_noise
        return other

    @abstractmethod
    def norm(self) -> float:
        """Return an upper bound of the operator norm of `A`, exact when every line is sampled."""

    def normal_operator(self) -> Callable[[Tensor], Tensor]:
        """Return the map ``x -> A^H A x`` of images ``(..., H, W)``, prepared to be applied many times.

        Along the readout all samples are there, and centring a Fourier transform turns k-space by phases that the
        adjoint turns back: transforms along the phase-encode axis, not centred, are enough.
        """
        weights = self._image_weights()
        lines = torch.fft.ifftshift(self.mask.lines)
        across = self.axis == -2  # transforms along the last axis are the fastest
        if weights is not None:
            weights = (weights.mT if across else weights).contiguous()

        def normal(x: Tensor) -> Tensor:
            sampled = lines.to(device=x.device, dtype=x.real.dtype)
            x = x.mT.contiguous() if across else x
            if weights is None:
                total = torch.fft.ifft(torch.fft.fft(x).mul_(sampled))
            else:
                total = torch.zeros_like(x)
                for coil in weights.unbind(-3):  # one at a time stays in the cache
                    total += torch.fft.ifft(torch.fft.fft(coil * x).mul_(sampled)).mul_(coil.conj())
            return total.mT if across else total

        return normal

    def _image_weights(self) -> Tensor | None:
        """Return by what images are multiplied before they are transformed, ``(..., coils, H, W)``; None for 1."""
        return None if self.phase is None else self.phase.unsqueeze(-3)

    def fidelity(self, x: Tensor, y: Tensor) -> Tensor:
        """Return ``1/2 ||A x - y||^2`` per slice, with the batch shape."""
        residual = self._residual(x, y)
        squares = residual.real.square() + residual.imag.square()
        return 0.5 * squares.sum(dim=tuple(range(-self.signal_dims, 0)))

    def fidelity_grad(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradient of `fidelity`, ``A^H (A x - y)``, with the shape of `x`."""
        return self.A_adjoint(self._residual(x, y))

    def restricted(self, y: Tensor, mask: Mask) -> tuple[Tensor, Self]:
        """Return the lines of a measurement that another mask keeps, and their operator.

        Examples
        --------
        >>> import torch
        >>> full, few = Mask((True, True, True)), Mask((False, True, False))
        >>> y, physics = CartesianMRI(full).restricted(torch.ones(3, 1, dtype=torch.complex64), few)
        >>> y.real.flatten(), physics.mask.n_sampled
        (tensor([0., 1., 0.]), 1)
        """
        other = copy.copy(self)
        other.mask, other._sampled = mask, mask.along(self.axis)
        return other._masked(self._check(y, "measurement")), other

    def take(self, index: Tensor) -> Self:
        """Return the operator for some samples of a batch; the same where it does not depend on the sample."""
        if self.phase is None and self.noise is None:
            return self
        phase, noise = (None if part is None else part[index] for part in (self.phase, self.noise))
        return self.with_knowledge(phase, noise, keeps_noise=self.keeps_noise)

    def to(self, device: torch.device | str) -> Self:
        """Move the operator to a device, in place."""
        self._sampled = self._sampled.to(device)
        self.phase, self.noise = (None if part is None else part.to(device) for part in (self.phase, self.noise))
        return self

    def _residual(self, x: Tensor, y: Tensor) -> Tensor:
        measured = self.A(x)
        if measured.shape != y.shape:
            raise UldaError(
                f"the measurement has shape {tuple(y.shape)}, but the operator gives {tuple(measured.shape)} "
                f"for an image of shape {tuple(x.shape)}"
            )
        return measured - y

    def _masked(self, kspace: Tensor) -> Tensor:
        if self._sampled.device != kspace.device:
            self._sampled = self._sampled.to(kspace.device)
        return kspace * self._sampled

    def _check(self, tensor: Tensor, what: str) -> Tensor:
        if tensor.ndim < 2 or tensor.shape[self.axis] != self.mask.n_lines:
            raise UldaError(
                f"the {what} has shape {tuple(tensor.shape)}, but the mask has {self.mask.n_lines} lines "
                f"on axis {self.axis}"
            )
        return tensor if tensor.is_complex() else torch.complex(tensor, torch.zeros_like(tensor))


class CartesianMRI(Physics):
    """One coil: ``A x = P F x``.

    Examples
    --------
    >>> import torch
    >>> from ulda.physics import cartesian_mask
    >>> physics = CartesianMRI(cartesian_mask(64, 0.25))
    >>> x = torch.ones(2, 64, 48, dtype=torch.complex64)
    >>> y = physics.A(x)
    >>> y.shape, physics.fidelity(x, y)
    (torch.Size([2, 64, 48]), tensor([0., 0.]))
    """

    signal_dims = 2

    def _measured(self, x: Tensor) -> Tensor:
        """Fourier transform, then keep the sampled lines."""
        return self._masked(fft2c(self._check(x, "image")))

    def _back(self, y: Tensor) -> Tensor:
        """Keep the sampled lines, then transform back."""
        return ifft2c(self._masked(self._check(y, "measurement")))

    def norm(self) -> float:
        """Return 1: the operator is a restriction of an isometry."""
        return 1.0


class MultiCoilMRI(Physics):
    """Several coils: ``A x = (P F (S_c x))_c`` with sensitivity maps ``S_c``.

    Parameters
    ----------
    mask
        The sampled phase-encode lines.
    maps
        Complex sensitivities ``(..., coils, H, W)``; with ``sum_c |S_c|^2 <= 1`` the norm is at most 1.
    axis
        The phase-encode axis of the image, -2 or -1.

    Examples
    --------
    >>> import torch
    >>> from ulda.physics import cartesian_mask
    >>> maps = torch.full((4, 16, 16), 0.5, dtype=torch.complex64)
    >>> physics = MultiCoilMRI(cartesian_mask(16, 0.5), maps)
    >>> physics.A(torch.ones(16, 16, dtype=torch.complex64)).shape, physics.norm()
    (torch.Size([4, 16, 16]), 1.0)
    """

    signal_dims = 3

    def __init__(self, mask: Mask, maps: Tensor, axis: int = -2) -> None:
        super().__init__(mask, axis)
        if maps.ndim < 3 or not maps.is_complex():
            raise UldaError(
                f"the sensitivity maps must be complex with shape (..., coils, H, W), but they are {maps.dtype} "
                f"with shape {tuple(maps.shape)}"
            )
        self.maps = self._check(maps, "array of sensitivity maps")

    def _measured(self, x: Tensor) -> Tensor:
        """Weight with each coil's sensitivity, transform, keep the sampled lines."""
        x = self._check(x, "image")
        if x.shape[-2:] != self.maps.shape[-2:]:
            raise UldaError(
                f"the image has shape {tuple(x.shape)}, but the sensitivity maps are for images of shape "
                f"{tuple(self.maps.shape[-2:])}"
            )
        return self._masked(fft2c(self.maps * x.unsqueeze(-3)))

    def _back(self, y: Tensor) -> Tensor:
        """Keep the sampled lines, transform back, combine the coils."""
        y = self._check(y, "measurement")
        if y.ndim < 3 or y.shape[-3:] != self.maps.shape[-3:]:
            raise UldaError(
                f"the measurement has shape {tuple(y.shape)}, but the sensitivity maps have shape "
                f"{tuple(self.maps.shape)}; expected (..., coils, H, W)"
            )
        return coil_combine(ifft2c(self._masked(y)), self.maps)

    def _image_weights(self) -> Tensor:
        return self.maps if self.phase is None else self.maps * self.phase.unsqueeze(-3)

    def norm(self) -> float:
        """Return the square root of the largest ``sum_c |S_c|^2`` of all pixels."""
        power = self.maps.real.square() + self.maps.imag.square()
        return float(power.sum(dim=-3).max().sqrt())

    def take(self, index: Tensor) -> Self:
        """Return the operator for some samples of a batch, with their maps."""
        taken = super().take(index)
        if self.maps.ndim > 3 and self.maps.shape[0] > 1:
            taken = copy.copy(taken)
            taken.maps = self.maps[index]
        return taken

    def to(self, device: torch.device | str) -> Self:
        """Move the operator and its maps to a device, in place."""
        self.maps = self.maps.to(device)
        return super().to(device)


def coil_combine(coil_images: Tensor, maps: Tensor) -> Tensor:
    """Combine coil images ``(..., coils, H, W)`` with their sensitivities: ``sum_c conj(S_c) x_c``."""
    return (maps.conj() * coil_images).sum(dim=-3)


def root_sum_of_squares(coil_images: Tensor) -> Tensor:
    """Combine coil images ``(..., coils, H, W)`` to a magnitude image ``(..., H, W)``.

    Examples
    --------
    >>> import torch
    >>> root_sum_of_squares(torch.tensor([[[3 + 0j]], [[4j]]])).item()
    5.0
    """
    return (coil_images.real.square() + coil_images.imag.square()).sum(dim=-3).sqrt()
