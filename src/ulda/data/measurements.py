"""From a file of any readable format to measurements with their operators, a few slices at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ulda.data.importing import ImportOptions, prepare
from ulda.data.readers import KindChoice, Reader, Slice, expand
from ulda.data.values import check_values
from ulda.errors import UldaError
from ulda.physics import (
    DETECTED,
    CartesianMRI,
    Mask,
    Physics,
    cartesian_mask,
    coil_physics,
    fft2c,
    load_mask,
    mask_from_array,
)


@dataclass(frozen=True)
class Undersampling:
    """The lines to keep of fully sampled data, for a retrospective test.

    Attributes
    ----------
    ratio, seed
        Draw a mask of this ratio with `ulda.physics.cartesian_mask`.
    mask
        A mask file, instead.
    """

    ratio: float | None = None
    seed: int = 0
    mask: Path | None = None

    def __post_init__(self) -> None:
        if self.ratio is not None and self.mask is not None:
            raise UldaError("give either a sampling ratio or a mask file, not both")

    @property
    def is_asked_for(self) -> bool:
        """Whether there is a ratio or a mask."""
        return self.ratio is not None or self.mask is not None

    def draw(self, n_lines: int) -> Mask:
        """Return the mask for so many lines."""
        if self.ratio is not None:
            return cartesian_mask(n_lines, self.ratio, seed=self.seed)
        assert self.mask is not None
        mask = load_mask(self.mask)
        if mask.n_lines != n_lines:
            raise UldaError(f"the mask in {self.mask.name} has {mask.n_lines} lines, but the slices have {n_lines}")
        return mask


@dataclass(frozen=True)
class MeasuredSlices:
    """Slices with one operator: k-space ``(n, H, W)`` or ``(n, coils, H, W)`` in the units of the file."""

    y: Tensor
    physics: Physics


def count_slices(path: str | Path, kind: KindChoice = "auto") -> int:
    """Return how many slices a path holds, without reading them."""
    source, reader = _only(Path(path))
    return reader.describe(source, kind).n_slices


def slice_affine(path: str | Path) -> NDArray[np.float64] | None:
    """Return where the slices of a path lie, as `ulda.data.readers.Reader.affine` does."""
    source, reader = _only(Path(path))
    return reader.affine(source)


def measurements(
    path: str | Path, undersampling: Undersampling, kind: KindChoice = "auto", *, batch_size: int = 4
) -> Iterator[MeasuredSlices]:
    """Stream the measurements of a file or folder; consecutive slices with the same lines come together.

    Data that arrive undersampled keep their lines; where a file names none, those that are not empty. Fully sampled
    k-space, and images, are undersampled as asked. Coil sensitivities are estimated from the sampled centre lines of
    each slice.

    Parameters
    ----------
    path
        A file or a folder of any format that `ulda.data.readers` knows.
    undersampling
        The lines to keep of fully sampled data.
    kind
        What arrays without metadata hold.
    batch_size
        The largest number of slices to hold at a time.
    """
    slices = _slices(Path(path), undersampling, kind)
    for (mask, axis, _), alike in groupby(slices, key=lambda item: (item[1], item[2], item[0].shape)):
        while batch := [kspace for kspace, *_ in islice(alike, batch_size)]:
            y = torch.stack(batch) * mask.along(axis)
            yield MeasuredSlices(y, CartesianMRI(mask, axis) if y.ndim == 3 else coil_physics(y, mask, axis))


def _slices(path: Path, undersampling: Undersampling, kind: KindChoice) -> Iterator[tuple[Tensor, Mask, int]]:
    """Stream the k-space of the slices in the units of the file, with their masks and phase-encode axes."""
    source, reader = _only(path)
    for item in reader.numbered(source, kind):
        prepared = prepare(item, ImportOptions())
        array = torch.from_numpy(prepared.array) * prepared.scale
        check_values(array.numpy(), item.place)
        kspace = array if prepared.kind == "kspace" else fft2c(array.to(torch.complex64))
        yield kspace, _mask(prepared, kspace.shape[prepared.phase_axis], undersampling), prepared.phase_axis


def _mask(item: Slice, n_lines: int, undersampling: Undersampling) -> Mask:
    if item.lines is not None:
        if undersampling.is_asked_for:
            empty = f"{int((~item.lines).sum())} of {item.lines.size} lines are empty"
            raise UldaError(
                f"{item.source} is undersampled already: {empty}; leave out the sampling ratio and the mask"
            )
        return mask_from_array(item.lines, item.source, DETECTED if item.lines_are_detected else "file")
    if not undersampling.is_asked_for:
        raise UldaError(
            f"{item.source} is fully sampled, so there is nothing to reconstruct; "
            "for a retrospective test pass --ratio 0.2 or --mask FILE"
        )
    return undersampling.draw(n_lines)


def _only(path: Path) -> tuple[Path, Reader]:
    found = list(expand([path]))
    if len(found) > 1:
        raise UldaError(f"{path} holds {len(found)} data files; reconstruct them one at a time")
    return found[0]
