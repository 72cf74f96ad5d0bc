"""Runs in one file: measurements, operators, weights, results, traces and certificates, for anyone to verify.

The weights stand at the top of the file, and so do the images in the units of the measurements (``image``, one per
slice) with their scales. Every run is a group ``runs/0``, ``runs/1``, ... of slices that were solved together. The
manifest (`ulda.solvers.manifest`) binds all of it.
`ulda.solvers.record_reader` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
from numpy.typing import NDArray
from torch import Tensor

from ulda.errors import UldaError
from ulda.io.atomic import atomic_output
from ulda.io.hdf5 import hdf5_output
from ulda.models import Regularizer
from ulda.physics import MultiCoilMRI, Physics
from ulda.solvers.certificate import certify
from ulda.solvers.manifest import CheckedManifest, write_manifest
from ulda.solvers.proposals import Proposal
from ulda.solvers.trace import Trace
from ulda.solvers.verification import Verdict, verify

FORMAT = "ulda-run"
VERSION = 1

ROUNDING = 1e-6
"""How far a pixel of an image may be from the result times its phase and its scale, relative to its size."""


@dataclass(frozen=True)
class Run:
    """A run as read from its file.

    Attributes
    ----------
    y, physics, regularizer
        What was solved.
    x, x0
        The result ``(n, H, W)``, and where the run started if not from zero-filling.
    certificate
        What `ulda.solvers.certify` made of it.
    scale, image
        By what the measurements had been divided, ``(n,)``, and the result in their units, ``(n, H, W)``; None where
        the file has none.
    trace_problem
        Where the trace in the file is not that of the certificate; empty if it is.
    manifest
        The manifest of its file, compared with all that the file holds.
    """

    y: Tensor
    physics: Physics
    regularizer: Regularizer
    x: Tensor
    x0: Tensor | None
    certificate: dict[str, Any]
    scale: Tensor | None = None
    image: Tensor | None = None
    trace_problem: str = ""
    manifest: CheckedManifest | None = None

    def verify(self, proposal: Proposal | None = None) -> Verdict:
        """Check the certificate, replay the run, compare its image with its result, and the file with its manifest.

        The file holds the proposals of this package; any other must be given, see `ulda.solvers.verify`.
        """
        verdict = verify(self.certificate, self.y, self.physics, self.regularizer, self.x, self.x0, proposal)
        problems = tuple(filter(None, (self._check_image(), self.trace_problem)))
        return verdict.joined(problems + (self.manifest.problems if self.manifest else ()))

    def _check_image(self) -> str:
        if self.image is None or self.scale is None:
            return ""
        if self.image.shape != self.x.shape or self.scale.shape != self.x.shape[:1]:
            return "the image and its scale do not have the shape of the result"
        expected = rescale(self.physics.shown(self.x, self.y), self.scale)
        peaks = expected.abs().amax((-2, -1), keepdim=True)
        wrong = ~((self.image - expected).abs() <= ROUNDING * peaks)
        if not wrong.any():
            return ""
        sample, row, column = wrong.nonzero()[0].tolist()
        return f"the image of sample {sample} is not its result times its scale (row {row}, column {column})"


def rescale(x: Tensor, scale: Tensor) -> Tensor:
    """Return results with their phase, ``(n, H, W)``, in the units of the measurements, given their scales ``(n,)``."""
    return x * scale[:, None, None].to(x.real.dtype)


class RunWriter:
    """Appends runs with one regulariser to an open file; `run_output` makes one."""

    def __init__(self, file: h5py.File, regularizer: Regularizer, facts: dict[str, Any]) -> None:
        self.n_runs = 0
        self.images: dict[str, Any] | None = None
        """What `ulda.data.image_output.save_images` returned of the images beside the file, if there are any."""
        self._file = file
        self._regularizer = regularizer = regularizer.materialize()
        file.attrs["format"], file.attrs["version"] = FORMAT, VERSION
        file.attrs["facts"] = json.dumps(facts)
        file.attrs["regularizer"] = json.dumps(_sizes(regularizer))
        for name, parameter in regularizer.named_parameters():
            file[f"weights/{name}"] = _array(parameter)

    def append(
        self,
        trace: Trace,
        y: Tensor,
        physics: Physics,
        x: Tensor,
        x0: Tensor | None = None,
        scale: Tensor | None = None,
    ) -> dict[str, Any]:
        """Write one run and return its certificate; the parameters are those of `save_run`."""
        certificate = certify(trace, y, physics, self._regularizer, x, x0)
        if scale is not None:
            self._append_rows("image", rescale(physics.shown(x, y), scale))
            self._append_rows("scale", scale)
        group = self._file.create_group(f"runs/{self.n_runs}")
        group.attrs["certificate"] = json.dumps(certificate)
        group.attrs["mask"] = json.dumps(physics.mask.as_dict())
        group.attrs["axis"] = physics.axis
        group["y"], group["x"] = _array(y), _array(x)
        if certificate["start"] != "zero-filling" and x0 is not None:
            group["x0"] = _array(x0)
        if isinstance(physics, MultiCoilMRI):
            group["maps"] = _array(physics.maps)
        for name in ("phase", "noise"):
            if (known := getattr(physics, name)) is not None:
                group[name] = _array(known)
        group.attrs["keeps_noise"] = physics.keeps_noise
        trace.save_hdf5(group.create_group("trace"))
        self.n_runs += 1
        return certificate

    def _append_rows(self, name: str, rows: Tensor) -> None:
        """Append to a dataset along its first axis; all rows of a file have one shape."""
        values = _array(rows)
        if name not in self._file:
            if self.n_runs:
                raise UldaError("some runs have a scale and some have none; write them into separate files")
            shape = values.shape[1:]
            self._file.create_dataset(
                name, (0, *shape), values.dtype, maxshape=(None, *shape), chunks=(1 if shape else 256, *shape)
            )
        dataset = self._file[name]
        if dataset.shape[1:] != values.shape[1:]:
            sizes = " and ".join(" x ".join(map(str, shape)) for shape in (dataset.shape[1:], values.shape[1:]))
            raise UldaError(f"the slices have different sizes, {sizes}; reconstruct them into separate files")
        dataset.resize(len(dataset) + len(values), axis=0)
        dataset[-len(values) :] = values


@contextmanager
def run_output(
    path: str | Path, regularizer: Regularizer, facts: dict[str, Any] | None = None, *, overwrite: bool = False
) -> Iterator[RunWriter]:
    """Write a file of runs with one regulariser, one after the other; the file is whole or absent.

    Parameters
    ----------
    path
        The HDF5 file to write.
    regularizer
        The regulariser of all runs.
    facts
        What else is known, for JSON: the base, the domain, the input.
    overwrite
        Replace an existing file.
    """
    with atomic_output(path, overwrite=overwrite) as temporary, run_writer(temporary, regularizer, facts) as writer:
        yield writer


@contextmanager
def run_writer(path: Path, regularizer: Regularizer, facts: dict[str, Any] | None = None) -> Iterator[RunWriter]:
    """Write a file of runs at a temporary place; the parameters are those of `run_output`."""
    with hdf5_output(path) as file:
        writer = RunWriter(file, regularizer, facts or {})
        yield writer
        if writer.n_runs == 0:
            raise UldaError("there are no runs to write")
        write_manifest(file, writer.images)


def save_run(
    path: str | Path,
    trace: Trace,
    y: Tensor,
    physics: Physics,
    regularizer: Regularizer,
    x: Tensor,
    x0: Tensor | None = None,
    *,
    scale: Tensor | None = None,
    facts: dict[str, Any] | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write one run with its certificate as HDF5 and return the certificate.

    Parameters
    ----------
    path
        The file to write.
    trace
        The record of the run.
    y, physics, regularizer, x, x0
        What was solved, the result, and the start if it was not zero-filling; see `ulda.solvers.certify`.
    scale
        By what the measurements had been divided, ``(n,)``; the file then holds the images in their units, too.
    facts, overwrite
        See `run_output`.
    """
    with run_output(path, regularizer, facts, overwrite=overwrite) as writer:
        return writer.append(trace, y, physics, x, x0, scale)


def _array(tensor: Tensor) -> NDArray[Any]:
    return tensor.detach().cpu().resolve_conj().numpy()


def _sizes(regularizer: Regularizer) -> dict[str, Any]:
    extractor, adapter = regularizer.extractor, regularizer.adapter
    return {
        "width": extractor.width,
        "depth": extractor.depth,
        "kernel_size": extractor.kernel_size,
        "delta": extractor.activation.delta,
        "adapter_kernel_size": None if adapter is None else adapter.kernel_size,
        "noise_aware": adapter is not None and adapter.log_noise is not None,
    }
