"""Look inside any readable file and say plainly what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ulda.data.readers import expand
from ulda.data.readers.base import Description, KindChoice, Reader, Slice
from ulda.data.splits import check_leakage
from ulda.data.values import LARGEST, is_sound
from ulda.errors import UldaError
from ulda.physics import fft2c

Severity = Literal["error", "warning", "info"]

EMPTY_LINE = 1e-12
"""A k-space line with less than this fraction of the mean line energy counts as zero-filled."""


@dataclass(frozen=True)
class Finding:
    """One sentence about a file."""

    severity: Severity
    message: str


@dataclass(frozen=True)
class Inspection:
    """What a file holds and what is wrong with it.

    Attributes
    ----------
    center
        Where k-space has its most energetic sample, averaged over all slices.
    zero_borders
        The number of zero-filled k-space lines at the top, bottom, left and right.
    """

    path: str
    description: Description | None
    n_subjects: int = 0
    n_nonfinite: int = 0
    center: tuple[int, int] | None = None
    zero_borders: tuple[int, int, int, int] | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there is no finding of severity ``error``."""
        return all(finding.severity != "error" for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return asdict(self) | {"ok": self.ok}


@dataclass
class _Tally:
    """What accumulates over the slices of one file."""

    n_slices: int = 0
    n_nonfinite: int = 0
    n_bad_slices: int = 0
    n_empty: int = 0
    n_constant: int = 0
    negative: bool = False
    undersampled_axis: int | None = None
    sizes: set[tuple[int, ...]] = field(default_factory=set)
    subjects: list[str] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    energy: NDArray[np.float64] | None = None


def inspect(
    path: str | Path, kind: KindChoice = "auto", progress: Callable[[int], None] | None = None
) -> list[Inspection]:
    """Inspect a file, or every readable file of a folder; errors become findings.

    Parameters
    ----------
    path
        A file or a folder.
    kind
        What arrays without metadata hold.
    progress
        Called with the number of slices seen.
    """
    try:
        found = list(expand([Path(path)]))
    except UldaError as error:
        return [Inspection(str(path), None, findings=(Finding("error", str(error)),))]
    return [_inspect_one(file, reader, kind, progress) for file, reader in found]


def _inspect_one(path: Path, reader: Reader, kind: KindChoice, progress: Callable[[int], None] | None) -> Inspection:
    description: Description | None = None
    tally = _Tally()
    findings: list[Finding] = []
    try:
        description = reader.describe(path, kind)
        findings += [Finding("info", note) for note in description.notes]
        for item in reader.slices(path, kind):
            _count(tally, item)
            if progress:
                progress(tally.n_slices)
    except UldaError as error:
        findings.append(Finding("error", str(error)))
    center, borders = _kspace_geometry(tally)
    findings += _findings(tally, description, center, borders)
    return Inspection(
        path=str(path),
        description=description,
        n_subjects=len(set(tally.subjects)),
        n_nonfinite=tally.n_nonfinite,
        center=center,
        zero_borders=borders,
        findings=tuple(findings),
    )


def _count(tally: _Tally, item: Slice) -> None:
    sound = is_sound(item.array)
    n_bad = int(item.array.size - np.count_nonzero(sound))
    array = np.where(sound, item.array, 0)
    tally.n_slices += 1
    tally.n_nonfinite += n_bad
    tally.n_bad_slices += n_bad > 0
    tally.n_empty += not array.any()
    tally.n_constant += bool(array.any() and np.ptp(np.abs(array)) == 0)
    tally.negative |= bool(item.kind == "magnitude" and array.min() < 0)
    if item.lines is not None:
        tally.undersampled_axis = item.phase_axis
    tally.sizes.add(item.array.shape)
    tally.subjects.append(item.subject)
    tally.splits.append(item.split)
    if item.kind == "kspace":
        kspace = array
    else:
        kspace = fft2c(torch.from_numpy(np.ascontiguousarray(array)).to(torch.complex128)).numpy()
    energy = np.abs(kspace.reshape(-1, *kspace.shape[-2:])).astype(np.float64) ** 2
    if tally.energy is None:
        tally.energy = np.zeros(energy.shape[-2:])
    if tally.energy.shape == energy.shape[-2:]:
        tally.energy += energy.sum(axis=0)


def _kspace_geometry(tally: _Tally) -> tuple[tuple[int, int] | None, tuple[int, int, int, int] | None]:
    energy = tally.energy
    if energy is None or not energy.any() or not np.isfinite(energy).all():
        return None, None
    row, column = divmod(int(energy.argmax()), energy.shape[1])
    rows, columns = energy.sum(axis=1), energy.sum(axis=0)
    return (row, column), (_leading(rows), _leading(rows[::-1]), _leading(columns), _leading(columns[::-1]))


def _leading(lines: NDArray[np.float64]) -> int:
    """Count the lines without energy before the first one with some."""
    return int(np.argmax(lines > EMPTY_LINE * lines.mean()))


def _findings(
    tally: _Tally,
    description: Description | None,
    center: tuple[int, int] | None,
    borders: tuple[int, int, int, int] | None,
) -> Iterator[Finding]:
    if tally.n_nonfinite:
        yield Finding(
            "error",
            f"{tally.n_nonfinite} values in {tally.n_bad_slices} slices are NaN or infinite, or above {LARGEST:g}",
        )
    if len(tally.sizes) > 1:
        sizes = ", ".join(" x ".join(map(str, size)) for size in sorted(tally.sizes))
        yield Finding("warning", f"the slices have different sizes ({sizes}); import them with --size")
    if tally.n_empty:
        yield Finding("warning", f"{tally.n_empty} slices are zero everywhere; an import leaves them out")
    if tally.n_constant:
        yield Finding("warning", f"{tally.n_constant} slices have the same value in every pixel")
    if tally.negative:
        yield Finding("warning", "magnitudes are negative in places; an import takes absolute values")
    try:
        check_leakage(tally.subjects, tally.splits)
    except UldaError as error:
        yield Finding("error", str(error))
    if description is None or center is None or borders is None or tally.energy is None:
        return
    if description.kind == "kspace":
        yield from _center_findings(center, tally.energy)
    elif description.kind == "magnitude":
        yield Finding("info", "magnitude images: k-space made from them is simulated and conjugate-symmetric")
    yield from _border_findings(borders, tally.energy.shape, tally.undersampled_axis)
    if tally.undersampled_axis is not None:
        yield Finding("info", "the k-space arrived undersampled: it can be reconstructed, but not trained on")


def _border_findings(
    borders: tuple[int, int, int, int], shape: tuple[int, ...], undersampled_axis: int | None
) -> Iterator[Finding]:
    top, bottom, left, right = borders
    # lines that were not sampled are no sign of zero-filling
    if undersampled_axis == -2:
        top = bottom = 0
    elif undersampled_axis == -1:
        left = right = 0
    if any((top, bottom, left, right)):
        size = " x ".join(map(str, shape))
        yield Finding(
            "warning",
            f"k-space ({size}) is zero-filled at its borders: {top} rows at the top, {bottom} at the bottom, {left} "
            f"columns at the left, {right} at the right; the true resolution is lower, choose --size accordingly",
        )


def _center_findings(center: tuple[int, int], energy: NDArray[np.float64]) -> Iterator[Finding]:
    expected = (energy.shape[0] // 2, energy.shape[1] // 2)
    shift = max(abs(a - b) for a, b in zip(center, expected, strict=True))
    corner = max(min(a, n - a) for a, n in zip(center, energy.shape, strict=True))
    if shift <= 1:
        return
    if corner <= 1:
        yield Finding(
            "error",
            f"k-space is not centred: its origin is in the corner {center}; apply fftshift before importing",
        )
    elif 4 * shift < min(energy.shape):
        yield Finding(
            "warning",
            f"the k-space centre is at {center}, expected {expected}: images will carry a linear phase",
        )
    else:
        yield Finding(
            "error",
            f"the most energetic sample is at {center}, far from the centre {expected}; is this centred k-space?",
        )
