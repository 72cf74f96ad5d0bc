"""The small interface every file format is read through.

A reader turns a path into a stream of `Slice` objects. It never loads more than one slice at a time
(where the format allows it), so that sets far larger than memory can be imported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

Kind = Literal["magnitude", "complex", "kspace"]
"""What an array holds: a magnitude image, a complex image, or centred k-space."""

KindChoice = Literal["auto", "magnitude", "complex", "kspace"]
"""What the user says an array holds; `auto` lets the reader decide."""

HEAD_BYTES = 1024
"""How much of a file's beginning a reader may look at to recognise it."""


@dataclass(frozen=True)
class Slice:
    """One slice with what is known about it.

    Attributes
    ----------
    array
        ``(H, W)`` image (real for magnitude, else complex64), ``(H, W)`` single-coil or
        ``(coils, H, W)`` multi-coil centred k-space (complex64).
    kind
        What `array` holds.
    subject, contrast, split
        Free text; empty when unknown. Slices of one person must share one subject.
    volume
        Slices with the same value form one volume (for normalisation per volume).
    source
        The file name the slice came from (no directories).
    target
        ``(h, w)`` magnitude reference delivered with measured k-space, e.g. fastMRI's
        ``reconstruction_esc``; None when there is none.
    lines
        Boolean ``(n_lines,)``: which phase-encode lines were sampled, for k-space that arrives
        undersampled (fastMRI test sets). None when fully sampled.
    lines_are_detected
        Whether the file does not name these lines: they are those that are not zero.
    phase_axis
        The phase-encode axis of `array`, -2 or -1.
    scale
        Multiply `array` by this to restore the original values.
    licence, note
        What a domain file says about its slices, see `ulda.data.Header`.
    number
        The number of the slice in its file or folder, from 0; set by `Reader.numbered`.
    """

    array: NDArray[np.generic]
    kind: Kind
    subject: str = ""
    contrast: str = ""
    split: str = ""
    volume: str = ""
    source: str = ""
    target: NDArray[np.generic] | None = None
    lines: NDArray[np.bool_] | None = None
    lines_are_detected: bool = False
    phase_axis: int = -2
    scale: float = 1.0
    licence: str = ""
    note: str = ""
    number: int = 0

    @property
    def place(self) -> str:
        """Which slice of which file it is, for messages."""
        return f"slice {self.number} of {self.source}"


@dataclass(frozen=True)
class Description:
    """What a path holds, told without reading all of it."""

    format: str
    kind: Kind
    n_slices: int
    shape: tuple[int, ...]
    dtype: str
    attributes: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Reader(ABC):
    """One file format.

    Attributes
    ----------
    name
        The name shown to people, e.g. ``"fastMRI HDF5"``.
    volumes_span_paths
        Whether slices of different paths can belong to one volume: they do when its name is the same.
    """

    name: str
    volumes_span_paths: bool = False

    @abstractmethod
    def recognises(self, path: Path, head: bytes) -> bool:
        """Tell from the content whether `path` is of this format.

        Parameters
        ----------
        path
            A file or a folder.
        head
            The first `HEAD_BYTES` bytes of the file; empty for a folder.
        """

    @abstractmethod
    def describe(self, path: Path, kind: KindChoice = "auto") -> Description:
        """Say what `path` holds; cheap."""

    @abstractmethod
    def slices(self, path: Path, kind: KindChoice = "auto") -> Iterator[Slice]:
        """Stream the slices of `path`, in a fixed order.

        Raises
        ------
        ulda.errors.UldaError
            With one sentence a person can act on: truncated file, wrong keys, wrong rank, ...
        """

    def numbered(self, path: Path, kind: KindChoice = "auto") -> Iterator[Slice]:
        """Stream the slices of `path` with their numbers."""
        return (replace(item, number=number) for number, item in enumerate(self.slices(path, kind)))

    def affine(self, path: Path) -> NDArray[np.float64] | None:  # noqa: ARG002
        """Return the map from row, column and number of a slice to millimetres; None where that is not known."""
        return None
