"""What the readers share: rank conventions, the kind of an array, conversion, pseudonyms."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from ulda.errors import UldaError
from ulda.io.untrusted import HARMLESS_BYTES, check_expansion, check_memory

from .base import Slice
from .guess import guess_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from .base import Kind, KindChoice

KSPACE_NAMES = ("kspace", "kdata")
"""Variable names that say: this is k-space."""

IMAGE_NAMES = ("images", "img", "im")
"""Variable names that say: these are images."""

OTHER_NAMES = ("I", "x")
"""Variable names people use for either."""


@dataclass(frozen=True)
class Stack:
    """How an array without metadata is cut into slices.

    Attributes
    ----------
    n_slices
        How many slices there are.
    slice_shape
        ``(H, W)`` or ``(coils, H, W)``.
    """

    n_slices: int
    slice_shape: tuple[int, ...]


def stack_of(path: Path, shape: tuple[int, ...]) -> Stack:
    """Apply the rank conventions: (H, W), (slices, H, W) or (slices, coils, H, W).

    Examples
    --------
    >>> from pathlib import Path
    >>> stack_of(Path("a.npy"), (20, 256, 192))
    Stack(n_slices=20, slice_shape=(256, 192))
    """
    if not 2 <= len(shape) <= 4:
        raise UldaError(
            f"{path} holds an array of shape {shape}; expected (H, W), (slices, H, W), or "
            "(slices, coils, H, W) for k-space, so reshape it first"
        )
    if 0 in shape:
        raise UldaError(f"{path} holds an empty array of shape {shape}; expected at least one slice")
    stack = Stack(1, shape) if len(shape) == 2 else Stack(shape[0], shape[1:])
    check_slice(path, stack.slice_shape)
    return stack


def check_slice(path: Path, shape: tuple[int, ...]) -> None:
    """Refuse slices that ask for more memory than the limit, or than their file can stand for, before one is read."""
    what, n_bytes = f"a slice of {' x '.join(map(str, shape))}", math.prod(shape) * np.dtype(np.complex64).itemsize
    check_memory(path, what, n_bytes)
    if n_bytes > HARMLESS_BYTES:
        check_expansion(path, what, n_bytes, path.stat().st_size)


def notes_on(shape: tuple[int, ...]) -> tuple[str, ...]:
    """Warn about a shape that is legal but probably has its slice axis last, as MATLAB users store it."""
    if len(shape) == 3 and (shape[0] == shape[1] != shape[2] or 2 * shape[2] < min(shape[:2])):
        return (
            f"read as {shape[0]} slices of {shape[1]} x {shape[2]}; if it is (H, W, slices) = {shape}, "
            "move the last axis to the front first",
        )
    if len(shape) == 4 and shape[1] > min(shape[2:]):
        return (
            f"read as {shape[0]} slices of {shape[1]} coils, {shape[2]} x {shape[3]} each; if the coils or slices "
            f"come last in {shape}, bring it to (slices, coils, H, W) first",
        )
    return ()


def resolve_kind(
    path: Path,
    dtype: np.dtype[np.generic],
    slice_ndim: int,
    kind: KindChoice,
    sample: Callable[[], NDArray[np.generic]],
    name: str = "",
) -> Kind:
    """Decide what an array holds; an explicit `kind` wins, a telling variable name comes next.

    Parameters
    ----------
    path
        For messages.
    dtype
        Of the stored array.
    slice_ndim
        2 for ``(H, W)``, 3 for ``(coils, H, W)``.
    kind
        What the user says.
    sample
        Gives one slice to look at, when nothing else decides.
    name
        Name of the variable, if it has one.
    """
    check_numeric(path, dtype)
    is_complex = dtype.kind == "c"
    resolved: Kind
    if kind != "auto":
        resolved = kind
    elif name in KSPACE_NAMES:
        resolved = "kspace"
    elif not is_complex:
        resolved = "magnitude"
    elif slice_ndim == 3:
        resolved = "kspace"
    else:
        resolved = "complex" if name in IMAGE_NAMES else guess_kind(sample())
    if resolved == "kspace" and not is_complex:
        raise UldaError(
            f"{path} holds real numbers ({dtype}) where k-space must be complex; "
            "pass --kind magnitude or store complex k-space"
        )
    if resolved != "kspace" and slice_ndim == 3:
        raise UldaError(
            f"{path} holds a 4-D array of {dtype} declared or taken as {resolved}; 4-D is read as "
            "(slices, coils, H, W) k-space only, so store images as (slices, H, W)"
        )
    return resolved


def require_kind(path: Path, what: str, found: Kind, kind: KindChoice) -> None:
    """Refuse a declared kind that contradicts a format which always holds `found`."""
    if kind not in ("auto", found):
        raise UldaError(f"{path} is {what}, which holds {found}, not {kind}; leave --kind at auto")


def check_numeric(path: Path, dtype: np.dtype[np.generic]) -> None:
    """Refuse text, objects, dates and records."""
    if dtype.kind not in "biufc":
        raise UldaError(f"{path} holds data of type {dtype}; expected real or complex numbers")


def convert(array: NDArray[np.generic], kind: Kind) -> NDArray[np.generic]:
    """Convert one slice to float32 (magnitude) or complex64; one coil becomes ``(H, W)``.

    Examples
    --------
    >>> convert(np.array([[3 + 4j]]), "magnitude")
    array([[5.]], dtype=float32)
    """
    with np.errstate(over="ignore", invalid="ignore"):  # what becomes infinite is refused with its position
        if kind == "magnitude":
            return np.asarray(np.abs(array) if array.dtype.kind == "c" else array).astype(np.float32)
        if array.ndim == 3 and array.shape[0] == 1:
            array = array[0]
        return np.ascontiguousarray(array, dtype=np.complex64)


def sampled_lines(kspace: NDArray[np.generic], phase_axis: int) -> NDArray[np.bool_] | None:
    """Tell which phase-encode lines of undersampled k-space are not exactly zero; None when it is complete.

    Parameters
    ----------
    kspace
        ``(..., H, W)``.
    phase_axis
        -2 or -1.
    """
    others = tuple(axis for axis in range(kspace.ndim) if axis != kspace.ndim + phase_axis)
    return undersampled((kspace != 0).any(axis=others))


def undersampled(lines: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
    """Return the sampled lines of undersampled k-space, None for complete k-space.

    Lines that are missing at both borders alike are a lower resolution, zero-filled, and no undersampling.

    Examples
    --------
    >>> undersampled(np.array([False, True, True, True, True, False, False])) is None
    True
    >>> undersampled(np.array([False, False, True, True, True, True]))  # partial Fourier
    array([False, False,  True,  True,  True,  True])
    """
    if not lines.any():
        return None
    before, after = int(np.argmax(lines)), int(np.argmax(lines[::-1]))
    contiguous = bool(lines[before : len(lines) - after].all())
    return None if contiguous and abs(before - after) <= 1 else lines


class Sampling(TypedDict):
    """What a slice of k-space says of its lines."""

    lines: NDArray[np.bool_] | None
    lines_are_detected: bool
    phase_axis: int


def sampling(kspace: NDArray[np.generic], phase_axis: int | None, lines: NDArray[np.bool_] | None = None) -> Sampling:
    """Return which lines of a slice were sampled; every reader of k-space asks here.

    Parameters
    ----------
    kspace
        ``(..., H, W)``.
    phase_axis
        -2 or -1; None where the file does not tell, and the axis with the larger share of empty lines is taken.
    lines
        The sampled lines where the file names them. Lines that are zero count as not sampled where it does not.
    """
    if lines is not None and phase_axis is not None:
        return {"lines": lines, "lines_are_detected": False, "phase_axis": phase_axis}
    if phase_axis is None:
        phase_axis, lines = find_phase_axis(kspace)
    else:
        lines = sampled_lines(kspace, phase_axis)
    return {"lines": lines, "lines_are_detected": lines is not None, "phase_axis": phase_axis}


def find_phase_axis(kspace: NDArray[np.generic]) -> tuple[int, NDArray[np.bool_] | None]:
    """Find the undersampled axis of k-space that comes without metadata.

    Returns the axis with the larger share of empty lines and its sampled lines; ``(-2, None)`` when
    every line of both axes holds data.
    """
    rows, columns = sampled_lines(kspace, -2), sampled_lines(kspace, -1)
    if columns is not None and (rows is None or columns.mean() < rows.mean()):
        return -1, columns
    return -2, rows


def centred_ifft(array: NDArray[np.generic], axis: int) -> NDArray[np.complex64]:
    """Unitary inverse FFT along one axis with the origin at ``n // 2`` on both sides."""
    moved = np.fft.ifft(np.fft.ifftshift(array, axes=axis), axis=axis, norm="ortho")
    return np.fft.fftshift(moved, axes=axis).astype(np.complex64)


def centred_fft(array: NDArray[np.generic], axis: int) -> NDArray[np.complex64]:
    """Unitary FFT along one axis, the inverse of `centred_ifft`."""
    moved = np.fft.fft(np.fft.ifftshift(array, axes=axis), axis=axis, norm="ortho")
    return np.fft.fftshift(moved, axes=axis).astype(np.complex64)


def choose_variable(path: Path, shapes: Mapping[str, tuple[int, ...]], kind: KindChoice) -> str:
    """Choose which named array of a file to read.

    Parameters
    ----------
    path
        For messages.
    shapes
        Name to shape of every numeric array that could be meant.
    kind
        ``"kspace"`` prefers k-space names, ``"magnitude"`` and ``"complex"`` image names.
    """
    known = KSPACE_NAMES + IMAGE_NAMES + OTHER_NAMES
    if kind in ("magnitude", "complex"):
        known = IMAGE_NAMES + OTHER_NAMES + KSPACE_NAMES
    for name in known:
        if name in shapes:
            return name
    if len(shapes) == 1:
        return next(iter(shapes))
    listing = some_of([f"{name} {shape}" for name, shape in shapes.items()])
    problem = "several arrays that could be meant" if shapes else "no numeric array of two or more dimensions"
    raise UldaError(
        f"{path} holds {problem}: {listing}; expected a single one, or one named "
        f"{', '.join(KSPACE_NAMES + IMAGE_NAMES + OTHER_NAMES)}, so rename or save it alone"
    )


def pseudonym(prefix: str, identifier: str) -> str:
    """Replace a patient's identifier by a stable one that does not show it.

    Examples
    --------
    >>> pseudonym("patient", "Doe^Jane")
    'patient-ff37cfda'
    """
    return f"{prefix}-{hashlib.sha256(identifier.encode()).hexdigest()[:8]}"


def stem_of(path: Path) -> str:
    """File name without its extension, where ``.nii.gz`` counts as one."""
    return path.name[: -len(".nii.gz")] if path.name.lower().endswith(".nii.gz") else path.stem


def subject_from_name(path: Path) -> str:
    """Subject of a file that does not name one: the BIDS ``sub-`` label of it or its folder, else the stem.

    Examples
    --------
    >>> from pathlib import Path
    >>> subject_from_name(Path("sub-01_T1w.nii.gz")), subject_from_name(Path("sub-01/anat/T1w.nii.gz"))
    ('sub-01', 'sub-01')
    >>> subject_from_name(Path("head.nii"))
    'head'
    """
    for part in reversed(path.parts):
        label = re.match(r"sub-[A-Za-z0-9]+", part)
        if label:
            return label[0]
    return stem_of(path)


def bare_slice(
    path: Path,
    array: NDArray[np.generic],
    kind: Kind,
    *,
    subject: str = "",
    contrast: str = "",
    split: str = "",
) -> Slice:
    """Wrap an array that comes without metadata; k-space with empty lines counts as undersampled."""
    sampled: Sampling = {"lines": None, "lines_are_detected": False, "phase_axis": -2}
    if kind == "kspace":
        sampled = sampling(array, None)
    return Slice(
        array,
        kind,
        subject=subject or subject_from_name(path),
        contrast=contrast,
        split=split,
        volume="-".join(part for part in (path.stem, subject, contrast) if part),
        source=path.name,
        **sampled,
    )


def some_of(names: list[str], limit: int = 12) -> str:
    """List names in a message, at most `limit` of them.

    Examples
    --------
    >>> some_of(["a", "b", "c"], limit=2)
    'a, b, ... (3 in all)'
    """
    if not names:
        return "nothing"
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown}, ... ({len(names)} in all)"
