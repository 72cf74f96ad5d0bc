"""MATLAB ``.mat``: version 5 through SciPy, version 7.3 (HDF5) streamed from disk."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ulda.errors import MissingExtraError
from ulda.io.hdf5_input import MATLAB_SIGNATURE, is_hdf5, open_hdf5, text
from ulda.io.untrusted import check_expansion, check_memory, reading

from .arrays import bare_slice, choose_variable, convert, notes_on, resolve_kind, stack_of
from .base import Description, Kind, KindChoice, Reader, Slice

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from .arrays import Stack

V5_SIGNATURE = b"MATLAB 5.0 MAT-file"

NUMERIC_CLASSES = (
    *("double", "single", "int8", "uint8", "int16", "uint16"),
    *("int32", "uint32", "int64", "uint64"),
)
"""MATLAB classes that can hold images or k-space; text, cells, structures and masks cannot."""


class Matlab5Reader(Reader):
    """A ``.mat`` file up to version 7; SciPy loads the chosen variable as a whole."""

    name = "MATLAB file (version 5)"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Tell by the text at the beginning."""
        return path.is_file() and head.startswith(V5_SIGNATURE)

    def describe(self, path: Path, kind: KindChoice = "auto") -> Description:
        """Describe the chosen variable."""
        name, array = self._load(path, kind)
        stack = stack_of(path, array.shape)
        resolved = self._kind(path, name, array, stack, kind)
        return _description(self.name, resolved, name, array.shape, stack, array.dtype)

    def slices(self, path: Path, kind: KindChoice = "auto") -> Iterator[Slice]:
        """Give the slices of the chosen variable, in MATLAB's axis order."""
        name, array = self._load(path, kind)
        stack = stack_of(path, array.shape)
        resolved = self._kind(path, name, array, stack, kind)
        for index in range(stack.n_slices):
            plane = array if array.ndim == 2 else array[index]
            yield bare_slice(path, convert(plane, resolved), resolved)

    def _load(self, path: Path, kind: KindChoice) -> tuple[str, NDArray[np.generic]]:
        try:
            from scipy import io
        except ImportError as error:
            raise MissingExtraError("reading MATLAB files", "matlab") from error
        with reading(path, self.name):
            shapes = {
                name: tuple(shape)
                for name, shape, matlab_class in io.whosmat(path)
                if matlab_class in NUMERIC_CLASSES and _is_image_shape(shape)
            }
            name = choose_variable(path, shapes, kind)
            n_bytes = math.prod(shapes[name])  # at least: a value may be one byte
            check_expansion(path, f"its variable {name}", n_bytes, path.stat().st_size)
            check_memory(path, f"the variable {name}", 8 * n_bytes)
            return name, np.asarray(io.loadmat(path, variable_names=[name])[name])

    def _kind(self, path: Path, name: str, array: NDArray[np.generic], stack: Stack, kind: KindChoice) -> Kind:
        def middle() -> NDArray[np.generic]:
            return array if array.ndim == 2 else array[stack.n_slices // 2]

        return resolve_kind(path, array.dtype, len(stack.slice_shape), kind, middle, name)


class Matlab73Reader(Reader):
    """A ``.mat`` file of version 7.3: HDF5 that stores the axes reversed."""

    name = "MATLAB file (version 7.3)"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Tell by the text at the beginning and the HDF5 signature behind it."""
        return head.startswith(MATLAB_SIGNATURE) and is_hdf5(path, head)

    def describe(self, path: Path, kind: KindChoice = "auto") -> Description:
        """Describe the chosen variable."""
        with open_hdf5(path, self.name) as file:
            name, dataset, stack, resolved = self._choose(path, file, kind)
            return _description(self.name, resolved, name, dataset.shape[::-1], stack, _dtype(dataset.dtype))

    def slices(self, path: Path, kind: KindChoice = "auto") -> Iterator[Slice]:
        """Read one slice at a time, with MATLAB's axis order restored."""
        with open_hdf5(path, self.name) as file:
            _, dataset, stack, resolved = self._choose(path, file, kind)
            for index in range(stack.n_slices):
                yield bare_slice(path, convert(_plane(dataset, index), resolved), resolved)

    def _choose(self, path: Path, file: Any, kind: KindChoice) -> tuple[str, Any, Stack, Kind]:
        shapes = {
            name: tuple(node.shape[::-1])
            for name, node in file.items()
            if _is_numeric(node) and _is_image_shape(node.shape)
        }
        name = choose_variable(path, shapes, kind)
        dataset, stack = file[name], stack_of(path, shapes[name])

        def middle() -> NDArray[np.generic]:
            return _plane(dataset, stack.n_slices // 2)

        dtype = _dtype(dataset.dtype)
        return name, dataset, stack, resolve_kind(path, dtype, len(stack.slice_shape), kind, middle, name)


def _is_image_shape(shape: tuple[int, ...]) -> bool:
    """Leave out scalars and vectors, which MATLAB stores as matrices too."""
    return sum(size > 1 for size in shape) >= 2


def _is_numeric(node: Any) -> bool:
    if not hasattr(node, "shape") or "MATLAB_empty" in node.attrs:
        return False
    if "MATLAB_class" in node.attrs and text(node.attrs["MATLAB_class"]) not in NUMERIC_CLASSES:
        return False
    return _dtype(node.dtype).kind in "biufc"


def _dtype(stored: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """Give the type a stored one stands for: complex for a record of real and imag."""
    if stored.fields is not None and set(stored.fields) == {"real", "imag"}:
        return np.result_type(stored.fields["real"][0], np.complex64)
    return stored


def _plane(dataset: Any, index: int) -> NDArray[np.generic]:
    stored = np.asarray(dataset[...] if dataset.ndim == 2 else dataset[..., index])
    if stored.dtype.names:
        stored = (stored["real"] + 1j * stored["imag"]).astype(_dtype(stored.dtype))
    return stored.transpose()


def _description(
    form: str, kind: Kind, name: str, shape: tuple[int, ...], stack: Stack, dtype: np.dtype[np.generic]
) -> Description:
    return Description(form, kind, stack.n_slices, stack.slice_shape, str(dtype), {"variable": name}, notes_on(shape))
