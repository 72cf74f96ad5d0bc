"""Turn any readable files into one domain file, slice by slice."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ulda.data.domain import Header, Normalisation, Record
from ulda.data.domain_writer import DomainWriter
from ulda.data.folders import folder_below, split_of_folder, subject_of_picture
from ulda.data.readers import expand
from ulda.data.readers.base import Kind, KindChoice, Reader, Slice
from ulda.data.readers.pictures import PicturesReader
from ulda.data.values import check_scale, check_values
from ulda.errors import UldaError
from ulda.io.atomic import atomic_output
from ulda.physics import center_crop_or_pad, fft2c, fourier_resize, ifft2c, root_sum_of_squares

Progress = Callable[[int, int], None]
"""Called with the number of slices done and the number expected."""


@dataclass(frozen=True)
class ImportOptions:
    """How slices are prepared and labelled.

    Attributes
    ----------
    name
        The domain's name; by default the stem of the output file.
    size
        Height and width to Fourier-crop or zero-pad to; None keeps the size.
    kind
        What arrays without metadata hold.
    normalisation
        Divide by the peak of each slice, of each volume, or not at all.
    subject, contrast, split
        Labels that replace those of the files.
    licence, note
        Free text kept in the file.
    picture_subjects
        Make every picture of a folder a subject of its own; else they are the slices of one subject.
    folder_splits
        Give slices without a split that of the folder they lie in, below the sources: ``train``, ``val`` or ``test``,
        alone or at the end of its name as in ``singlecoil_train``.
    combine_coils
        Replace k-space of several coils by the magnitude image, the root of the sum of squares over the coils.
    enlarge
        Enlarge slices that are smaller than `size` by zero-filling their k-space; else refuse them.
    """

    name: str = ""
    size: tuple[int, int] | None = None
    kind: KindChoice = "auto"
    normalisation: Normalisation = "slice"
    subject: str | None = None
    contrast: str | None = None
    split: str | None = None
    licence: str = ""
    note: str = ""
    picture_subjects: bool = False
    folder_splits: bool = False
    combine_coils: bool = False
    enlarge: bool = True


@dataclass(frozen=True)
class ImportSummary:
    """What an import wrote."""

    path: str
    name: str
    kind: Kind
    kspace_origin: str
    n_slices: int
    n_subjects: int
    shape: tuple[int, ...]
    n_empty: int
    splits: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        """Return the summary for JSON."""
        return asdict(self)


def import_domain(
    sources: Iterable[str | Path],
    out: str | Path,
    options: ImportOptions | None = None,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ImportSummary:
    """Read files and folders of any known format and write one domain file.

    Slices that are zero everywhere are left out and counted. The output is whole or absent.

    Parameters
    ----------
    sources
        Files or folders.
    out
        The domain file to write.
    options
        How slices are prepared and labelled.
    overwrite
        Replace an existing file.
    progress
        Called after every slice.
    """
    options = options or ImportOptions()
    out = Path(out)
    roots = [Path(source) for source in sources]
    found = list(expand(roots))
    if progress:
        total = sum(reader.describe(path, options.kind).n_slices for path, reader in found)
        progress(0, total)
    try:
        with atomic_output(out, overwrite=overwrite) as temporary:
            slices = _stream(found, roots, options)
            report = (lambda done: progress(done, total)) if progress else None
            return _write(slices, temporary, out, options, report)
    except OSError as error:
        raise _readable(error, out) from error


def read_slices(sources: Iterable[str | Path], options: ImportOptions | None = None) -> Iterator[Slice]:
    """Stream the slices of files and folders as an import would label them, but as they are in the files.

    Parameters
    ----------
    sources
        Files or folders.
    options
        Of these, what arrays without metadata hold, and what the names of folders and pictures say.
    """
    roots = [Path(source) for source in sources]
    return _stream(expand(roots), roots, options or ImportOptions())


def _stream(found: Iterable[tuple[Path, Reader]], roots: list[Path], options: ImportOptions) -> Iterator[Slice]:
    """Stream all slices; volumes of different paths that happen to have one name are told apart by a number."""
    names: dict[tuple[Path | None, str], str] = {}
    n_of_name: Counter[str] = Counter()
    for path, reader in found:
        origin = None if reader.volumes_span_paths else path
        folder = folder_below(path, roots)
        split = split_of_folder(folder) if options.folder_splits else ""
        is_alone = options.picture_subjects and isinstance(reader, PicturesReader)
        for item in reader.numbered(path, options.kind):
            subject = subject_of_picture(folder, item.source) if is_alone else item.subject
            if (origin, item.volume) not in names:
                n_of_name[item.volume] += 1
                number = n_of_name[item.volume]
                names[origin, item.volume] = item.volume if number == 1 else f"{item.volume} ({number})"
            yield replace(item, volume=names[origin, item.volume], subject=subject, split=item.split or split)


def _write(
    slices: Iterator[Slice],
    temporary: Path,
    out: Path,
    options: ImportOptions,
    progress: Callable[[int], None] | None,
) -> ImportSummary:
    peaks: dict[str, float] = defaultdict(float)
    splits: dict[str, int] = defaultdict(int)
    texts: dict[str, dict[str, None]] = {"licence": {}, "note": {}}
    subjects: set[str] = set()
    n_empty = 0
    writer: DomainWriter | None = None
    shape: tuple[int, ...] = ()
    with ExitStack() as stack:
        for done, item in enumerate(slices, start=1):
            prepared = prepare(item, options)
            peak = _peak(prepared)
            if peak == 0:
                n_empty += 1
            else:
                if writer is None:
                    header = _header(prepared, out, options)
                    writer = stack.enter_context(DomainWriter(temporary, header))
                _check_mixture(prepared, writer.header)
                record = _record(prepared, peak if options.normalisation == "slice" else 1.0)
                writer.append(record)
                peaks[record.volume] = max(peaks[record.volume], peak)
                splits[record.split] += 1
                for name, seen in texts.items():
                    seen[getattr(prepared, name)] = None
                subjects.add(record.subject)
                shape = record.array.shape
            if progress:
                progress(done)
        if writer is None:
            raise UldaError("the given files hold no slice that is not empty")
        if options.normalisation == "volume":
            writer.rescale(peaks)
        writer.annotate(**{name: "; ".join(filter(None, seen)) for name, seen in texts.items()})
    return ImportSummary(
        path=str(out),
        name=writer.header.name,
        kind=writer.header.kind,
        kspace_origin=writer.header.kspace_origin,
        n_slices=sum(splits.values()),
        n_subjects=len(subjects),
        shape=shape,
        n_empty=n_empty,
        splits=dict(splits),
    )


def _check_mixture(item: Slice, header: Header) -> None:
    """Refuse a slice that the header of the slices before it does not describe."""
    if item.kind != header.kind:
        raise UldaError(
            f"{item.source} holds {item.kind} slices and the files before it {header.kind} slices; "
            "import them into separate files"
        )
    if item.kind == "kspace" and item.phase_axis != header.phase_axis:
        raise UldaError(
            f"the phase-encode axis of {item.source} is {item.phase_axis} and that of the slices before it "
            f"{header.phase_axis}; import them into separate files"
        )


def prepare(item: Slice, options: ImportOptions) -> Slice:
    """Check, label and resize one slice; combine its coils if asked to."""
    if item.array.ndim not in (2, 3) or (item.array.ndim == 3 and item.kind != "kspace"):
        raise UldaError(
            f"a slice of {item.source} has shape {item.array.shape}; expected (H, W), or (coils, H, W) for k-space"
        )
    check_values(item.array, item.place)
    check_scale(item.scale, item.place)
    if item.target is not None:
        check_values(item.target, f"the target of {item.place}")
    item = replace(
        item,
        subject=options.subject or item.subject or Path(item.source).stem or "unknown",
        contrast=item.contrast if options.contrast is None else options.contrast,
        split=item.split if options.split is None else options.split,
        licence=options.licence or item.licence,
        note=options.note or item.note,
    )
    if item.kind == "kspace":
        item = _remove_oversampling(item)
        _check_size(item, options)
        item = _resize_kspace(item, options.size)
        if item.array.ndim == 2 or not options.combine_coils:
            return item
        item = _combined(item)
    _check_size(item, options)
    image = _tensor(item.array)
    if options.size is not None and options.size != tuple(image.shape):
        image = fourier_resize(image, options.size)
    return replace(item, array=(image if item.kind == "complex" else image.abs()).numpy())


def _check_size(item: Slice, options: ImportOptions) -> None:
    """Refuse a slice that would have to be enlarged where that is not wanted."""
    height, width = item.array.shape[-2:]
    if options.size is None or options.enlarge or (height >= options.size[0] and width >= options.size[1]):
        return
    raise UldaError(
        f"a slice of {item.source} is {height} x {width}, but {options.size[0]} x {options.size[1]} is needed; ask for "
        "a smaller size, or allow it to be enlarged"
    )


def _combined(item: Slice) -> Slice:
    """Return the magnitude image of multi-coil k-space."""
    if item.lines is not None:
        raise UldaError(f"{item.source} arrived undersampled, so its coils do not combine to a reference; leave it out")
    image = root_sum_of_squares(ifft2c(_tensor(item.array)))
    return replace(item, array=image.numpy(), kind="magnitude", target=None)


def _remove_oversampling(item: Slice) -> Slice:
    """Crop the field of view to that of the target; of undersampled k-space only along the readout."""
    if item.target is None:
        return item
    kspace = _tensor(item.array)
    height, width = (min(n, m) for n, m in zip(kspace.shape[-2:], item.target.shape, strict=True))
    if item.lines is not None:
        height, width = (kspace.shape[-2], width) if item.phase_axis == -2 else (height, kspace.shape[-1])
    if (height, width) == tuple(kspace.shape[-2:]):
        return item
    cropped = fft2c(center_crop_or_pad(ifft2c(kspace), (height, width)))
    return replace(item, array=cropped.numpy())


def _resize_kspace(item: Slice, size: tuple[int, int] | None) -> Slice:
    kspace = _tensor(item.array)
    if size is None or size == tuple(kspace.shape[-2:]):
        return replace(item, array=kspace.numpy())
    gain = (size[0] * size[1] / (kspace.shape[-2] * kspace.shape[-1])) ** 0.5
    resized = center_crop_or_pad(kspace, size) * gain
    target = lines = None
    if item.target is not None:
        # undersampled k-space keeps its field of view along the phase-encode axis, the target may be narrower
        same_view = center_crop_or_pad(_tensor(item.target), (kspace.shape[-2], kspace.shape[-1]))
        target = fourier_resize(same_view, size).abs().numpy()
    if item.lines is not None:
        as_rows = torch.from_numpy(item.lines)[None, :]
        lines = center_crop_or_pad(as_rows, (1, size[item.phase_axis]))[0].numpy()
    return replace(item, array=resized.numpy(), target=target, lines=lines)


def _tensor(array: NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(torch.complex64)


def _peak(item: Slice) -> float:
    if item.kind != "kspace":
        return float(np.abs(item.array).max())
    images = ifft2c(_tensor(item.array))
    return float(root_sum_of_squares(images if images.ndim == 3 else images[None]).max())


def _record(item: Slice, scale: float) -> Record:
    divisor = np.float32(scale)
    return Record(
        array=np.divide(item.array, divisor),
        subject=item.subject,
        contrast=item.contrast,
        split=item.split,
        volume=item.volume,
        source=item.source,
        scale=item.scale * scale,
        target=None if item.target is None else np.divide(item.target, divisor, dtype=np.float32),
        lines=item.lines,
    )


def _header(item: Slice, out: Path, options: ImportOptions) -> Header:
    return Header(
        name=options.name or out.stem,
        kind=item.kind,
        kspace_origin="measured" if item.kind == "kspace" else "simulated",
        normalisation=options.normalisation,
        licence=item.licence,
        phase_axis=item.phase_axis,
        note=item.note,
    )


def _readable(error: OSError, out: Path) -> UldaError:
    return UldaError(f"cannot write {out.name}: {error.strerror or str(error).splitlines()[0]}")
