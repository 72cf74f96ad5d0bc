from __future__ import annotations

from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest

from tests.shared_data import shared_data_file
from ulda.data.readers import find_reader
from ulda.data.readers.fastmri import FastMRIReader
from ulda.errors import UldaError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def kspace_of(*shape: int) -> NDArray[np.complex64]:
    rng = np.random.default_rng(0)
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(np.complex64)


def write(path: Path, **datasets: NDArray[np.generic]) -> Path:
    with h5py.File(path, "w") as file:
        for name, value in datasets.items():
            file[name] = value
        file.attrs["acquisition"] = "AXT2"
        file.attrs["patient_id"] = "abc"
    return path


def test_multicoil_slices_come_with_target_mask_and_attributes(tmp_path: Path) -> None:
    kspace, target = kspace_of(3, 2, 8, 6), np.arange(3 * 4 * 4, dtype=float).reshape(3, 4, 4)
    mask = np.array([1, 0, 1, 1, 0, 1], np.float32)
    path = write(tmp_path / "file1.h5", kspace=kspace, reconstruction_rss=target, mask=mask)
    reader = find_reader(path)
    assert isinstance(reader, FastMRIReader)
    slices = list(reader.slices(path))
    assert len(slices) == 3
    for index, item in enumerate(slices):
        np.testing.assert_array_equal(item.array, kspace[index])
        assert item.array.dtype == np.complex64
        assert item.target is not None
        np.testing.assert_array_equal(item.target, target[index])
        assert item.target.dtype == np.float32
        assert item.lines is not None
        assert item.lines.tolist() == [True, False, True, True, False, True]
        assert (item.kind, item.phase_axis) == ("kspace", -1)
        assert (item.subject, item.contrast) == ("abc", "AXT2")
        assert (item.volume, item.source) == ("file1", "file1.h5")
    description = reader.describe(path)
    assert (description.n_slices, description.shape) == (3, (2, 8, 6))
    assert "undersampled: 4 of 6 lines" in description.notes


def test_one_coil_becomes_a_plain_plane_and_a_full_mask_means_fully_sampled(tmp_path: Path) -> None:
    kspace = kspace_of(1, 1, 8, 6)
    path = write(tmp_path / "a.h5", kspace=kspace, mask=np.ones(6, bool))
    (item,) = FastMRIReader().slices(path)
    np.testing.assert_array_equal(item.array, kspace[0, 0])
    assert item.lines is None
    assert item.target is None


def test_a_user_block_before_the_signature_is_found(tmp_path: Path) -> None:
    path = tmp_path / "block.h5"
    with h5py.File(path, "w", userblock_size=2048) as file:
        file["kspace"] = kspace_of(1, 4, 4)
    with path.open("r+b") as raw:
        raw.write(b"notes of the scanner")
    assert isinstance(find_reader(path), FastMRIReader)
    (item,) = FastMRIReader().slices(path)
    assert (item.subject, item.contrast) == ("block", "")


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ({"kspace": kspace_of(4, 4)}, r"'kspace' of shape \(4, 4\)"),
        ({"kspace": np.ones((1, 4, 4))}, "expected complex"),
        ({"kspace": kspace_of(2, 4, 4), "reconstruction_esc": np.ones((3, 4, 4))}, r"expected \(2, h, w\)"),
        ({"kspace": kspace_of(2, 4, 4), "mask": np.ones(3)}, r"'mask' of shape \(3,\); expected \(4,\)"),
        ({"data": kspace_of(2, 4, 4), "other": np.ones(3)}, "it holds data, other"),
    ],
)
def test_wrong_contents_are_named(tmp_path: Path, datasets: dict[str, NDArray[np.generic]], message: str) -> None:
    path = write(tmp_path / "bad.h5", **datasets)
    with pytest.raises(UldaError, match=message):
        list(FastMRIReader().slices(path))


def test_declaring_images_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", kspace=kspace_of(1, 4, 4))
    with pytest.raises(UldaError, match="holds kspace, not magnitude"):
        list(FastMRIReader().slices(path, "magnitude"))


def test_real_low_field_scan_transforms_to_its_reference() -> None:
    path = shared_data_file("lowfield_brain/patient0_FLAIR.h5")
    slices = list(find_reader(path).slices(path))
    assert [item.array.shape for item in slices] == [(128, 126)] * 4
    assert {item.subject for item in slices} == {"bisp-0"}
    assert {item.contrast for item in slices} == {"0.055T FLAIR"}
    for item in slices:
        image = np.abs(np.fft.fftshift(np.fft.ifft2(np.fft.ifftshift(item.array))))
        assert item.target is not None
        assert np.corrcoef(image.ravel(), item.target.ravel())[0, 1] > 0.999


def test_real_multicoil_scan_has_all_coils() -> None:
    path = shared_data_file("multicoil_brain.h5")
    description = find_reader(path).describe(path)
    assert (description.n_slices, description.shape, description.kind) == (3, (13, 224, 224), "kspace")
    first = next(iter(find_reader(path).slices(path)))
    assert first.array.shape == (13, 224, 224)
