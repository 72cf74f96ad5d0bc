from __future__ import annotations

import h5py
import numpy as np
import pytest

from tests.shared_data import shared_data_file
from ulda.data.readers.guess import central_energy, guess_kind

CROPS = [(slice(None), slice(None)), (slice(1, None), slice(None)), (slice(None), slice(0, -1))]
DOMAINS = ["brain.npz", "prostate.npz", "cardiac.npz", "knee.npz", "natural.npz"]


@pytest.mark.parametrize("crop", CROPS)
@pytest.mark.parametrize("name", ["lowfield_brain/patient0_FLAIR.h5", "lowfield_brain/patient3_GRE.h5"])
def test_measured_low_field_kspace_is_kspace_and_its_image_an_image(name: str, crop: tuple[slice, slice]) -> None:
    with h5py.File(shared_data_file(name)) as file:
        for kspace in file["kspace"][:]:
            cut = kspace[crop]
            assert guess_kind(cut) == "kspace"
            assert guess_kind(np.fft.fftshift(np.fft.ifft2(np.fft.ifftshift(cut)))) == "complex"


def test_every_single_coil_of_a_multicoil_scan_is_kspace() -> None:
    with h5py.File(shared_data_file("multicoil_brain.h5")) as file:
        for coil in file["kspace"][0]:
            assert guess_kind(coil) == "kspace"


@pytest.mark.parametrize("size", [256, 191])
@pytest.mark.parametrize("name", DOMAINS)
def test_real_images_with_smooth_phase_are_images_and_their_kspace_kspace(name: str, size: int) -> None:
    with np.load(shared_data_file(name)) as archive:
        images = archive["images"][::40, :size, :].astype(float)
    y, x = np.mgrid[-1 : 1 : size * 1j, -1:1:256j]
    for image in images * np.exp(1j * (2 * x - y + 3 * x * y)):
        assert guess_kind(image) == "complex"
        assert guess_kind(np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(image)))) == "kspace"


def test_an_empty_array_has_no_central_energy_and_counts_as_an_image() -> None:
    assert central_energy(np.zeros((8, 8))) == 0
    assert guess_kind(np.zeros((8, 8), np.complex64)) == "complex"


def test_a_single_point_at_the_centre_is_all_central() -> None:
    point = np.zeros((2, 9, 10), np.complex64)
    point[:, 4, 5] = 1j
    assert central_energy(point) == 1
