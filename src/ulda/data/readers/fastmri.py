"""fastMRI HDF5: measured k-space with its reference reconstruction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ulda.errors import UldaError
from ulda.io.hdf5_input import MATLAB_SIGNATURE, attributes, open_hdf5, peek_hdf5, text

from .arrays import check_slice, convert, require_kind, sampling, some_of
from .base import Description, KindChoice, Reader, Slice

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

TARGETS = ("reconstruction_esc", "reconstruction_rss")
"""Reference reconstructions, in order of preference."""

PHASE_AXIS = -1
"""fastMRI undersamples along the last axis."""


class FastMRIReader(Reader):
    """HDF5 with ``kspace`` of shape (slices, H, W) or (slices, coils, H, W) at the top level."""

    name = "fastMRI HDF5"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Tell by a ``kspace`` dataset at the top level."""
        if head.startswith(MATLAB_SIGNATURE):
            return False
        with peek_hdf5(path, head) as file:
            return file is not None and "kspace" in file and hasattr(file["kspace"], "shape")

    def describe(self, path: Path, kind: KindChoice = "auto") -> Description:
        """Describe from the dataset's shape and the attributes; reads no k-space."""
        require_kind(path, self.name, "kspace", kind)
        with open_hdf5(path, self.name) as file:
            kspace = _kspace(path, file)
            target = _target(path, file, len(kspace))
            mask = _mask(path, file, kspace.shape[-1])
            notes = [] if target is None else [f"comes with {target.name.lstrip('/')} {target.shape[1:]}"]
            if mask is not None:
                notes.append(f"undersampled: {int(mask.sum())} of {mask.size} lines")
            return Description(
                self.name,
                "kspace",
                len(kspace),
                tuple(kspace.shape[1:]),
                str(kspace.dtype),
                attributes(file),
                tuple(notes),
            )

    def slices(self, path: Path, kind: KindChoice = "auto") -> Iterator[Slice]:
        """Read one slice at a time, all coils of it."""
        require_kind(path, self.name, "kspace", kind)
        with open_hdf5(path, self.name) as file:
            kspace = _kspace(path, file)
            target = _target(path, file, len(kspace))
            lines = _mask(path, file, kspace.shape[-1])
            subject = text(file.attrs["patient_id"]) if "patient_id" in file.attrs else path.stem
            contrast = text(file.attrs["acquisition"]) if "acquisition" in file.attrs else ""
            for index in range(len(kspace)):
                array = convert(kspace[index], "kspace")
                yield Slice(
                    array,
                    "kspace",
                    subject=subject,
                    contrast=contrast,
                    volume=path.stem,
                    source=path.name,
                    target=None if target is None else convert(target[index], "magnitude"),
                    **sampling(array, PHASE_AXIS, lines),
                )


def _kspace(path: Path, file: Any) -> Any:
    if "kspace" not in file:
        raise UldaError(f"{path} has no dataset 'kspace', which fastMRI HDF5 needs; it holds {some_of(list(file))}")
    kspace = file["kspace"]
    if kspace.ndim not in (3, 4) or 0 in kspace.shape:
        raise UldaError(
            f"{path} has 'kspace' of shape {kspace.shape}; expected (slices, H, W) or "
            "(slices, coils, H, W), so reshape it first"
        )
    if kspace.dtype.kind != "c":
        raise UldaError(f"{path} has 'kspace' of type {kspace.dtype}; expected complex numbers")
    check_slice(path, kspace.shape[1:])
    return kspace


def _target(path: Path, file: Any, n_slices: int) -> Any:
    name = next((name for name in TARGETS if name in file), None)
    if name is None:
        return None
    target = file[name]
    if target.ndim != 3 or len(target) != n_slices or target.dtype.kind not in "biufc":
        raise UldaError(
            f"{path} has '{name}' of {target.dtype} and shape {target.shape}; expected ({n_slices}, h, w) numbers, one "
            "image for each slice"
        )
    check_slice(path, target.shape[1:])
    return target


def _mask(path: Path, file: Any, n_lines: int) -> NDArray[np.bool_] | None:
    stored = file["mask"] if "mask" in file else file.attrs.get("mask")
    if stored is None:
        return None
    if np.size(stored) != n_lines:
        raise UldaError(
            f"{path} has 'mask' of shape {np.shape(stored)}; expected ({n_lines},), one entry for each "
            "position along the last axis of 'kspace'"
        )
    mask = np.asarray(stored).reshape(n_lines).astype(bool)
    return None if mask.all() else mask
