"""HDF5 files that reach out of themselves, or claim what they do not hold, written by the library itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from ulda.errors import UldaError
from ulda.io.hdf5_input import attributes, open_hdf5, texts

SECRET = b"a line of a file that is no business of ours"


def external_storage(file: h5py.File, folder: Path) -> None:
    (folder / "secret.txt").write_bytes(SECRET)
    size = len(SECRET)
    file.create_dataset("found", (size,), np.uint8, external=[(str(folder / "secret.txt"), 0, size)])


def external_link(file: h5py.File, folder: Path) -> None:
    with h5py.File(folder / "other.h5", "w") as other:
        other["data"] = np.frombuffer(SECRET, np.uint8)
    file["found"] = h5py.ExternalLink(str(folder / "other.h5"), "/data")


def soft_link_over_an_external_one(file: h5py.File, folder: Path) -> None:
    with h5py.File(folder / "other.h5", "w") as other:
        other["data"] = np.frombuffer(SECRET, np.uint8)
    file["a/b/elsewhere"] = h5py.ExternalLink(str(folder / "other.h5"), "/")
    file["found"] = h5py.SoftLink("/a/b/elsewhere/data")


def virtual_dataset(file: h5py.File, folder: Path) -> None:
    with h5py.File(folder / "other.h5", "w") as other:
        other["data"] = np.frombuffer(SECRET, np.uint8)
    layout = h5py.VirtualLayout((len(SECRET),), np.uint8)
    layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "data", (len(SECRET),))
    file.create_virtual_dataset("found", layout)


def nested(hide: Callable[[h5py.File, Path], None]) -> Callable[[h5py.File, Path], None]:
    def deeper(file: h5py.File, folder: Path) -> None:
        hide(file.create_group("/".join("abcdefgh")), folder)

    return deeper


def unknown_filter(file: h5py.File, _: Path) -> None:
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_chunk((8,))
    plan.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, ())
    space = h5py.h5s.create_simple((8,))
    h5py.h5d.create(file.id, b"found", h5py.h5t.NATIVE_UINT8, space, plan).write(
        h5py.h5s.ALL, h5py.h5s.ALL, np.zeros(8, np.uint8)
    )


def never_written(file: h5py.File, _: Path) -> None:
    file.create_dataset("found", (10**6, 10**6), np.complex64, chunks=(1000, 1000))


def zeros_packed(file: h5py.File, _: Path) -> None:
    file.create_dataset("found", data=np.zeros(10**8, np.uint8), compression="gzip", chunks=(10**7,))


def one_huge_chunk(file: h5py.File, _: Path) -> None:
    file.create_dataset("found", (4,), np.uint8, maxshape=(None,), chunks=(10**9,))


@pytest.mark.parametrize(
    ("craft", "message"),
    [
        (external_storage, "its array found lies in other files"),
        (nested(external_storage), "its array found lies in other files"),
        (external_link, "its entry found is a link to another file"),
        (soft_link_over_an_external_one, "its entry elsewhere is a link to another file"),
        (virtual_dataset, "its array found is put together of other files"),
        (unknown_filter, "its array found is packed with the filter 32015"),
        (never_written, "its array found claims 8000 GB, but only 0 bytes are stored"),
        (zeros_packed, "its array found claims 100 MB, but only .* are stored"),
        (one_huge_chunk, "a chunk of its array found claims 1 GB"),
    ],
)
def test_what_lies_elsewhere_or_nowhere_is_refused(
    tmp_path: Path, craft: Callable[[h5py.File, Path], None], message: str
) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        craft(file, tmp_path)
    with pytest.raises(UldaError, match=message), open_hdf5(path):
        pytest.fail("it was opened")


def test_links_within_the_file_are_followed_and_loops_end(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["group/data"] = np.arange(5)
        file["group/again"] = file["/"]
        file["soft"] = h5py.SoftLink("/group/data")
        file["round"] = h5py.SoftLink("/round")
    with open_hdf5(path) as file:
        assert file["soft"][()].tolist() == [0, 1, 2, 3, 4]
        assert file["group/again/group/data"][()].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(UldaError, match=r"a\.h5 cannot be read as HDF5"), open_hdf5(path) as file:
        file["round"][()]


def test_groups_in_groups_need_no_recursion(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        group = file["/"]
        for _ in range(3000):
            group = group.create_group("g")
    start = time.perf_counter()
    with open_hdf5(path) as file:
        assert list(file) == ["g"]
    assert time.perf_counter() - start < 10


def test_many_names_of_one_long_text_are_not_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["short"] = ["one", "two"]
        file.create_dataset("long", (300,), h5py.string_dtype())
        file["long"][...] = "x" * 2**18
        file.attrs["many"] = ["a", "b"]
        file.attrs["one"] = "knee"
        file["numbers"] = np.arange(3)
    with open_hdf5(path) as file:
        assert texts(file["short"]) == ["one", "two"]
        assert attributes(file) == {"one": "knee"}
        with pytest.raises(ValueError, match="more than 67108864 characters"):
            texts(file["long"])
        with pytest.raises(ValueError, match="holds no texts"):
            texts(file["numbers"])


def test_pipes_devices_folders_and_damaged_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text.h5").write_text("no HDF5")
    for path, message in (
        (tmp_path / "pipe", "is a device or a pipe"),
        (Path("/dev/zero"), "is a device or a pipe"),
        (tmp_path, "is a folder"),
        (tmp_path / "none.h5", "there is no file"),
        (Path("a\0b"), "is no path of a file|there is no file"),
        (tmp_path / "text.h5", "cannot be read as HDF5"),
    ):
        with pytest.raises(UldaError, match=message), open_hdf5(path):
            pytest.fail("it was opened")
