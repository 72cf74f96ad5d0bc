"""What models there are, bundled and in folders, and what is known about each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import nn

from ulda.errors import UldaError
from ulda.io.file_set import finish_below, is_part
from ulda.methods.registry import load_method
from ulda.methods.ulda import ULDA
from ulda.models.bundled import FACTS, FOLDER, ModelKind, bundled_names
from ulda.models.files import ADAPTER_FORMAT, BASE_FORMAT, read_facts, read_shapes

KINDS: tuple[ModelKind, ...] = ("base", "adapter")


def find_models(paths: Iterable[str | Path] = ()) -> list[Path]:
    """Return the folders of the bundled models and of all models in and below the given folders."""
    found = [FOLDER / name for kind in KINDS for name in bundled_names(kind)]
    for path in map(Path, paths):
        if not path.is_dir():
            raise UldaError(f"there is no folder {path}")
        finish_below(path)
        below = {facts.parent for kind in KINDS for facts in path.rglob(FACTS[kind]) if not is_part(facts.parent)}
        if not below:
            raise UldaError(f"{path} holds no model: there is no {' or '.join(FACTS.values())} in it or below")
        found += sorted(below)
    return found


def describe_model(name_or_folder: str | Path) -> dict[str, Any]:
    """Return all that the files of a model say, with real parameter counts, for JSON.

    It is a base, an adapter, or a model of another method. A model is loaded, so that damaged files are found.
    """
    folder = Path(name_or_folder)
    if isinstance(name_or_folder, str) and any(name_or_folder in bundled_names(kind) for kind in KINDS):
        folder = FOLDER / name_or_folder
    if (folder / FACTS["base"]).is_file():
        return _describe_model(folder)
    if (folder / FACTS["adapter"]).is_file():
        return _describe_adapter(folder)
    known = ", ".join(name for kind in KINDS for name in bundled_names(kind)) or "none"
    raise UldaError(f"there is no bundled model {str(name_or_folder)!r} and no folder with one; bundled are: {known}")


def describe_or_excuse(folder: Path) -> dict[str, Any]:
    """Return what `describe_model` does, or for damaged files where they are and the ``problem``."""
    try:
        return describe_model(folder)
    except UldaError as error:
        return {"kind": "damaged", "name": folder.name, "path": str(folder), "problem": str(error)}


def _describe_model(folder: Path) -> dict[str, Any]:
    facts, model = read_facts(folder, BASE_FORMAT), load_method(folder)
    described = {
        "kind": "base" if isinstance(model, ULDA) and model.name == "ulda" else "method",
        "name": folder.name,
        "path": str(folder),
        **{key: facts.get(key) for key in ("ulda", "method", "sizes", "sources", "domain", "weights")},
        "parameters": _counts_by_part(folder, BASE_FORMAT) | {"file": model.n_parameters},
        "card": facts.get("card", {}),
    }
    if described["kind"] == "base":
        assert isinstance(model, ULDA)
        n = max(1, len(model.sources))
        described["fingerprint"] = model.fingerprint
        described["parameters"] = {
            "extractor g": _count(model.prior.extractor),
            "adapter h, per domain": _count(model.prior.adapters) // n,
            "step sizes, per domain": _count(model.proposals) // n,
            "file": model.n_parameters,
        }
    return described


def _describe_adapter(folder: Path) -> dict[str, Any]:
    facts = read_facts(folder, ADAPTER_FORMAT)
    counts = {"adapter": 0, "proposal": 0, "low_rank": 0} | _counts_by_part(folder, ADAPTER_FORMAT)
    if not isinstance(facts.get("domain"), str):
        raise UldaError(f"adapter.json in {folder.name} does not say whose adapter it is")
    described = ("format", "version", "weights")
    return {
        "kind": "adapter",
        "name": folder.name,
        "path": str(folder),
        **{key: value for key, value in facts.items() if key not in described},
        "parameters": {
            "adapter h": counts["adapter"],
            "low-rank update of g": counts["low_rank"],
            "step sizes": counts["proposal"],
            "file": sum(counts.values()),
        },
    }


def _counts_by_part(folder: Path, kind: str) -> dict[str, int]:
    """Count the parameters in a file by the first part of their names."""
    counts: dict[str, int] = {}
    for name, shape in read_shapes(folder, kind).items():
        part = name.partition(".")[0]
        counts[part] = counts.get(part, 0) + math.prod(shape)
    return counts


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
