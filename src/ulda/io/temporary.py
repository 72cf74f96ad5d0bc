"""Temporary files beside an output: their names tell whose they are, so that those of dead processes are swept."""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ulda.errors import UldaError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says when nothing more fits: the disk, a quota, a limit of the size of a file."""

_HOST = f"{zlib.crc32(platform.node().encode()):08x}"
"""A process of another machine may write into the same folder, and nobody here can tell whether it lives."""


def check_place(path: Path, *, overwrite: bool = False) -> None:
    """Refuse a place where no file can be written, or where one is that is not to be replaced."""
    if path.is_dir():
        raise UldaError(f"{path} is a folder; give the name of a file to write")
    if path.exists() and not path.is_file():
        raise UldaError(f"{path} is not an ordinary file; give the name of a file to write")
    if path.exists() and not overwrite:
        raise UldaError(f"{path} exists already; choose another name or pass --force to replace it")
    if not path.parent.is_dir():
        raise UldaError(f"the folder {path.parent} does not exist; create it first")


@contextmanager
def temporary_file(path: Path) -> Iterator[Path]:
    """Give a new file beside `path`, which is gone when the block ends unless it was renamed."""
    sweep(path)
    with _told(path):
        descriptor, name = tempfile.mkstemp(prefix=_prefix(path), suffix=".tmp", dir=path.parent)
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Give a new folder beside `path`, which is gone when the block ends unless it was renamed."""
    sweep(path)
    with _told(path):
        temporary = Path(tempfile.mkdtemp(prefix=_prefix(path), suffix=".tmp", dir=path.parent))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def made_folder(path: Path) -> Iterator[None]:
    """Make a folder where there is none, and remove it again if nothing is in it when the block ends."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        with suppress(OSError):  # there is something in it
            for folder in missing:
                folder.rmdir()


def sweep(path: Path) -> None:
    """Remove the temporary files of `path` that dead processes of this machine have left."""
    if sys.platform == "win32" or not path.parent.is_dir():  # which cannot ask for a process without ending it
        return
    pattern = re.compile(rf"\.{re.escape(path.name)}\.(\d{{1,9}})-{_HOST}-\w+\.tmp")
    with os.scandir(path.parent) as entries:
        found = [(entry, match) for entry in entries if (match := pattern.fullmatch(entry.name))]
    for entry, match in found:
        if is_alive(int(match[1])):
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            Path(entry.path).unlink(missing_ok=True)


def is_alive(process: int) -> bool:
    """Tell whether there is a process with this id; one of somebody else counts, too.

    Examples
    --------
    >>> is_alive(os.getpid())
    True
    """
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if path.is_dir() and sys.platform == "win32":  # which cannot open a folder
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def full_disk_told(name: str) -> Iterator[None]:
    """Make one sentence of it where nothing more fits on the disk while the block writes `name`."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise UldaError(
            f"the disk is full (or a quota is reached) while writing {name}; nothing was left behind, and what was "
            "there before is unchanged"
        ) from error


def _prefix(path: Path) -> str:
    return f".{path.name}.{os.getpid()}-{_HOST}-"


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UldaError(f"cannot write to the folder {path.parent}: {error.strerror}") from error
