"""The way in for files that may come from anywhere: failures become one sentence, and sizes are limited.

Every file that somebody else may have written is read through this module or one of its siblings: `ulda.io.hdf5_input`,
`ulda.io.documents` (JSON and YAML), `ulda.io.numpy_input`, `ulda.io.compressed` and `ulda.io.pictures`.
"""

from __future__ import annotations

import math
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ulda.errors import UldaError

LIMIT = "ULDA_MAX_GB"
"""The environment variable with the most memory that one array of a file may ask for, in gigabytes."""

DEFAULT_GB = 4.0

HARMLESS_BYTES = 64 * 2**20
"""What a file announces up to this size is harmless, however small the file is."""

MOST_EXPANSION = 200
"""Nothing of a scanner becomes more than this many times larger when it is unpacked."""

MOST_ENTRIES = 200_000
"""A folder with more files in it and below is a mistake, such as ``/``."""

MOST_LEVELS = 40
"""Folders in folders."""

LOW_LEVEL_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    SystemError,
    TypeError,
    ValueError,
    Warning,
    struct.error,
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
)
"""What libraries raise on damaged files: Pillow a SyntaxError, pydicom an AttributeError, and so on."""

_OF_THEIR_OWN = ("nibabel", "pydicom", "scipy", "safetensors", "xsdata", "ismrmrd", "tokenize", "_csv")
"""Libraries whose errors share no base with those of Python."""

DAMAGED = "the file looks truncated or damaged, so copy or download it again"


@contextmanager
def reading(path: str | Path, what: str, advice: str = DAMAGED) -> Iterator[None]:
    """Raise the failures of any library inside the block as one sentence that names the file.

    Parameters
    ----------
    path
        The file being read.
    what
        The format it is read as, e.g. ``"fastMRI HDF5"``.
    advice
        What to do about it.
    """
    try:
        yield
    except UldaError:
        raise
    except PermissionError as error:
        raise permission_error(path) from error
    except FileNotFoundError as error:
        raise UldaError(f"there is no file {error.filename or path}") from error
    except Exception as error:
        if not is_low_level(error):
            raise
        raise UldaError(f"{path} cannot be read as {what} ({reason(error)}): {advice}") from error


@contextmanager
def saying(path: str | Path, what: str) -> Iterator[None]:
    """Name the file in sentences about its parts that are raised inside the block."""
    try:
        yield
    except UldaError as error:
        raise UldaError(f"{Path(path).name} cannot be read as {what}: {error}") from error


def is_low_level(error: BaseException) -> bool:
    """Tell whether an error is one that libraries raise on a damaged file."""
    return isinstance(error, LOW_LEVEL_ERRORS) or type(error).__module__.startswith(_OF_THEIR_OWN)


def reason(error: BaseException) -> str:
    """Return the first words of an error in one line."""
    text = " ".join(str(error)[:1000].split()).rstrip(".")
    return (text if len(text) <= 200 else f"{text[:200]} ...") or type(error).__name__


def permission_error(path: str | Path) -> UldaError:
    """Say that the user may not read `path`."""
    return UldaError(f"{path} cannot be read: permission denied, so ask for read access (chmod +r) first")


def regular_file(path: str | Path) -> Path:
    """Return the path of a file that is there and is a file: reading a device or a pipe may never end."""
    path = Path(path)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise UldaError(f"there is no file {path}") from error
    except PermissionError as error:
        raise permission_error(path) from error
    except (OSError, ValueError) as error:
        raise UldaError(f"{str(path)[:200]} is no path of a file ({reason(error)})") from error
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
        raise UldaError(f"{path} is {what}; give the name of an ordinary file")
    return path


def read_bytes(path: str | Path, what: str, most: int = HARMLESS_BYTES) -> bytes:
    """Read a small file as a whole."""
    path = regular_file(path)
    with reading(path, what), path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UldaError(f"{path} has more than {_in_words(most)}, too much for {what}; give the right file")
    return content


def read_text(path: str | Path, what: str, most: int = HARMLESS_BYTES) -> str:
    """Read a small file of text in UTF-8, with or without a mark at its beginning."""
    content = read_bytes(path, what, most)
    with reading(path, what, "expected text in UTF-8"):
        return content.decode("utf-8-sig")


def most_bytes() -> int:
    """Return how much memory one array of a file may ask for."""
    text = os.environ.get(LIMIT, "")
    try:
        gigabytes = float(text) if text else DEFAULT_GB
    except ValueError:
        gigabytes = math.nan
    if not 0 < gigabytes < math.inf:
        raise UldaError(f"the environment variable {LIMIT} must be a number of gigabytes, but it is {text!r}")
    return int(gigabytes * 1e9)


def check_memory(path: str | Path, what: str, n_bytes: int) -> None:
    """Refuse an array that asks for more memory than the limit, before it is read."""
    if n_bytes > most_bytes():
        raise UldaError(
            f"{what} of {path} needs {_in_words(n_bytes)}, more than {_in_words(most_bytes())}; if that is right, set "
            f"the environment variable {LIMIT} to more gigabytes"
        )


def check_expansion(path: str | Path, what: str, n_bytes: int, stored: int) -> None:
    """Refuse what announces far more bytes than are stored of it, before anything is read.

    Parameters
    ----------
    path
        The file.
    what
        What announces a size, e.g. ``"its array kspace"``.
    n_bytes
        How much is announced.
    stored
        How many bytes of the file it comes from.
    """
    if n_bytes > HARMLESS_BYTES and n_bytes > MOST_EXPANSION * stored:
        raise UldaError(
            f"{path} is refused as a possible decompression bomb: {what} claims {_in_words(n_bytes)}, but only "
            f"{_in_words(stored)} are stored of it; if it is genuine, save it without compression"
        )


class Walk:
    """A walk through folders that sees each of them once, as links may form loops, and ends.

    Parameters
    ----------
    root
        Where it begins.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen: set[tuple[int, int]] = set()
        self._n_entries = 0

    def children(self, folder: Path) -> list[Path]:
        """Return what is directly in a folder, sorted; nothing where it was seen before."""
        with reading(folder, "a folder", "check what is in it"):
            entry = folder.stat()
            if (entry.st_dev, entry.st_ino) in self._seen:
                return []
            self._seen.add((entry.st_dev, entry.st_ino))
            found = sorted(folder.iterdir())
        self._n_entries += len(found)
        if self._n_entries > MOST_ENTRIES or len(folder.parts) - len(self._root.parts) > MOST_LEVELS:
            raise UldaError(
                f"{self._root} holds more than {MOST_ENTRIES} files or {MOST_LEVELS} levels of folders; name the "
                "folder with the data"
            )
        return found


def _in_words(n_bytes: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6)):
        if n_bytes >= size:
            return f"{n_bytes / size:,.3g} {unit}" if n_bytes < 1000 * size else f"{n_bytes // size} {unit}"
    return f"{n_bytes} bytes"
