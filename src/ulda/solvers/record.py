"""A run in one file: measurement, operator, weights, result, trace and certificate, so that anyone can verify it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor

from ulda.data.atomic import atomic_output
from ulda.errors import UldaError
from ulda.models import Adapter, FeatureExtractor, Regularizer
from ulda.physics import CartesianMRI, Mask, MultiCoilMRI, Physics
from ulda.solvers.certificate import Verdict, certify, verify
from ulda.solvers.trace import Trace

FORMAT = "ulda-run"
VERSION = 1


@dataclass(frozen=True)
class Run:
    """A run as read from its file."""

    y: Tensor
    physics: Physics
    regularizer: Regularizer
    x: Tensor
    x0: Tensor | None
    certificate: dict[str, Any]

    def verify(self) -> Verdict:
        """Check the certificate and replay the run."""
        return verify(self.certificate, self.y, self.physics, self.regularizer, self.x, self.x0)


def save_run(
    path: str | Path,
    trace: Trace,
    y: Tensor,
    physics: Physics,
    regularizer: Regularizer,
    x: Tensor,
    x0: Tensor | None = None,
    *,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write a run with its certificate as HDF5 and return the certificate."""
    certificate = certify(trace, y, physics, regularizer, x, x0)
    extractor, adapter = regularizer.extractor, regularizer.adapter
    shape = {
        "width": extractor.width,
        "depth": extractor.depth,
        "kernel_size": extractor.kernel_size,
        "delta": extractor.activation.delta,
        "adapter_kernel_size": None if adapter is None else adapter.kernel_size,
    }
    with atomic_output(path, overwrite=overwrite) as temporary, h5py.File(temporary, "w") as file:
        file.attrs["format"], file.attrs["version"] = FORMAT, VERSION
        file.attrs["certificate"] = json.dumps(certificate)
        file.attrs["regularizer"] = json.dumps(shape)
        file.attrs["mask"] = json.dumps(physics.mask.as_dict())
        file.attrs["axis"] = physics.axis
        file["y"], file["x"] = y.numpy(), x.numpy()
        if certificate["start"] != "zero-filling" and x0 is not None:
            file["x0"] = x0.numpy()
        if isinstance(physics, MultiCoilMRI):
            file["maps"] = physics.maps.numpy()
        for name, parameter in regularizer.named_parameters():
            file[f"weights/{name}"] = parameter.detach().numpy()
        trace.save_hdf5(file.create_group("trace"))
    return certificate


def load_run(path: str | Path) -> Run:
    """Read a run written by `save_run`."""
    path = Path(path)
    try:
        with h5py.File(path) as file:
            if file.attrs.get("format") != FORMAT or file.attrs.get("version") != VERSION:
                raise UldaError(f"{path.name} is not a run file of version {VERSION}; write one with save_run")
            return _read(file)
    except FileNotFoundError as error:
        raise UldaError(f"there is no file {path}") from error
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise UldaError(f"{path.name} cannot be read as a run file ({str(error).splitlines()[0]})") from error


def _read(file: h5py.File) -> Run:
    def tensor(name: str) -> Tensor:
        return torch.from_numpy(np.asarray(file[name]))

    fields = json.loads(file.attrs["mask"])
    sampled = np.zeros(fields["n_lines"], dtype=bool)
    sampled[fields["sampled"]] = True
    mask = Mask(tuple(sampled.tolist()), kind=fields["kind"], seed=fields["seed"])
    axis = int(file.attrs["axis"])
    shape = json.loads(file.attrs["regularizer"])
    adapter_size = shape.pop("adapter_kernel_size")
    adapter = None if adapter_size is None else Adapter(shape["width"], adapter_size)
    regularizer = Regularizer(FeatureExtractor(**shape), adapter)
    y = tensor("y")
    if y.dtype == torch.complex128:
        regularizer = regularizer.double()
    weights: dict[str, Tensor] = {}
    file["weights"].visititems(
        lambda name, item: weights.update({name: tensor(f"weights/{name}")}) if isinstance(item, h5py.Dataset) else None
    )
    regularizer.load_state_dict(weights)
    return Run(
        y=y,
        physics=MultiCoilMRI(mask, tensor("maps"), axis) if "maps" in file else CartesianMRI(mask, axis),
        regularizer=regularizer,
        x=tensor("x"),
        x0=tensor("x0") if "x0" in file else None,
        certificate=json.loads(file.attrs["certificate"]),
    )
