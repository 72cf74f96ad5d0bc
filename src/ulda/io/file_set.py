"""Several files that are one result: after a kill at any point, all of the old ones or all of the new ones.

The new files are written into a hidden folder beside the old ones. One rename of that folder, to ``.NAME.new``,
decides: from then on the new files are the result. They are moved to their places; where that was interrupted, the
next process that reads or writes the result moves the rest.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ulda.errors import UldaError
from ulda.io.temporary import check_place, full_disk_told, sync, temporary_folder


@contextmanager
def file_set(path: str | Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Give a temporary folder; the files in it appear beside `path`, all together, when the block succeeds.

    When the block fails, whatever the reason, nothing appears and existing files are left as they were.

    Parameters
    ----------
    path
        What the set is called: the same name each time that the same result is written. It need not be a file of it.
    overwrite
        Replace existing files.

    Raises
    ------
    UldaError
        When a file exists and `overwrite` is false, when the folder cannot be written to, or when the disk is full.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise UldaError(f"the folder {path.parent} does not exist; create it first")
    finish(path)
    with temporary_folder(path) as temporary, full_disk_told(path.name):
        yield temporary
        for file in sorted(temporary.iterdir()):
            check_place(path.parent / file.name, overwrite=overwrite)
            sync(file)
        sync(temporary)
        finish(path)  # another process may have written the same result meanwhile
        temporary.rename(_decided(path))
    finish(path)


def finish(path: str | Path) -> None:
    """Move the files of a set to their places where a process was killed between the decision and that."""
    path = Path(path)
    folder = _decided(path)
    if folder.is_symlink() or not folder.is_dir():
        return
    with suppress(OSError):  # it is decided, even if a loss of power could forget it
        sync(path.parent)
    try:
        for file in sorted(folder.iterdir()):
            if file.is_file() and not file.is_symlink():
                with suppress(FileNotFoundError):  # another process does the same
                    file.replace(path.parent / file.name)
    except OSError as error:
        raise UldaError(
            f"the files in {folder} replace those beside it, for the writing of {path.name} was interrupted, but they "
            f"cannot be moved: {error.strerror}"
        ) from error
    shutil.rmtree(folder, ignore_errors=True)


def finish_below(folder: Path) -> None:
    """Do `finish` for all sets in a folder and below."""
    for decided in folder.rglob(".*.new"):
        finish(decided.with_name(decided.name.removeprefix(".").removesuffix(".new")))


def is_part(path: Path) -> bool:
    """Tell whether a folder is one of those in which a set is written, rather than one of a user."""
    return path.name.startswith(".") and path.suffix in (".new", ".tmp")


def _decided(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")
