"""The report of a run file: what `ulda reconstruct` wrote, with its certificate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ulda.errors import UldaError
from ulda.evaluation.comparison import METRICS
from ulda.evaluation.paired import counted
from ulda.evaluation.report.content import Images, Provenance, Report, Slice
from ulda.evaluation.report.images import magnitude_of
from ulda.evaluation.report.traces import step_of
from ulda.io.documents import parse_json
from ulda.io.fingerprints import digest
from ulda.io.hdf5_input import open_hdf5
from ulda.metrics import PER_SLICE, evaluate
from ulda.solvers import Run, Step, load_runs
from ulda.solvers.record import FORMAT as RUN_FORMAT
from ulda.solvers.record import rescale

RECONSTRUCTION, ZERO_FILLING = "reconstruction", "zero-filling"

__all__ = ["RUN_FORMAT", "report_of_run"]


def report_of_run(path: str | Path, reference: Images | None = None) -> Report:
    """Read a run file as a report: the reconstruction, what it started from, and the certificate.

    Parameters
    ----------
    path
        The run file.
    reference
        Magnitude images ``(n, H, W)`` in the units of the measurements, to compare with.
    """
    path = Path(path)
    slices: list[Slice] = []
    found: dict[str, list[Images]] = {ZERO_FILLING: [], RECONSTRUCTION: []}
    kspace: list[Images] = []
    traces: list[tuple[Step, ...]] = []
    certificates: list[dict[str, Any]] = []
    axis = -2
    for run in load_runs(path):
        zero_filled, reconstruction = _images(run)
        found[ZERO_FILLING].append(zero_filled)
        found[RECONSTRUCTION].append(reconstruction)
        kspace += [magnitude_of(one) for one in run.y.numpy()]
        slices += [Slice("", f"slice {len(slices) + i}", run.physics.mask) for i in range(len(reconstruction))]
        traces += _traces(run.certificate, path.name)
        certificates.append(run.certificate)
        axis = run.physics.axis
    if len({stack.shape[1:] for stack in found[RECONSTRUCTION]}) != 1:
        raise UldaError(f"the slices of {path.name} have different sizes; a report shows slices of one size")
    images = {name: np.concatenate(stacks) for name, stacks in found.items()}
    if reference is not None and reference.shape != images[RECONSTRUCTION].shape:
        raise UldaError(
            f"the reference has the shape {reference.shape}, but the images of {path.name} have "
            f"{images[RECONSTRUCTION].shape}"
        )
    peaks = _peaks(images[RECONSTRUCTION] if reference is None else reference)
    images = {name: stack / peaks for name, stack in images.items()}
    normalised = None if reference is None else reference / peaks
    descended = all(step.phi <= step.phi_before for steps in traces for step in steps)
    n_steps = sum(map(len, traces))
    return Report(
        title=path.name,
        description=f"{counted(len(slices), 'slice')}, reconstructed with a certificate",
        slices=tuple(slices),
        images=images,
        reference=normalised,
        kspace=np.stack(kspace),
        phase_axis=axis,
        scores={} if normalised is None else _scores(images, normalised),
        convention="" if normalised is None else PER_SLICE.name,
        judged="" if normalised is None else RECONSTRUCTION,
        traces={RECONSTRUCTION: tuple(traces)},
        verdict=f"according to the certificate, {'every' if descended else 'NOT every'} one of {n_steps} phases "
        "descended the objective",
        notes=(f"the certificate was read, not replayed; ulda verify {path.name} replays it",),
        provenance=_provenance(path, certificates),
    )


def _images(run: Run) -> tuple[Images, Images]:
    """Return the magnitudes of the start and of the result, in one unit."""
    zero_filled = run.physics.A_adjoint(run.y)
    if run.scale is not None:
        zero_filled = rescale(zero_filled, run.scale)
    result = run.x if run.image is None else run.image
    return zero_filled.abs().float().numpy(), result.abs().float().numpy()


def _peaks(images: Images) -> Images:
    peaks = np.nan_to_num(images).max((1, 2), keepdims=True)
    return np.where(peaks > 0, peaks, 1).astype(np.float32)


def _scores(images: Mapping[str, Images], reference: Images) -> dict[str, dict[str, Any]]:
    found = {
        name: evaluate(torch.from_numpy(stack), torch.from_numpy(reference), PER_SLICE)
        for name, stack in images.items()
    }
    return {
        name: {metric: getattr(scores, metric).double().numpy() for metric in METRICS} for name, scores in found.items()
    }


def _traces(certificate: Mapping[str, Any], name: str) -> list[tuple[Step, ...]]:
    try:
        return [
            tuple(step_of(fields, str(fields["branch"])) for fields in sample["iterations"])
            for sample in certificate["samples"]
        ]
    except (LookupError, TypeError, ValueError) as error:
        raise UldaError(f"the certificate in {name} is not one that ulda wrote ({error})") from error


def _provenance(path: Path, certificates: list[dict[str, Any]]) -> Provenance:
    with open_hdf5(path, "a run file") as file:
        facts = parse_json(file.attrs["facts"], f"what {path.name} says of itself")
    found: dict[str, dict[str, str]] = {"file": {"name": path.name} | {str(k): str(v) for k, v in facts.items()}}
    for number, certificate in enumerate(certificates):
        heading = "certificate" if len(certificates) == 1 else f"certificate {number}"
        content = {key: value for key, value in certificate.items() if key != "digest"}
        intact = digest(content) == certificate.get("digest")
        found[heading] = {
            "digest": str(certificate.get("digest")),
            "digest fits the content": "yes" if intact else "NO",
            **{f"SHA-256 of the {key}": str(value) for key, value in certificate["fingerprints"].items()},
        }
    found["software"] = {str(key): str(value) for key, value in certificates[0]["software"].items()}
    return found
