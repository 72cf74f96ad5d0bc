"""The simulated acquisition: what lies between a magnitude image and the k-space of a scanner.

Images without phase, noise and coils have conjugate-symmetric k-space, which no scanner delivers. An `Acquisition`
draws what is missing, for each slice anew, from one generator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ulda.errors import UldaError
from ulda.physics.calibration import noise_level
from ulda.physics.fft import fft2c, ifft2c
from ulda.physics.masks import Mask, cartesian_mask, equispaced_mask, random_mask
from ulda.physics.operators import CartesianMRI, MultiCoilMRI, Physics, coil_combine, root_sum_of_squares

BACKGROUND = 0.05
"""Pixels below this part of the peak hold no signal."""

N_CENTERS = (0.04, 0.08, 0.12)
"""Fractions of centre lines of equispaced and random masks."""


@dataclass(frozen=True)
class Acquisition:
    """How measurements are simulated from images; `ACQUISITIONS` has the presets.

    Attributes
    ----------
    name
        That of the preset.
    phase
        Give each slice a phase: a smooth series, random fields of many scales, random phase where there is no signal,
        and a uniform global phase. Images that have a phase keep it and are turned by the global phase alone.
    snr_db
        The range of the signal-to-noise ratio: the mean power of the fully sampled k-space over that of the noise, in
        dB; None for no noise.
    coils
        The largest number of coils. Half of the slices are measured by one coil, the others by 4 to so many.
    masks
        The families of masks that a step draws from; empty where the masks are given.
    ratios
        The fractions of lines of the masks.
    any_axis
        Let the phase-encode axis be either, where masks are drawn.

    Examples
    --------
    >>> import torch
    >>> y, physics, x = ACQUISITIONS["scanner"].measure(torch.ones(2, 32, 32) + 0j, torch.Generator().manual_seed(1))
    >>> y.shape[-2:], x.shape
    (torch.Size([32, 32]), torch.Size([2, 32, 32]))
    """

    name: str = "ideal"
    phase: bool = False
    snr_db: tuple[float, float] | None = None
    coils: int = 1
    masks: tuple[str, ...] = ()
    ratios: tuple[float, ...] = (0.12, 0.16, 0.2, 0.25, 0.33, 0.5)
    any_axis: bool = False

    def measure(
        self,
        images: Tensor,
        generator: torch.Generator,
        mask: Mask | None = None,
        axis: int = -2,
        phase_maps: Tensor | None = None,
        *,
        keep_noise: bool = False,
    ) -> tuple[Tensor, Physics, Tensor]:
        """Simulate measurements of images.

        Parameters
        ----------
        images
            Complex images ``(n, H, W)``; those without imaginary part count as magnitudes.
        generator
            Where all random numbers come from.
        mask, axis
            The sampled lines and their axis; without a mask both are drawn.
        phase_maps
            Measured phases ``(m, H, W)`` in radians: where given, half of the slices get one of them.
        keep_noise
            Let the reference have the noise of a full scan; otherwise the operator knows the noise, as estimated from
            the measurements, and the reference has none.

        Returns
        -------
            The measurements, their operator, and the images with their phase, which are the reference. Several coils
            shade them to a peak of 1 again; the operator knows their maps.
        """
        shape = (images.shape[-2], images.shape[-1])
        if mask is None:
            axis = [-2, -1][int(torch.randint(2, (1,), generator=generator))] if self.any_axis else axis
            mask = self.draw_mask(shape[axis], generator)
        if self.phase:
            images = torch.stack([self._phased(image, generator, phase_maps) for image in images])
        n_coils = self._n_coils(generator)
        if n_coils > 1:
            fields = torch.stack([loop_maps(n_coils, shape, generator) for _ in images])
            images = images[:, None] * fields.to(images)
            images = images / root_sum_of_squares(images).amax((-2, -1), keepdim=True).clamp_min(1e-12)[:, None]
        y, shown = fft2c(images), images
        if self.snr_db is not None:
            low, high = self.snr_db
            snr = low + (high - low) * torch.rand(len(images), generator=generator)
            noise = _noise(y, noise_std(images, snr), generator)
            y, shown = y + noise, images + ifft2c(noise) if keep_noise else images
        y = y * mask.along(axis)
        physics: Physics = CartesianMRI(mask, axis)
        if n_coils > 1:
            physics = MultiCoilMRI(mask, normalised(fields).to(images), axis)
            shown = coil_combine(shown, physics.maps)
        if self.snr_db is not None and not keep_noise:
            physics = physics.with_knowledge(noise=noise_level(y, mask, axis))
        return y, physics, shown

    def draw_mask(self, n_lines: int, generator: torch.Generator) -> Mask:
        """Draw the family, the ratio and the lines of a mask."""
        kind = self.masks[_index(len(self.masks), generator)] if self.masks else "gaussian"
        ratio = self.ratios[_index(len(self.ratios), generator)]
        center = [c for c in N_CENTERS if c < ratio][_index(sum(c < ratio for c in N_CENTERS), generator)]
        return make_mask(kind, n_lines, ratio, center, _index(1 << 31, generator))

    def as_dict(self) -> dict[str, Any]:
        """Describe the acquisition for a result file."""
        return asdict(self)

    def _n_coils(self, generator: torch.Generator) -> int:
        several = bool(torch.rand(1, generator=generator) < 0.5)
        n_coils = 4 + _index(max(1, self.coils - 3), generator)
        return n_coils if several and self.coils >= 4 else 1

    def _phased(self, image: Tensor, generator: torch.Generator, phase_maps: Tensor | None) -> Tensor:
        angle = 2 * math.pi * torch.rand(1, generator=generator)
        if not bool((image.imag != 0).any()):
            if phase_maps is not None and bool(torch.rand(1, generator=generator) < 0.5):
                angle = angle + phase_maps[_index(len(phase_maps), generator)]
            else:
                angle = angle + random_phase((image.shape[-2], image.shape[-1]), generator)
            silent = image.abs() < BACKGROUND * image.abs().max()
            noise = 2 * math.pi * torch.rand(image.shape, generator=generator)
            angle = angle + silent * noise
        return image * torch.polar(torch.ones_like(angle), angle).to(image)


ACQUISITIONS = {
    found.name: found
    for found in (
        Acquisition("ideal"),
        Acquisition("single-coil", phase=True, snr_db=(10, 40)),
        Acquisition("scanner", True, (10, 40), 16, ("gaussian", "random", "equispaced"), any_axis=True),
    )
}
"""The presets: ``ideal`` is what the images are; ``single-coil`` has phase and noise; ``scanner`` has coils, too."""


def acquisition_named(name: str) -> Acquisition:
    """Return a preset, or say which there are."""
    if name not in ACQUISITIONS:
        raise UldaError(f"there is no acquisition {name!r}; choose one of: {', '.join(ACQUISITIONS)}")
    return ACQUISITIONS[name]


def with_given_masks(acquisition: Acquisition) -> Acquisition:
    """Return the acquisition for masks that are given, without families of its own."""
    return replace(acquisition, masks=(), any_axis=False)


def make_mask(kind: str, n_lines: int, ratio: float, center: float, seed: int) -> Mask:
    """Make a mask of a family: ``gaussian``, ``random`` or ``equispaced``."""
    if kind == "gaussian":
        return cartesian_mask(n_lines, ratio, center, seed)
    kinds = {"random": random_mask, "equispaced": equispaced_mask}
    if kind not in kinds:
        raise UldaError(f"there is no family of masks {kind!r}; choose gaussian, random or equispaced")
    return kinds[kind](n_lines, 1 / ratio, center, seed)


def random_phase(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Return a phase in radians: a cosine series of low order, and a random field of a random scale.

    The series has degree 1 to 3 and a peak up to pi. The field has a correlation length of 2 to 40 pixels and a
    standard deviation up to 1.5; one slice in five has none.
    """
    rows, columns = (torch.linspace(0, math.pi, n) for n in shape)
    degree = 1 + _index(3, generator)
    phase = torch.zeros(shape)
    for i in range(degree + 1):
        for j in range(degree + 1 - i):
            weight = torch.randn(1, generator=generator)
            phase = phase + weight * (i * rows)[:, None].cos() * (j * columns).cos() * (i + j > 0)
    phase = phase / phase.abs().max().clamp_min(1e-6) * math.pi * torch.rand(1, generator=generator)
    length = 2.0 * 20 ** float(torch.rand(1, generator=generator))
    strength = 1.5 * float(torch.rand(1, generator=generator)) * bool(torch.rand(1, generator=generator) < 0.8)
    return phase + strength * random_field(shape, length, generator)


def random_field(shape: tuple[int, int], length: float, generator: torch.Generator) -> Tensor:
    """Return a Gaussian random field with mean 0, standard deviation 1 and a correlation length in pixels."""
    rows, columns = (torch.fft.fftfreq(n) for n in shape)
    squares = rows[:, None].square() + columns.square()
    white = torch.fft.fft2(torch.randn(shape, generator=generator))
    field = torch.fft.ifft2(white * torch.exp(-(math.pi**2) * length**2 * squares / 2)).real
    return (field - field.mean()) / field.std().clamp_min(1e-6)


def loop_maps(n_coils: int, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Return the fields of loops around the image ``(coils, H, W)``, by the law of Biot and Savart in two dimensions.

    A loop is seen as its two wires; that of a wire at ``p`` is ``1 / (z - p)``, complex, at the place ``z``.
    """
    rows, columns = (torch.linspace(-1, 1, n) for n in shape)
    place = torch.complex(columns.expand(shape), rows[:, None].expand(shape))
    turn = 2 * math.pi * torch.rand(1, generator=generator)
    centres = turn + 2 * math.pi * (torch.arange(n_coils) + 0.3 * torch.rand(n_coils, generator=generator)) / n_coils
    radius = 1.5 + 0.5 * torch.rand(n_coils, generator=generator)
    half = (0.6 + 0.8 * torch.rand(1, generator=generator)) * math.pi / n_coils
    wires = [torch.polar(radius, centres + sign * half)[:, None, None] for sign in (-1, 1)]
    return 1 / (place - wires[0]) - 1 / (place - wires[1])


def normalised(maps: Tensor) -> Tensor:
    """Return maps with sum of squares 1 at every pixel."""
    return maps / maps.abs().square().sum(-3, keepdim=True).sqrt()


def noise_std(images: Tensor, snr_db: Tensor | Sequence[float]) -> Tensor:
    """Return the standard deviation of real and imaginary part of the noise, for signal-to-noise ratios in dB.

    The signal is the mean power of the fully sampled k-space of the images ``(n, H, W)``, which is that of the images;
    of several coils ``(n, coils, H, W)`` it is the sum.
    """
    power = images.abs().square().mean((-2, -1)).reshape(len(images), -1).sum(1)
    return (power / 2 / 10 ** (torch.as_tensor(snr_db).to(power) / 10)).sqrt()


def _noise(y: Tensor, std: Tensor, generator: torch.Generator) -> Tensor:
    white = torch.view_as_complex(torch.randn((*y.shape, 2), generator=generator)).to(y)
    return white * std.reshape(-1, *(1,) * (y.ndim - 1)).to(y.real)


def _index(n: int, generator: torch.Generator) -> int:
    return int(torch.randint(n, (1,), generator=generator))
