"""Masks, Fourier transforms, measurement operators and coil sensitivities."""

from ulda.physics.acquisition import ACQUISITIONS, Acquisition, acquisition_named
from ulda.physics.calibration import low_resolution_phase, noise_level
from ulda.physics.coils import coil_physics, compress_coils, espirit_maps
from ulda.physics.fft import center_crop_or_pad, fft2c, fourier_resize, ifft2c
from ulda.physics.masks import DETECTED, Mask, cartesian_mask, equispaced_mask, load_mask, mask_from_array, random_mask
from ulda.physics.normalisation import normalise_measurement
from ulda.physics.operators import CartesianMRI, MultiCoilMRI, Physics, coil_combine, root_sum_of_squares

__all__ = [
    "ACQUISITIONS",
    "DETECTED",
    "Acquisition",
    "CartesianMRI",
    "Mask",
    "MultiCoilMRI",
    "Physics",
    "acquisition_named",
    "cartesian_mask",
    "center_crop_or_pad",
    "coil_combine",
    "coil_physics",
    "compress_coils",
    "equispaced_mask",
    "espirit_maps",
    "fft2c",
    "fourier_resize",
    "ifft2c",
    "load_mask",
    "low_resolution_phase",
    "mask_from_array",
    "noise_level",
    "normalise_measurement",
    "random_mask",
    "root_sum_of_squares",
]
