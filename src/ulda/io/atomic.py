"""Output that is whole or absent: write beside the destination, then rename."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ulda.io.temporary import check_place, full_disk_told, sync, temporary_file


@contextmanager
def atomic_output(path: str | Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Give a temporary path beside `path` and rename it to `path` when the block succeeds.

    When the block fails, whatever the reason, the temporary file is removed and an existing file at
    `path` is left as it was. What a process left that was killed meanwhile, the next one removes.

    Raises
    ------
    UldaError
        When `path` exists and `overwrite` is false, when its folder cannot be written to, or when the disk is full.
    """
    path = Path(path)
    check_place(path, overwrite=overwrite)
    with temporary_file(path) as temporary, full_disk_told(path.name):
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        sync(temporary)
        temporary.replace(path)
