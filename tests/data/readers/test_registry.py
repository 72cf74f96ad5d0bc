from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from ulda.data.readers import READERS, expand, find_reader
from ulda.data.readers.fastmri import FastMRIReader
from ulda.data.readers.numpy_files import NpyReader
from ulda.data.readers.pictures import PicturesReader
from ulda.errors import UldaError

READ_AS_NOBODY = """
import os, sys
from pathlib import Path
from ulda.data.readers import find_reader
from ulda.errors import UldaError
os.setgid(65534)  # nobody
os.setuid(65534)
try:
    find_reader(Path(sys.argv[1]))
except UldaError as error:
    print(error)
"""


def write_fastmri(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file["kspace"] = np.ones((2, 32, 32), np.complex64)
    return path


def test_names_are_unique() -> None:
    assert len({reader.name for reader in READERS}) == len(READERS)


def test_content_decides_not_the_suffix(tmp_path: Path) -> None:
    path = write_fastmri(tmp_path / "scan.txt")
    assert isinstance(find_reader(path), FastMRIReader)
    np.save(tmp_path / "a.npy", np.ones((2, 2)))
    assert isinstance(find_reader((tmp_path / "a.npy").rename(tmp_path / "a.h5")), NpyReader)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.h5", b"this is text\n", "a.h5 looks like plain text; expected one of: .*fastMRI HDF5"),
        ("a.h5", b"", "is an empty file"),
        ("a.npy", pickle.dumps([1, 2]), "Python pickle, which is not read"),
        ("a.nii.gz", b"\x1f\x8b\x08\x00" + bytes(40), "gzipped data other than NIfTI"),
        ("a.bin", bytes(range(128, 256)) * 9, "unknown binary data|Python pickle"),
        ("a.hdr", b"# Dimensions\n4 4\n", "a .cfl and a .hdr side by side"),
    ],
)
def test_unrecognised_files_say_what_they_look_like(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UldaError, match=message):
        find_reader(path)


def test_missing_paths_and_empty_folders(tmp_path: Path) -> None:
    with pytest.raises(UldaError, match="does not exist"):
        find_reader(tmp_path / "nothing.h5")
    with pytest.raises(UldaError, match="is an empty folder"):
        find_reader(tmp_path)
    with pytest.raises(UldaError, match="is an empty folder"):
        list(expand([tmp_path]))
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(UldaError, match=r"holds neither DICOM files nor pictures; its contents are a\.txt"):
        find_reader(tmp_path)
    with pytest.raises(UldaError, match="holds no file of a known format"):
        list(expand([tmp_path]))


def test_pipes_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UldaError, match="neither a file nor a folder"):
        find_reader(tmp_path / "pipe")


def test_hdf5_of_another_layout_lists_its_keys(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["signal"] = np.ones(3)
        file["time"] = np.ones(3)
    with pytest.raises(UldaError, match=r"it holds signal, time; expected 'kspace' \(fastMRI\)"):
        find_reader(path)


def test_truncated_hdf5_is_not_passed_over(tmp_path: Path) -> None:
    path = write_fastmri(tmp_path / "a.h5")
    path.write_bytes(path.read_bytes()[:-1000])
    for call in (lambda: find_reader(path), lambda: list(expand([tmp_path]))):
        with pytest.raises(UldaError, match=r"a\.h5 cannot be read as HDF5 .*truncated"):
            call()
    with pytest.raises(UldaError, match="truncated"):
        list(FastMRIReader().slices(path))


def test_expand_walks_folders_sorted_and_passes_over_other_files(tmp_path: Path) -> None:
    (tmp_path / "b" / "deep").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    pictures = tmp_path / "c"
    pictures.mkdir()
    Image.new("L", (4, 4)).save(pictures / "1.png")
    first = write_fastmri(tmp_path / "b" / "deep" / "x.h5")
    second = write_fastmri(tmp_path / "a.h5")
    (tmp_path / "notes.txt").write_text("text")
    (tmp_path / "zero.h5").write_bytes(b"")
    found = list(expand([tmp_path, second]))
    assert [path for path, _ in found] == [second, first, pictures]
    assert isinstance(found[2][1], PicturesReader)


def test_pictures_next_to_data_are_refused_rather_than_guessed(tmp_path: Path) -> None:
    Image.new("L", (4, 4)).save(tmp_path / "preview.png")
    write_fastmri(tmp_path / "scan.h5")
    with pytest.raises(UldaError, match=r"also fastMRI HDF5 data \(scan\.h5\)"):
        list(expand([tmp_path]))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_no_permission(tmp_path: Path) -> None:
    path = write_fastmri(tmp_path / "a.h5")
    path.chmod(0)
    with pytest.raises(UldaError, match="permission denied"):
        find_reader(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_no_permission_as_another_user() -> None:
    # Not in tmp_path, whose parents other users may not enter.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        path = write_fastmri(folder / "a.h5")
        path.chmod(0)
        result = subprocess.run(
            [sys.executable, "-c", READ_AS_NOBODY, str(path)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3] / "src")},
        )
    assert "a.h5 cannot be read: permission denied" in result.stdout
