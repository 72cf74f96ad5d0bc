"""Models as files: tensors in safetensors, facts in JSON beside them, bound by fingerprint. Never pickle."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from ulda.errors import UldaError
from ulda.io.documents import read_json
from ulda.io.file_set import file_set, finish
from ulda.io.fingerprints import fingerprint
from ulda.io.temporary import made_folder
from ulda.io.tensors import write_tensors
from ulda.io.untrusted import reading, regular_file
from ulda.version import __version__

VERSION = 1
BASE_FORMAT, ADAPTER_FORMAT = "ulda-model", "ulda-adapter"
LARGEST_SIZE = 4096
"""No size of a model, such as its channels or layers, is larger."""

MOST_REGISTERED = 4
"""So many times may a model make each of its tensors while it is built."""

STEMS = {BASE_FORMAT: "model", ADAPTER_FORMAT: "adapter"}


def write_model(
    folder: str | Path, kind: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], *, overwrite: bool = False
) -> None:
    """Write ``STEM.safetensors``, and ``STEM.json`` with the facts and the fingerprint of the tensors, as one set.

    Parameters
    ----------
    folder
        Where to write; made if it does not exist.
    kind
        `BASE_FORMAT` or `ADAPTER_FORMAT`.
    tensors, facts
        What is in the two files.
    overwrite
        Replace existing files.
    """
    folder = Path(folder)
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"format": kind, "version": VERSION, "ulda": __version__}
    written = header | dict(facts) | {"weights": fingerprint(sorted(plain.items()))}
    with made_folder(folder), file_set(folder / STEMS[kind], overwrite=overwrite) as temporary:
        write_tensors(temporary / f"{STEMS[kind]}.safetensors", plain)
        (temporary / f"{STEMS[kind]}.json").write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


def read_facts(folder: str | Path, kind: str) -> dict[str, Any]:
    """Read the JSON beside the tensors and check what it is."""
    path = Path(folder) / f"{STEMS[kind]}.json"
    finish(path.with_name(STEMS[kind]))
    if not path.exists():
        raise UldaError(f"there is no {path.name} in {path.parent}")
    facts = read_json(path)
    if not isinstance(facts, dict) or facts.get("format") != kind:
        raise UldaError(f"{path} does not describe a file of the kind {kind}")
    if facts.get("version") != VERSION:
        raise UldaError(f"{path} has version {facts.get('version')}, this ulda reads version {VERSION}; upgrade ulda")
    return facts


def read_shapes(folder: Path, kind: str) -> dict[str, tuple[int, ...]]:
    """Read the names and shapes of the tensors in a folder; the values stay unread."""
    path = regular_file(folder / f"{STEMS[kind]}.safetensors")
    with reading(path, "safetensors"), safe_open(path, framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def check_size(folder: Path, kind: str, sizes: Mapping[str, Any], build: Callable[[], nn.Module]) -> None:
    """Refuse to build a model other than the file with its tensors holds: a file must not ask for any memory.

    Parameters
    ----------
    folder, kind
        Where the files are, and of what kind.
    sizes
        What the model is built with; a model is tried without values first, which takes time for each layer.
    build
        Builds it.
    """
    stem = STEMS[kind]
    shapes = read_shapes(folder, kind)
    too_large = UldaError(f"{stem}.json in {folder.name} describes a larger model than {stem}.safetensors holds")
    if any(isinstance(size, int) and abs(size) > LARGEST_SIZE for size in _leaves(sizes)):
        raise too_large
    n_registered = 0

    def count(_module: nn.Module, _name: str, parameter: nn.Parameter | None) -> None:
        nonlocal n_registered
        n_registered += parameter is not None
        if n_registered > MOST_REGISTERED * (len(shapes) + 1):
            raise too_large

    counting = register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"):
            n_values = sum(parameter.numel() for parameter in build().parameters())
    finally:
        counting.remove()
    if n_values > sum(math.prod(shape) for shape in shapes.values()):
        raise too_large


def restore_tensors(module: nn.Module, folder: Path, kind: str, facts: dict[str, Any]) -> None:
    """Read the tensors of a folder into a module; they must be those that the facts name."""
    path = folder / f"{STEMS[kind]}.safetensors"
    with reading(regular_file(path), "safetensors"):
        tensors = load_file(path)
    expected = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != expected:
        raise UldaError(f"{path.name} in {folder.name} holds other tensors than its JSON file describes")
    if facts.get("weights") != fingerprint(sorted(tensors.items())):
        raise UldaError(f"the weights in {folder.name} are not those {path.stem}.json was written for")
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise UldaError(f"the weights {name} in {folder.name} are not finite, so nothing can be computed with them")
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(tensors[name])


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list | tuple):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _leaves(entry)
    else:
        yield value
