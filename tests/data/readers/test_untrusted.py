"""Files of others, in every format: what they claim, where they point, how they are damaged."""

from __future__ import annotations

import gzip
import math
import os
import shutil
import struct
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.lib import format as npy_format
from PIL import Image
from scipy import io

from tests.data.readers.small_files import MAIN_ARRAY, SIDE, kspace, nibabel, outsource, store_externally
from tests.data.readers.small_files import write_small_files as write_files
from tests.data.readers.test_dicom import dataset
from tests.data.readers.test_mrd import Scan
from ulda.data.importing import import_domain
from ulda.data.inspection import inspect
from ulda.data.readers import expand, find_reader
from ulda.errors import UldaError


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "files").mkdir()
    return write_files(tmp_path / "files")


def test_all_of_them_are_read(files: dict[str, Path]) -> None:
    for path in files.values():
        (found,) = inspect(path)
        assert found.ok, (path.name, found.findings)
        assert len({find_reader(path).name}) == 1


@pytest.mark.parametrize("name", MAIN_ARRAY)
def test_arrays_in_other_files_are_refused(files: dict[str, Path], name: str, tmp_path: Path) -> None:
    outsource(files[name], MAIN_ARRAY[name])
    with pytest.raises(UldaError, match=rf"{name} is refused: its entry \w+ is a link to another file"):
        import_domain([files[name]], tmp_path / "out.h5")
    assert not inspect(files[name])[0].ok
    assert not (tmp_path / "out.h5").exists()


@pytest.mark.parametrize("name", ["fastmri.h5", "domain.h5", "v73.mat"])
def test_no_byte_of_another_file_gets_into_the_slices(files: dict[str, Path], name: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(np.random.default_rng(0).bytes(10**5))
    store_externally(files[name], MAIN_ARRAY[name], secret)
    with pytest.raises(UldaError, match=rf"{name} is refused: its array \w+ lies in other files"):
        import_domain([files[name]], tmp_path / "out.h5")
    assert not inspect(files[name])[0].ok
    assert not (tmp_path / "out.h5").exists()


def nifti(path: Path, shape: tuple[int, ...], content: bytes = b"") -> Path:
    header = nibabel.Nifti1Header()
    header.set_data_dtype(np.float32)
    header.set_data_shape(shape)
    header["vox_offset"], header["magic"] = 352, b"n+1"
    whole = header.binaryblock + bytes(4) + content
    path.write_bytes(gzip.compress(whole) if path.suffix == ".gz" else whole)
    return path


def claiming_fastmri(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset("kspace", (10, 20_000, 20_000), np.complex64, chunks=(1, 100, 100))
    return path


def claiming_npy(path: Path) -> Path:
    with path.open("wb") as file:
        npy_format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (10**5, 10**5)})
    return path


def claiming_npz(path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("images.npy", "w") as stream:
        npy_format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": (100, 1000, 1000)})
        for _ in range(100):
            stream.write(bytes(10**6))
    return path


def claiming_matlab(path: Path) -> Path:
    io.savemat(path, {"images": np.zeros((200, 1000, 1000), np.uint8)}, do_compression=True)
    return path


def claiming_png(path: Path) -> Path:
    Image.new("1", (9000, 9000)).save(path)
    return path


def claiming_tiff(path: Path) -> Path:
    """Write 2,000 pages that are all the same bytes."""
    Image.fromarray(np.zeros((512, 512), np.uint8)).save(path)
    content = bytearray(path.read_bytes())
    (first,) = struct.unpack_from("<I", content, 4)
    (n_entries,) = struct.unpack_from("<H", content, first)
    directory = bytes(content[first : first + 2 + 12 * n_entries])
    content += bytes(len(content) % 2)
    at = first + len(directory)
    for _ in range(2000):
        struct.pack_into("<I", content, at, len(content))
        content += directory + bytes(4)
        at = len(content) - 4
    path.write_bytes(content)
    return path


def claiming_dicom(path: Path) -> Path:
    header = dataset(path, np.ones((4, 4), np.uint16))
    header.NumberOfFrames, header.Rows, header.Columns = 100_000, 1024, 1024
    header.save_as(path)
    return path


def claiming_mrd(path: Path) -> Path:
    scan = Scan(path, (64, 4096, 4096))
    scan.line(np.ones((8, 4096), np.complex64), 3)
    scan.close()
    return path


def claiming_bart(path: Path) -> Path:
    path.with_suffix(".hdr").write_text("# Dimensions\n30000 30000 1 1\n")
    with path.open("wb") as file:
        file.truncate(8 * 30_000**2)  # no byte of it takes place
    return path


@pytest.mark.parametrize(
    ("craft", "name", "message"),
    [
        (claiming_fastmri, "a.h5", "claims 32 GB, but only 0 bytes are stored"),
        (claiming_npy, "a.npy", "is truncated"),
        (claiming_npz, "a.npz", "claims 100 MB, but only .* are stored"),
        (claiming_matlab, "a.mat", "claims 200 MB, but only .* are stored"),
        (lambda path: nifti(path, (30_000, 30_000, 30)), "a.nii", "is truncated or damaged"),
        (lambda path: nifti(path, (500, 500, 500), bytes(10**6)), "a.nii.gz", "claims 500 MB"),
        (claiming_png, "a.png", "claims 648 MB, but only .* are stored"),
        (claiming_tiff, "a.tif", "claims .* are stored"),
        (claiming_dicom, "a.dcm", "its 100000 frames claims .* GB"),
        (claiming_mrd, "a.h5", "a slice of 64 x 8 x 4096 x 4096 of .* needs"),
        (claiming_bart, "a.cfl", "a slice of 1 x 1 x 30000 x 30000 of .* needs 7.2 GB"),
    ],
)
def test_absurd_claims_are_refused_before_anything_is_read(
    tmp_path: Path, craft: Callable[[Path], Path], name: str, message: str
) -> None:
    path = craft(tmp_path / name)
    start = time.perf_counter()
    with pytest.raises(UldaError, match=message):
        import_domain([path], tmp_path / "out.h5")
    assert time.perf_counter() - start < 10
    assert not (tmp_path / "out.h5").exists()


def test_the_limit_is_an_environment_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "a.npy", np.ones((2, 64, 64), np.float32))
    monkeypatch.setenv("ULDA_MAX_GB", "0.00003")
    with pytest.raises(UldaError, match=r"a slice of 64 x 64 of .*a\.npy needs 32768 bytes, .*ULDA_MAX_GB"):
        find_reader(tmp_path / "a.npy").describe(tmp_path / "a.npy")
    monkeypatch.setenv("ULDA_MAX_GB", "many")
    with pytest.raises(UldaError, match="must be a number of gigabytes, but it is 'many'"):
        find_reader(tmp_path / "a.npy").describe(tmp_path / "a.npy")


def test_loops_of_links_pipes_and_devices_in_folders(files: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "deep").mkdir(parents=True)
    shutil.copy(files["array.npy"], folder / "deep")
    (folder / "deep" / "up").symlink_to(folder)
    (folder / "zero").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe")
    assert [path.name for path, _ in expand([folder])] == ["array.npy"]
    with pytest.raises(UldaError, match="is neither a file nor a folder"):
        find_reader(folder / "zero")
    level = tmp_path
    for _ in range(60):
        level = level / "x"
    level.mkdir(parents=True)
    (level / "a.npy").write_bytes(b"x")
    with pytest.raises(UldaError, match=r"more than .* 40 levels of folders"):
        list(expand([tmp_path / "x"]))


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_of_every_format_are_findings(files: dict[str, Path], tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for name, path in files.items():
        whole = path.read_bytes()
        for number in range(6):
            damaged = bytearray(whole)
            if number % 3 == 0:
                del damaged[int(rng.integers(len(whole))) :]
            for at in rng.integers(min(len(whole), 2000), size=8 if number % 3 else 0):
                damaged[min(int(at), len(damaged) - 1)] = int(rng.integers(256))
            path.write_bytes(damaged)
            for found in inspect(path):
                assert all("\n" not in finding.message for finding in found.findings), name
            with suppress(UldaError):
                import_domain([path], tmp_path / "out.h5", overwrite=True)
        path.write_bytes(whole)


@pytest.mark.parametrize("name", ["fastmri.h5", "domain.h5", "v73.mat", "array.npy", "mrd.h5", "scan.cfl"])
def test_empty_lines_of_kspace_without_a_mask_count_as_not_sampled(files: dict[str, Path], name: str) -> None:
    path = files[name]
    kept = np.arange(SIDE) % 2 == 0
    sampled = kspace(2, SIDE, SIDE) * kept
    if name == "fastmri.h5":
        with h5py.File(path, "r+") as file:
            file["kspace"][...] *= kept
    elif name == "domain.h5":
        with h5py.File(path, "r+") as file:
            file["slices"][...] *= kept[:, None]
    elif name == "v73.mat":
        with h5py.File(path, "r+") as file:
            file["kspace"][1::2] = np.zeros((), file["kspace"].dtype)
    elif name == "mrd.h5":
        scan = Scan(path.with_name("zeros.h5"), (1, SIDE, SIDE))
        for step in range(SIDE):
            scan.line(sampled.swapaxes(-2, -1)[:, step], step)
        scan.close()
        path = path.with_name("zeros.h5")
    elif name == "array.npy":
        np.save(path, sampled)
    else:
        sampled.swapaxes(-2, -1).tofile(path)
    for item in find_reader(path).slices(path):
        assert item.lines is not None
        assert item.lines.tolist() == kept.tolist()
        assert item.lines_are_detected


def test_a_mask_among_the_attributes_is_a_mask(files: dict[str, Path]) -> None:
    kept = np.arange(SIDE) % 4 < 2
    with h5py.File(files["fastmri.h5"], "r+") as file:
        file.attrs["mask"] = kept
    for item in find_reader(files["fastmri.h5"]).slices(files["fastmri.h5"]):
        assert item.lines is not None
        assert item.lines.tolist() == kept.tolist()
        assert not item.lines_are_detected


@pytest.mark.parametrize("value", [3e38, math.inf, math.nan])
def test_absurd_values_are_named_with_slice_and_position(tmp_path: Path, value: float) -> None:
    images = np.ones((3, 8, 8), np.float32)
    images[2, 4, 5] = value
    np.save(tmp_path / "a.npy", images)
    message = r"slice 2 of a\.npy holds 1 NaN, infinite .* at row 4, column 5: (3e\+38|inf|nan)"
    with pytest.raises(UldaError, match=message):
        import_domain([tmp_path / "a.npy"], tmp_path / "out.h5")
    assert not (tmp_path / "out.h5").exists()
    findings = inspect(tmp_path / "a.npy")[0].findings
    assert any("1 values in 1 slices are NaN or infinite, or above" in one.message for one in findings)
