"""``comparison.h5``: the images, scores and records of a comparison, from which its report is made.

All texts stand in one JSON attribute, so that a name may hold any character; arrays are numbered in the order of the
methods there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ulda.data import Domain
from ulda.errors import UldaError
from ulda.evaluation.assessment import Assessment
from ulda.evaluation.comparison import METRICS, Comparison
from ulda.evaluation.paired import counted
from ulda.evaluation.report.content import Images, Provenance, Report, Slice
from ulda.evaluation.report.images import magnitude_of
from ulda.evaluation.report.traces import NUMBERS, from_tables, to_tables
from ulda.io.atomic import atomic_output
from ulda.io.documents import parse_json
from ulda.io.hdf5 import hdf5_output
from ulda.io.hdf5_input import open_hdf5, text
from ulda.io.untrusted import check_memory, saying
from ulda.physics import Mask

FORMAT = "ulda-comparison"
VERSION = 1
FILE_NAME = "comparison.h5"

EVALUATION = "evaluation"
"""What the files in the folder of an evaluation are called together; see `ulda.io.file_set`."""

_TEXTS = ("title", "description", "convention", "judged", "verdict")


def report_of_assessment(
    assessment: Assessment,
    domain: Domain,
    *,
    notes: tuple[str, ...] = (),
    provenance: Provenance | None = None,
    images: StoredImages | None = None,
) -> Report:
    """Turn a comparison into a report.

    Parameters
    ----------
    assessment
        The comparison.
    domain
        The slices it was made on.
    notes
        What a reader must know about it.
    provenance
        How to make it again; the data and the mask are added.
    images
        Where the images were put while the comparison was made; None where it holds those of all slices.
    """
    comparison = assessment.comparison
    images = images or StoredImages.of(comparison, domain)
    mask = comparison.mask
    n_subjects = len(set(domain.subjects))
    counts = f"{counted(len(domain), 'slice')} of {counted(n_subjects, 'subject')}"
    lines = f"{mask.n_sampled} of {mask.n_lines} lines"
    data = {
        "domain": domain.name,
        "SHA-256 of the slices": domain.fingerprint(),
        "licence": domain.header.licence,
        "mask": f"{mask.kind}, seed {mask.seed}, {lines}, hash {mask.hash}",
    }
    scores = {
        name: {metric: getattr(of_method, metric).double().numpy() for metric in METRICS}
        for name, of_method in comparison.scores.items()
    }
    traces = tuple(tuple(trace.steps(i)) for trace in assessment.traces for i in range(trace.n_samples))
    return Report(
        title=domain.name,
        description=f"{counts}, {lines}, {domain.header.kspace_origin} k-space",
        slices=tuple(
            Slice(subject, name, mask) for subject, name in zip(domain.subjects, slice_names(domain), strict=True)
        ),
        images=images.reconstructions,
        reference=images.reference,
        kspace=images.kspace,
        phase_axis=comparison.phase_axis,
        scores=scores,
        convention=next(iter(comparison.scores.values())).convention.name,
        judged=assessment.judged,
        traces={assessment.judged: traces} if traces else {},
        verdict=assessment.verdict,
        notes=notes,
        provenance={**(provenance or {}), "data": data},
    )


@dataclass(frozen=True)
class StoredImages:
    """The images of all slices of a comparison ``(n, H, W)``, in memory or in an HDF5 file.

    Attributes
    ----------
    reference, reconstructions
        Magnitudes, in units of the peak of the reference, the latter by method.
    kspace
        The magnitude of measured k-space; None where it was simulated from images.
    """

    reference: Images
    reconstructions: Mapping[str, Images]
    kspace: Images | None

    @classmethod
    def of(cls, comparison: Comparison, domain: Domain) -> StoredImages:
        """Return the images that a comparison holds in memory."""
        found = {name: images.float().numpy() for name, images in comparison.reconstructions.items()}
        return cls(comparison.reference.float().numpy(), found, _measured_kspace(domain))


def _measured_kspace(domain: Domain) -> Images | None:
    """Return the magnitude of measured k-space ``(n, H, W)``; None where it was simulated from images."""
    if domain.header.kind != "kspace":
        return None
    return np.stack([magnitude_of(domain.kspace(i).numpy()) for i in range(len(domain))])


class ImageStore:
    """Puts the images of a comparison into the file of its report while it is made, a few slices at a time.

    Attributes
    ----------
    file
        The open file, which `write_data` completes.
    domain
        The slices that are compared on.
    """

    def __init__(self, file: h5py.File, domain: Domain) -> None:
        self.file, self.domain = file, domain
        self._methods: list[str] = []

    def observe(self, first: int, reference: Tensor, images: Mapping[str, Tensor]) -> None:
        """Write a batch of slices; `ulda.evaluation.compare` calls it."""
        self._methods = list(images)
        self._put("reference", first, reference.float().numpy())
        for number, stack in enumerate(images.values()):
            self._put(f"images/{number}", first, stack.float().numpy())
        kspace = _measured_kspace(self.domain.take(range(first, first + len(reference))))
        if kspace is not None:
            self._put("kspace", first, kspace)

    def stored(self) -> StoredImages:
        """Return what was written; it is read when asked for."""
        images = {name: self.file[f"images/{number}"] for number, name in enumerate(self._methods)}
        return StoredImages(self.file["reference"], images, self.file.get("kspace"))

    def _put(self, name: str, first: int, images: Images) -> None:
        if name not in self.file:
            _new_images(self.file, name, (len(self.domain), *images.shape[1:]))
        self.file[name][first : first + len(images)] = images


def slice_names(domain: Domain) -> tuple[str, ...]:
    """Return what to call the slices: their number in the file, and their volume where there are several."""
    volumes = domain.label("volume")
    several = len(set(volumes)) > 1
    return tuple(
        f"slice {index} ({volume})" if several and volume else f"slice {index}"
        for volume, index in zip(volumes, domain.indices, strict=True)
    )


def save_comparison(path: str | Path, report: Report, *, overwrite: bool = False) -> None:
    """Write the data of a report as HDF5, without any loss."""
    with atomic_output(path, overwrite=overwrite) as temporary, hdf5_output(temporary) as file:
        for name, images in _named_images(report).items():
            _new_images(file, name, images.shape)[...] = images
        write_data(file, report)


def write_data(file: h5py.File, report: Report) -> None:
    """Write all but the images of a report into an open file."""
    masks = list(dict.fromkeys(one.mask for one in report.slices if one.mask is not None))
    texts: dict[str, Any] = {name: getattr(report, name) for name in _TEXTS} | {
        "notes": list(report.notes),
        "provenance": {heading: dict(facts) for heading, facts in report.provenance.items()},
        "phase_axis": report.phase_axis,
        "pictured": None if report.pictured is None else list(report.pictured),
        "traced": list(report.traces),
        "phases": dict(report.phases),
        "masks": [mask.as_dict() for mask in masks],
        "slices": [[one.subject, one.name, masks.index(one.mask) if one.mask else None] for one in report.slices],
        "images": list(report.images),
        "scores": {name: list(by_metric) for name, by_metric in report.scores.items()},
    }
    file.attrs["format"], file.attrs["version"] = FORMAT, VERSION
    # a dataset, since an attribute may not be longer than 64 kB
    file["report"] = np.frombuffer(json.dumps(texts).encode(), np.uint8)
    for number, by_metric in enumerate(report.scores.values()):
        for metric, values in by_metric.items():
            file[f"scores/{number}/{metric}"] = np.asarray(values, np.float64)
    for number, traces in enumerate(report.traces.values()):
        for name, table in to_tables(traces).items():
            file[f"traces/{number}/{name}"] = table


def load_comparison(path: str | Path) -> Report:
    """Read what `save_comparison` wrote."""
    what = "a comparison"
    with open_hdf5(path, what, f"expected a {FILE_NAME} that ulda wrote") as file, saying(path, what):
        if text(file.attrs.get("format", "")) != FORMAT or file.attrs["version"] != VERSION:
            raise UldaError(f"it is not a comparison of version {VERSION}")
        return _read(file)


def _read(file: h5py.File) -> Report:
    texts = parse_json(_array(file, "report").astype(np.uint8).tobytes(), "its report")
    masks = [Mask.from_dict(fields) for fields in texts["masks"]]
    names = [str(name) for name in texts["images"]]
    return Report(
        **{name: str(texts[name]) for name in _TEXTS},
        notes=tuple(map(str, texts["notes"])),
        provenance=_texts(texts["provenance"]),
        phase_axis=-1 if texts["phase_axis"] == -1 else -2,
        slices=tuple(
            Slice(str(subject), str(name), None if mask is None else masks[mask])
            for subject, name, mask in texts["slices"]
        ),
        images={name: _array(file, f"images/{i}").astype(np.float32) for i, name in enumerate(names)},
        reference=_array(file, "reference").astype(np.float32) if "reference" in file else None,
        pictured=None if texts["pictured"] is None else tuple(map(int, texts["pictured"])),
        kspace=_array(file, "kspace").astype(np.float32) if "kspace" in file else None,
        scores={
            str(name): {str(metric): _array(file, f"scores/{i}/{metric}").astype(np.float64) for metric in metrics}
            for i, (name, metrics) in enumerate(texts["scores"].items())
        },
        traces={
            str(name): from_tables({key: _array(file, f"traces/{i}/{key}") for key in (*NUMBERS, "branch")})
            for i, name in enumerate(texts["traced"])
        },
        phases={str(name): int(n) for name, n in texts["phases"].items()},
    )


def _texts(provenance: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    return {str(head): {str(key): str(value) for key, value in facts.items()} for head, facts in provenance.items()}


def _named_images(report: Report) -> dict[str, Images]:
    """Return the images of a report by where they stand in the file."""
    single = {"reference": report.reference, "kspace": report.kspace}
    found = {name: images for name, images in single.items() if images is not None}
    return found | {f"images/{number}": images for number, images in enumerate(report.images.values())}


def _new_images(file: h5py.File, name: str, shape: tuple[int, ...]) -> h5py.Dataset:
    return file.create_dataset(
        name, shape, np.float32, chunks=(1, *shape[1:]), compression="gzip", compression_opts=1, shuffle=True
    )


def _array(group: h5py.Group, name: str) -> NDArray[Any]:
    item = group.get(name)
    if not isinstance(item, h5py.Dataset) or item.dtype.kind not in "biuf":
        raise UldaError(f"it has no array {name} of numbers")
    check_memory("it", f"the array {name}", item.nbytes)
    return np.asarray(item)
