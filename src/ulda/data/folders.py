"""What the folders that a file lies in say about it: its split, and which picture is whose."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path, PurePath

_OF_A_SPLIT = re.compile(r"(?:.+_)?(train|val|test)(?:_full)?(?:_v\d+)?(?:_batch_\d+)?")
"""``train`` alone or at the end of a name; the endings are those of the archives of fastMRI."""


def folder_below(path: Path, roots: Iterable[Path]) -> PurePath:
    """Return the folder of a file, or a folder itself, seen from the first of the given folders that holds it."""
    for root in roots:
        if path.is_relative_to(root):
            below = path.relative_to(root)
            return below if path.is_dir() else below.parent
    return path.relative_to(path)


def split_of_folder(folder: PurePath) -> str:
    """Return the split that a folder, or one that it lies in, is named after; empty for none.

    Examples
    --------
    >>> from pathlib import PurePath
    >>> split_of_folder(PurePath("val")), split_of_folder(PurePath("singlecoil_train"))
    ('val', 'train')
    >>> split_of_folder(PurePath("multicoil_test_v2")), split_of_folder(PurePath("testing"))
    ('test', '')
    >>> split_of_folder(PurePath("test/train"))  # photographs of trains
    'test'
    """
    found = (_OF_A_SPLIT.fullmatch(part.lower()) for part in folder.parts)
    return next((match[1] for match in found if match), "")


def subject_of_picture(folder: PurePath, source: str) -> str:
    """Return a subject for a picture alone, by its folder, as others may hold pictures of the same name.

    Examples
    --------
    >>> from pathlib import PurePath
    >>> subject_of_picture(PurePath("train/cat"), "0001.png")
    'train/cat/0001'
    """
    return (folder / source).with_suffix("").as_posix()
