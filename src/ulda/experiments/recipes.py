"""What decides what a cell finds: kept in its result, so that cells of other settings are noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

import ulda
from ulda.experiments.cells import UNADAPTED_SIZE, Cell, cells_of
from ulda.experiments.definition import DomainEntry, Experiment, Scale, Variant
from ulda.methods import TrainableMethod, method_class
from ulda.training.network import WITHOUT_GAINS
from ulda.training.settings import Settings

_BOOKKEEPING = {"checkpoint_every", "log_every"}
"""Settings that change nothing about a result."""

_OF_KEPT_ITERATES = frozenset(
    {
        "chains_after",
        "chains",
        "restart",
        "fresh",
        "fresh_of",
        "continued_phases",
        "longest_rollout",
        "penalise_kept",
    }
)
"""Settings that mean something only where iterates persist."""

_FEW = Settings().warped_slices
"""How many slices are few in recipes that do not say so."""


def given_settings(changes: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """Return the settings of a stage: checkpoints for resuming, and few validations, which are not free."""
    often = max(1, steps // 8)
    return {"checkpoint_every": min(25, steps), "validate_every": often, **changes}


def recipe_of(experiment: Experiment, scale: Scale, cell: Cell) -> dict[str, Any]:
    """Return what a cell is made of, as the definition and the defaults of the methods have it today.

    Domains, sizes of the network, number of slices, seed, and all settings of the training; for an adaptation also the
    digest of the training that it goes on from.
    """
    variant = experiment.variant(cell.method)
    recipe: dict[str, Any] = {"method": variant.method, "side": scale.side}
    recipe |= scale.model_dump(mode="json", include={"test_slices", "single_coil"})
    if cell.kind == "classical":
        return recipe | {"domain": _entry(experiment.domain(cell.domain))}
    model = _untrained(experiment, variant)
    recipe |= {"sizes": model.sizes, "validation_slices": scale.validation_slices}
    if cell.kind == "train":
        return recipe | {
            "sources": [_entry(entry) for entry in experiment.sources],
            "source_slices": scale.source_slices,
            "settings": _told(model.training_settings(scale.budget(), **_changes(variant.train, scale.steps))),
        }
    recipe |= {
        "trained": digest_of(recipe_of(experiment, scale, _training_of(variant))),
        "domain": _entry(experiment.domain(cell.domain)),
    }
    if cell.size == UNADAPTED_SIZE:
        return recipe
    steps = scale.adapt_steps[cell.size]
    settings = model.settings_of_adaptation(scale.budget(cell.size), seed=cell.draw, **_changes(variant.adapt, steps))
    recipe |= model.adapted_sizes(steps)
    return recipe | {"slices": cell.size, "draw": cell.draw, "settings": _told(settings)}


def outdated(experiment: Experiment, scale: Scale, cells: Mapping[str, Mapping[str, Any]]) -> list[Cell]:
    """Return the cells whose results were made by other recipes than those of today, or do not tell by which.

    What was adapted from a training of another recipe is among them. A setting that is newer than a result does not
    make it another one, as long as it is what it is by default, and neither does one without effect: for kept iterates
    where none are, for many slices where they are few, and for few where they are many.
    """
    wanted = cells_of(experiment, scale)
    old = {cell.key for cell in wanted if cell.key in cells and not _is_of_today(experiment, scale, cell, cells)}
    return [
        cell for cell in wanted if cell.key in old or (cell.key in cells and cell.kind == "adapt" and cell.needs in old)
    ]


def _is_of_today(experiment: Experiment, scale: Scale, cell: Cell, cells: Mapping[str, Mapping[str, Any]]) -> bool:
    kept, today = cells[cell.key].get("recipe"), recipe_of(experiment, scale, cell)
    if kept is None:
        return False
    n = cells[cell.key]["results"].get(cell.domain, {}).get("n")
    if n is not None:  # what was learned from, where there were fewer slices than asked for
        kept, today = kept | {"slices": n}, today | {"slices": n}
    return _essence(kept) == _essence(today) and _agrees(_with_effect(kept), _with_effect(today))


def _with_effect(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe without the settings that mean nothing in it."""
    settings = recipe.get("settings", {})
    unused = set(_OF_KEPT_ITERATES) if settings.get("lower_level") == "unrolled" else set()
    if "slices" in recipe:
        is_few = recipe["slices"] <= settings.get("warped_slices", _FEW)
        unused |= {"adapter_rate_of_many"} if is_few else {"warp", "added_rate"}
    return {**recipe, "settings": {key: value for key, value in settings.items() if key not in unused}}


def _agrees(kept: Any, today: Any) -> bool:
    """Tell whether two recipes have the same value wherever both have one."""
    if isinstance(kept, dict) and isinstance(today, dict):
        return all(_agrees(kept[key], today[key]) for key in kept.keys() & today.keys())
    return bool(kept == today)


def _essence(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe without what means nothing in it, and the settings and keys of domains that are the defaults."""
    recipe = _with_effect(recipe)
    short = {**recipe, "settings": _shortened(Settings, recipe["settings"])}
    if "sizes" in recipe:  # results of before these sizes do not have them
        gains = WITHOUT_GAINS.items()
        short["sizes"] = {key: value for key, value in recipe["sizes"].items() if (key, value) not in gains}
    if "domain" in recipe:
        short["domain"] = _shortened(DomainEntry, recipe["domain"])
    if "sources" in recipe:
        short["sources"] = [_shortened(DomainEntry, entry) for entry in recipe["sources"]]
    return short


def _shortened(kind: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {name: field.get_default(call_default_factory=True) for name, field in kind.model_fields.items()}
    plain = json.loads(json.dumps(defaults, default=str))
    return {key: value for key, value in values.items() if key not in plain or value != plain[key]}


def digest_of(recipe: Mapping[str, Any]) -> str:
    """Return a name for a recipe: that of all recipes that find the same."""
    text = json.dumps(_essence(recipe), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _entry(entry: DomainEntry) -> dict[str, Any]:
    return entry.model_dump(mode="json", exclude={"subjects_are"})


def _training_of(variant: Variant) -> Cell:
    return Cell("train", variant.trained_as or variant.name)


def shared_parameters(variant: Variant) -> int:
    """Return how many parameters of a method serve every domain: those that it has without any."""
    return _built(variant.method, (), json.dumps(variant.sizes)).n_parameters


@cache
def code_fingerprint() -> str:
    """Return a fingerprint of the package's own source, as a version number is the same for a long time."""
    folder = Path(ulda.__file__).parent
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        found.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


def _untrained(experiment: Experiment, variant: Variant) -> TrainableMethod:
    """Build the model of a variant, which is only asked for its settings."""
    return _built(variant.method, tuple(entry.name for entry in experiment.sources), json.dumps(variant.sizes))


@cache
def _built(method: str, sources: tuple[str, ...], sizes: str) -> TrainableMethod:
    with torch.device("meta"):  # without memory and without chance
        return method_class(method)(sources=list(sources), **json.loads(sizes))


def _changes(changes: Mapping[str, Any], steps: int) -> dict[str, Any]:
    return {"changes": given_settings(changes, steps)}


def _told(settings: Settings) -> dict[str, Any]:
    return settings.model_dump(mode="json", exclude=_BOOKKEEPING)
