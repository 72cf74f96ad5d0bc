"""Images for a page: eight bits a pixel, all pictures of a slice in one file.

The pictures of a slice (planes) are alike, so three of them are the green, red and blue of one lossless WebP: its
encoder stores the colours relative to green, which takes less than three grey files would. Planes beyond the third
follow below, tile by tile. Where that is too large in all, the planes are stacked in one grey JPEG.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ulda.errors import UldaError
from ulda.evaluation.report.content import Images, Report

BUDGET = 28_000_000
"""How many bytes of a page its images may take, in base64."""

JPEG_QUALITIES = (95, 92, 89, 86, 83, 80, 75, 70, 60, 45, 30)
CHANNELS = (1, 0, 2)
"""Which colour holds the first, second and third plane of a tile; green is what the others are stored relative to."""

KSPACE_RANGE = 80.0
"""Decibels below the largest value of k-space that are shown."""
_KSPACE_LEVELS = 64  # noise, which does not compress: no more than the eye needs

WHITE = 255
MOST_WHITE = 4.0
"""How many times brighter than the peak of the reference an image may be before the rest is cut off."""
_WEBP_EFFORT = 0  # of 6: five percent larger, ten times faster
_SAMPLE = 24  # slices from which the size of a page is foretold

Planes = NDArray[np.uint8]
PlaneSource = Callable[[int], Planes]


@dataclass(frozen=True)
class Pictures:
    """The images of a report as they stand in a page.

    Attributes
    ----------
    slices
        For each slice the base64 of its picture.
    mime
        ``image/webp`` or ``image/jpeg``.
    packed
        Whether three planes share the colours of a tile; else each is a grey tile.
    n_planes
        How many planes there are.
    precision
        What was lost, for the reader: one sentence.
    whites
        For each slice how bright white is, relative to the peak of the reference: at least 1, and more where an image
        is brighter, so that its error there is not lost.
    """

    slices: tuple[str, ...]
    mime: str
    packed: bool
    n_planes: int
    precision: str
    whites: tuple[float, ...] = ()


def encode_report(report: Report, budget: int = BUDGET) -> Pictures:
    """Encode the reference, the methods and the k-space of every slice, in this order."""
    images = report.all_images()
    # without a reference: of the last method, after what it is compared with
    spectra = report.reference if report.reference is not None else list(images.values())[-1]
    whites = tuple(white_of([stack[index] for stack in images.values()]) for index in range(len(report.shown)))

    def planes(index: int) -> Planes:
        kspace = kspace_picture(spectra[index]) if report.kspace is None else spectrum_picture(report.kspace[index])
        return np.stack([*(to_grey(stack[index] / whites[index]) for stack in images.values()), kspace])

    whose = "the slice" if report.reference is None else "the reference"
    if max(whites, default=1.0) > 1:
        whose += ", or to the brightest image of a slice where one is brighter"
    return replace(encode(len(report.shown), planes, budget, whose), whites=whites)


def white_of(images: Sequence[NDArray[np.float32]]) -> float:
    """Return how bright white must be for all images of a slice, at least 1; what is beyond a limit is cut off.

    Examples
    --------
    >>> white_of([np.full((2, 2), 0.5, np.float32), np.full((2, 2), 1.25, np.float32)])
    1.25
    """
    brightest = max(float(np.nan_to_num(image, nan=0.0, posinf=MOST_WHITE).max(initial=0.0)) for image in images)
    # three digits, upwards, so that the page and the pictures agree
    return min(max(1.0, float(np.ceil(1000 * brightest - 0.01)) / 1000), MOST_WHITE)


def encode(n_slices: int, planes: PlaneSource, budget: int = BUDGET, whose_peak: str = "the reference") -> Pictures:
    """Encode the planes of every slice within a budget, without loss if that is possible.

    Parameters
    ----------
    n_slices
        How many slices.
    planes
        Returns the planes ``(planes, H, W)`` of a slice.
    budget
        How many bytes of base64 all of them may take.
    whose_peak
        Whose peak is white.
    """
    sample = sorted({round(i) for i in np.linspace(0, n_slices - 1, min(n_slices, _SAMPLE))})
    n_planes = len(planes(0))
    chosen = [planes(i) for i in sample]
    allowed = 0.97 * budget * len(sample) / n_slices
    if sum(len(_webp(one)) for one in chosen) <= allowed and _fits(
        slices := tuple(_webp(planes(i)) for i in range(n_slices)), budget
    ):
        exact = f"The images have 256 grey levels from 0 to the peak of {whose_peak}, stored without further loss."
        return Pictures(slices, "image/webp", True, n_planes, exact)
    for quality in JPEG_QUALITIES:
        if sum(len(_jpeg(one, quality)) for one in chosen) <= allowed and _fits(
            slices := tuple(_jpeg(planes(i), quality) for i in range(n_slices)), budget
        ):
            wrong = max(_largest_error(one, slices[i]) for i, one in zip(sample, chosen, strict=True))
            lossy = (
                f"The images are JPEG of quality {quality}, to keep the file small: of 256 grey levels from 0 to the "
                f"peak of {whose_peak}, 99 % of the pixels are at most {wrong:.0f} wrong."
            )
            return Pictures(slices, "image/jpeg", False, n_planes, lossy)
    raise UldaError(
        f"{n_slices} slices with {n_planes} images each do not fit into a page of {budget / 1e6:.0f} MB; "
        "evaluate fewer slices, or smaller ones with --size"
    )


def _fits(slices: tuple[str, ...], budget: int) -> bool:
    """Tell whether all slices are as small as those foretold."""
    return sum(map(len, slices)) <= budget


def to_grey(images: Images) -> Planes:
    """Return 256 grey levels of images from 0 to 1; what is outside of that is cut off, NaN is black."""
    return np.round(WHITE * np.clip(np.nan_to_num(images, nan=0.0, posinf=1.0), 0, 1)).astype(np.uint8)


def kspace_picture(image: NDArray[np.float32]) -> Planes:
    """Return the k-space of one image ``(H, W)`` as `spectrum_picture` shows it."""
    return spectrum_picture(np.abs(np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(np.nan_to_num(image))))))


def magnitude_of(kspace: NDArray[np.complexfloating[Any, Any]]) -> Images:
    """Return the magnitude of k-space ``(H, W)``, or of ``(coils, H, W)`` the root of the sum of squares.

    Examples
    --------
    >>> magnitude_of(np.array([[[3.0j]], [[4.0]]])).tolist()
    [[5.0]]
    """
    squares: Images = np.abs(kspace).astype(np.float32) ** 2
    return np.sqrt(squares.sum(0) if kspace.ndim == 3 else squares)


def spectrum_picture(magnitude: NDArray[np.floating[Any]]) -> Planes:
    """Return the magnitude of k-space ``(H, W)`` as grey levels, the largest value white, logarithmic."""
    spectrum = np.nan_to_num(magnitude, posinf=0.0)
    peak = float(spectrum.max()) or 1.0
    decibels = 20 * np.log10(np.maximum(spectrum / peak, 10 ** (-KSPACE_RANGE / 20)))
    steps = np.round((1 + decibels / KSPACE_RANGE) * (_KSPACE_LEVELS - 1))
    return np.round(steps * (WHITE / (_KSPACE_LEVELS - 1))).astype(np.uint8)


def error_scale(report: Report) -> float:
    """Return the error that is shown in the last colour: one for all slices and methods, a round number.

    It is the 99th percentile of the errors of the worst method, rounded up to 1, 2 or 5 times a power of ten.
    """
    if report.reference is None or not report.images:
        return 1.0
    step = max(1, len(report.reference) // _SAMPLE)
    reference = report.reference[::step]
    errors = (np.abs(images[::step] - reference) for images in report.images.values())
    largest = max(float(np.percentile(np.nan_to_num(error, posinf=1.0), 99)) for error in errors)
    if largest <= 0:
        return 1.0
    power = 10.0 ** np.floor(np.log10(largest))
    return float(min(1.0, next(digit * power for digit in (1, 2, 5, 10) if digit * power >= largest * (1 - 1e-6))))


def decode(picture: str, n_planes: int, packed: bool) -> Planes:
    """Return the planes of a slice, as the page does."""
    with Image.open(io.BytesIO(base64.b64decode(picture))) as opened:
        pixels = np.asarray(opened.convert("RGB") if packed else opened)
    per_tile = len(CHANNELS) if packed else 1
    n_tiles = -(-n_planes // per_tile)
    tiles = pixels.reshape(n_tiles, pixels.shape[0] // n_tiles, pixels.shape[1], -1)
    return np.stack([tiles[i // per_tile, :, :, CHANNELS[i % per_tile] if packed else 0] for i in range(n_planes)])


def _webp(planes: Planes) -> str:
    tiles = []
    for start in range(0, len(planes), len(CHANNELS)):
        group = planes[start : start + len(CHANNELS)]
        # what is missing repeats the first plane, which costs nothing
        tile = np.stack([group[0]] * len(CHANNELS), axis=-1)
        for plane, channel in zip(group, CHANNELS, strict=False):
            tile[..., channel] = plane
        tiles.append(tile)
    return _saved(np.concatenate(tiles), format="WEBP", lossless=True, quality=60, method=_WEBP_EFFORT)


def _jpeg(planes: Planes, quality: int) -> str:
    return _saved(np.concatenate(list(planes)), format="JPEG", quality=quality, optimize=True)


def _saved(pixels: NDArray[np.uint8], **options: object) -> str:
    stream = io.BytesIO()
    try:
        Image.fromarray(pixels).save(stream, **options)  # type: ignore[arg-type]
    except (OSError, ValueError) as error:
        sides = " x ".join(map(str, pixels.shape[:2]))
        raise UldaError(f"the images of a slice, {sides} pixels in all, are too large for a page ({error})") from error
    return base64.b64encode(stream.getvalue()).decode()


def _largest_error(planes: Planes, picture: str) -> float:
    """Return the 99th percentile of the errors of the images; k-space, the last plane, does not count."""
    found = decode(picture, len(planes), packed=False)
    return float(np.percentile(np.abs(found.astype(int) - planes.astype(int))[:-1], 99))
