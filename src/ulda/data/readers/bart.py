"""BART's ``.cfl``/``.hdr`` pairs, memory-mapped."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

from ulda.errors import UldaError
from ulda.io.untrusted import read_text, reading

from .arrays import centred_ifft, check_slice, convert, sampling, subject_from_name
from .base import Description, Kind, KindChoice, Reader, Slice
from .guess import guess_kind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

READ, PHS1, PHS2, COIL, SLICE = 0, 1, 2, 3, 13
DIMENSION_NAMES = (
    *("read", "phs1", "phs2", "coil", "maps", "te", "coeff", "coeff2"),
    *("iter", "cshift", "time", "time2", "level", "slice", "avg", "batch"),
)
N_DIMENSIONS = len(DIMENSION_NAMES)

MOST_HEADER = 2**20
"""Bytes; a header keeps the commands that made the file."""

PHASE_AXIS = -1
"""Arrays are laid out (coils, READ, PHS1)."""


class BartReader(Reader):
    """A pair of files: dimensions in ``.hdr``, complex64 in ``.cfl``, first dimension fastest.

    READ and PHS1 make the image, COIL the coils, SLICE and PHS2 the slices; every other dimension
    longer than one makes the contrast, e.g. ``te3``.
    """

    name = "BART cfl/hdr"

    def recognises(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - a cfl has no signature
        """Tell by a pair whose header parses; the path may be either file or their common stem."""
        pair = bart_pair(path)
        if pair is None:
            return False
        return bool(_dimensions(pair[1]))

    def describe(self, path: Path, kind: KindChoice = "auto") -> Description:
        """Describe from the header, and one slice if the kind has to be guessed."""
        data = self._map(path)
        resolved = _kind(path, data, kind)
        coils = data.shape[COIL]
        shape = (data.shape[READ], data.shape[PHS1])
        extra = _contrast_dimensions(data.shape)
        n_slices = math.prod((data.shape[PHS2], data.shape[SLICE], *(data.shape[axis] for axis in extra)))
        names = {DIMENSION_NAMES[axis]: str(size) for axis, size in enumerate(data.shape) if size > 1}
        return Description(self.name, resolved, n_slices, shape if coils == 1 else (coils, *shape), "complex64", names)

    def slices(self, path: Path, kind: KindChoice = "auto") -> Iterator[Slice]:
        """Read one slice at a time; k-space with several PHS2 partitions one volume at a time."""
        data = self._map(path)
        resolved = _kind(path, data, kind)
        extra = _contrast_dimensions(data.shape)
        stem = _stem(path)
        with reading(path, self.name):
            for where in itertools.product(*(range(data.shape[axis]) for axis in extra)):
                contrast = "-".join(f"{DIMENSION_NAMES[axis]}{at}" for axis, at in zip(extra, where, strict=True))
                fixed = dict(zip(extra, where, strict=True))
                for index in range(data.shape[SLICE]):
                    for plane in _planes(path, _volume(data, fixed | {SLICE: index}), resolved):
                        array = convert(plane, resolved)
                        yield Slice(
                            array,
                            resolved,
                            subject=subject_from_name(path),
                            contrast=contrast,
                            volume=f"{stem}-{contrast}" if contrast else stem,
                            source=path.name,
                            **(sampling(array, PHASE_AXIS) if resolved == "kspace" else {"phase_axis": PHASE_AXIS}),
                        )

    def _map(self, path: Path) -> NDArray[np.complex64]:
        pair = bart_pair(path)
        if pair is None:
            raise UldaError(f"{path} is half of a BART pair: both the .cfl and the .hdr file are needed")
        cfl, header = pair
        dimensions = _dimensions(header)
        expected, size = math.prod(dimensions) * 8, cfl.stat().st_size
        if size != expected:
            raise UldaError(
                f"{cfl} has {size} bytes, but {header.name} announces {expected}; "
                "the pair does not belong together or was truncated, so copy both again"
            )
        if min(dimensions[READ], dimensions[PHS1]) < 2:
            raise UldaError(
                f"{cfl} has dimensions {dimensions}; expected READ and PHS1 longer than one: "
                "non-Cartesian or one-dimensional data cannot be imported, so grid it first"
            )
        check_slice(cfl, (dimensions[PHS2], dimensions[COIL], dimensions[READ], dimensions[PHS1]))
        with reading(cfl, self.name):
            return np.memmap(cfl, np.dtype("<c8"), "r", shape=dimensions, order="F")


def bart_pair(path: Path) -> tuple[Path, Path] | None:
    """Find the ``(.cfl, .hdr)`` pair that `path`, either file or their stem, stands for."""
    stem = path.with_suffix("") if path.suffix in (".cfl", ".hdr") else path
    cfl, header = stem.with_name(stem.name + ".cfl"), stem.with_name(stem.name + ".hdr")
    return (cfl, header) if stem.name and cfl.is_file() and header.is_file() else None


def _stem(path: Path) -> str:
    return path.stem if path.suffix in (".cfl", ".hdr") else path.name


def _dimensions(header: Path) -> tuple[int, ...]:
    """Read the dimensions, padded with ones to all that BART knows."""
    lines = read_text(header, "a BART header", MOST_HEADER).splitlines()
    if "# Dimensions" not in (line.strip() for line in lines):
        raise UldaError(f"{header} is not a BART header: expected a line '# Dimensions'")
    at = [line.strip() for line in lines].index("# Dimensions") + 1
    with reading(header, "a BART header"):
        dimensions = [int(word) for word in lines[at].split()]
    if not dimensions or min(dimensions) < 1 or any(size > 1 for size in dimensions[N_DIMENSIONS:]):
        raise UldaError(f"{header} announces dimensions {dimensions}; expected {N_DIMENSIONS}, all >= 1")
    dimensions = dimensions[:N_DIMENSIONS]
    return tuple(dimensions + [1] * (N_DIMENSIONS - len(dimensions)))


def _contrast_dimensions(shape: tuple[int, ...]) -> list[int]:
    known = (READ, PHS1, PHS2, COIL, SLICE)
    return [axis for axis, size in enumerate(shape) if size > 1 and axis not in known]


def _volume(data: NDArray[np.complex64], fixed: dict[int, int]) -> NDArray[np.complex64]:
    """Cut one volume out of the memory map: ``(PHS2, coils, READ, PHS1)``, not yet read."""
    index = tuple(slice(None) if axis in (READ, PHS1, PHS2, COIL) else fixed.get(axis, 0) for axis in range(data.ndim))
    return data[index].transpose(2, 3, 0, 1)


def _planes(path: Path, volume: NDArray[np.complex64], kind: Kind) -> Iterator[NDArray[np.complex64]]:
    """Give the slices of ``(PHS2, coils, READ, PHS1)``: k-space as ``(coils, H, W)``, images ``(H, W)``."""
    if kind == "kspace" and len(volume) > 1:
        if not (volume != 0).any(axis=(1, 2)).all():
            raise UldaError(
                f"{path} is 3-D k-space with missing lines; the partitions (PHS2) can only be separated "
                "when all of them are sampled, so reconstruct it first or import a fully sampled scan"
            )
        volume = centred_ifft(volume, axis=0)
    for plane in volume:
        yield plane if kind == "kspace" else plane[0]


def _kind(path: Path, data: NDArray[np.complex64], kind: KindChoice) -> Kind:
    resolved: Kind
    if kind == "auto":
        volume = _volume(data, {SLICE: data.shape[SLICE] // 2})
        resolved = guess_kind(volume[len(volume) // 2])
    else:
        resolved = kind
    if resolved != "kspace" and data.shape[COIL] > 1:
        raise UldaError(
            f"{path} holds images of {data.shape[COIL]} coils; expected combined images or k-space, "
            "so combine the coils first (bart rss 8 in out) or pass --kind kspace"
        )
    return resolved
