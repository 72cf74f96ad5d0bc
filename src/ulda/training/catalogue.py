"""What models there are, bundled and in folders, and what is known about each."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn

from ulda.errors import UldaError
from ulda.models.bundled import FACTS, FOLDER, ModelKind, bundled_names
from ulda.training.files import METHOD_FORMAT, base_fingerprint, load_base, read_facts

KINDS: tuple[ModelKind, ...] = ("base", "adapter")


def find_models(paths: Iterable[str | Path] = ()) -> list[Path]:
    """Return the folders of the bundled models and of all models in and below the given folders."""
    found = [FOLDER / name for kind in KINDS for name in bundled_names(kind)]
    for path in map(Path, paths):
        if not path.is_dir():
            raise UldaError(f"there is no folder {path}")
        below = {facts.parent for kind in KINDS for facts in path.rglob(FACTS[kind])}
        if not below:
            raise UldaError(f"{path} holds no model: there is no {' or '.join(FACTS.values())} in it or below")
        found += sorted(below)
    return found


def method_in(folder: str | Path) -> str | None:
    """Return which other method a folder holds a model of; None for a base, and for what is no model at all."""
    try:
        facts = json.loads((Path(folder) / FACTS["base"]).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return str(facts.get("method")) if isinstance(facts, dict) and facts.get("format") == METHOD_FORMAT else None


def describe_model(name_or_folder: str | Path) -> dict[str, Any]:
    """Return all that the files of a model say, with real parameter counts, for JSON.

    It is a base, an adapter, or a model of another method. A base is loaded, so that damaged files are found.
    """
    folder = Path(name_or_folder)
    if isinstance(name_or_folder, str) and any(name_or_folder in bundled_names(kind) for kind in KINDS):
        folder = FOLDER / name_or_folder
    if method_in(folder) is not None:
        return _describe_method(folder)
    if (folder / FACTS["base"]).is_file():
        return _describe_base(folder)
    if (folder / FACTS["adapter"]).is_file():
        return _describe_adapter(folder)
    known = ", ".join(name for kind in KINDS for name in bundled_names(kind)) or "none"
    raise UldaError(f"there is no bundled model {str(name_or_folder)!r} and no folder with one; bundled are: {known}")


def _describe_base(folder: Path) -> dict[str, Any]:
    facts = read_facts(folder / FACTS["base"], "ulda-base")
    model = load_base(folder)
    return {
        "kind": "base",
        "name": folder.name,
        "path": str(folder),
        "ulda": facts.get("ulda"),
        "fingerprint": base_fingerprint(model),
        "sources": list(model.sources),
        "architecture": asdict(model.architecture),
        "parameters": {
            "extractor g": _count(model.extractor),
            "adapter h, per domain": sum(map(_count, model.adapters.values())) // max(1, len(model.sources)),
            "step sizes, per domain": sum(map(_count, model.steps.values())) // max(1, len(model.sources)),
            "file": sum(map(_count, model.children())),
        },
        "card": facts.get("card", {}),
    }


def _describe_adapter(folder: Path) -> dict[str, Any]:
    facts = read_facts(folder / FACTS["adapter"], "ulda-adapter")
    counts = {"adapter": 0, "steps": 0} | _counts_by_part(folder / "adapter.safetensors")
    described = ("format", "version", "weights")
    return {
        "kind": "adapter",
        "name": folder.name,
        "path": str(folder),
        **{key: value for key, value in facts.items() if key not in described},
        "parameters": {"adapter h": counts["adapter"], "step sizes": counts["steps"], "file": sum(counts.values())},
    }


def _describe_method(folder: Path) -> dict[str, Any]:
    facts = read_facts(folder / FACTS["base"], METHOD_FORMAT)
    counts = _counts_by_part(folder / "model.safetensors")
    return {
        "kind": "method",
        "name": folder.name,
        "path": str(folder),
        **{key: facts.get(key) for key in ("ulda", "method", "sizes", "sources", "domain", "weights")},
        "parameters": {**counts, "file": sum(counts.values())},
        "card": facts.get("facts", {}),
    }


def _counts_by_part(path: Path) -> dict[str, int]:
    """Count the parameters in a file by the first part of their names."""
    counts: dict[str, int] = {}
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118, the file is not iterable
                part = name.partition(".")[0]
                counts[part] = counts.get(part, 0) + math.prod(file.get_slice(name).get_shape())
    except (OSError, SafetensorError) as error:
        raise UldaError(f"{path.name} in {path.parent.name} cannot be read as safetensors ({error})") from error
    return counts


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
