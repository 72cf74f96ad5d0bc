"""NumPy's own files: ``.npy`` memory-mapped, ``.npz`` streamed out of the zip slice by slice."""

from __future__ import annotations

import math
from typing import IO, TYPE_CHECKING

import numpy as np

from ulda.errors import UldaError
from ulda.io.numpy_input import (
    NPY_MAGIC,
    ZIP_MAGICS,
    Member,
    map_npy,
    members,
    open_npz,
    opened_member,
    read_member,
    read_member_header,
)
from ulda.io.untrusted import reading

from .arrays import (
    bare_slice,
    check_numeric,
    choose_variable,
    convert,
    notes_on,
    resolve_kind,
    stack_of,
)
from .base import Description, Kind, KindChoice, Reader, Slice

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from .arrays import Stack

LABELS = ("subject", "contrast", "split")
"""Text arrays of an npz with one entry for each slice."""


class NpyReader(Reader):
    """One array in ``.npy``: (H, W), (slices, H, W), or (slices, coils, H, W) for k-space."""

    name = "NumPy array (.npy)"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Tell by the magic bytes."""
        return path.is_file() and head.startswith(NPY_MAGIC)

    def describe(self, path: Path, kind: KindChoice = "auto") -> Description:
        """Describe from the header, and one slice if the kind has to be guessed."""
        with reading(path, self.name):
            array = map_npy(path)
            stack = stack_of(path, array.shape)
            resolved = _npy_kind(path, array, stack, kind)
            return Description(
                self.name,
                resolved,
                stack.n_slices,
                stack.slice_shape,
                str(array.dtype),
                notes=notes_on(array.shape),
            )

    def slices(self, path: Path, kind: KindChoice = "auto") -> Iterator[Slice]:
        """Read one slice at a time through a memory map."""
        with reading(path, self.name):
            array = map_npy(path)
            stack = stack_of(path, array.shape)
            resolved = _npy_kind(path, array, stack, kind)
            for index in range(stack.n_slices):
                plane = array if array.ndim == 2 else array[index]
                yield bare_slice(path, convert(plane, resolved), resolved)


class NpzReader(Reader):
    """An ``.npz`` with ``images`` or ``kspace`` and, if known, subject, contrast and split of each slice."""

    name = "NumPy archive (.npz)"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Tell by the zip magic and members that are arrays; the suffix decides for damaged archives."""
        if not path.is_file() or not head.startswith(ZIP_MAGICS):
            return False
        if path.suffix.lower() == ".npz":
            return True
        with open_npz(path, self.name) as archive:
            return bool(members(archive))

    def describe(self, path: Path, kind: KindChoice = "auto") -> Description:
        """Describe from the headers of the members."""
        with open_npz(path, self.name) as archive:
            member = _main_member(path, archive, kind)
            stack = stack_of(path, member.shape)
            resolved = _npz_kind(path, archive, member, stack, kind)
            labels = _labels(path, archive, stack.n_slices)
            attributes = {"variable": member.name}
            attributes |= {f"{label}s": str(len(set(values))) for label, values in labels.items()}
            return Description(
                self.name,
                resolved,
                stack.n_slices,
                stack.slice_shape,
                str(member.dtype),
                attributes,
                notes_on(member.shape),
            )

    def slices(self, path: Path, kind: KindChoice = "auto") -> Iterator[Slice]:
        """Decompress one slice at a time."""
        with open_npz(path, self.name) as archive:
            member = _main_member(path, archive, kind)
            stack = stack_of(path, member.shape)
            resolved = _npz_kind(path, archive, member, stack, kind)
            labels = _labels(path, archive, stack.n_slices)
            with opened_member(path, archive, member) as stream:
                for index in range(stack.n_slices):
                    plane = _next_plane(path, stream, member, stack)
                    known = {label: values[index] for label, values in labels.items()}
                    yield bare_slice(path, convert(plane, resolved), resolved, **known)


def _npy_kind(path: Path, array: NDArray[np.generic], stack: Stack, kind: KindChoice) -> Kind:
    def middle() -> NDArray[np.generic]:
        return array if array.ndim == 2 else array[stack.n_slices // 2]

    return resolve_kind(path, array.dtype, len(stack.slice_shape), kind, middle)


def _main_member(path: Path, archive: zipfile.ZipFile, kind: KindChoice) -> Member:
    infos = members(archive)
    known: list[str] = [name for name in ("images", "kspace") if name in infos]
    names = known or [name for name in infos if name not in LABELS]
    headers = {name: read_member_header(path, archive, infos[name]) for name in names}
    candidates = {
        name: member.shape
        for name, member in headers.items()
        if name in known or (len(member.shape) >= 2 and member.dtype.kind in "biufc")
    }
    member = headers[choose_variable(path, candidates, kind)]
    check_numeric(path, member.dtype)
    if member.fortran_order and len(member.shape) > 2:
        raise UldaError(
            f"{path} stores '{member.name}' in Fortran order, which cannot be streamed slice by slice; "
            "save it again as numpy.ascontiguousarray(array)"
        )
    return member


def _next_plane(path: Path, stream: IO[bytes], member: Member, stack: Stack) -> NDArray[np.generic]:
    count = math.prod(stack.slice_shape)
    data = stream.read(count * member.dtype.itemsize)
    if len(data) < count * member.dtype.itemsize:
        raise UldaError(f"{path} ends in the middle of '{member.name}'; copy or download it again")
    plane: NDArray[np.generic] = np.frombuffer(data, member.dtype, count)
    if member.fortran_order:
        return plane.reshape(stack.slice_shape[::-1]).transpose()
    return plane.reshape(stack.slice_shape)


def _npz_kind(path: Path, archive: zipfile.ZipFile, member: Member, stack: Stack, kind: KindChoice) -> Kind:
    def middle() -> NDArray[np.generic]:
        with opened_member(path, archive, member) as stream:
            for _ in range(stack.n_slices // 2):
                _next_plane(path, stream, member, stack)
            return _next_plane(path, stream, member, stack)

    return resolve_kind(path, member.dtype, len(stack.slice_shape), kind, middle, member.name)


def _labels(path: Path, archive: zipfile.ZipFile, n_slices: int) -> dict[str, list[str]]:
    labels: dict[str, list[str]] = {}
    infos = members(archive)
    for label in LABELS:
        if label not in infos:
            continue
        member = read_member_header(path, archive, infos[label])
        if member.shape != (n_slices,):
            raise UldaError(f"{path} has '{label}' of shape {member.shape}; expected ({n_slices},), one for each slice")
        values = read_member(path, archive, member).tolist()
        labels[label] = [value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in values]
    return labels
