from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import nibabel as untyped_nibabel
import numpy as np
import pytest

from ulda.data.readers import find_reader
from ulda.data.readers.nifti import NiftiReader
from ulda.errors import MissingExtraError, UldaError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

nibabel: Any = untyped_nibabel


def write(path: Path, data: NDArray[np.generic], zooms: tuple[float, ...] = (1, 1, 1), *, version: int = 1) -> Path:
    kind = nibabel.Nifti1Image if version == 1 else nibabel.Nifti2Image
    image = kind(data, np.diag([*zooms, 1]))
    image.to_filename(path)
    return path


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
@pytest.mark.parametrize(
    ("zooms", "axis"), [((1, 1, 5), 2), ((5, 1, 1), 0), ((1, 4, 1), 1), ((1, 1, 1), 1), ((2, 1, 2), 2)]
)
def test_slices_are_cut_across_the_largest_voxels(
    tmp_path: Path, zooms: tuple[float, ...], axis: int, suffix: str, version: int
) -> None:
    data = np.arange(6 * 3 * 4, dtype=np.int16).reshape(6, 3, 4)
    path = write(tmp_path / f"head{suffix}", data, zooms, version=version)
    reader = find_reader(path)
    assert isinstance(reader, NiftiReader)
    slices = list(reader.slices(path))
    np.testing.assert_array_equal(np.stack([item.array for item in slices]), np.moveaxis(data, axis, 0))
    assert {(item.subject, item.volume, item.contrast) for item in slices} == {("head", "head", "")}
    assert reader.describe(path).n_slices == data.shape[axis]


def test_equal_voxels_and_sizes_take_the_last_axis(tmp_path: Path) -> None:
    data = np.random.default_rng(0).normal(size=(4, 4, 4)).astype(np.float32)
    first = next(iter(NiftiReader().slices(write(tmp_path / "a.nii", data))))
    np.testing.assert_array_equal(first.array, data[:, :, 0])


def test_a_single_slice_is_never_cut_into_strips(tmp_path: Path) -> None:
    data = np.arange(20, dtype=np.float32).reshape(4, 5, 1)
    (item,) = NiftiReader().slices(write(tmp_path / "a.nii", data, (2, 2, 1)))
    np.testing.assert_array_equal(item.array, data[:, :, 0])


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_fourth_axis_is_the_contrast_and_bids_names_the_subject(tmp_path: Path, suffix: str) -> None:
    data = np.arange(2 * 3 * 4 * 2, dtype=np.float32).reshape(2, 3, 4, 2)
    path = tmp_path / f"sub-07_bold{suffix}"
    nibabel.Nifti1Image(data, np.diag([3, 1, 1, 1])).to_filename(path)
    slices = list(NiftiReader().slices(path))
    assert [item.contrast for item in slices] == ["t0", "t0", "t1", "t1"]
    np.testing.assert_array_equal(slices[3].array, data[1, :, :, 1])
    assert {item.subject for item in slices} == {"sub-07"}


def test_two_dimensions_complex_numbers_and_scaling(tmp_path: Path) -> None:
    plane = np.arange(6, dtype=np.float32).reshape(2, 3)
    (item,) = NiftiReader().slices(write(tmp_path / "a.nii", plane))
    np.testing.assert_array_equal(item.array, plane)
    path = write(tmp_path / "c.nii", (plane + 1j).astype(np.complex64)[..., None])
    (item,) = NiftiReader().slices(path)
    assert item.kind == "complex"
    np.testing.assert_array_equal(item.array, plane + 1j)
    image = nibabel.Nifti1Image(np.ones((2, 3, 1), np.int16), np.eye(4))
    image.header.set_slope_inter(2, 10)
    image.to_filename(tmp_path / "s.nii")
    raw = bytearray((tmp_path / "s.nii").read_bytes())
    raw[112:120] = np.array([2, 10], "<f4").tobytes()  # scl_slope and scl_inter of the standard
    raw[352:] = np.full(6, 7, "<i2").tobytes()
    (tmp_path / "s.nii").write_bytes(raw)
    (item,) = NiftiReader().slices(tmp_path / "s.nii")
    assert (item.array == 24).all()


def test_bad_files(tmp_path: Path) -> None:
    data = np.random.default_rng(0).normal(size=(16, 16, 8)).astype(np.float32)
    for name in ("a.nii", "a.nii.gz"):
        path = write(tmp_path / name, data)
        path.write_bytes(path.read_bytes()[:2000])
        with pytest.raises(UldaError, match="truncated or damaged"):
            list(find_reader(path).slices(path))
    path = write(tmp_path / "r.nii", data)
    with pytest.raises(UldaError, match="real numbers"):
        list(NiftiReader().slices(path, "kspace"))
    path = tmp_path / "five.nii"
    nibabel.Nifti1Image(np.zeros((2, 2, 2, 2, 2), np.float32), np.eye(4)).to_filename(path)
    with pytest.raises(UldaError, match=r"\(2, 2, 2, 2, 2\)"):
        list(NiftiReader().slices(path))
    colour = np.zeros((2, 2, 2), [("R", "u1"), ("G", "u1"), ("B", "u1")])
    path = write(tmp_path / "rgb.nii", colour)
    with pytest.raises(UldaError, match="expected real or complex numbers"):
        list(NiftiReader().slices(path))


def test_without_nibabel_the_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.nii", np.zeros((2, 2, 2), np.float32))
    monkeypatch.setitem(sys.modules, "nibabel", None)
    with pytest.raises(MissingExtraError, match=r'pip install "ulda\[nifti\]"'):
        list(find_reader(path).slices(path))
