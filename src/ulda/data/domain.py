"""The canonical domain file: one HDF5 file with the slices of one domain and what is known about them.

The layout is documented in ``docs/domain-file.md``. A file is read slice by slice, so memory does not limit its size;
`ulda.data.domain_writer` writes it the same way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, get_args

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ulda.data.readers.arrays import check_slice, sampled_lines
from ulda.data.readers.base import Kind
from ulda.data.values import check_scale, check_values
from ulda.errors import UldaError
from ulda.io.hdf5_input import open_hdf5, text, texts
from ulda.io.untrusted import reading
from ulda.physics import DETECTED, Mask, coil_combine, espirit_maps, ifft2c, mask_from_array

FORMAT = "ulda-domain"
VERSION = 1

LABELS = ("subject", "contrast", "split", "volume", "source")
"""The text columns of a domain file, one entry per slice."""

Normalisation = Literal["slice", "volume", "none"]
KspaceOrigin = Literal["measured", "simulated"]


@dataclass(frozen=True)
class Header:
    """What holds for a whole domain.

    Attributes
    ----------
    name
        The domain's name.
    kind
        What the slices hold: ``magnitude`` or ``complex`` images or measured ``kspace``.
    kspace_origin
        Whether k-space is ``measured`` or has to be ``simulated`` from images.
    normalisation
        What set each slice's scale: its own peak, its volume's, or nothing.
    licence
        The licence of the data, free text.
    phase_axis
        The phase-encode axis of k-space, -2 or -1.
    note
        Anything a user of the data must know.
    """

    name: str
    kind: Kind
    kspace_origin: KspaceOrigin = "simulated"
    normalisation: Normalisation = "none"
    licence: str = ""
    phase_axis: int = -2
    note: str = ""


@dataclass(frozen=True)
class Record:
    """One stored slice: its array, its labels, and the factor that restores the original scale."""

    array: NDArray[np.generic]
    subject: str
    contrast: str = ""
    split: str = ""
    volume: str = ""
    source: str = ""
    scale: float = 1.0
    target: NDArray[np.float32] | None = None
    lines: NDArray[np.bool_] | None = None
    lines_are_detected: bool = False


@dataclass(frozen=True)
class Domain:
    """A domain file, or a selection of its slices; slices are read when asked for.

    Examples
    --------
    >>> import ulda.data
    >>> knee = ulda.data.demo("knee")
    >>> len(knee), tuple(knee.image(0).shape), len(knee.select(split="test"))
    (24, (128, 128), 9)
    """

    path: Path
    header: Header
    indices: tuple[int, ...]
    labels: dict[str, tuple[str, ...]]

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a domain file written by this package."""
        path = Path(path)
        with _opened(path) as file:
            if text(file.attrs.get("format", "")) != FORMAT:
                raise UldaError(
                    f"{path.name} is not a domain file; make one of it with `ulda data import {path.name} --out NEW.h5`"
                )
            if int(file.attrs["version"]) > VERSION:
                raise UldaError(f"{path.name} was written by a newer version of ulda; upgrade ulda to read it")
            header = Header(**{key: _plain(file.attrs[key]) for key in Header.__dataclass_fields__})
            _check_layout(path, file, header)
            labels = {name: tuple(texts(file[name])) for name in LABELS}
        return cls(path, header, tuple(range(len(labels["subject"]))), labels)

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def name(self) -> str:
        """The domain's name."""
        return self.header.name

    @property
    def subjects(self) -> tuple[str, ...]:
        """The subject of each slice."""
        return self.label("subject")

    def label(self, name: str) -> tuple[str, ...]:
        """Return one of the text columns (`LABELS`), an entry per slice."""
        column = self.labels[name]
        return tuple(column[i] for i in self.indices)

    def select(self, *, split: str | None = None, subject: str | None = None, contrast: str | None = None) -> Domain:
        """Keep the slices with the given labels."""
        wanted = {"split": split, "subject": subject, "contrast": contrast}
        keep = [i for i in self.indices if all(v is None or self.labels[k][i] == v for k, v in wanted.items())]
        return replace(self, indices=tuple(keep))

    def take(self, positions: Sequence[int]) -> Domain:
        """Keep the slices at these positions of this selection, in this order."""
        return replace(self, indices=tuple(self.indices[i] for i in positions))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of one stored slice."""
        with _opened(self.path) as file:
            return tuple(file["slices"].shape[1:])

    @property
    def n_coils(self) -> int:
        """The number of coils, 1 for images."""
        return self.shape[0] if len(self.shape) == 3 else 1

    @property
    def undersampled(self) -> bool:
        """Whether any slice arrived undersampled, so that it cannot be a reference."""
        return self._first_undersampled is not None

    def check_references(self, consequence: str) -> None:
        """Refuse slices that arrived undersampled where fully sampled ones are needed.

        Parameters
        ----------
        consequence
            What follows from it, e.g. ``"there is no reference to learn from"``.
        """
        if self._first_undersampled is not None:
            position, lines = self._first_undersampled
            raise UldaError(
                f"the domain {self.name} arrived undersampled: {int((~lines).sum())} of {lines.size} lines of slice "
                f"{position} are empty, so {consequence}"
            )

    @cached_property
    def _first_undersampled(self) -> tuple[int, NDArray[np.bool_]] | None:
        if self.header.kind != "kspace":
            return None
        found = ((i, record.lines) for i, record in enumerate(self.records()))
        return next(((i, lines) for i, lines in found if lines is not None), None)

    def record(self, position: int) -> Record:
        """Read one slice with its labels."""
        return next(iter(self.take([position]).records()))

    def records(self) -> Iterator[Record]:
        """Stream the slices with their labels."""
        with _opened(self.path) as file:
            for i in self.indices:
                yield self._record(file, i)

    def _record(self, file: h5py.File, i: int) -> Record:
        where = f"slice {i} of {self.path.name}"
        with reading(where, "a slice"):
            array, scale = np.asarray(file["slices"][i]), float(file["scale"][i])
            target = np.asarray(file["target"][i]) if "target" in file else None
            named = np.asarray(file["lines"][i]) if "lines" in file else None
        check_values(array, where)
        check_scale(scale, where)
        lines = None if named is None or named.all() else named
        is_detected = lines is None and self.header.kind == "kspace"
        if is_detected:
            lines = sampled_lines(array, self.header.phase_axis)
        labels = {name: self.labels[name][i] for name in LABELS}
        return Record(array, **labels, scale=scale, target=target, lines=lines, lines_are_detected=is_detected)

    def image(self, position: int) -> Tensor:
        """Return one slice as a complex image ``(H, W)``.

        Single-coil k-space is transformed; multi-coil k-space is combined with ESPIRiT sensitivities
        from its calibration lines.
        """
        return self._to_image(self.record(position))

    def images(self) -> Iterator[Tensor]:
        """Stream the slices as complex images ``(H, W)``."""
        return map(self._to_image, self.records())

    def kspace(self, position: int) -> Tensor:
        """Return the measured k-space of one slice, ``(H, W)`` or ``(coils, H, W)``."""
        if self.header.kind != "kspace":
            raise UldaError(f"the domain {self.name} holds images, not measured k-space; simulate it with ulda.physics")
        return torch.from_numpy(self.record(position).array)

    def mask(self, position: int) -> Mask | None:
        """Return the sampled lines of one slice, None when it is fully sampled."""
        return self._mask_of(self.record(position))

    def fingerprint(self) -> str:
        """Return the SHA-256 of the selected slices and their labels."""
        digest = hashlib.sha256()
        for record in self.records():
            labels = "\0".join(getattr(record, name) for name in LABELS)
            digest.update(labels.encode() + str(record.array.shape).encode() + record.array.tobytes())
        return digest.hexdigest()

    def _mask_of(self, record: Record) -> Mask | None:
        kind = DETECTED if record.lines_are_detected else "file"
        return None if record.lines is None else mask_from_array(record.lines, self.path.name, kind)

    def _to_image(self, record: Record) -> Tensor:
        array = torch.from_numpy(record.array)
        if self.header.kind != "kspace":
            return array.to(torch.complex64)
        coil_images = ifft2c(array)
        if array.ndim == 2:
            return coil_images
        return coil_combine(coil_images, espirit_maps(array, self._mask_of(record), self.header.phase_axis))


def _opened(path: Path) -> AbstractContextManager[h5py.File]:
    return open_hdf5(path, "a domain file", "expected one that `ulda data import` wrote")


def _check_layout(path: Path, file: Any, header: Header) -> None:
    """Refuse a file whose header and datasets do not fit together."""
    texts_of_header = [getattr(header, name) for name in ("name", "kspace_origin", "normalisation", "licence", "note")]
    if not all(isinstance(value, str) for value in texts_of_header):
        raise ValueError("its header holds something other than texts")
    if header.kind not in get_args(Kind) or header.phase_axis not in (-2, -1):
        raise ValueError(f"its kind is {header.kind!r} and its phase_axis {header.phase_axis!r}")
    slices = file["slices"]
    if slices.ndim != 3 and not (slices.ndim == 4 and header.kind == "kspace"):
        raise ValueError(f"its slices have the shape {slices.shape}")
    if slices.dtype != (np.float32 if header.kind == "magnitude" else np.complex64) or 0 in slices.shape[1:]:
        raise ValueError(f"its slices are {slices.dtype} of shape {slices.shape}")
    check_slice(path, slices.shape[1:])
    shapes = {"scale": (), "lines": (slices.shape[header.phase_axis],)}
    kinds = {"scale": "f", "lines": "b", "target": "f"}
    for name in ("scale", *LABELS, *(name for name in ("target", "lines") if name in file)):
        found = file[name]
        if found.ndim == 0 or len(found) != len(slices):
            raise ValueError(f"{name!r} does not have one entry for each of the {len(slices)} slices")
        if found.dtype.kind not in kinds.get(name, "SO") or found.shape[1:] != shapes.get(name, found.shape[1:]):
            raise ValueError(f"{name!r} is {found.dtype} of shape {found.shape}")
    if "target" in file and file["target"].ndim != 3:
        raise ValueError(f"its targets have the shape {file['target'].shape}")


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
