"""Output that is whole or absent: write beside the destination, then rename."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ulda.errors import UldaError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def atomic_output(path: str | Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Give a temporary path beside `path` and rename it to `path` when the block succeeds.

    When the block fails, whatever the reason, the temporary file is removed and an existing file at
    `path` is left as it was.

    Raises
    ------
    UldaError
        When `path` exists and `overwrite` is false, or when its folder cannot be written to.
    """
    path = Path(path)
    if path.is_dir():
        raise UldaError(f"{path} is a folder; give the name of a file to write")
    if path.exists() and not path.is_file():
        raise UldaError(f"{path} is not an ordinary file; give the name of a file to write")
    if path.exists() and not overwrite:
        raise UldaError(f"{path} exists already; choose another name or pass --force to replace it")
    if not path.parent.is_dir():
        raise UldaError(f"the folder {path.parent} does not exist; create it first")
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:
        raise UldaError(f"cannot write to the folder {path.parent}: {error.strerror}") from error
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
