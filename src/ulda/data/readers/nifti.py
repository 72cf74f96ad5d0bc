"""NIfTI-1 and NIfTI-2 images, plain or gzipped, through nibabel."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ulda.errors import UldaError
from ulda.io.nifti import is_nifti, load_nifti
from ulda.io.untrusted import check_memory, reading

from .arrays import check_numeric, convert, resolve_kind, stem_of, subject_from_name
from .base import Description, Kind, KindChoice, Reader, Slice

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

VOXEL_TOLERANCE = 1e-3
"""Voxel sizes closer than this, relatively, are the same: headers carry rounding errors."""


class NiftiReader(Reader):
    """NIfTI volumes, cut across the axis with the largest voxels; the fourth axis is the contrast.

    Slices are given as stored, without reorientation: rows follow the first of the remaining axes.
    """

    name = "NIfTI"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Tell by the magic of the (decompressed) header."""
        return path.is_file() and is_nifti(head)

    def describe(self, path: Path, kind: KindChoice = "auto") -> Description:
        """Describe from the header alone."""
        with reading(path, self.name):
            image = load_nifti(path)
            shape = _shape(path, image)
            axis = _slice_axis(shape, image.header.get_zooms())
            resolved = _kind(path, image, kind)
            n_volumes = shape[3] if len(shape) == 4 else 1
            plane = tuple(size for at, size in enumerate(shape[:3]) if at != axis)
            attributes = {
                "voxel sizes": " x ".join(f"{float(size):g}" for size in image.header.get_zooms()[:3]),
                "volumes": str(n_volumes),
            }
            n_slices = n_volumes * (1 if axis is None else shape[axis])
            return Description(self.name, resolved, n_slices, plane, str(image.get_data_dtype()), attributes)

    def slices(self, path: Path, kind: KindChoice = "auto") -> Iterator[Slice]:
        """Read one slice at a time; one volume at a time when gzip forbids jumping between slices."""
        with reading(path, self.name):
            image = load_nifti(path)
            shape = _shape(path, image)
            axis = _slice_axis(shape, image.header.get_zooms())
            resolved = _kind(path, image, kind)
            stem = stem_of(path)
            for volume in range(shape[3] if len(shape) == 4 else 1):
                contrast = f"t{volume}" if len(shape) == 4 else ""
                for plane in _planes(path, image, shape, axis, volume):
                    yield Slice(
                        convert(plane, resolved),
                        resolved,
                        subject=subject_from_name(path),
                        contrast=contrast,
                        volume=f"{stem}-{contrast}" if contrast else stem,
                        source=path.name,
                    )

    def affine(self, path: Path) -> NDArray[np.float64] | None:
        """Return the one of the header, for the axes as the slices have them; None for several volumes."""
        with reading(path, self.name):
            image = load_nifti(path)
            shape = _shape(path, image)
            if len(shape) == 4:
                return None
            axis = _slice_axis(shape, image.header.get_zooms())
            order = [0, 1, 2] if axis is None else [*(at for at in range(3) if at != axis), axis]
            return np.asarray(image.affine, np.float64)[:, [*order, 3]]


def _shape(path: Path, image: Any) -> tuple[int, ...]:
    """Give the shape with trailing axes of length one removed, two to four axes long."""
    shape = tuple(int(size) for size in image.shape)
    while len(shape) > 3 and shape[-1] == 1:
        shape = shape[:-1]
    if not 2 <= len(shape) <= 4 or 0 in shape:
        raise UldaError(f"{path} holds an image of shape {image.shape}; expected two to four axes, none empty")
    check_memory(path, "a volume", math.prod(shape[:3]) * max(8, image.get_data_dtype().itemsize))
    return shape


def _slice_axis(shape: tuple[int, ...], zooms: tuple[float, ...]) -> int | None:
    """Find the axis to cut across; None for a single 2-D image.

    The largest voxel size wins, then the smallest dimension, then the last axis. An axis of length
    one always wins: cutting across another would give slices one pixel wide.
    """
    if len(shape) == 2:
        return None
    single = [axis for axis in range(3) if shape[axis] == 1]
    if single:
        return single[-1]
    largest = max(zooms[:3])
    coarse = [axis for axis in range(3) if zooms[axis] >= largest * (1 - VOXEL_TOLERANCE)]
    return min(coarse, key=lambda axis: (shape[axis], -axis))


def _kind(path: Path, image: Any, kind: KindChoice) -> Kind:
    """NIfTI is a format for images: complex data is a complex image unless the user says otherwise."""
    dtype = image.get_data_dtype()
    check_numeric(path, dtype)
    if kind == "auto":
        kind = "complex" if dtype.kind == "c" else "magnitude"

    def unused() -> NDArray[np.generic]:
        return np.zeros((1, 1))

    return resolve_kind(path, dtype, 2, kind, unused)


def _planes(
    path: Path,
    image: Any,
    shape: tuple[int, ...],
    axis: int | None,
    volume: int,
) -> Iterator[NDArray[np.generic]]:
    padding = (0,) * (image.ndim - len(shape))
    tail = (volume, *padding) if len(shape) == 4 else padding
    if axis is None:
        yield np.asarray(image.dataobj)
    elif axis < 2 and path.name.lower().endswith(".gz"):
        block = np.asarray(image.dataobj[(slice(None), slice(None), slice(None), *tail)])
        yield from np.moveaxis(block, axis, 0)
    else:
        for index in range(shape[axis]):
            where = tuple(index if at == axis else slice(None) for at in range(3))
            yield np.asarray(image.dataobj[where + tail])
