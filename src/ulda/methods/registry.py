"""The learned methods by name. A new one is a file in this folder and a line here."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

from ulda.errors import UldaError
from ulda.methods.trainable import TrainableMethod
from ulda.models.files import BASE_FORMAT, read_facts
from ulda.training.presets import Stage, load_preset, method_changes
from ulda.training.settings import Settings

METHODS = {
    "ulda": "ulda:ULDA",
    "ulda-paper": "ulda:ULDA",
    "lda": "lda:LDA",
    "dncn": "dncn:DnCn",
    "unet": "unet:UNet",
    "umri": "umri:UMRI",
    "meta": "meta:Meta",
    "humus": "humus:HUMUSNet",
}
"""Where each class is: its module in this folder, and its name."""

ABLATIONS = {"untied": "untied:Untied"}
"""Variants of our method that show what a part of it is worth; they are built by name, and not in lists of methods."""

PRESETS = {"ulda-paper": "paper"}
"""The preset of a method where it is not the default."""

UNROLLED = ("ulda", "ulda-paper", "lda", "meta", "untied")
"""The methods whose sizes are those of the network of a preset."""


def method_class(name: str) -> type[TrainableMethod]:
    """Return the class of a learned method by its name.

    Examples
    --------
    >>> method_class("dncn").title
    'DnCn'
    """
    known = METHODS | ABLATIONS
    if name not in known:
        near = get_close_matches(name, METHODS, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UldaError(f"there is no method {name!r}; {hint}there are: {', '.join(METHODS)}")
    module, _, attribute = known[name].partition(":")
    found = getattr(import_module(f"ulda.methods.{module}"), attribute)
    assert issubclass(found, TrainableMethod)
    return found


def preset_of(method: str, preset: str | None = None) -> str:
    """Return the name of the preset of a method: the one asked for, or its own."""
    own = PRESETS.get(method)
    if preset is not None and own is not None and preset != own:
        raise UldaError(f"{method} is U-LDA with the preset {own}; name the method ulda for the preset {preset}")
    return preset or own or "default"


def method_title(method: str, preset: str | None = None) -> str:
    """Return what tables call a method.

    Examples
    --------
    >>> method_title("ulda-paper"), method_title("dncn")
    ('U-LDA (paper)', 'DnCn')
    """
    kind = method_class(method)
    return load_preset(preset_of(method, preset)).title if kind.name == "ulda" else kind.title


def new_method(
    name: str, sources: Sequence[str] = (), seed: int = 0, preset: str | None = None, **sizes: Any
) -> TrainableMethod:
    """Make an untrained method.

    Parameters
    ----------
    name
        Its name.
    sources
        The source domains.
    seed
        Seed of its start.
    preset
        Whose network to use, for U-LDA and the methods that share its network; by default the method's own.
    sizes
        Sizes in place of those of the preset, or of the method.

    Examples
    --------
    >>> new_method("ulda-paper", ["brain"]).n_phases, new_method("dncn", filters=8).sizes["filters"]
    (15, 8)
    """
    kind = method_class(name)
    own: dict[str, Any] = {}
    if name in UNROLLED:
        own = load_preset(preset_of(name, preset)).network.model_dump()
    return kind(sources=sources, seed=seed, **own | sizes)  # type: ignore[call-arg]


def method_settings(name: str, stage: Stage, preset: str | None = None, **changes: Any) -> Settings:
    """Return how a method is trained or adapted: the settings of a preset, what the method changes, then `changes`.

    Examples
    --------
    >>> method_settings("dncn", "train", steps=3).learning_rate
    0.001
    """
    settings: Settings = getattr(load_preset(preset_of(name, preset)), stage)
    return settings.changed(**getattr(method_changes(name), stage) | changes)


def load_method(folder: str | Path) -> TrainableMethod:
    """Read a model from the folder that its `save` wrote, whichever method it is."""
    name = read_facts(folder, BASE_FORMAT).get("method")
    return method_class(str(name)).load(folder)
