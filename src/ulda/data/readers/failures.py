"""Turn what goes wrong while reading a file into one sentence for a person."""

from __future__ import annotations

import struct
import zipfile
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ulda.errors import UldaError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOW_LEVEL_ERRORS = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""What libraries raise on damaged files: Pillow a SyntaxError, pydicom an AttributeError, and so on."""


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Raise low-level failures inside the block as `UldaError`, naming the file.

    Parameters
    ----------
    path
        The file being read.
    what
        The format it is read as, e.g. ``"fastMRI HDF5"``.
    """
    try:
        yield
    except PermissionError as error:
        raise permission_error(path) from error
    except LOW_LEVEL_ERRORS as error:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise UldaError(
            f"{path} cannot be read as {what} ({reason}): the file looks truncated or damaged, "
            "so copy or download it again"
        ) from error


def permission_error(path: Path) -> UldaError:
    """Say that the user may not read `path`."""
    return UldaError(f"{path} cannot be read: permission denied, so ask for read access (chmod +r) first")


def some_of(names: list[str], limit: int = 12) -> str:
    """List names in a message, at most `limit` of them.

    Examples
    --------
    >>> some_of(["a", "b", "c"], limit=2)
    'a, b, ... (3 in all)'
    """
    if not names:
        return "nothing"
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown}, ... ({len(names)} in all)"
