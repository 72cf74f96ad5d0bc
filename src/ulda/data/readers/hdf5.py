"""Open HDF5 files and look at their top level; shared by the formats built on HDF5."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .failures import LOW_LEVEL_ERRORS, reading

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIGNATURE = b"\x89HDF\r\n\x1a\n"

MATLAB_SIGNATURE = b"MATLAB 7.3"


def is_hdf5(path: Path, head: bytes) -> bool:
    """Tell whether the HDF5 signature stands at byte 0, 512, 1024, ... as the format allows."""
    if not path.is_file() or not head:
        return False
    if head.startswith(SIGNATURE) or head[512:520] == SIGNATURE:
        return True
    offset, size = 1024, path.stat().st_size
    with path.open("rb") as file:
        while offset < size:
            file.seek(offset)
            if file.read(len(SIGNATURE)) == SIGNATURE:
                return True
            offset *= 2
    return False


@contextmanager
def open_hdf5(path: Path, what: str) -> Iterator[Any]:
    """Open `path` read-only as an `h5py.File`; failures inside the block become `UldaError`."""
    import h5py

    with reading(path, what), h5py.File(path, "r") as file:
        yield file


@contextmanager
def peek_hdf5(path: Path, head: bytes) -> Iterator[Any]:
    """Open `path` to look at its keys; yields None when it is not HDF5 or is damaged."""
    file = None
    if is_hdf5(path, head):
        import h5py

        try:
            file = h5py.File(path, "r")
        except LOW_LEVEL_ERRORS:
            file = None
    try:
        yield file
    finally:
        if file is not None:
            file.close()


def text(value: object) -> str:
    """Text of an HDF5 attribute, stored as str, bytes or a one-element array."""
    if hasattr(value, "item") and getattr(value, "size", 0) == 1:
        value = value.item()
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
