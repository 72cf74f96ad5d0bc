"""Folders may name splits, and pictures may be subjects of their own, where an import is told so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

from tests.linear_checks import complex_normal
from ulda.data import Domain, ImportOptions, import_domain
from ulda.data.folders import folder_below, split_of_folder
from ulda.data.importing import read_slices
from ulda.errors import UldaError
from ulda.physics import fft2c, fourier_resize

if TYPE_CHECKING:
    from pathlib import Path


def picture(path: Path, side: int = 8, grey: int = 100) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((side, side), grey, np.uint8)).save(path)
    return path


def volume(path: Path, n_coils: int = 1, side: int = 8, **more: Any) -> torch.Tensor:
    """Write a file of fastMRI with two slices and return its images."""
    path.parent.mkdir(parents=True, exist_ok=True)
    images = complex_normal(2, n_coils, side, side)
    with h5py.File(path, "w") as file:
        file["kspace"] = fft2c(images[:, 0] if n_coils == 1 else images).numpy()
        for name, value in more.items():
            file[name] = value
    return images


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train", "train"),
        ("Test", "test"),
        ("singlecoil_val", "val"),
        ("knee_multicoil_train_batch_0", "train"),
        ("multicoil_test_full", "test"),
        ("singlecoil_challenge", ""),
        ("training", ""),
        ("contest", ""),
        ("test_retest", ""),
    ],
)
def test_the_names_of_splits(tmp_path: Path, name: str, split: str) -> None:
    folder = tmp_path / "test" / name
    folder.mkdir(parents=True)
    # what the folder lies in, above the one that is named, says nothing
    below = folder_below(folder, [tmp_path / "test"])
    assert (below.parts, split_of_folder(below)) == ((name,), split)


def test_pictures_are_subjects_of_their_own_where_that_is_said(tmp_path: Path) -> None:
    for name in ("train/cat/1.png", "train/cat/2.jpg", "train/dog/1.png", "test/cat/1.png"):
        picture(tmp_path / "data" / name)
    options = ImportOptions(picture_subjects=True, folder_splits=True)
    summary = import_domain([tmp_path / "data"], tmp_path / "out.h5", options)
    assert (summary.n_slices, summary.n_subjects, summary.splits) == (4, 4, {"test": 1, "train": 3})
    domain = Domain.open(tmp_path / "out.h5")
    assert domain.subjects == ("test/cat/1", "train/cat/1", "train/cat/2", "train/dog/1")
    # else, as ever, a folder is a subject and its name says nothing about splits
    import_domain([tmp_path / "data"], tmp_path / "plain.h5")
    plain = Domain.open(tmp_path / "plain.h5")
    assert plain.subjects == ("cat", "cat", "cat", "dog")
    assert set(plain.label("split")) == {""}


def test_the_folders_of_fastmri_are_splits(tmp_path: Path) -> None:
    for name in ("singlecoil_train/a.h5", "singlecoil_val/b.h5", "singlecoil_test/c.h5"):
        volume(tmp_path / "knee" / name)
    found = [(item.subject, item.split) for item in read_slices([tmp_path / "knee"], ImportOptions(folder_splits=True))]
    assert found == [("c", "test")] * 2 + [("a", "train")] * 2 + [("b", "val")] * 2


def test_what_a_file_says_about_its_split_counts_more_than_its_folder(tmp_path: Path) -> None:
    (tmp_path / "data" / "train").mkdir(parents=True)
    path = tmp_path / "data" / "train" / "scan.npz"
    np.savez(path, images=np.ones((2, 4, 4)), subject=np.array(["a", "b"]), split=np.array(["test", ""]))
    options = ImportOptions(folder_splits=True)
    assert [item.split for item in read_slices([tmp_path / "data"], options)] == ["test", "train"]


def test_coils_are_combined_to_an_image(tmp_path: Path) -> None:
    images = [volume(tmp_path / "data" / f"{n}.h5", n_coils=n) for n in (2, 3)]
    with pytest.raises(UldaError, match="different sizes"):
        import_domain([tmp_path / "data"], tmp_path / "out.h5")
    options = ImportOptions(combine_coils=True, normalisation="none")
    import_domain([tmp_path / "data"], tmp_path / "out.h5", options)
    domain = Domain.open(tmp_path / "out.h5")
    assert (domain.header.kind, domain.header.kspace_origin) == ("magnitude", "simulated")
    expected = [np.sqrt((np.abs(slices.numpy()) ** 2).sum(axis=1)) for slices in images]
    stored = [image.abs().numpy() for image in domain.images()]
    np.testing.assert_allclose(stored, np.concatenate(expected), rtol=1e-5)


def test_undersampled_coils_are_not_combined_and_single_coils_stay(tmp_path: Path) -> None:
    volume(tmp_path / "one.h5", n_coils=1)
    import_domain([tmp_path / "one.h5"], tmp_path / "out.h5", ImportOptions(combine_coils=True))
    assert Domain.open(tmp_path / "out.h5").header.kind == "kspace"
    volume(tmp_path / "few.h5", n_coils=2, mask=np.arange(8) % 2)
    with pytest.raises(UldaError, match=r"few\.h5 arrived undersampled"):
        import_domain([tmp_path / "few.h5"], tmp_path / "other.h5", ImportOptions(combine_coils=True))


@pytest.mark.parametrize("kind", ["picture", "kspace"])
def test_small_slices_are_enlarged_or_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "small"
    if kind == "picture":
        picture(path / "a.png")
    else:
        volume(path / "a.h5")
    with pytest.raises(UldaError, match=r"a slice of a\.(png|h5) is 8 x 8, but 6 x 12 is needed"):
        import_domain([path], tmp_path / "out.h5", ImportOptions(size=(6, 12), enlarge=False))
    assert not (tmp_path / "out.h5").exists()
    import_domain([path], tmp_path / "out.h5", ImportOptions(size=(12, 12)))
    assert Domain.open(tmp_path / "out.h5").shape == (12, 12)
    import_domain([path], tmp_path / "less.h5", ImportOptions(size=(6, 8), enlarge=False))
    assert Domain.open(tmp_path / "less.h5").shape == (6, 8)


def test_an_enlarged_picture_has_the_same_centre_of_kspace(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(1, 255, (8, 8)).astype(np.uint8)
    Image.fromarray(values).save(tmp_path / "a.png")
    options = ImportOptions(size=(32, 32), normalisation="none")
    import_domain([tmp_path / "a.png"], tmp_path / "out.h5", options)
    wide = fourier_resize(torch.from_numpy(values.astype(np.float32)).to(torch.complex64), (32, 32))
    # pixels of the picture are every fourth one of the enlarged picture
    np.testing.assert_allclose(wide[::4, ::4].abs().numpy(), values, rtol=1e-4)
    np.testing.assert_allclose(Domain.open(tmp_path / "out.h5").image(0).abs().numpy(), wide.abs().numpy(), rtol=1e-4)
