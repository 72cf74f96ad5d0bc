"""PNG, JPEG and TIFF pictures: one file or a folder of them."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING

import numpy as np

from ulda.errors import UldaError

from .arrays import convert, resolve_kind, subject_from_name
from .base import HEAD_BYTES, Description, Kind, KindChoice, Reader, Slice
from .failures import reading

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray
    from PIL.Image import Image

MAGICS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
"""PNG, JPEG, TIFF and BigTIFF of both byte orders."""

LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)
"""ITU-R 601 weights of red, green and blue."""


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
            with reading(file, self.name), _open(file) as picture:
                n_slices += _n_pages(picture)
        with reading(files[0], self.name), _open(files[0]) as picture:
            page, mode = _page(files[0], picture, 0), picture.mode
        resolved = _kind(path, page, kind)
        return Description(self.name, resolved, n_slices, page.shape, str(page.dtype), {"mode": mode})

    def slices(self, path: Path, kind: KindChoice = "auto") -> Iterator[Slice]:
        """Decode one page at a time."""
        for file in _files(path):
            with reading(file, self.name), _open(file) as picture:
                for index in range(_n_pages(picture)):
                    page = _page(file, picture, index)
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


def _open(path: Path) -> Image:
    from PIL import Image as pillow  # noqa: N813 - the module is named like its class

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            return pillow.open(path)
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise _too_large(path) from error


def _too_large(path: Path) -> UldaError:
    return UldaError(
        f"{path} is refused as a possible decompression bomb: it announces more pixels than any MRI slice "
        "has (over 89 million); cut or shrink the picture first"
    )


def _kind(path: Path, page: NDArray[np.generic], kind: KindChoice) -> Kind:
    return resolve_kind(path, page.dtype, page.ndim, kind, lambda: page)


def _n_pages(picture: Image) -> int:
    """Pages of a TIFF; the frames of an animated PNG are not slices."""
    return int(getattr(picture, "n_frames", 1)) if picture.format == "TIFF" else 1


def _page(path: Path, picture: Image, index: int) -> NDArray[np.generic]:
    """Decode one page to ``(H, W)``, colour as luminance, keeping the depth of grey pictures."""
    from PIL import Image as pillow  # noqa: N813 - the module is named like its class

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            picture.seek(index)
            picture.load()
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise _too_large(path) from error
    if picture.mode in ("L", "I", "F") or picture.mode.startswith("I;16"):
        return np.asarray(picture)
    if picture.mode in ("1", "LA", "La"):
        return np.asarray(picture.convert("L"))
    return np.asarray(picture.convert("RGB"), np.float32) @ LUMINANCE
