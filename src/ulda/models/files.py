"""Models as files: tensors in safetensors, facts in JSON beside them, bound by fingerprint. Never pickle."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ulda.errors import UldaError
from ulda.io.file_set import file_set, finish
from ulda.io.fingerprints import fingerprint
from ulda.io.temporary import made_folder
from ulda.io.tensors import write_tensors
from ulda.version import __version__

VERSION = 1
BASE_FORMAT, ADAPTER_FORMAT = "ulda-model", "ulda-adapter"
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
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UldaError(f"there is no {path.name} in {path.parent}") from error
    except ValueError as error:
        raise UldaError(f"{path} is not JSON ({error})") from error
    if not isinstance(facts, dict) or facts.get("format") != kind:
        raise UldaError(f"{path} does not describe a file of the kind {kind}")
    if facts.get("version") != VERSION:
        raise UldaError(f"{path} has version {facts.get('version')}, this ulda reads version {VERSION}; upgrade ulda")
    return facts


def check_size(folder: Path, kind: str, build: Callable[[], nn.Module]) -> None:
    """Refuse to build a model that is larger than the file with its tensors: a file must not ask for any memory."""
    path = folder / f"{STEMS[kind]}.safetensors"
    with torch.device("meta"):
        n_bytes = sum(p.numel() * p.element_size() for p in build().parameters())
    if path.is_file() and n_bytes > path.stat().st_size:
        _read_tensors(path)  # which says so where it is damaged
        raise UldaError(f"{path.stem}.json in {folder.name} describes a larger model than {path.name} holds")


def restore_tensors(module: nn.Module, folder: Path, kind: str, facts: dict[str, Any]) -> None:
    """Read the tensors of a folder into a module; they must be those that the facts name."""
    path = folder / f"{STEMS[kind]}.safetensors"
    tensors = _read_tensors(path)
    expected = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != expected:
        raise UldaError(f"{path.name} in {folder.name} holds other tensors than its JSON file describes")
    if facts.get("weights") != fingerprint(sorted(tensors.items())):
        raise UldaError(f"the weights in {folder.name} are not those {path.stem}.json was written for")
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(tensors[name])


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UldaError(f"{path.name} in {path.parent.name} cannot be read as safetensors ({error})") from error
