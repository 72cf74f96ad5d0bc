"""The canonical domain file: one HDF5 file with the slices of one domain and what is known about them.

The layout is documented in ``docs/domain-file.md``. A file is written slice by slice and read slice by
slice, so its size is not limited by memory.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ulda.data.readers.base import Kind
from ulda.data.splits import check_leakage, check_split_name
from ulda.errors import UldaError
from ulda.physics import Mask, coil_combine, espirit_maps, ifft2c, mask_from_array

if TYPE_CHECKING:
    from typing_extensions import Buffer

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
    phase
        How the phase of a complex image came about: empty for measured phase, else its simulation.
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
    phase: str = ""
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


class DomainWriter:
    """Appends slices to a new domain file.

    Write to the path that `ulda.data.atomic.atomic_output` gives, so that the file is whole or absent.

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
        self._stream = _PatientFile(path)
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
        if not np.isfinite(array).all():
            raise UldaError(f"a slice of {record.source} holds NaN or infinite values; repair or leave out that file")
        self._check_target(record)
        check_split_name(record.split, record.source)
        if record.lines is not None and "lines" not in self._file:
            # earlier slices were fully sampled, which is what the fill value says
            self._dataset("lines", record.lines.shape, bool, fillvalue=True)
        n_slices = self._file["slices"].shape[0]
        optional = [name for name in ("target", "lines") if name in self._file]
        for name in ("slices", "scale", *LABELS, *optional):
            self._file[name].resize(n_slices + 1, axis=0)
        self._file["slices"][n_slices] = array
        for name in ("scale", *LABELS, *optional):
            value = getattr(record, name)
            if value is not None:
                self._file[name][n_slices] = value
        self._stream.raise_failure()

    def annotate(self, *, licence: str, phase: str, note: str) -> None:
        """Replace the texts of the header that are only known when all slices are written."""
        self.header = replace(self.header, licence=licence, phase=phase, note=note)
        self._file.attrs.update({"licence": licence, "phase": phase, "note": note})

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


class _PatientFile(io.FileIO):
    """A file whose failed writes are remembered rather than raised.

    HDF5 crashes the process when a write fails while it closes a file, for instance because the disk is full.
    So it is told that all is well, and whoever writes asks for the failure.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+")
        self._failure: OSError | None = None

    def write(self, data: Buffer) -> int:
        view = memoryview(data).cast("B")
        if self._failure is None:
            done = 0
            try:
                while done < len(view):
                    done += super().write(view[done:]) or 0
            except OSError as error:
                self._failure = error
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        if self._failure is None:
            try:
                return super().truncate(size)
            except OSError as error:
                self._failure = error
        return size or 0

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


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
        try:
            with h5py.File(path) as file:
                if file.attrs.get("format") != FORMAT:
                    raise UldaError(
                        f"{path.name} is not a domain file; "
                        f"make one of it with `ulda data import {path.name} --out NEW.h5`"
                    )
                if int(file.attrs["version"]) > VERSION:
                    raise UldaError(f"{path.name} was written by a newer version of ulda; upgrade ulda to read it")
                header = Header(**{key: _plain(file.attrs[key]) for key in Header.__dataclass_fields__})
                labels = {name: tuple(value.decode() for value in file[name][()]) for name in LABELS}
                _check_layout(file, header)
        except FileNotFoundError as error:
            raise UldaError(f"there is no file {path}") from error
        except (AttributeError, KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
            raise UldaError(
                f"{path.name} cannot be read as a domain file ({_first_line(error)}); "
                "expected one that `ulda data import` wrote"
            ) from error
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
        with h5py.File(self.path) as file:
            return tuple(file["slices"].shape[1:])

    @property
    def n_coils(self) -> int:
        """The number of coils, 1 for images."""
        return self.shape[0] if len(self.shape) == 3 else 1

    @property
    def undersampled(self) -> bool:
        """Whether any slice arrived undersampled, so that it cannot be a reference."""
        with h5py.File(self.path) as file:
            return "lines" in file and not bool(file["lines"][()][list(self.indices)].all())

    def record(self, position: int) -> Record:
        """Read one slice with its labels."""
        return next(iter(self.take([position]).records()))

    def records(self) -> Iterator[Record]:
        """Stream the slices with their labels."""
        with h5py.File(self.path) as file:
            for i in self.indices:
                lines = _read(file, "lines", i, self.path) if "lines" in file else None
                yield Record(
                    array=_read(file, "slices", i, self.path),
                    scale=float(_read(file, "scale", i, self.path)),
                    target=_read(file, "target", i, self.path) if "target" in file else None,
                    lines=None if lines is None or lines.all() else lines,
                    **{name: self.labels[name][i] for name in LABELS},
                )

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
        return None if record.lines is None else mask_from_array(record.lines, self.path.name)

    def _to_image(self, record: Record) -> Tensor:
        array = torch.from_numpy(record.array)
        if self.header.kind != "kspace":
            return array.to(torch.complex64)
        coil_images = ifft2c(array)
        if array.ndim == 2:
            return coil_images
        return coil_combine(coil_images, espirit_maps(array, self._mask_of(record), self.header.phase_axis))


def _check_layout(file: Any, header: Header) -> None:
    """Refuse a file whose header and datasets do not fit together."""
    if header.kind not in get_args(Kind) or header.phase_axis not in (-2, -1):
        raise ValueError(f"its kind is {header.kind!r} and its phase_axis {header.phase_axis!r}")
    slices = file["slices"]
    if slices.ndim != 3 and not (slices.ndim == 4 and header.kind == "kspace"):
        raise ValueError(f"its slices have the shape {slices.shape}")
    optional = [name for name in ("target", "lines") if name in file]
    for name in ("scale", *LABELS, *optional):
        if len(file[name]) != len(slices):
            raise ValueError(f"{name!r} does not have one entry for each of the {len(slices)} slices")


def _read(file: Any, name: str, i: int, path: Path) -> Any:
    try:
        return np.asarray(file[name][i])
    except (OSError, RuntimeError) as error:
        raise UldaError(
            f"slice {i} of {path.name} cannot be read ({_first_line(error)}); the file is damaged"
        ) from error


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
