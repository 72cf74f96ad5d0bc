"""HDF5 output that survives a full disk."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import h5py

if TYPE_CHECKING:
    from typing_extensions import Buffer


@contextmanager
def hdf5_output(path: Path, mode: Literal["w", "r+"] = "w") -> Iterator[h5py.File]:
    """Open a new HDF5 file, or with ``r+`` an old one; a failed write is an OSError when it ends, never a crash."""
    with PatientFile(path, mode) as stream:
        try:
            with h5py.File(stream, mode) as file:
                yield file
        finally:
            # reading back what could not be written fails, too, but says less
            stream.raise_failure()


class PatientFile(io.FileIO):
    """A file whose failed writes are remembered rather than raised.

    HDF5 crashes the process when a write fails while it closes a file, for instance because the disk is full.
    So it is told that all is well, and whoever writes asks for the failure.
    """

    def __init__(self, path: Path, mode: Literal["w", "r+"] = "w") -> None:
        super().__init__(path, "w+" if mode == "w" else mode)
        self._failure: OSError | None = None

    def write(self, data: Buffer) -> int:
        """Write all of `data`, or remember why not."""
        view = memoryview(data).cast("B")
        if self._failure is None:
            done = 0
            try:
                while done < len(view):
                    done += super().write(view[done:]) or 0
            except OSError as error:
                self._failure = error
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Change the size, or remember why not."""
        if self._failure is None:
            try:
                return super().truncate(size)
            except OSError as error:
                self._failure = error
        return size or 0

    def raise_failure(self) -> None:
        """Raise the failure there was, if any."""
        if self._failure is not None:
            raise self._failure
