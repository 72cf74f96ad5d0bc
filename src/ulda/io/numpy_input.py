"""NumPy's own files of others: ``.npy``, and the members of an ``.npz``, checked before they are read."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.lib import format as npy_format

from ulda.errors import UldaError
from ulda.io.untrusted import check_expansion, check_memory, reading, regular_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

NPY_MAGIC = b"\x93NUMPY"
ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")

MOST_MEMBERS = 10_000


def map_npy(path: str | Path) -> NDArray[np.generic]:
    """Map a ``.npy`` file into memory, once it is clear that it is as long as its header says."""
    path = regular_file(path)
    with reading(path, "a NumPy array"):
        with path.open("rb") as file:
            shape, fortran_order, dtype = read_npy_header(path, file)
            start = file.tell()
        expected, size = start + math.prod(shape) * dtype.itemsize, path.stat().st_size
        if size < expected:
            raise UldaError(
                f"{path} is truncated: its header announces {dtype} {shape}, {expected} bytes, but the file has "
                f"{size}; copy or download it again"
            )
        if 0 in shape or dtype.itemsize == 0:
            return np.zeros(shape, dtype)
        order = "F" if fortran_order else "C"
        return np.memmap(path, dtype, "r", start, shape, order)  # type: ignore[call-overload]


def read_npy_header(path: str | Path, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Read the shape, whether it is in Fortran order, and the type; the file stands behind the header then."""
    version = npy_format.read_magic(file)
    if version == (1, 0):
        shape, fortran_order, dtype = npy_format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, fortran_order, dtype = npy_format.read_array_header_2_0(file)
    else:
        raise UldaError(
            f"{path} uses version {version[0]}.{version[1]} of the npy format; expected 1.0 or 2.0, so save "
            "a plain numeric array"
        )
    if dtype.hasobject:
        raise UldaError(
            f"{path} holds pickled Python objects, which are not read because they can run code; "
            "expected a numeric array, so save one with numpy.save(..., allow_pickle=False)"
        )
    if any(isinstance(size, bool) or size < 0 for size in shape):
        raise UldaError(f"{path} announces the impossible shape {shape}; copy or save the file again")
    return shape, fortran_order, dtype


@dataclass(frozen=True)
class Member:
    """An array of an ``.npz``, as its header tells it."""

    name: str
    info: zipfile.ZipInfo
    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[np.generic]


@contextmanager
def open_npz(path: str | Path, what: str) -> Iterator[zipfile.ZipFile]:
    """Open a zip of arrays; failures inside the block become `UldaError`."""
    path = regular_file(path)
    with reading(path, what), zipfile.ZipFile(path) as archive:
        if len(archive.infolist()) > MOST_MEMBERS:
            raise UldaError(f"{path} is refused: it holds more than {MOST_MEMBERS} files; save the arrays alone")
        yield archive


def members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the arrays of an ``.npz`` by name, unread."""
    return {info.filename.removesuffix(".npy"): info for info in archive.infolist() if info.filename.endswith(".npy")}


def read_member_header(path: str | Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
    """Read the header of a member and refuse it when it is a bomb or lies about its size."""
    name = info.filename.removesuffix(".npy")
    check_expansion(path, f"its array {name}", info.file_size, info.compress_size)
    with archive.open(info) as stream:
        shape, fortran_order, dtype = read_npy_header(path, stream)
        expected = stream.tell() + math.prod(shape) * dtype.itemsize
    if expected != info.file_size:
        raise UldaError(
            f"{path} is inconsistent: '{name}' announces {dtype} {shape}, {expected} bytes, but the archive "
            f"stores {info.file_size}; copy or save it again"
        )
    return Member(name, info, shape, fortran_order, dtype)


def read_npz(path: str | Path) -> dict[str, NDArray[np.generic]]:
    """Read all arrays of a small ``.npz``."""
    with open_npz(path, "a NumPy archive") as archive:
        headers = [read_member_header(path, archive, info) for info in members(archive).values()]
        check_memory(path, "the content", sum(header.info.file_size for header in headers))
        return {header.name: read_member(path, archive, header) for header in headers}


@contextmanager
def opened_member(path: str | Path, archive: zipfile.ZipFile, member: Member) -> Iterator[IO[bytes]]:
    """Open a member with the stream standing after its header."""
    with archive.open(member.info) as stream:
        read_npy_header(path, stream)
        yield stream


def read_member(path: str | Path, archive: zipfile.ZipFile, member: Member) -> NDArray[np.generic]:
    """Read a member as a whole."""
    check_memory(path, f"the array {member.name}", member.info.file_size)
    with archive.open(member.info) as stream:
        content = io.BytesIO(stream.read(member.info.file_size + 1))
    return np.asarray(npy_format.read_array(content, allow_pickle=False))
