"""PNG, JPEG and TIFF pictures of others, with a limit on the pixels that they announce."""

from __future__ import annotations

import math
import warnings
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ulda.errors import UldaError
from ulda.io.untrusted import check_expansion, reading, regular_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray
    from PIL.Image import Image

Result = TypeVar("Result")

FORMATS = ("PNG", "JPEG", "TIFF")

MOST_PIXELS = 89_000_000
"""No slice has more; Pillow warns of more."""

LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)
"""ITU-R 601 weights of red, green and blue."""

_BYTES_PER_PIXEL = 8
"""In memory, as complex numbers."""


@contextmanager
def open_picture(path: str | Path, what: str) -> Iterator[Image]:
    """Open a picture without decoding it; failures inside the block become `UldaError`."""
    from PIL import Image as pillow  # noqa: N813 - the module is named like its class

    path = regular_file(path)
    with reading(path, what), _quietly(path, lambda: pillow.open(path, formats=FORMATS)) as picture:
        _check_pixels(path, picture)
        yield picture


def n_pages(picture: Image) -> int:
    """Return the pages of a TIFF; the frames of an animated PNG are not slices."""
    return int(getattr(picture, "n_frames", 1)) if picture.format == "TIFF" else 1


def read_pages(path: Path, picture: Image) -> Iterator[NDArray[np.generic]]:
    """Decode pages to ``(H, W)``, one at a time, colour as luminance; grey pictures keep their depth.

    Parameters
    ----------
    path, picture
        The file, and what `open_picture` yields of it.
    """
    stored, n_pixels = path.stat().st_size, 0
    for index in range(n_pages(picture)):
        _quietly(path, partial(picture.seek, index))
        n_pixels += math.prod(picture.size)
        _check_pixels(path, picture)
        # pages may claim the same bytes
        check_expansion(path, f"what it holds up to page {index + 1}", _BYTES_PER_PIXEL * n_pixels, stored)
        _quietly(path, picture.load)
        yield _as_grey(picture)


def _as_grey(picture: Image) -> NDArray[np.generic]:
    if picture.mode in ("L", "I", "F") or picture.mode.startswith("I;16"):
        return np.asarray(picture)
    if picture.mode in ("1", "LA", "La"):
        return np.asarray(picture.convert("L"))
    return np.asarray(picture.convert("RGB"), np.float32) @ LUMINANCE


def _check_pixels(path: Path, picture: Image) -> None:
    if math.prod(picture.size) > MOST_PIXELS:
        raise _too_large(path)
    n_bytes = math.prod(picture.size) * _BYTES_PER_PIXEL
    check_expansion(path, f"its picture of {' x '.join(map(str, picture.size))}", n_bytes, path.stat().st_size)


def _quietly(path: Path, step: Callable[[], Result]) -> Result:
    """Take a step of Pillow without its warnings: what they speak of is checked."""
    from PIL.Image import DecompressionBombError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return step()
        except DecompressionBombError as error:
            raise _too_large(path) from error


def _too_large(path: Path) -> UldaError:
    return UldaError(
        f"{path} is refused as a possible decompression bomb: it announces more pixels than any MRI slice has (over "
        f"{MOST_PIXELS // 10**6} million); cut or shrink the picture first"
    )
