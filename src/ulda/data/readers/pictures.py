"""PNG, JPEG and TIFF pictures: one file or a folder of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ulda.errors import UldaError
from ulda.io.pictures import n_pages, open_picture, read_pages
from ulda.io.untrusted import reading

from .arrays import convert, resolve_kind, subject_from_name
from .base import HEAD_BYTES, Description, Kind, KindChoice, Reader, Slice

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

MAGICS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
"""PNG, JPEG, TIFF and BigTIFF of both byte orders."""


class PicturesReader(Reader):
    """Pictures as magnitude images; a folder is one volume in natural order (img2 before img10)."""

    name = "pictures (PNG, JPEG, TIFF)"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Tell by the magic bytes of the file, or of any file directly in the folder."""
        if path.is_dir():
            return any(_is_picture(child) for child in path.iterdir())
        return head.startswith(MAGICS)

    def describe(self, path: Path, kind: KindChoice = "auto") -> Description:
        """Describe by counting pages and decoding the first."""
        files = _files(path)
        n_slices = 0
        for file in files:
            with open_picture(file, self.name) as picture:
                n_slices += n_pages(picture)
        with open_picture(files[0], self.name) as picture:
            page, mode = next(read_pages(files[0], picture)), picture.mode
        resolved = _kind(path, page, kind)
        return Description(self.name, resolved, n_slices, page.shape, str(page.dtype), {"mode": mode})

    def slices(self, path: Path, kind: KindChoice = "auto") -> Iterator[Slice]:
        """Decode one page at a time."""
        for file in _files(path):
            with open_picture(file, self.name) as picture:
                for page in read_pages(file, picture):
                    resolved = _kind(file, page, kind)
                    yield Slice(
                        convert(page, resolved),
                        resolved,
                        subject=subject_from_name(path),
                        volume=path.name if path.is_dir() else path.stem,
                        source=file.name,
                    )


def natural_key(path: Path) -> list[tuple[int, str]]:
    """Sort key that puts ``img2`` before ``img10``."""
    parts = re.split(r"(\d+)", path.name.lower())
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _is_picture(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(HEAD_BYTES).startswith(MAGICS)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    with reading(path, "a folder of pictures"):
        files = sorted((child for child in path.iterdir() if _is_picture(child)), key=natural_key)
    if not files:
        raise UldaError(f"{path} holds no PNG, JPEG or TIFF picture; name a folder that does")
    return files


def _kind(path: Path, page: NDArray[np.generic], kind: KindChoice) -> Kind:
    return resolve_kind(path, page.dtype, page.ndim, kind, lambda: page)
