"""What decides what a run finds: kept in its result, so that runs of other settings are noticed."""

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
from ulda.experiments.definition import DomainEntry, Experiment, Scale, Variant
from ulda.experiments.runs import UNADAPTED_SIZE, Run, runs_of
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


def recipe_of(experiment: Experiment, scale: Scale, run: Run) -> dict[str, Any]:
    """Return what a run is made of, as the definition and the defaults of the methods have it today.

    Domains, sizes of the network, number of slices, seed, and all settings of the training; for an adaptation also the
    digest of the training that it goes on from.
    """
    variant = experiment.variant(run.method)
    recipe: dict[str, Any] = {"method": variant.method, "side": scale.side}
    recipe |= scale.model_dump(mode="json", include={"test_slices", "single_coil"})
    if run.kind == "classical":
        return recipe | {"domain": _entry(experiment.domain(run.domain))}
    model = _untrained(experiment, variant)
    recipe |= {"sizes": model.sizes, "validation_slices": scale.validation_slices}
    if run.kind == "train":
        return recipe | {
            "sources": [_entry(entry) for entry in experiment.sources],
            "source_slices": scale.source_slices,
            "settings": _told(model.training_settings(scale.budget(), **_changes(variant.train, scale.steps))),
        }
    recipe |= {
        "trained": digest_of(recipe_of(experiment, scale, _training_of(variant))),
        "domain": _entry(experiment.domain(run.domain)),
    }
    if run.size == UNADAPTED_SIZE:
        return recipe
    steps = scale.adapt_steps[run.size]
    settings = model.settings_of_adaptation(scale.budget(run.size), seed=run.draw, **_changes(variant.adapt, steps))
    recipe |= model.adapted_sizes(steps)
    return recipe | {"slices": run.size, "draw": run.draw, "settings": _told(settings)}


def outdated(experiment: Experiment, scale: Scale, runs: Mapping[str, Mapping[str, Any]]) -> list[Run]:
    """Return the runs whose results were made by other recipes than those of today, or do not tell by which.

    What was adapted from a training of another recipe is among them. A setting that is newer than a result does not
    make it another one, as long as it is what it is by default, and neither does one without effect: for kept iterates
    where none are, for many slices where they are few, and for few where they are many.
    """
    wanted = runs_of(experiment, scale)
    old = {run.key for run in wanted if run.key in runs and not _is_of_today(experiment, scale, run, runs)}
    return [run for run in wanted if run.key in old or (run.key in runs and run.kind == "adapt" and run.needs in old)]


def _is_of_today(experiment: Experiment, scale: Scale, run: Run, runs: Mapping[str, Mapping[str, Any]]) -> bool:
    kept, today = runs[run.key].get("recipe"), recipe_of(experiment, scale, run)
    if kept is None:
        return False
    n = runs[run.key]["results"].get(run.domain, {}).get("n")
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


def _training_of(variant: Variant) -> Run:
    return Run("train", variant.trained_as or variant.name)


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
