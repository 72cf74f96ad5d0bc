"""NumPy's own files: ``.npy`` memory-mapped, ``.npz`` streamed out of the zip slice by slice."""

from __future__ import annotations

import math
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.lib import format as npy_format

from ulda.errors import UldaError

from .arrays import (
    bare_slice,
    check_numeric,
    choose_variable,
    convert,
    notes_on,
    resolve_kind,
    stack_of,
)
from .base import Description, Kind, KindChoice, Reader, Slice
from .failures import LOW_LEVEL_ERRORS, reading

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from .arrays import Stack

NPY_MAGIC = b"\x93NUMPY"
ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")

MAX_EXPANSION = 200
"""A member that grows more than this many times is taken for a zip bomb, if it is also large."""

LARGE_MEMBER = 64 * 2**20
"""Members up to this size are harmless whatever their expansion."""

LABELS = ("subject", "contrast", "split")
"""Text arrays of an npz with one entry for each slice."""


class NpyReader(Reader):
    """One array in ``.npy``: (H, W), (slices, H, W), or (slices, coils, H, W) for k-space."""

    name = "NumPy array (.npy)"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Tell by the magic bytes."""
        return path.is_file() and head.startswith(NPY_MAGIC)

    def describe(self, path: Path, kind: KindChoice = "auto") -> Description:
        """Describe from the header, and one slice if the kind has to be guessed."""
        with reading(path, self.name):
            array = _map(path)
            stack = stack_of(path, array.shape)
            resolved = _npy_kind(path, array, stack, kind)
            return Description(
                self.name,
                resolved,
                stack.n_slices,
                stack.slice_shape,
                str(array.dtype),
                notes=notes_on(array.shape),
            )

    def slices(self, path: Path, kind: KindChoice = "auto") -> Iterator[Slice]:
        """Read one slice at a time through a memory map."""
        with reading(path, self.name):
            array = _map(path)
            stack = stack_of(path, array.shape)
            resolved = _npy_kind(path, array, stack, kind)
            for index in range(stack.n_slices):
                plane = array if array.ndim == 2 else array[index]
                yield bare_slice(path, convert(plane, resolved), resolved)


class NpzReader(Reader):
    """An ``.npz`` with ``images`` or ``kspace`` and, if known, subject, contrast and split of each slice."""

    name = "NumPy archive (.npz)"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Tell by the zip magic and members that are arrays; the suffix decides for damaged archives."""
        if not path.is_file() or not head.startswith(ZIP_MAGICS):
            return False
        if path.suffix.lower() == ".npz":
            return True
        try:
            with zipfile.ZipFile(path) as archive:
                return any(name.endswith(".npy") for name in archive.namelist())
        except LOW_LEVEL_ERRORS:
            return False

    def describe(self, path: Path, kind: KindChoice = "auto") -> Description:
        """Describe from the headers of the members."""
        with reading(path, self.name), zipfile.ZipFile(path) as archive:
            member = _main_member(path, archive, kind)
            stack = stack_of(path, member.shape)
            resolved = _npz_kind(path, archive, member, stack, kind)
            labels = _labels(path, archive, stack.n_slices)
            attributes = {"variable": member.name}
            attributes |= {f"{label}s": str(len(set(values))) for label, values in labels.items()}
            return Description(
                self.name,
                resolved,
                stack.n_slices,
                stack.slice_shape,
                str(member.dtype),
                attributes,
                notes_on(member.shape),
            )

    def slices(self, path: Path, kind: KindChoice = "auto") -> Iterator[Slice]:
        """Decompress one slice at a time."""
        with reading(path, self.name), zipfile.ZipFile(path) as archive:
            member = _main_member(path, archive, kind)
            stack = stack_of(path, member.shape)
            resolved = _npz_kind(path, archive, member, stack, kind)
            labels = _labels(path, archive, stack.n_slices)
            with _opened(path, archive, member) as stream:
                for index in range(stack.n_slices):
                    plane = _next_plane(path, stream, member, stack)
                    known = {label: values[index] for label, values in labels.items()}
                    yield bare_slice(path, convert(plane, resolved), resolved, **known)


def _map(path: Path) -> NDArray[np.generic]:
    with path.open("rb") as file:
        shape, _, dtype = _read_header(path, file)
        expected = file.tell() + math.prod(shape) * dtype.itemsize
    size = path.stat().st_size
    if size < expected:
        raise UldaError(
            f"{path} is truncated: its header announces {dtype} {shape}, {expected} bytes, but the file has "
            f"{size}; copy or download it again"
        )
    stack_of(path, shape)
    array: NDArray[np.generic] = npy_format.open_memmap(path, mode="r")
    return array


def _npy_kind(path: Path, array: NDArray[np.generic], stack: Stack, kind: KindChoice) -> Kind:
    def middle() -> NDArray[np.generic]:
        return array if array.ndim == 2 else array[stack.n_slices // 2]

    return resolve_kind(path, array.dtype, len(stack.slice_shape), kind, middle)


def _read_header(path: Path, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
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
    if any(size < 0 for size in shape):
        raise UldaError(f"{path} announces the impossible shape {shape}; copy or save the file again")
    return shape, fortran_order, dtype


@dataclass(frozen=True)
class _Member:
    name: str
    info: zipfile.ZipInfo
    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[np.generic]


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    """Read the header of a member and refuse it when it is a bomb or lies about its size."""
    name = info.filename.removesuffix(".npy")
    if info.file_size > LARGE_MEMBER and info.file_size > MAX_EXPANSION * max(1, info.compress_size):
        raise UldaError(
            f"{path} looks like a zip bomb: '{name}' would grow from {info.compress_size} to "
            f"{info.file_size} bytes (more than {MAX_EXPANSION}-fold); if it is genuine, save it "
            "uncompressed with numpy.savez"
        )
    with archive.open(info) as stream:
        shape, fortran_order, dtype = _read_header(path, stream)
        expected = stream.tell() + math.prod(shape) * dtype.itemsize
    if expected != info.file_size:
        raise UldaError(
            f"{path} is inconsistent: '{name}' announces {dtype} {shape}, {expected} bytes, but the archive "
            f"stores {info.file_size}; copy or save it again"
        )
    return _Member(name, info, shape, fortran_order, dtype)


def _main_member(path: Path, archive: zipfile.ZipFile, kind: KindChoice) -> _Member:
    infos = {info.filename.removesuffix(".npy"): info for info in archive.infolist() if info.filename.endswith(".npy")}
    known: list[str] = [name for name in ("images", "kspace") if name in infos]
    names = known or [name for name in infos if name not in LABELS]
    members = {name: _member(path, archive, infos[name]) for name in names}
    candidates = {
        name: member.shape
        for name, member in members.items()
        if name in known or (len(member.shape) >= 2 and member.dtype.kind in "biufc")
    }
    member = members[choose_variable(path, candidates, kind)]
    check_numeric(path, member.dtype)
    if member.fortran_order and len(member.shape) > 2:
        raise UldaError(
            f"{path} stores '{member.name}' in Fortran order, which cannot be streamed slice by slice; "
            "save it again as numpy.ascontiguousarray(array)"
        )
    return member


@contextmanager
def _opened(path: Path, archive: zipfile.ZipFile, member: _Member) -> Iterator[IO[bytes]]:
    """Open a member with the stream standing after its header."""
    with archive.open(member.info) as stream:
        _read_header(path, stream)
        yield stream


def _next_plane(path: Path, stream: IO[bytes], member: _Member, stack: Stack) -> NDArray[np.generic]:
    count = math.prod(stack.slice_shape)
    data = stream.read(count * member.dtype.itemsize)
    if len(data) < count * member.dtype.itemsize:
        raise UldaError(f"{path} ends in the middle of '{member.name}'; copy or download it again")
    plane: NDArray[np.generic] = np.frombuffer(data, member.dtype, count)
    if member.fortran_order:
        return plane.reshape(stack.slice_shape[::-1]).transpose()
    return plane.reshape(stack.slice_shape)


def _npz_kind(path: Path, archive: zipfile.ZipFile, member: _Member, stack: Stack, kind: KindChoice) -> Kind:
    def middle() -> NDArray[np.generic]:
        with _opened(path, archive, member) as stream:
            for _ in range(stack.n_slices // 2):
                _next_plane(path, stream, member, stack)
            return _next_plane(path, stream, member, stack)

    return resolve_kind(path, member.dtype, len(stack.slice_shape), kind, middle, member.name)


def _labels(path: Path, archive: zipfile.ZipFile, n_slices: int) -> dict[str, list[str]]:
    labels: dict[str, list[str]] = {}
    for label in LABELS:
        try:
            info = archive.getinfo(f"{label}.npy")
        except KeyError:
            continue
        member = _member(path, archive, info)
        if member.shape != (n_slices,):
            raise UldaError(f"{path} has '{label}' of shape {member.shape}; expected ({n_slices},), one for each slice")
        with archive.open(info) as stream:
            values = npy_format.read_array(stream, allow_pickle=False)
        labels[label] = [
            value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in values.tolist()
        ]
    return labels
