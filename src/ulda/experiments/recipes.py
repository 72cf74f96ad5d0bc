"""What decides what a run finds: written into its result, so that results of other settings are noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import ulda
from ulda.experiments.definition import DomainEntry, Experiment, Scale, Variant
from ulda.experiments.runs import UNADAPTED_SIZE, Run, runs_of
from ulda.methods.listing import weightless
from ulda.methods.registry import method_settings
from ulda.methods.runs import check_phases
from ulda.training.settings import Settings

N_VALIDATIONS = 8
"""How often a training or adaptation is validated."""

_CHECKPOINT_EVERY = 25
_BOOKKEEPING = {"checkpoint_every"}
"""Settings that change nothing about a result."""


def settings_of(variant: Variant, scale: Scale, run: Run) -> Settings:
    """Return the settings of a training or an adaptation: those of the preset, the steps of the scale, the variant's.

    Examples
    --------
    >>> from ulda.experiments import load_experiment
    >>> experiment = load_experiment("cross-anatomy")
    >>> settings_of(experiment.variant("ulda"), experiment.scale("bench"), Run("adapt", "ulda", "knee", 40)).steps
    160
    """
    steps = scale.steps if run.kind == "train" else scale.adapt_steps[run.size]
    given = {
        "steps": steps,
        "batch_size": scale.batch_size,
        "seed": run.draw,
        "validate_every": max(1, steps // N_VALIDATIONS),
        "checkpoint_every": min(_CHECKPOINT_EVERY, steps),
    }
    if run.kind == "train":
        return method_settings(variant.method, "train", variant.preset, **given | variant.train)
    return method_settings(variant.method, "adapt", variant.preset, **given | variant.adapt)


def recipe_of(experiment: Experiment, scale: Scale, run: Run) -> dict[str, Any]:
    """Return what a run is made of: domains, sizes of the network, number of slices, seed, and all settings.

    For an adaptation it holds the digest of the training that it starts from.
    """
    variant = experiment.variant(run.method)
    recipe: dict[str, Any] = {"method": variant.method, "side": scale.side}
    recipe |= scale.model_dump(mode="json", include={"test_slices", "single_coil"})
    if run.kind == "classical":
        return recipe | {"domain": _entry(experiment.domain(run.domain))}
    recipe |= {"sizes": sizes_of(variant), "validation_slices": scale.validation_slices}
    if run.kind == "train":
        recipe |= {"sources": [_entry(entry) for entry in experiment.sources], "source_slices": scale.source_slices}
    else:
        training = Run("train", variant.trained_as or variant.name)
        recipe |= {
            "domain": _entry(experiment.domain(run.domain)),
            "trained": digest_of(recipe_of(experiment, scale, training)),
        }
        if run.size == UNADAPTED_SIZE:
            return recipe
        recipe |= {"slices": run.size, "draw": run.draw}
    settings = settings_of(variant, scale, run)
    check_phases(settings, recipe["sizes"])
    return recipe | {"settings": settings.model_dump(mode="json", exclude=_BOOKKEEPING)}


def sizes_of(variant: Variant) -> dict[str, Any]:
    """Return all sizes of a variant, as JSON has them."""
    sizes: dict[str, Any] = json.loads(_sizes_text(variant.method, variant.preset, json.dumps(variant.sizes)))
    return sizes


@cache  # an experiment asks for each variant once per run
def _sizes_text(method: str, preset: str | None, changes: str) -> str:
    return json.dumps(weightless(method, preset=preset, **json.loads(changes)).sizes)


def outdated(experiment: Experiment, scale: Scale, results: Mapping[str, Mapping[str, Any]]) -> list[Run]:
    """Return the runs whose results were made by other recipes than those of today.

    What was adapted from a training of another recipe is among them.
    """
    return [
        run
        for run in runs_of(experiment, scale)
        if run.key in results and results[run.key]["recipe"] != recipe_of(experiment, scale, run)
    ]


def digest_of(recipe: Mapping[str, Any]) -> str:
    """Return a short name for a recipe."""
    text = json.dumps(recipe, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _entry(entry: DomainEntry) -> dict[str, Any]:
    return entry.model_dump(mode="json", exclude={"subjects_are"})


@cache
def code_fingerprint() -> str:
    """Return a fingerprint of the package's own source, as a version number is the same for a long time."""
    folder = Path(ulda.__file__).parent
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        found.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]
