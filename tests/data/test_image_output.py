from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel as untyped_nibabel
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from ulda.data.image_output import difference, image_files, save_images
from ulda.data.readers import find_reader
from ulda.errors import UldaError

nibabel: Any = untyped_nibabel


def volume(n: int = 3) -> NDArray[np.complex64]:
    rng = np.random.default_rng(0)
    images = 40 * rng.normal(size=(n, 9, 7)) + 40j * rng.normal(size=(n, 9, 7))
    return images.astype(np.complex64)


def test_npy_holds_the_complex_numbers(tmp_path: Path) -> None:
    save_images(tmp_path / "a.npy", volume())
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), volume())


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz", "A.NII.GZ"])
def test_nifti_holds_the_magnitude_with_slices_on_the_last_axis(tmp_path: Path, name: str) -> None:
    save_images(tmp_path / name, volume())
    image = nibabel.load(tmp_path / name)
    assert image.shape == (9, 7, 3)
    assert image.get_data_dtype() == np.float32
    np.testing.assert_allclose(image.get_fdata()[:, :, 2], np.abs(volume()[2]), rtol=1e-6)
    read_back: Any = [item.array for item in find_reader(tmp_path / name).slices(tmp_path / name)]
    np.testing.assert_allclose(read_back[1], np.abs(volume()[1]), rtol=1e-6)


def test_png_has_one_scale_for_all_slices(tmp_path: Path) -> None:
    images = volume()
    images[1] *= 0.25
    save_images(tmp_path / "a.png", images)
    names = ["a-000.png", "a-001.png", "a-002.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    peak = np.abs(images).max()
    for name, image in zip(names, images, strict=True):
        with Image.open(tmp_path / name) as picture:
            assert (picture.mode, picture.size) == ("L", (7, 9))
            np.testing.assert_array_equal(np.asarray(picture), np.round(255 * np.abs(image) / peak))
    save_images(tmp_path / "one.png", images[:1])
    assert image_files(tmp_path / "one.png", 1) == [tmp_path / "one.png"]
    assert (tmp_path / "one.png").exists()


def _npy(path: Path) -> None:
    array = np.load(path)
    array[2, 4, 5] *= 1.001
    np.save(path, array)


def _nifti(path: Path) -> None:
    array: NDArray[Any] = np.asarray(nibabel.load(path).dataobj).copy()
    array[4, 5, 2] *= 1.001
    nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), path)


def _png(path: Path) -> None:
    picture = path.with_name(f"{path.stem}-002.png")
    with Image.open(picture) as image:
        array = np.asarray(image).copy()
    array[4, 5] += 1
    Image.fromarray(array).save(picture)


@pytest.mark.parametrize(("name", "tamper"), [("a.npy", _npy), ("a.nii.gz", _nifti), ("a.png", _png)])
def test_one_changed_pixel_is_named(tmp_path: Path, name: str, tamper: Any) -> None:
    path, images = tmp_path / name, volume()
    save_images(path, images)
    assert difference(path, images) == ""
    tamper(path)
    # each slice of PNG is a file
    name = "a-002.png" if name == "a.png" else name
    assert difference(path, images) == f"{name} is not the image of the run: slice 2 differs in row 4, column 5"
    assert "shape" in difference(path, images[:, :8])
    first = image_files(path, 3)[0]
    first.write_bytes(b"nothing")
    assert "cannot be read" in difference(path, images)
    first.unlink()
    assert difference(path, images) == f"{first.name} is missing"


def test_nothing_is_replaced_unasked_and_other_suffixes_are_refused(tmp_path: Path) -> None:
    save_images(tmp_path / "a.npy", volume())
    with pytest.raises(UldaError, match="--force"):
        save_images(tmp_path / "a.npy", volume(2))
    save_images(tmp_path / "a.npy", volume(2), overwrite=True)
    assert len(np.load(tmp_path / "a.npy")) == 2
    with pytest.raises(UldaError, match=r"must be one of \.npy, \.nii"):
        save_images(tmp_path / "a.gif", volume())


def test_an_empty_volume_is_black(tmp_path: Path) -> None:
    save_images(tmp_path / "a.png", np.zeros((1, 4, 4), np.complex64))
    with Image.open(tmp_path / "a.png") as picture:
        assert np.asarray(picture).max() == 0
