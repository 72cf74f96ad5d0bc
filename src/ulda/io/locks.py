"""Locks of outputs: a second process that would write the same is refused. The system frees those of a dead process."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ulda.errors import UldaError
from ulda.io.temporary import made_folder

if sys.platform != "win32":  # which has no such locks
    import fcntl

_POLL = 0.05
_MOST_DIGITS = 10


@contextmanager
def locked_file(path: str | Path) -> Iterator[None]:
    """Hold the lock of an output file, ``.NAME.lock`` beside it, while the block runs."""
    path = Path(path)
    if not path.parent.is_dir():
        raise UldaError(f"the folder {path.parent} does not exist; create it first")
    with locked(path.with_name(f".{path.name}.lock"), str(path)):
        yield


@contextmanager
def locked_folder(path: str | Path) -> Iterator[None]:
    """Hold the lock of an output folder, ``.lock`` in it, while the block runs.

    The folder is made where there is none, and removed again if nothing was put into it.
    """
    path = Path(path)
    with made_folder(path), locked(path / ".lock", str(path)):
        yield


@contextmanager
def locked(lock: Path, what: str, *, patience: float = 0.0) -> Iterator[None]:
    """Hold a lock while the block runs.

    Parameters
    ----------
    lock
        The file of the lock; made where there is none, and removed at the end.
    what
        What it is the lock of, for the sentence that refuses a second process.
    patience
        For how many seconds to try.
    """
    if sys.platform == "win32":
        yield
        return
    end = time.monotonic() + patience
    while (descriptor := _take(lock)) is None:
        if time.monotonic() >= end:
            raise UldaError(
                f"another process{_holder(lock)} is writing {what}; wait until it has ended, or choose another output"
            )
        time.sleep(_POLL)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def is_locked(lock: Path) -> bool:
    """Tell whether a process holds a lock."""
    if sys.platform == "win32":
        return False
    try:
        descriptor = _opened(lock, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not _flock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _take(lock: Path) -> int | None:
    """Return the descriptor of a lock that is held now; None where another process holds it."""
    while True:
        try:
            descriptor = _opened(lock, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise UldaError(f"cannot write to the folder {lock.parent}: {error.strerror}") from error
        if not _flock(descriptor, fcntl.LOCK_EX):
            os.close(descriptor)
            return None
        # the process before removed the file after it was opened here
        if _is_at(descriptor, lock):
            break
        os.close(descriptor)
    os.ftruncate(descriptor, 0)
    with suppress(OSError):  # a lock is one on a full disk, too; only the sentence knows less
        os.write(descriptor, str(os.getpid()).encode())
    return descriptor


def _opened(lock: Path, flags: int) -> int:
    return os.open(lock, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def _flock(descriptor: int, kind: int) -> bool:
    """Take a lock of a kind; a file system without locks refuses nobody."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


def _holder(lock: Path) -> str:
    """Return the process that holds a lock, in brackets; empty where it is not on record."""
    try:
        descriptor = _opened(lock, os.O_RDONLY)
    except OSError:
        return ""
    try:
        content = os.read(descriptor, _MOST_DIGITS).decode("ascii", "replace")
    finally:
        os.close(descriptor)
    return f" ({content})" if content.isdigit() else ""
