"""Writes the canonical domain file, slice by slice."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import numpy as np

from ulda.data.domain import FORMAT, LABELS, VERSION, Header, Record
from ulda.data.splits import check_leakage, check_split_name
from ulda.data.values import check_scale, check_values
from ulda.errors import UldaError
from ulda.io.hdf5 import PatientFile


class DomainWriter:
    """Appends slices to a new domain file.

    Write to the path that `ulda.io.atomic.atomic_output` gives, so that the file is whole or absent.

    Parameters
    ----------
    path
        The file to write; replaced if it exists.
    header
        What holds for the whole domain.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.header = header
        self._path = path
        self._shape: tuple[int, ...] | None = None
        self._stream = PatientFile(path)
        self._file = h5py.File(self._stream, "w", libver=("earliest", "v110"))
        self._file.attrs["format"] = FORMAT
        self._file.attrs["version"] = VERSION
        for key, value in asdict(header).items():
            self._file.attrs[key] = value

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and self._shape is None:
                raise UldaError("there are no slices to write")
            if error is None:
                check_leakage(self._text("subject"), self._text("split"))
        finally:
            self._file.close()
            self._stream.close()
        if error is None:
            self._stream.raise_failure()

    def append(self, record: Record) -> None:
        """Write one slice; all slices of a file have one shape."""
        array = np.ascontiguousarray(record.array, np.float32 if self.header.kind == "magnitude" else np.complex64)
        if self._shape is None:
            self._create(array.shape, record)
        elif array.shape != self._shape:
            raise UldaError(
                f"the slices have different sizes: {record.source} has {array.shape}, the ones before {self._shape}; "
                "pass --size to bring all to one size, or import them into separate files"
            )
        n_slices = self._file["slices"].shape[0]
        check_values(array, f"a slice of {record.source}, number {n_slices} of the new file,")
        check_scale(record.scale, f"a slice of {record.source}, number {n_slices} of the new file,")
        self._check_target(record)
        check_split_name(record.split, record.source)
        if record.lines is not None and "lines" not in self._file:
            # earlier slices were fully sampled, which is what the fill value says
            self._dataset("lines", record.lines.shape, bool, fillvalue=True)
        optional = [name for name in ("target", "lines") if name in self._file]
        for name in ("slices", "scale", *LABELS, *optional):
            self._file[name].resize(n_slices + 1, axis=0)
        self._file["slices"][n_slices] = array
        for name in ("scale", *LABELS, *optional):
            value = getattr(record, name)
            if value is not None:
                self._file[name][n_slices] = value
        self._stream.raise_failure()

    def annotate(self, *, licence: str, note: str) -> None:
        """Replace the texts of the header that are only known when all slices are written."""
        self.header = replace(self.header, licence=licence, note=note)
        self._file.attrs.update({"licence": licence, "note": note})

    def rescale(self, factor_of_volume: dict[str, float]) -> None:
        """Divide every slice by its volume's factor, one slice at a time."""
        for i, volume in enumerate(self._text("volume")):
            factor = factor_of_volume[volume]
            self._file["slices"][i] = self._file["slices"][i] / np.float32(factor)
            self._file["scale"][i] = self._file["scale"][i] * factor
            if "target" in self._file:
                self._file["target"][i] = self._file["target"][i] / np.float32(factor)

    def _create(self, shape: tuple[int, ...], record: Record) -> None:
        self._shape = shape
        dtype = np.float32 if self.header.kind == "magnitude" else np.complex64
        self._dataset("slices", shape, dtype, compressed=True)
        self._dataset("scale", (), np.float64)
        for name in LABELS:
            self._dataset(name, (), h5py.string_dtype())
        if record.target is not None:
            self._dataset("target", record.target.shape, np.float32, compressed=True)

    def _check_target(self, record: Record) -> None:
        stored = self._file["target"].shape[1:] if "target" in self._file else None
        given = None if record.target is None else record.target.shape
        if record.target is not None:
            check_values(record.target, f"a target of {record.source}")
        if None in (stored, given) and stored != given:
            raise UldaError(f"some slices have a target and some have none ({record.source}); import them apart")
        if stored != given:
            raise UldaError(
                f"the targets have different sizes: {record.source} has {given}, the ones before {stored}; "
                "pass --size to bring all to one size, or import them into separate files"
            )

    def _dataset(
        self, name: str, shape: tuple[int, ...], dtype: Any, *, compressed: bool = False, **options: Any
    ) -> None:
        if compressed:
            options |= {"compression": "gzip", "compression_opts": 4, "shuffle": True}
        self._file.create_dataset(
            name, (0, *shape), dtype, maxshape=(None, *shape), chunks=(1 if shape else 256, *shape), **options
        )

    def _text(self, name: str) -> list[str]:
        return [value.decode() for value in self._file[name][()]]
