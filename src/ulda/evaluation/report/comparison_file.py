"""``comparison.h5``: the images, scores and records of a comparison, from which its report is made.

All texts stand in one JSON attribute, so that a name may hold any character; arrays are numbered in the order of the
methods there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ulda.data import Domain
from ulda.errors import UldaError
from ulda.evaluation.assessment import Assessment
from ulda.evaluation.comparison import METRICS
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

_TEXTS = ("title", "description", "convention", "judged", "verdict")


def report_of_assessment(
    assessment: Assessment, domain: Domain, *, notes: tuple[str, ...] = (), provenance: Provenance | None = None
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
    """
    comparison = assessment.comparison
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
        images={name: images.float().numpy() for name, images in comparison.reconstructions.items()},
        reference=comparison.reference.float().numpy(),
        kspace=_measured_kspace(domain),
        phase_axis=comparison.phase_axis,
        scores=scores,
        convention=next(iter(comparison.scores.values())).convention.name,
        judged=assessment.judged,
        traces={assessment.judged: traces} if traces else {},
        verdict=assessment.verdict,
        notes=notes,
        provenance={**(provenance or {}), "data": data},
    )


def _measured_kspace(domain: Domain) -> Images | None:
    """Return the magnitude of measured k-space ``(n, H, W)``; None where it was simulated from images."""
    if domain.header.kind != "kspace":
        return None
    return np.stack([magnitude_of(domain.kspace(i).numpy()) for i in range(len(domain))])


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
    with atomic_output(path, overwrite=overwrite) as temporary, hdf5_output(temporary) as file:
        file.attrs["format"], file.attrs["version"] = FORMAT, VERSION
        # a dataset, since an attribute may not be longer than 64 kB
        file["report"] = np.frombuffer(json.dumps(texts).encode(), np.uint8)
        if report.reference is not None:
            _write_images(file, "reference", report.reference)
        if report.kspace is not None:
            _write_images(file, "kspace", report.kspace)
        for number, images in enumerate(report.images.values()):
            _write_images(file, f"images/{number}", images)
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


def _write_images(file: h5py.File, name: str, images: Images) -> None:
    file.create_dataset(
        name, data=images, dtype=np.float32, chunks=(1, *images.shape[1:]), compression="gzip", compression_opts=1,
        shuffle=True,
    )  # fmt: skip


def _array(group: h5py.Group, name: str) -> NDArray[Any]:
    item = group.get(name)
    if not isinstance(item, h5py.Dataset) or item.dtype.kind not in "biuf":
        raise UldaError(f"it has no array {name} of numbers")
    check_memory("it", f"the array {name}", item.nbytes)
    return np.asarray(item)
