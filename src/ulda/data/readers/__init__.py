"""Readers of file formats; `find_reader` picks the one for a path by looking at its content."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ulda.errors import UldaError
from ulda.io.hdf5_input import is_hdf5, open_hdf5
from ulda.io.untrusted import Walk, is_low_level, permission_error, reading

from .arrays import some_of
from .bart import BartReader, bart_pair
from .base import HEAD_BYTES, Description, Kind, KindChoice, Reader, Slice
from .dicom import DicomReader
from .domain_file import DomainFileReader
from .fastmri import FastMRIReader
from .matlab import Matlab5Reader, Matlab73Reader
from .mrd import MRDReader
from .nifti import NiftiReader
from .numpy_files import NpyReader, NpzReader
from .pictures import PicturesReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["READERS", "Description", "Kind", "KindChoice", "Reader", "Slice", "expand", "find_reader"]

READERS: tuple[Reader, ...] = (
    DomainFileReader(),
    Matlab73Reader(),
    FastMRIReader(),
    MRDReader(),
    Matlab5Reader(),
    NiftiReader(),
    DicomReader(),
    NpyReader(),
    NpzReader(),
    PicturesReader(),
    BartReader(),
)
"""In order of recognition: what is told by a signature first, pairs of bare files last."""


def find_reader(path: Path) -> Reader:
    """Find the reader for a file or a folder by its content.

    Raises
    ------
    ulda.errors.UldaError
        When `path` does not exist, is empty, may not be read, or is of no known format.
    """
    reader = _match(path)
    if reader is not None:
        return reader
    if path.is_dir():
        raise UldaError(
            f"{path} holds neither DICOM files nor pictures; its contents are {some_of(_names(path))}, "
            "so name the data files in it"
        )
    raise UldaError(_why_not(path, _head(path)))


def expand(paths: Iterable[Path]) -> Iterator[tuple[Path, Reader]]:
    """Turn files and folders into what can be read, each thing once.

    A folder of DICOM files or of pictures is one item; of any other folder, every readable file
    in it and below, sorted. Files of no known format inside a folder are passed over, damaged ones
    and ones without permission are not.

    Raises
    ------
    ulda.errors.UldaError
        When a named file is of no known format, or a folder holds nothing that is.
    """
    seen: set[Path] = set()
    for path in paths:
        found = list(_walk(path, Walk(path))) if path.is_dir() else [(path, find_reader(path))]
        if not found:
            raise UldaError(
                f"{path} holds no file of a known format; its contents are {some_of(_names_in(path))}, and "
                f"expected are {_formats()}"
            )
        for item, reader in found:
            pair = bart_pair(item) if isinstance(reader, BartReader) else None
            identity = (pair[0] if pair else item).resolve()
            if identity not in seen:
                seen.add(identity)
                yield item, reader


def _walk(folder: Path, walk: Walk) -> Iterator[tuple[Path, Reader]]:
    """Give what is readable in a folder that exists."""
    children = walk.children(folder)
    reader = _match(folder) if children else None
    if reader is not None:
        _refuse_mixture(folder, reader)
        yield folder, reader
        return
    for child in children:
        if child.is_dir():
            yield from _walk(child, walk)
        elif child.is_file() and child.stat().st_size:
            reader = _match(child)
            if reader is not None:
                yield child, reader
            elif is_hdf5(child, _head(child)):
                _refuse_damaged_hdf5(child)


def _refuse_mixture(folder: Path, reader: Reader) -> None:
    """Refuse a folder of pictures that also holds data, which would be passed over in silence."""
    if not isinstance(reader, PicturesReader):
        return
    for child in sorted(folder.iterdir()):
        other = _match(child) if child.is_file() and child.stat().st_size else None
        if other is not None and not isinstance(other, PicturesReader):
            raise UldaError(
                f"{folder} holds pictures and also {other.name} data ({child.name}); name the files to "
                f"import, e.g. {folder}/*{child.suffix}"
            )


def _match(path: Path) -> Reader | None:
    """Ask every reader; raises when there is nothing to look at."""
    try:
        if path.is_dir():
            _names_in(path)
            head = b""
        elif path.exists():
            head = _head(path)
            if not head:
                raise UldaError(f"{path} is an empty file; copy or download it again")
        elif bart_pair(path) is None:
            raise UldaError(f"{path} does not exist; check the path for typing errors")
        else:
            head = b""
        return next((reader for reader in READERS if _recognises(reader, path, head)), None)
    except PermissionError as error:
        raise permission_error(path) from error


def _recognises(reader: Reader, path: Path, head: bytes) -> bool:
    """Ask a reader; a file that is damaged for one format may be whole for another."""
    try:
        return reader.recognises(path, head)
    except PermissionError:
        raise
    except Exception as error:
        if isinstance(error, UldaError) or is_low_level(error):
            return False
        raise


def _head(path: Path) -> bytes:
    if not path.is_file():  # opening a pipe would wait for ever
        raise UldaError(f"{path} is neither a file nor a folder; expected one of them")
    with reading(path, "a file", "check what it is"), path.open("rb") as file:
        return file.read(HEAD_BYTES)


def _names(folder: Path) -> list[str]:
    with reading(folder, "a folder", "check what it is"):
        return sorted(child.name for child in folder.iterdir())


def _names_in(folder: Path) -> list[str]:
    """Return what is in a folder that should hold data."""
    names = _names(folder)
    if not names:
        raise UldaError(f"{folder} is an empty folder; expected data files in it")
    return names


def _formats() -> str:
    return ", ".join(reader.name for reader in READERS)


def _refuse_damaged_hdf5(path: Path) -> None:
    """Raise what HDF5 says about a file it cannot open."""
    with open_hdf5(path):
        pass


def _why_not(path: Path, head: bytes) -> str:
    """Say what an unrecognised file looks like and what was expected."""
    if is_hdf5(path, head):
        with open_hdf5(path) as file:
            keys = list(file)
        return (
            f"{path} is HDF5 of no known layout: it holds {some_of(keys)}; expected 'kspace' (fastMRI), a "
            "group with 'xml' and 'data' (ISMRMRD), or the attribute format='ulda-domain' (a domain file)"
        )
    advice = ""
    if path.suffix.lower() in (".cfl", ".hdr"):
        advice = "; BART data is a .cfl and a .hdr side by side, with a line '# Dimensions' in the .hdr"
    return f"{path} looks like {_looks_like(head)}; expected one of: {_formats()}{advice}"


def _looks_like(head: bytes) -> str:
    signatures = {
        b"PK": "a zip archive without arrays",
        b"\x1f\x8b": "gzipped data other than NIfTI",
        b"\x80": "a Python pickle, which is not read because it can run code",
        b"%PDF": "a PDF",
        b"GIF8": "a GIF picture",
        b"BM": "a BMP picture",
    }
    for magic, looks in signatures.items():
        if head.startswith(magic):
            return looks
    try:
        sample = head[:-4].decode() if len(head) == HEAD_BYTES else head.decode()
    except UnicodeDecodeError:
        return "unknown binary data"
    return "plain text" if sample.isprintable() or sample.split() else "unknown binary data"
