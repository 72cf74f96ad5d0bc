from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ulda.data.readers import expand, find_reader
from ulda.data.readers.bart import BartReader
from ulda.errors import UldaError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

BART = shutil.which("bart")
needs_bart = pytest.mark.skipif(BART is None, reason="bart is not installed")


def write_cfl(stem: Path, array: NDArray[np.generic]) -> Path:
    dimensions = " ".join(str(size) for size in array.shape)
    stem.with_name(stem.name + ".hdr").write_text(f"# Dimensions\n{dimensions} \n# Command\nphantom\n")
    cfl = stem.with_name(stem.name + ".cfl")
    cfl.write_bytes(np.asarray(array, "<c8").tobytes(order="F"))
    return cfl


def noise(*shape: int) -> NDArray[np.complex64]:
    rng = np.random.default_rng(0)
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(np.complex64)


def bart(folder: Path, *arguments: str) -> None:
    assert BART is not None
    subprocess.run([BART, *arguments], cwd=folder, check=True, capture_output=True)


@needs_bart
def test_kspace_phantom_reconstructs_to_the_image_phantom(tmp_path: Path) -> None:
    bart(tmp_path, "phantom", "-x", "64", "image")
    bart(tmp_path, "phantom", "-x", "64", "-k", "-s", "4", "kspace")
    bart(tmp_path, "fft", "-i", "-u", "3", "kspace", "coils")
    bart(tmp_path, "rss", "8", "coils", "combined")
    (image,) = BartReader().slices(tmp_path / "image.cfl")
    (kspace,) = BartReader().slices(tmp_path / "kspace.hdr")
    (combined,) = BartReader().slices(tmp_path / "combined", "magnitude")
    assert (image.kind, image.array.shape) == ("complex", (64, 64))
    assert (kspace.kind, kspace.array.shape, kspace.phase_axis) == ("kspace", (4, 64, 64), -1)
    axes = (-2, -1)
    coils = np.fft.fftshift(np.fft.ifft2(np.fft.ifftshift(kspace.array, axes), axes=axes, norm="ortho"), axes)
    ours = np.sqrt((np.abs(coils) ** 2).sum(0))
    np.testing.assert_allclose(ours, np.asarray(combined.array, np.float32), atol=1e-5 * float(ours.max()))


@needs_bart
def test_partitions_of_3d_kspace_become_slices_as_bart_transforms_them(tmp_path: Path) -> None:
    bart(tmp_path, "phantom", "-3", "-x", "16", "-k", "kspace")
    bart(tmp_path, "fft", "-i", "-u", "4", "kspace", "hybrid")
    hybrid = np.fromfile(tmp_path / "hybrid.cfl", "<c8").reshape((16, 16, 16), order="F")
    slices = list(BartReader().slices(tmp_path / "kspace.cfl"))
    assert len(slices) == 16
    for index, item in enumerate(slices):
        found = np.asarray(item.array, np.complex64)
        np.testing.assert_allclose(found, hybrid[:, :, index], atol=1e-5 * float(np.abs(hybrid).max()))


def test_slices_echoes_and_coils_land_where_they_belong(tmp_path: Path) -> None:
    data = noise(6, 5, 1, 3, 1, 2, 1, 1, 1, 1, 1, 1, 1, 4)
    path = write_cfl(tmp_path / "a", data)
    slices = list(BartReader().slices(path, "kspace"))
    assert [item.contrast for item in slices] == ["te0"] * 4 + ["te1"] * 4
    np.testing.assert_array_equal(slices[6].array, data[:, :, 0, :, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2].transpose(2, 0, 1))
    assert BartReader().describe(path, "kspace").n_slices == 8


def test_third_dimension_of_images_is_slices(tmp_path: Path) -> None:
    data = noise(4, 5, 3)
    slices = list(BartReader().slices(write_cfl(tmp_path / "a", data), "complex"))
    np.testing.assert_array_equal(np.stack([item.array for item in slices], -1), data)


def test_missing_lines_are_reported(tmp_path: Path) -> None:
    data = noise(4, 6)
    data[:, [1, 3]] = 0
    (item,) = BartReader().slices(write_cfl(tmp_path / "a", data), "kspace")
    assert item.lines is not None
    assert item.lines.tolist() == [True, False, True, False, True, True]
    volume = noise(4, 6, 2)
    volume[:, 1, 0] = 0
    with pytest.raises(UldaError, match="3-D k-space with missing lines"):
        list(BartReader().slices(write_cfl(tmp_path / "b", volume), "kspace"))


def test_either_file_or_the_stem_is_recognised_and_expanded_once(tmp_path: Path) -> None:
    path = write_cfl(tmp_path / "my.scan", noise(4, 4))
    for given in (path, path.with_suffix(".hdr"), tmp_path / "my.scan"):
        assert isinstance(find_reader(given), BartReader)
    assert len(list(expand([path, path.with_suffix(".hdr")]))) == 1
    assert [found for found, _ in expand([tmp_path])] == [path]


def test_bad_pairs(tmp_path: Path) -> None:
    path = write_cfl(tmp_path / "a", noise(4, 4))
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(UldaError, match=r"120 bytes, but a\.hdr announces 128"):
        list(BartReader().slices(path))
    path.with_suffix(".hdr").unlink()
    with pytest.raises(UldaError, match="side by side"):
        find_reader(path)
    with pytest.raises(UldaError, match="half of a BART pair"):
        list(BartReader().slices(path))
    spokes = write_cfl(tmp_path / "radial", noise(1, 32, 8))
    with pytest.raises(UldaError, match="non-Cartesian"):
        list(BartReader().slices(spokes))
    coils = write_cfl(tmp_path / "coils", noise(4, 4, 1, 2))
    with pytest.raises(UldaError, match="combine the coils"):
        list(BartReader().slices(coils, "complex"))
