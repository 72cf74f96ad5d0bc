"""DICOM: one file or the files directly in a folder, sorted into series, echoes and slices."""

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ulda.errors import MissingExtraError, UldaError
from ulda.io.untrusted import check_expansion, reading

from .arrays import check_slice, convert, pseudonym, require_kind
from .base import Description, KindChoice, Reader, Slice

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

MAGIC = b"DICM"
MAGIC_OFFSET = 128

GREY = ("MONOCHROME1", "MONOCHROME2")


class DicomReader(Reader):
    """Grey DICOM images, ordered by series, echo time and position along the slice normal.

    The patient's name and identifier never leave the file: the subject is a pseudonym.
    """

    name = "DICOM"
    volumes_span_paths = True  # the files of a series, given one by one

    def recognises(self, path: Path, head: bytes) -> bool:
        """Tell by the magic bytes of the file, or of any file directly in the folder."""
        if path.is_dir():
            return any(_is_dicom(child) for child in path.iterdir())
        return path.name.upper() != "DICOMDIR" and head[MAGIC_OFFSET : MAGIC_OFFSET + 4] == MAGIC

    def describe(self, path: Path, kind: KindChoice = "auto") -> Description:
        """Describe from the headers."""
        _check_kind(path, kind)
        frames = _ordered_frames(path)
        series = {frame.series for frame in frames}
        contrasts = dict.fromkeys(frame.contrast for frame in frames)
        notes: tuple[str, ...] = ()
        if len({frame.shape for frame in frames}) > 1:
            notes = ("the slices differ in size",)
        return Description(
            self.name,
            "magnitude",
            len(frames),
            frames[0].shape,
            frames[0].dtype,
            {"series": str(len(series)), "contrasts": ", ".join(contrasts)},
            notes,
        )

    def slices(self, path: Path, kind: KindChoice = "auto") -> Iterator[Slice]:
        """Decode one frame at a time, with the rescale slope and intercept applied."""
        _check_kind(path, kind)
        for file, group in itertools.groupby(_ordered_frames(path), key=lambda frame: frame.file):
            frames = list(group)
            for frame, pixels in zip(frames, _pixels(file, frames), strict=True):
                array = convert(_rescaled(frame, pixels), "magnitude")
                volume = pseudonym(frame.subject or "series", frame.series)
                yield Slice(
                    array,
                    "magnitude",
                    subject=frame.subject,
                    contrast=frame.contrast,
                    volume=f"{volume}-{frame.contrast}" if frame.contrast else volume,
                    source=file.name,
                )


@dataclass(frozen=True)
class _Frame:
    """One slice as its header tells it."""

    file: Path
    index: int
    n_frames: int
    series: str
    series_number: int
    echo_time: float
    position: float | None
    instance: int
    subject: str
    contrast: str
    shape: tuple[int, int]
    dtype: str
    slope: float
    intercept: float
    inverted_from: int | None
    """What stored values are subtracted from when low means white (MONOCHROME1)."""


def _check_kind(path: Path, kind: KindChoice) -> None:
    require_kind(path, "DICOM", "magnitude", kind)


def _is_dicom(path: Path) -> bool:
    if path.name.upper() == "DICOMDIR" or not path.is_file():
        return False
    with path.open("rb") as file:
        file.seek(MAGIC_OFFSET)
        return file.read(len(MAGIC)) == MAGIC


def _ordered_frames(path: Path) -> list[_Frame]:
    """Read all headers and sort the frames: by series, echo, position (else instance), frame."""
    try:
        from pydicom import dcmread
    except ImportError as error:
        raise MissingExtraError("reading DICOM", "dicom") from error
    with reading(path, "a DICOM folder"):
        files = sorted(child for child in path.iterdir() if _is_dicom(child)) if path.is_dir() else [path]
    frames: list[_Frame] = []
    for file in files:
        with reading(file, "DICOM"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of values that break the rules; what is needed is checked
            header = dcmread(file, stop_before_pixels=True)
            if "Rows" in header and "Columns" in header:
                frames += _frames(file, header)
    if not frames:
        raise UldaError(f"{path} holds no DICOM image; expected files with pixel data, so name those")
    groups: dict[tuple[int, str, float], list[_Frame]] = {}
    for frame in frames:
        groups.setdefault((frame.series_number, frame.series, frame.echo_time), []).append(frame)
    ordered: list[_Frame] = []
    for key in sorted(groups):
        ordered += _along_normal(groups[key])
    return ordered


def _along_normal(frames: list[_Frame]) -> list[_Frame]:
    """Sort one group by position, or by instance number when any frame has no position."""
    if any(frame.position is None for frame in frames):
        return sorted(frames, key=lambda frame: (frame.instance, frame.file.name, frame.index))
    return sorted(frames, key=lambda frame: (frame.position, frame.instance, frame.file.name, frame.index))


def _frames(file: Path, header: Any) -> Iterator[_Frame]:
    photometric = str(header.get("PhotometricInterpretation", "MONOCHROME2"))
    if int(header.get("SamplesPerPixel", 1)) != 1 or photometric not in GREY:
        raise UldaError(f"{file} is a colour picture ({photometric}); expected grey MR images, so leave it out")
    series = str(header.get("SeriesInstanceUID", ""))
    identifier = str(header.get("PatientID") or header.get("StudyInstanceUID") or series)
    n_frames = int(header.get("NumberOfFrames") or 1)
    shape = (int(header.Rows), int(header.Columns))
    if n_frames < 1 or min(shape) < 1:
        raise UldaError(f"{file} announces {n_frames} frames of {shape[0]} x {shape[1]} pixels; copy it again")
    check_slice(file, shape)
    n_bytes = n_frames * math.prod(shape) * max(1, int(header.get("BitsAllocated", 16)) // 8)
    check_expansion(file, f"its {n_frames} frames", n_bytes, file.stat().st_size)
    bits, signed = int(header.get("BitsStored", 16)), int(header.get("PixelRepresentation", 0))
    for index in range(n_frames):
        lookup = _Lookup(header, index)
        echo_time = lookup.get("MREchoSequence", "EffectiveEchoTime")
        if echo_time is None:
            echo_time = header.get("EchoTime")
        contrast = str(header.get("SeriesDescription") or "")
        yield _Frame(
            file,
            index,
            n_frames,
            series,
            int(header.get("SeriesNumber") or 0),
            -1.0 if echo_time is None else float(echo_time),
            _position(lookup),
            int(header.get("InstanceNumber") or 0),
            pseudonym("patient", identifier) if identifier else "",
            contrast if echo_time is None else f"TE{float(echo_time):g}",
            shape,
            f"{'int' if signed else 'uint'}{int(header.get('BitsAllocated', 16))}",
            float(_or(lookup.get("PixelValueTransformationSequence", "RescaleSlope"), 1)),
            float(_or(lookup.get("PixelValueTransformationSequence", "RescaleIntercept"), 0)),
            None if photometric == "MONOCHROME2" else (-1 if signed else 2**bits - 1),
        )


def _or(value: Any, default: float) -> Any:
    return default if value is None else value


@dataclass(frozen=True)
class _Lookup:
    """Find an element of one frame: in its functional groups, the shared ones, or the top level."""

    header: Any
    index: int

    def get(self, group: str, keyword: str) -> Any:
        per_frame = self.header.get("PerFrameFunctionalGroupsSequence")
        shared = self.header.get("SharedFunctionalGroupsSequence")
        places = [per_frame[self.index]] if per_frame and self.index < len(per_frame) else []
        places += [shared[0]] if shared else []
        for place in places:
            sequence = place.get(group)
            if sequence and keyword in sequence[0]:
                return sequence[0].get(keyword)
        return self.header.get(keyword)


def _position(lookup: _Lookup) -> float | None:
    """Distance along the slice normal, None without geometry."""
    orientation = lookup.get("PlaneOrientationSequence", "ImageOrientationPatient")
    origin = lookup.get("PlanePositionSequence", "ImagePositionPatient")
    if orientation is None or origin is None or len(orientation) != 6 or len(origin) != 3:
        return None
    rows, columns = np.array(orientation[:3], float), np.array(orientation[3:], float)
    # A fraction of a micrometre apart is rounding, not another slice.
    return round(float(np.dot(np.cross(rows, columns), np.array(origin, float))), 4)


def _pixels(file: Path, frames: list[_Frame]) -> Iterator[NDArray[np.generic]]:
    advice = (
        "its pixel data cannot be decoded, as they are truncated or use a compression without an installed decoder, so "
        "copy it again or decompress it first (gdcmconv --raw)"
    )
    with reading(file, "DICOM", advice):
        yield from _decoded(file, frames)


def _decoded(file: Path, frames: list[_Frame]) -> Iterator[NDArray[np.generic]]:
    try:
        from pydicom.pixels.utils import iter_pixels
    except ImportError:  # pydicom 2 decodes all frames of a file at once
        from pydicom import dcmread

        array = dcmread(file).pixel_array
        yield from (array if frame.n_frames == 1 else array[frame.index] for frame in frames)
    else:
        yield from iter_pixels(file, indices=[frame.index for frame in frames])


def _rescaled(frame: _Frame, pixels: NDArray[np.generic]) -> NDArray[np.generic]:
    stored = np.asarray(pixels, np.float64)
    if frame.inverted_from is not None:
        stored = frame.inverted_from - stored
    return np.asarray(stored * frame.slope + frame.intercept)
