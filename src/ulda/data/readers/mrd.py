"""ISMRMRD / MRD HDF5: raw acquisitions sorted into k-space, one slice at a time."""

from __future__ import annotations

import math
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ulda.errors import MissingExtraError, UldaError
from ulda.io.hdf5_input import MATLAB_SIGNATURE, open_hdf5, peek_hdf5, text
from ulda.io.untrusted import check_expansion

from .arrays import centred_fft, centred_ifft, check_slice, convert, pseudonym, require_kind, sampling, undersampled
from .base import Description, KindChoice, Reader, Slice

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

PHASE_AXIS = -2
"""Arrays are laid out (coils, phase encoding, readout)."""

NOT_IMAGING = (
    "ACQ_IS_NOISE_MEASUREMENT",
    "ACQ_IS_NAVIGATION_DATA",
    "ACQ_IS_PHASECORR_DATA",
    "ACQ_IS_HPFEEDBACK_DATA",
    "ACQ_IS_DUMMYSCAN_DATA",
    "ACQ_IS_RTFEEDBACK_DATA",
    "ACQ_IS_SURFACECOILCORRECTIONSCAN_DATA",
    "ACQ_IS_PHASE_STABILIZATION_REFERENCE",
    "ACQ_IS_PHASE_STABILIZATION",
)
"""Flags of acquisitions that are no part of the image."""

VOLUME_COUNTERS = ("contrast", "phase", "repetition", "set")
"""Counters that tell volumes apart; averages are averaged and segments interleave."""


class MRDReader(Reader):
    """Cartesian raw data; lines are placed so that the centre of k-space lands at ``n // 2``.

    Readout oversampling is removed in the image domain. 3-D encoding becomes slices by an inverse
    FFT along the partitions. The patient's identifier is replaced by a pseudonym.
    """

    name = "ISMRMRD (MRD) HDF5"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Tell by a group that holds both an XML header and acquisitions."""
        if head.startswith(MATLAB_SIGNATURE):
            return False
        with peek_hdf5(path, head) as file:
            return file is not None and bool(_groups(file))

    def describe(self, path: Path, kind: KindChoice = "auto") -> Description:
        """Describe from the XML header and the acquisitions' headers."""
        require_kind(path, self.name, "kspace", kind)
        with _scan(path, self.name) as scan:
            blocks = scan.blocks()
            first = next(iter(blocks))
            space = scan.space(first.encoding)
            n_coils = int(scan.heads["active_channels"][blocks[first][0]])
            plane = (space.n_phase, space.n_readout)
            n_slices = sum(scan.space(block.encoding).n_partitions for block in blocks)
            attributes = {
                "coils": str(n_coils),
                "encoded matrix": f"{space.n_samples} x {space.n_phase} x {space.n_partitions}",
                "volumes": str(len({block.volume for block in blocks})),
            }
            shape = plane if n_coils == 1 else (n_coils, *plane)
            return Description(self.name, "kspace", n_slices, shape, "complex64", attributes)

    def slices(self, path: Path, kind: KindChoice = "auto") -> Iterator[Slice]:
        """Collect the acquisitions of one slice (of one slab, when encoded in 3-D) at a time."""
        require_kind(path, self.name, "kspace", kind)
        with _scan(path, self.name) as scan:
            blocks = scan.blocks()
            for block, members in blocks.items():
                label = scan.label(block, list(blocks))
                kspace, counts = scan.collect(block, members)
                for plane, lines in _slices_of(path, kspace, counts > 0):
                    array = convert(plane, "kspace")
                    yield Slice(
                        array,
                        "kspace",
                        subject=scan.subject,
                        contrast=label,
                        volume=f"{path.stem}-{label}" if label else path.stem,
                        source=path.name,
                        **sampling(array, PHASE_AXIS, undersampled(lines)),
                    )


@dataclass(frozen=True)
class _Space:
    """One encoding of the XML header in numbers."""

    n_samples: int
    n_readout: int
    n_phase: int
    n_partitions: int
    phase_centre: int
    partition_centre: int


@dataclass(frozen=True, order=True)
class _Block:
    """What one 2-D slice, or one 3-D slab, is filed under."""

    encoding: int
    volume: tuple[int, ...]
    slice: int


@dataclass(frozen=True)
class _Scan:
    """An open file with the headers of all its imaging acquisitions."""

    path: Path
    acquisitions: Any
    heads: NDArray[np.void]
    imaging: NDArray[np.intp]
    xml: Any
    reverse_flag: int

    @property
    def subject(self) -> str:
        person, study = self.xml.subjectInformation, self.xml.studyInformation
        identifier = (person and person.patientID) or (study and study.studyInstanceUID)
        return pseudonym("patient", identifier) if identifier else self.path.stem

    def blocks(self) -> dict[_Block, list[int]]:
        """File the imaging acquisitions, sorted by encoding, volume and slice."""
        counters = self.heads["idx"]
        blocks: defaultdict[_Block, list[int]] = defaultdict(list)
        for at in self.imaging.tolist():
            volume = tuple(int(counters[name][at]) for name in VOLUME_COUNTERS)
            encoding = int(self.heads["encoding_space_ref"][at])
            blocks[_Block(encoding, volume, int(counters["slice"][at]))].append(at)
        return dict(sorted(blocks.items()))

    def check_sizes(self) -> None:
        """Refuse encodings that claim far more k-space than the file has acquisitions of."""
        total = 0
        for block, members in self.blocks().items():
            space, n_coils = self.space(block.encoding), int(self.heads["active_channels"][members[0]])
            shape = (space.n_partitions, n_coils, space.n_phase, space.n_samples)
            if min(shape) < 1 or space.n_readout < 1:
                raise UldaError(f"{self.path} announces k-space of the impossible shape {shape}; export it again")
            check_slice(self.path, shape)
            total += math.prod(shape) * np.dtype(np.complex64).itemsize
        check_expansion(self.path, "its k-space", total, self.path.stat().st_size)

    def label(self, block: _Block, blocks: list[_Block]) -> str:
        """Name a volume by its protocol and the counters that vary in this file."""
        measurement = self.xml.measurementInformation
        parts = [measurement.protocolName] if measurement and measurement.protocolName else []
        for at, name in enumerate(VOLUME_COUNTERS):
            if len({other.volume[at] for other in blocks}) > 1:
                parts.append(f"{name}{block.volume[at]}")
        return "-".join(parts)

    def space(self, encoding: int) -> _Space:
        """Read matrix sizes and centres of one encoding."""
        if encoding >= len(self.xml.encoding):
            raise UldaError(
                f"{self.path} refers to encoding {encoding}, but its header describes only "
                f"{len(self.xml.encoding)}; export the raw data again"
            )
        described = self.xml.encoding[encoding]
        trajectory = described.trajectory.value
        if trajectory != "cartesian":
            raise UldaError(
                f"{self.path} has a {trajectory} trajectory; expected cartesian, "
                "so grid it first or import reconstructed images"
            )
        encoded, recon = described.encodedSpace.matrixSize, described.reconSpace.matrixSize
        limits = described.encodingLimits
        step_1 = limits.kspace_encoding_step_1 if limits else None
        step_2 = limits.kspace_encoding_step_2 if limits else None
        return _Space(
            encoded.x,
            min(encoded.x, recon.x),
            encoded.y,
            encoded.z,
            step_1.center if step_1 else encoded.y // 2,
            step_2.center if step_2 else encoded.z // 2,
        )

    def collect(self, block: _Block, members: list[int]) -> tuple[NDArray[np.complex64], NDArray[np.intp]]:
        """Read one block: ``(partitions, coils, phase, readout)`` and how often each line was measured."""
        space = self.space(block.encoding)
        n_coils = int(self.heads["active_channels"][members[0]])
        kspace = np.zeros((space.n_partitions, n_coils, space.n_phase, space.n_readout), np.complex64)
        counts = np.zeros((space.n_partitions, space.n_phase), np.intp)
        for at in members:
            counters = self.heads["idx"][at]
            line = int(counters["kspace_encode_step_1"]) - space.phase_centre + space.n_phase // 2
            partition = int(counters["kspace_encode_step_2"]) - space.partition_centre + space.n_partitions // 2
            if not (0 <= line < space.n_phase and 0 <= partition < space.n_partitions):
                raise UldaError(
                    f"{self.path} has a line at step {int(counters['kspace_encode_step_1'])}, "
                    f"{int(counters['kspace_encode_step_2'])} outside the encoded matrix "
                    f"{space.n_phase} x {space.n_partitions} centred at {space.phase_centre}, "
                    f"{space.partition_centre}; its header is wrong, so export the raw data again"
                )
            kspace[partition, :, line] += self.readout(at, n_coils, space)
            counts[partition, line] += 1
        kspace /= np.maximum(counts, 1)[:, None, :, None]
        return kspace, counts

    def readout(self, at: int, n_coils: int, space: _Space) -> NDArray[np.complex64]:
        """Read one acquisition, centre it in ``n_samples`` and remove the oversampling."""
        head = self.heads[at]
        n_samples, centre = int(head["number_of_samples"]), int(head["center_sample"])
        if int(head["active_channels"]) != n_coils:
            raise UldaError(
                f"{self.path} has {int(head['active_channels'])} coils in acquisition {at} but {n_coils} "
                "in others of its slice; expected the same, so export the raw data again"
            )
        samples = np.asarray(self.acquisitions[at]["data"]).view(np.complex64).reshape(n_coils, n_samples)
        if centre == 0 and n_samples == space.n_samples:  # a writer that left the field unset
            centre = n_samples // 2
        first, last = int(head["discard_pre"]), n_samples - int(head["discard_post"])
        if int(head["flags"]) & self.reverse_flag:
            samples, centre = samples[:, ::-1], n_samples - 1 - centre
            first, last = n_samples - last, n_samples - first
        start = space.n_samples // 2 - centre
        line = np.zeros((n_coils, space.n_samples), np.complex64)
        low, high = max(first, -start), min(last, space.n_samples - start)
        if low >= high:
            raise UldaError(
                f"{self.path} has no usable samples in acquisition {at} ({n_samples} samples, centre "
                f"{centre}); its header is wrong, so export the raw data again"
            )
        line[:, low + start : high + start] = samples[:, low:high]
        if space.n_readout == space.n_samples:
            return line
        cut = space.n_samples // 2 - space.n_readout // 2
        image = centred_ifft(line, axis=-1)[:, cut : cut + space.n_readout]
        return centred_fft(image, axis=-1)


@contextmanager
def _scan(path: Path, name: str) -> Iterator[_Scan]:
    try:
        import ismrmrd
    except ImportError as error:
        raise MissingExtraError("reading ISMRMRD (MRD)", "mrd") from error
    with open_hdf5(path, name) as file:
        groups = _groups(file)
        group = "dataset" if "dataset" in groups else (groups[0] if len(groups) == 1 else None)
        if group is None:
            raise UldaError(
                f"{path} holds the measurements {', '.join(groups) or 'none'}; "
                "expected one, or one named 'dataset', so export a single measurement"
            )
        acquisitions = file[group]["data"]
        heads = acquisitions.fields("head")[:]
        header = text(file[group]["xml"][0])
        if "<!" in header.replace("<!--", ""):
            raise UldaError(f"{path} has a header that defines entities, which is no ISMRMRD; export it again")
        xml = ismrmrd.xsd.CreateFromDocument(header)
        imaging = np.flatnonzero(_is_imaging(ismrmrd, heads["flags"]))
        if not imaging.size:
            raise UldaError(
                f"{path} holds {len(heads)} acquisitions but none for imaging (only noise, calibration or "
                "navigation); export the imaging scan"
            )
        scan = _Scan(path, acquisitions, heads, imaging, xml, _bit(ismrmrd.ACQ_IS_REVERSE))
        scan.check_sizes()
        yield scan


def _groups(file: Any) -> list[str]:
    return [
        name
        for name, node in file.items()
        if hasattr(node, "keys") and "xml" in node and "head" in (_dtype_of(node, "data").names or ())
    ]


def _dtype_of(group: Any, name: str) -> np.dtype[np.generic]:
    dtype: np.dtype[np.generic] = getattr(group.get(name), "dtype", np.dtype(float))
    return dtype


def _bit(flag: int) -> int:
    """ISMRMRD numbers its flags from one."""
    return 1 << (flag - 1)


def _is_imaging(ismrmrd: Any, flags: NDArray[np.uint64]) -> NDArray[np.bool_]:
    skipped = 0
    for name in NOT_IMAGING:
        if hasattr(ismrmrd, name):
            skipped |= _bit(getattr(ismrmrd, name))
    calibration = np.uint64(_bit(ismrmrd.ACQ_IS_PARALLEL_CALIBRATION))
    both = np.uint64(_bit(ismrmrd.ACQ_IS_PARALLEL_CALIBRATION_AND_IMAGING))
    only_calibration = ((flags & calibration) != 0) & ((flags & both) == 0)
    imaging: NDArray[np.bool_] = ((flags & np.uint64(skipped)) == 0) & ~only_calibration
    return imaging


def _slices_of(
    path: Path, kspace: NDArray[np.complex64], sampled: NDArray[np.bool_]
) -> Iterator[tuple[NDArray[np.complex64], NDArray[np.bool_]]]:
    """Split ``(partitions, coils, phase, readout)`` into slices with their sampled lines."""
    if len(kspace) > 1:
        if not sampled.all():
            raise UldaError(
                f"{path} is encoded in 3-D and misses {int((~sampled).sum())} of {sampled.size} lines; the "
                "slices can only be separated when all are measured, so reconstruct it first or import a "
                "fully sampled scan"
            )
        kspace = centred_ifft(kspace, axis=0)
    yield from zip(kspace, sampled, strict=True)
