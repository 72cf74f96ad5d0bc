from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest
from scipy import io

from ulda.data.readers import find_reader
from ulda.data.readers.matlab import Matlab5Reader, Matlab73Reader
from ulda.errors import MissingExtraError, UldaError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def write_73(path: Path, variables: dict[str, NDArray[np.generic]], classes: dict[str, str]) -> Path:
    """Write as MATLAB does: user block of 512 bytes, axes reversed, complex as a record."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, value in variables.items():
            stored = value.transpose()
            if value.dtype.kind == "c":
                real = value.real.dtype
                record = np.empty(stored.shape, [("real", real), ("imag", real)])
                record["real"], record["imag"] = stored.real, stored.imag
                stored = record
            file[name] = stored
            file[name].attrs["MATLAB_class"] = np.bytes_(classes.get(name, "double"))
    with path.open("r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64, Created on: Mon Jan 1 2024 HDF5 schema 1.00 .")
    return path


def test_version_5_keeps_the_axis_order(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    images = np.arange(24, dtype=np.uint16).reshape(2, 3, 4)
    io.savemat(path, {"volume": images, "TR": 3.0, "label": "text", "axis": np.arange(5.0)})
    reader = find_reader(path)
    assert isinstance(reader, Matlab5Reader)
    slices = list(reader.slices(path))
    np.testing.assert_array_equal(np.stack([item.array for item in slices]), images)
    assert reader.describe(path).attributes["variable"] == "volume"


def test_version_73_transposes_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    kspace = rng.normal(size=(2, 3, 4, 5)) + 1j * rng.normal(size=(2, 3, 4, 5))
    text_codes = np.array([[104, 105], [106, 107]], np.uint16)
    path = write_73(tmp_path / "a.mat", {"kspace": kspace, "note": text_codes}, {"note": "char"})
    reader = find_reader(path)
    assert isinstance(reader, Matlab73Reader)
    slices = list(reader.slices(path))
    np.testing.assert_allclose(np.stack([item.array for item in slices]), kspace.astype(np.complex64))
    assert {item.kind for item in slices} == {"kspace"}
    description = reader.describe(path)
    assert (description.n_slices, description.shape, description.dtype) == (2, (3, 4, 5), "complex128")


def test_version_73_single_image_and_text_left_out(tmp_path: Path) -> None:
    image = np.arange(6, dtype=np.float32).reshape(2, 3)
    codes = np.array([[1, 2], [3, 4]], np.uint16)
    path = write_73(tmp_path / "a.mat", {"slab": image, "note": codes}, {"slab": "single", "note": "char"})
    (item,) = Matlab73Reader().slices(path)
    np.testing.assert_array_equal(item.array, image)


@pytest.mark.parametrize("version", ["5", "7.3"])
def test_ambiguous_variables_are_listed_and_known_names_preferred(tmp_path: Path, version: str) -> None:
    path = tmp_path / "a.mat"
    variables: dict[str, NDArray[np.generic]] = {"first": np.ones((2, 3)), "second": np.ones((4, 5))}

    def write() -> None:
        if version == "5":
            io.savemat(path, variables)
        else:
            write_73(path, variables, {})

    write()
    with pytest.raises(UldaError, match=r"first \(2, 3\), second \(4, 5\)"):
        list(find_reader(path).slices(path))
    variables["img"] = np.full((2, 2), 7.0)
    write()
    (item,) = find_reader(path).slices(path)
    assert (item.array == 7).all()


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    io.savemat(path, {"img": np.random.default_rng(0).normal(size=(64, 64))})
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(UldaError, match=r"a\.mat cannot be read"):
        list(find_reader(path).slices(path))
    write_73(path, {"img": np.ones((64, 64))}, {})
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(UldaError, match=r"a\.mat cannot be read"):
        list(find_reader(path).slices(path))


def test_without_scipy_the_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.mat"
    io.savemat(path, {"img": np.ones((4, 4))})
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(MissingExtraError, match=r'pip install "ulda\[matlab\]"'):
        list(find_reader(path).slices(path))
