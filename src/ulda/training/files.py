"""Models as files: a base is a folder, an adapter a small one that names its base by fingerprint. Never pickle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import ulda
from ulda.errors import UldaError
from ulda.io.atomic import atomic_output
from ulda.io.fingerprints import fingerprint
from ulda.solvers.certificate import fingerprint_weights
from ulda.training.network import ONE_STEP_PER_PHASE, ULDA, WITHOUT_GAINS, Architecture

VERSION = 1
LATER_SIZES: dict[str, Any] = {"tied_steps": False, "spectral_steps": False, **ONE_STEP_PER_PHASE, **WITHOUT_GAINS}
"""Sizes that files of earlier versions do not have, and what they are there."""
METHOD_FORMAT = "ulda-method"
"""What the file of a model of another method calls itself."""

_LOG_OF_ZERO = -200.0
"""Its exponential is zero in single precision; that of minus infinity is, too, but has no means with others."""

_MOST_KERNELS = 64
"""No adapter adds more kernels to a layer; a file must not ask for any amount of memory."""


def base_fingerprint(model: ULDA) -> str:
    """Return the SHA-256 that names a base: its architecture and its feature extractor.

    Adapters depend on nothing else, so adding one does not change the fingerprint.
    """
    weights = fingerprint_weights(model.extractor)
    # what was added later counts only where it differs from what there was before, so fingerprints stay valid
    all_sizes = asdict(model.architecture)
    sizes = {name: value for name, value in all_sizes.items() if name not in LATER_SIZES or value != LATER_SIZES[name]}
    return hashlib.sha256(f"{json.dumps(sizes, sort_keys=True)}|{weights}".encode()).hexdigest()


def save_base(model: ULDA, folder: str | Path, card: dict[str, Any] | None = None, *, overwrite: bool = False) -> None:
    """Write ``model.safetensors`` and ``model.json``.

    Parameters
    ----------
    model
        The model, with the adapters of its source domains.
    folder
        Where to write; made if it does not exist.
    card
        The model card: data, licences, command, metrics, limits.
    overwrite
        Replace existing files.
    """
    facts = {
        "format": "ulda-base",
        "version": VERSION,
        "ulda": ulda.__version__,
        "architecture": asdict(model.architecture),
        "domains": list(model.sources),
        "fingerprint": base_fingerprint(model),
        "n_parameters": sum(p.numel() for p in _base_parameters(model).values()),
        "card": card or {},
    }
    write_tensors(Path(folder), "model", _base_parameters(model), facts, overwrite)


def load_base(folder: str | Path) -> ULDA:
    """Read a base written by `save_base`; a file that does not match its fingerprint is refused."""
    folder = Path(folder)
    facts = read_facts(folder / "model.json", "ulda-base")
    path = folder / "model.safetensors"
    try:
        architecture = Architecture(**LATER_SIZES | facts["architecture"])
        check_size(path, lambda: ULDA(architecture, facts["domains"]))
        model = ULDA(architecture, facts["domains"])
    except (TypeError, KeyError, ValueError, ArithmeticError, RuntimeError) as error:
        raise UldaError(f"model.json in {folder.name} does not describe a model ({error})") from error
    restore_tensors(model, path, facts)
    if base_fingerprint(model) != facts.get("fingerprint"):
        raise UldaError(f"the weights in {folder.name} are not those model.json was written for")
    return model


def check_size(path: Path, build: Callable[[], nn.Module]) -> None:
    """Refuse to build a model that is larger than the file with its weights: a file must not ask for any memory."""
    with torch.device("meta"):
        n_bytes = sum(p.numel() * p.element_size() for p in build().parameters())
    if path.is_file() and n_bytes > path.stat().st_size:
        _read_tensors(path)  # which says so where it is damaged
        raise UldaError(f"{path.stem}.json in {path.parent.name} describes a larger model than {path.name} holds")


def save_adapter(
    model: ULDA, domain: str, folder: str | Path, facts: dict[str, Any] | None = None, *, overwrite: bool = False
) -> None:
    """Write ``adapter.safetensors`` and ``adapter.json`` of one domain.

    Parameters
    ----------
    model
        The model that holds the adapter.
    domain
        Whose adapter to write.
    folder
        Where to write; made if it does not exist.
    facts
        What is known about it: mask, normalisation, numbers of slices and subjects, metrics.
    overwrite
        Replace existing files.
    """
    model.regularizer(domain)
    mixing = model.mixing(domain)
    header = {
        "format": "ulda-adapter",
        "version": VERSION,
        "ulda": ulda.__version__,
        "base": base_fingerprint(model),
        "domain": domain,
        "mixing": mixing is not None,
        "rank": 0 if mixing is None else mixing.rank,
        "own_layer": domain in model.own_layers,
    }
    parts = {name: _shortest(parameter) for name, parameter in _adapter_of(model, domain).named_parameters()}
    write_tensors(Path(folder), "adapter", parts, header | (facts or {}), overwrite)


def load_adapter(model: ULDA, folder: str | Path) -> str:
    """Add an adapter from its folder to a model and return its domain; an adapter of another base is refused."""
    folder = Path(folder)
    facts = read_facts(folder / "adapter.json", "ulda-adapter")
    if facts.get("base") != base_fingerprint(model):
        raise UldaError(
            f"the adapter in {folder.name} belongs to the base {str(facts.get('base'))[:12]}, "
            f"but this base is {base_fingerprint(model)[:12]}; load it on the base it was trained on"
        )
    if not isinstance(domain := facts.get("domain"), str):
        raise UldaError(f"adapter.json in {folder.name} does not say whose adapter it is")
    model.add_domain(domain)
    if facts.get("mixing"):  # files from before do not say, and those after them not whether they add kernels
        try:
            model.give_mixing(domain, checked_rank(facts.get("rank", 0)))
        except ValueError as error:
            raise UldaError(f"adapter.json in {folder.name} is wrong: {error}") from error
    if facts.get("own_layer"):
        model.give_own_layer(domain)
    restore_tensors(_adapter_of(model, domain), folder / "adapter.safetensors", facts)
    return domain


def domain_fingerprint(model: ULDA, domain: str) -> str:
    """Return the SHA-256 that names all that reconstructs a domain: its regulariser and its step sizes."""
    named = dict(model.regularizer(domain).materialize().named_parameters())
    steps = model.steps[domain].named_parameters()
    return fingerprint(sorted((named | {f"steps.{name}": parameter for name, parameter in steps}).items()))


def checked_rank(rank: Any) -> int:
    """Return how many kernels an adapter adds to each layer, as its file says; a file may say anything."""
    if not isinstance(rank, int) or not 0 <= rank <= _MOST_KERNELS:
        raise ValueError(f"an adapter cannot add {rank!r} kernels to each layer")
    return rank


def read_facts(path: Path, expected: str) -> dict[str, Any]:
    """Read the JSON beside the weights and check what it is."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UldaError(f"there is no {path.name} in {path.parent}") from error
    except ValueError as error:
        raise UldaError(f"{path} is not JSON ({error})") from error
    if isinstance(facts, dict) and facts.get("format") == METHOD_FORMAT != expected:
        method = facts.get("method")
        raise UldaError(
            f"{path.parent} holds a model of the method {method}; compare it with --against, next to a base"
        )
    if not isinstance(facts, dict) or facts.get("format") != expected:
        raise UldaError(f"{path} does not describe a file of the kind {expected}")
    if facts.get("version") != VERSION:
        raise UldaError(f"{path} has version {facts.get('version')}, this ulda reads version {VERSION}; upgrade ulda")
    return facts


def _base_parameters(model: ULDA) -> dict[str, Tensor]:
    """Return the extractor, and the adapters and step sizes of the sources."""
    wanted = ("extractor.", *(f"{part}.{source}." for part in ("adapters", "steps") for source in model.sources))
    return {name: parameter for name, parameter in model.named_parameters() if name.startswith(wanted)}


def _adapter_of(model: ULDA, domain: str) -> nn.ModuleDict:
    parts = nn.ModuleDict({"adapter": model.adapters[domain], "steps": model.steps[domain]})
    for name, own in (("mixing", model.mixings), ("layer", model.own_layers)):
        if domain in own:
            parts[name] = own[domain]
    return parts


def _shortest(tensor: Tensor) -> Tensor:
    """Return a tensor in half precision, if that holds all its numbers exactly."""
    short = tensor.detach().half()
    return short if torch.equal(short.to(tensor.dtype), tensor.detach()) else tensor


def write_tensors(folder: Path, stem: str, tensors: dict[str, Tensor], facts: dict[str, Any], overwrite: bool) -> None:
    """Write ``STEM.safetensors``, and ``STEM.json`` with the facts and the fingerprint of the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_output(folder / f"{stem}.safetensors", overwrite=overwrite) as temporary:
        save_file(plain, temporary)
    facts = facts | {"weights": fingerprint(sorted(plain.items()))}
    with atomic_output(folder / f"{stem}.json", overwrite=overwrite) as temporary:
        temporary.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UldaError(f"{path.name} in {path.parent.name} cannot be read as safetensors ({error})") from error


def restore_tensors(module: nn.Module, path: Path, facts: dict[str, Any]) -> None:
    """Read weights into a module; files of earlier versions do not name their weights by fingerprint."""
    tensors = _read_tensors(path)
    found = fingerprint(sorted(tensors.items()))
    expected = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    for name in expected.keys() - tensors.keys():
        if name.endswith(".log_kappa"):  # files of before there was this step: it is zero
            tensors[name] = torch.full(expected[name], _LOG_OF_ZERO)
    if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != expected:
        raise UldaError(f"{path.name} in {path.parent.name} holds other tensors than its JSON file describes")
    if facts.get("weights", found) != found:
        raise UldaError(f"the weights in {path.parent.name} are not those {path.stem}.json was written for")
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(tensors[name])
