"""A run in one file: measurement, operator, weights, result, trace and certificate, so that anyone can verify it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ulda.data.atomic import atomic_output
from ulda.data.hdf5_output import hdf5_output
from ulda.errors import UldaError
from ulda.models import Adapter, FeatureExtractor, Regularizer
from ulda.physics import CartesianMRI, Mask, MultiCoilMRI, Physics
from ulda.solvers.certificate import certify
from ulda.solvers.trace import Trace
from ulda.solvers.verification import Verdict, verify

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

    def array(tensor: Tensor) -> NDArray[Any]:
        return tensor.detach().cpu().resolve_conj().numpy()

    with atomic_output(path, overwrite=overwrite) as temporary, hdf5_output(temporary) as file:
        file.attrs["format"], file.attrs["version"] = FORMAT, VERSION
        file.attrs["certificate"] = json.dumps(certificate)
        file.attrs["regularizer"] = json.dumps(shape)
        file.attrs["mask"] = json.dumps(physics.mask.as_dict())
        file.attrs["axis"] = physics.axis
        file["y"], file["x"] = array(y), array(x)
        if certificate["start"] != "zero-filling" and x0 is not None:
            file["x0"] = array(x0)
        if isinstance(physics, MultiCoilMRI):
            file["maps"] = array(physics.maps)
        for name, parameter in regularizer.named_parameters():
            file[f"weights/{name}"] = array(parameter)
        trace.save_hdf5(file.create_group("trace"))
    return certificate


def load_run(path: str | Path) -> Run:
    """Read a run written by `save_run`."""
    path = Path(path)
    try:
        with h5py.File(path) as file:
            if file.attrs.get("format") != FORMAT or file.attrs.get("version") != VERSION:
                raise UldaError(f"it is not a run file of version {VERSION}; write one with save_run")
            return _read(file, path.stat().st_size)
    except FileNotFoundError as error:
        raise UldaError(f"there is no file {path}") from error
    except UldaError as error:
        raise UldaError(f"{path.name} cannot be read as a run file: {error}") from error
    except (OSError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        detail = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise UldaError(f"{path.name} cannot be read as a run file ({detail})") from error


def _read(file: h5py.File, n_bytes: int) -> Run:
    def tensor(name: str) -> Tensor:
        item = file.get(name)
        if not isinstance(item, h5py.Dataset):
            raise UldaError(f"it has no array {name}")
        if item.nbytes > n_bytes:
            raise UldaError(f"its array {name} claims {item.nbytes} bytes, more than the whole file")
        return torch.from_numpy(np.asarray(item))

    y, axis = tensor("y"), int(file.attrs["axis"])
    fields = json.loads(file.attrs["mask"])
    if fields["n_lines"] != y.shape[axis]:
        raise UldaError(f"its mask has {fields['n_lines']} lines, but its measurement has shape {tuple(y.shape)}")
    mask = Mask.from_dict(fields)
    names: list[str] = []
    file["weights"].visit(names.append)
    weights = {name: tensor(f"weights/{name}") for name in names}
    return Run(
        y=y,
        physics=MultiCoilMRI(mask, tensor("maps"), axis) if "maps" in file else CartesianMRI(mask, axis),
        regularizer=_regularizer(json.loads(file.attrs["regularizer"]), weights),
        x=tensor("x"),
        x0=tensor("x0") if "x0" in file else None,
        certificate=json.loads(file.attrs["certificate"]),
    )


def _regularizer(sizes: dict[str, Any], weights: dict[str, Tensor]) -> Regularizer:
    """Build a regulariser of the given sizes, once it is clear that the weights at hand have them."""
    width, kernel_size, adapter_size = sizes["width"], sizes["kernel_size"], sizes.pop("adapter_kernel_size")
    shapes = {}
    for i in range(min(sizes["depth"], len(weights))):
        shapes[f"extractor.layers.{i}"] = (width, 1 if i == 0 else width, kernel_size, kernel_size)
    if adapter_size is not None:
        shapes["adapter.layer"] = (width, width, adapter_size, adapter_size)
    expected = {f"{layer}.{part}": shape for layer, shape in shapes.items() for part in ("real", "imag")}
    if expected != {name: tuple(weight.shape) for name, weight in weights.items()}:
        raise UldaError(f"its weights do not have the sizes it states: {sizes}")
    adapter = None if adapter_size is None else Adapter(width, adapter_size)
    regularizer = Regularizer(FeatureExtractor(**sizes), adapter).to(next(iter(weights.values())).dtype)
    regularizer.load_state_dict(weights)
    return regularizer
