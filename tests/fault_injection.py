"""Kill a process, or fill the disk, at each file operation of a writer, and see what is left.

A writer runs in a forked child, where every operation on a file below a folder is counted: those that Python reports
(opening for writing, renaming, removing, making folders, changing modes) and writing and syncing, which are wrapped. At
operation k the child ends at once, or the disk is full from then on. Of a write that is cut short half is on the disk.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ulda.errors import UldaError
from ulda.io.hdf5 import PatientFile

Fault = Literal["kill", "full"]

KILLED, TOLD, CRASHED = 77, 1, 2
"""How a child ends: killed, with one sentence, or with a traceback."""

_EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate")
_FILLS = ("open", "os.mkdir", "write", "os.fsync")
"""The operations that fail on a full disk."""


@dataclass(frozen=True)
class Writer:
    """A writer of one result.

    Attributes
    ----------
    name
        What it writes.
    write
        Given a folder, a version (``old`` or ``new``) and whether to replace, write that version.
    read
        Given the folder, return the version that is there, ``none`` for none; anything else is a mixture.
    needs_old
        Whether it changes what is there.
    """

    name: str
    write: Callable[[Path, str, bool], None]
    read: Callable[[Path], str]
    needs_old: bool = False


@dataclass(frozen=True)
class Outcome:
    """What was found after a fault at each operation.

    Attributes
    ----------
    operations
        How many there are.
    found
        How often each version was read afterwards.
    crashes
        How often a full disk ended in something else than one sentence.
    leftovers
        How often the next run left other files than a run without a fault.
    """

    operations: int
    found: dict[str, int]
    crashes: int
    leftovers: int

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return {"operations": self.operations, **self.found, "crashes": self.crashes, "leftovers": self.leftovers}


def inject(writer: Writer, folder: Path, fault: Fault, *, is_new: bool, every: int = 1) -> Outcome:
    """Run a writer with a fault at its first operation, its second, and so on, until it gets to its end.

    Parameters
    ----------
    writer
        The writer.
    folder
        An empty folder.
    fault
        What happens.
    is_new
        Whether there is no old version that is replaced.
    every
        Of the writes into an HDF5 file, many and all alike, every so many-th counts as an operation.
    """
    found: Counter[str] = Counter()
    crashes = leftovers = 0
    start, place = folder / "start", folder / "clean"
    start.mkdir(parents=True)
    if not is_new:
        writer.write(start, "old", False)
    shutil.copytree(start, place)
    writer.write(place, "new", not is_new)
    before, expected = listing(start), listing(place)
    for k in itertools.count(1):
        place = folder / str(k)
        shutil.copytree(start, place)
        code = _attempt(partial(writer.write, place, "new", not is_new), _Injector(place, k, fault, every))
        if code == 0:
            return Outcome(k - 1, dict(found), crashes, leftovers)
        crashes += code not in (KILLED, TOLD)
        found[_version(writer, place)] += 1
        if fault == "full":
            leftovers += listing(place) not in (before, expected)
        writer.write(place, "new", True)
        assert _version(writer, place) == "new"
        leftovers += listing(place) != expected
    raise AssertionError


def listing(folder: Path) -> list[str]:
    """Return all that is in a folder and below."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def _version(writer: Writer, place: Path) -> str:
    try:
        return writer.read(place)
    except UldaError:
        return "broken"


def _attempt(write: Callable[[], None], injector: _Injector) -> int:
    """Run a writer in a child, and return how that ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
        child = os.fork()
    if child == 0:
        code = CRASHED
        try:
            with Path(os.devnull).open("w") as quiet, contextlib.redirect_stdout(quiet):
                injector.install()
                write()
            code = 0
        except (UldaError, OSError):
            code = TOLD
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class _Injector:
    """Counts operations, and does harm at one of them."""

    def __init__(self, root: Path, k: int, fault: Fault, every: int) -> None:
        self.root, self.k, self.fault, self.every = str(root), k, fault, every
        self.n_done, self.n_written, self.is_halving = 0, 0, False

    def install(self) -> None:
        """Watch this process; there is no way back."""
        sys.addaudithook(self._heard)
        for name in ("write_bytes", "write_text"):
            setattr(Path, name, self._torn(getattr(Path, name)))
        synced, written = os.fsync, PatientFile.write

        def fsync(descriptor: int) -> None:
            self._count("os.fsync")
            synced(descriptor)

        def write(file: PatientFile, data: Any) -> int:
            self.n_written += 1
            if self.n_written % self.every:
                return written(file, data)
            try:
                self._count("write", lambda: written(file, memoryview(data).cast("B")[: len(data) // 2]))
            except OSError as error:
                file._failure = file._failure or error
            return written(file, data)

        os.fsync = fsync  # type: ignore[assignment]
        PatientFile.write = write  # type: ignore[assignment, method-assign]

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writes and self._is_below(path):
                self._count("open")
        elif event in _EVENTS and self._is_below(arguments[0]):
            self._count(event)

    def _torn(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Make a method write half of what it is given where the fault is."""

        def write(path: Path, data: Any, **options: Any) -> Any:
            if self._is_below(path):
                self._count("write", lambda: original(path, data[: len(data) // 2], **options))
            return original(path, data, **options)

        return write

    def _is_below(self, path: Any) -> bool:
        """Tell whether a path is below the folder; relative ones are, as only the removal of folders uses them."""
        return isinstance(path, str | os.PathLike) and (
            os.fspath(path).startswith(self.root) or not Path(path).is_absolute()
        )

    def _count(self, operation: str, half: Callable[[], Any] | None = None) -> None:
        """Count an operation; where the fault is, do half of it first, if it can be halved."""
        if self.is_halving:
            return
        self.n_done += 1
        if self.n_done < self.k:
            return
        if half is not None and self.n_done == self.k:
            self.is_halving = True
            half()
            self.is_halving = False
        if self.fault == "kill" and self.n_done == self.k:
            os._exit(KILLED)
        if self.fault == "full" and operation in _FILLS:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
