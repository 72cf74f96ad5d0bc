"""Reads runs from their files, which may come from anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor

from ulda.errors import UldaError
from ulda.io.documents import parse_json
from ulda.io.fingerprints import digest
from ulda.io.hdf5_input import open_hdf5, text
from ulda.io.untrusted import reading, saying
from ulda.models import Adapter, FeatureExtractor, Regularizer
from ulda.physics import CartesianMRI, Mask, MultiCoilMRI, Physics
from ulda.solvers.manifest import check_manifest, trace_problem
from ulda.solvers.record import FORMAT, VERSION, Run

UNIT = 1e-5
"""How far the absolute value of a phase factor may be from 1."""


def load_run(path: str | Path) -> Run:
    """Read a file with one run."""
    runs = load_runs(path)
    first, second = next(runs), next(runs, None)
    if second is not None:
        raise UldaError(f"{Path(path).name} holds several runs; read them with load_runs")
    return first


def load_runs(path: str | Path) -> Iterator[Run]:
    """Read the runs of a file, one at a time."""
    path, what = Path(path), "a run file"
    with open_hdf5(path, what) as file, saying(path, what):
        if text(file.attrs.get("format", "")) != FORMAT or file.attrs.get("version") != VERSION:
            raise UldaError(f"its format and version are not {FORMAT} {VERSION}; write one with save_run")
        n_bytes = path.stat().st_size
        groups = _groups(file)
        manifest = check_manifest(file, n_bytes)
        changed = "".join(f"; {problem}" for problem in manifest.problems[:1])
        try:
            with reading(path.name, what):
                for run in _read_runs(file, groups, n_bytes):
                    yield replace(run, manifest=manifest)
        except UldaError as error:
            raise UldaError(f"{error}{changed}") from error


def _groups(file: h5py.File) -> list[h5py.Group]:
    runs = file.get("runs")
    if not isinstance(runs, h5py.Group) or len(runs) == 0:
        raise UldaError("it holds no runs")
    return [runs[str(number)] for number in range(len(runs))]


def _read_runs(file: h5py.File, groups: list[h5py.Group], n_bytes: int) -> Iterator[Run]:
    names: list[str] = []
    file["weights"].visit(names.append)
    weights = {name: _tensor(file, f"weights/{name}", n_bytes) for name in names}
    regularizer = _regularizer(parse_json(file.attrs["regularizer"], "its regularizer"), weights)
    has_images = "image" in file or "scale" in file
    images = [_dataset(file, name, n_bytes) for name in ("scale", "image")] if has_images else []
    done = 0
    for group in groups:
        run = _read(group, regularizer, n_bytes)
        rows = slice(done, done := done + len(run.x))
        if images:
            scale, image = (torch.from_numpy(np.asarray(dataset[rows])) for dataset in images)
            run = replace(run, scale=scale, image=image)
        yield run
    if any(len(dataset) != done for dataset in images):
        raise UldaError(f"its runs have {done} slices, but it has another number of images or scales")


def _read(group: h5py.Group, regularizer: Regularizer, n_bytes: int) -> Run:
    y, axis = _tensor(group, "y", n_bytes), int(group.attrs["axis"])
    fields = parse_json(group.attrs["mask"], "its mask")
    if fields["n_lines"] != y.shape[axis]:
        raise UldaError(f"its mask has {fields['n_lines']} lines, but its measurement has shape {tuple(y.shape)}")
    mask = Mask.from_dict(fields)
    if digest(fields) != digest(mask.as_dict()):
        raise UldaError("what its mask says of itself does not follow from its lines")
    x, certificate = _tensor(group, "x", n_bytes), parse_json(group.attrs["certificate"], "its certificate")
    _check_arrays(group)
    return Run(
        y=y,
        physics=_physics(group, mask, axis, x, n_bytes),
        regularizer=regularizer,
        x=x,
        x0=_tensor(group, "x0", n_bytes) if "x0" in group else None,
        certificate=certificate,
        trace_problem=trace_problem(group.get("trace"), certificate),
    )


def _check_arrays(group: h5py.Group) -> None:
    """Refuse arrays of a run whose types or shapes do not fit together."""
    x = group["x"]
    if len(x.shape) != 3 or x.dtype.kind != "c":
        raise UldaError(f"its result x holds {x.dtype} of shape {x.shape}, not complex images (n, H, W)")
    coils = group["maps"].shape[-3:-2] if "maps" in group else ()
    one = (*coils, *x.shape[1:])
    # one set of maps may serve all slices
    maps_shape = next((s for s in ((1, *one), one) if "maps" in group and group["maps"].shape == s), (len(x), *one))
    for name, shape in {"y": (len(x), *one), "x0": x.shape, "maps": maps_shape}.items():
        if name in group and (group[name].shape, group[name].dtype) != (shape, x.dtype):
            raise UldaError(
                f"its array {name} holds {group[name].dtype} of shape {group[name].shape}, but its result needs "
                f"{x.dtype} of shape {shape}"
            )


def _physics(group: h5py.Group, mask: Mask, axis: int, x: Tensor, n_bytes: int) -> Physics:
    maps = _tensor(group, "maps", n_bytes) if "maps" in group else None
    physics = CartesianMRI(mask, axis) if maps is None else MultiCoilMRI(mask, maps, axis)
    phase, noise = (_tensor(group, name, n_bytes) if name in group else None for name in ("phase", "noise"))
    if phase is not None and phase.shape != x.shape:
        raise UldaError(f"its phase has shape {tuple(phase.shape)}, but its result {tuple(x.shape)}")
    if phase is not None and not ((phase.abs() - 1).abs() < UNIT).all():
        raise UldaError("its phase does not have absolute value 1 everywhere, so it would change the objective")
    if noise is not None and noise.shape != x.shape[:1]:
        raise UldaError(f"it has {tuple(noise.shape)} noise levels for {len(x)} slices")
    return physics.with_knowledge(phase, noise, keeps_noise=bool(group.attrs["keeps_noise"]))


def _tensor(group: h5py.Group, name: str, n_bytes: int) -> Tensor:
    return torch.from_numpy(np.asarray(_dataset(group, name, n_bytes)))


def _dataset(group: h5py.Group, name: str, n_bytes: int) -> h5py.Dataset:
    item = group.get(name)
    if not isinstance(item, h5py.Dataset):
        raise UldaError(f"it has no array {name}")
    if item.nbytes > n_bytes:
        raise UldaError(f"its array {name} claims {item.nbytes} bytes, more than the whole file")
    return item


def _regularizer(sizes: dict[str, Any], weights: dict[str, Tensor]) -> Regularizer:
    """Build a regulariser of the given sizes, once it is clear that the weights at hand have them."""
    width, kernel_size, adapter_size = sizes["width"], sizes["kernel_size"], sizes.pop("adapter_kernel_size")
    noise_aware = sizes.pop("noise_aware")
    shapes = {}
    for i in range(min(sizes["depth"], len(weights))):
        shapes[f"extractor.layers.{i}"] = (width, 1 if i == 0 else width, kernel_size, kernel_size)
    if adapter_size is not None:
        shapes["adapter.layer"] = (width, width, adapter_size, adapter_size)
    expected: dict[str, tuple[int, ...]] = {
        f"{layer}.{part}": shape for layer, shape in shapes.items() for part in ("real", "imag")
    }
    if noise_aware:
        expected["adapter.log_noise"] = ()
    if expected != {name: tuple(weight.shape) for name, weight in weights.items()}:
        raise UldaError(f"its weights do not have the sizes it states: {sizes}")
    adapter = None if adapter_size is None else Adapter(width, adapter_size, noise_aware=noise_aware)
    regularizer = Regularizer(FeatureExtractor(**sizes), adapter).to(next(iter(weights.values())).dtype)
    regularizer.load_state_dict(weights)
    return regularizer
