"""Presets: small YAML files that override the one table of defaults, `ulda.training.settings`."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field

from ulda.errors import UldaError
from ulda.training.settings import STRICT, Network, Settings, checked

FOLDER = Path(__file__).parents[1] / "presets"
METHODS_FILE = "methods.yaml"
"""What methods other than U-LDA change, whatever the preset."""

Stage = Literal["train", "adapt"]


class MethodChanges(BaseModel):
    """What a method changes of the settings of a preset.

    Attributes
    ----------
    train, adapt
        Settings by name.
    """

    model_config = STRICT

    train: dict[str, Any] = Field(default_factory=dict)
    adapt: dict[str, Any] = Field(default_factory=dict)


class Preset(BaseModel):
    """A way to train and adapt.

    Attributes
    ----------
    title
        What tables call U-LDA with this preset.
    network
        The sizes of U-LDA; LDA and Meta share what they have in common.
    train, adapt
        The settings of step 1 and of step 2.
    """

    model_config = STRICT

    title: str
    network: Network = Network()
    train: Settings = Settings()
    adapt: Settings = Settings()


def preset_names() -> list[str]:
    """Return the names of the presets.

    Examples
    --------
    >>> preset_names()
    ['default', 'paper']
    """
    return sorted(path.stem for path in FOLDER.glob("*.yaml") if path.name != METHODS_FILE)


def load_preset(name: str = "default") -> Preset:
    """Read a preset.

    Examples
    --------
    >>> load_preset("paper").network.phases
    15
    """
    if name not in preset_names():
        near = get_close_matches(name, preset_names(), 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UldaError(f"there is no preset {name!r}; {hint}there are: {', '.join(preset_names())}")
    return checked(Preset, _read(f"{name}.yaml"))


def method_changes(method: str) -> MethodChanges:
    """Return what a method changes of the settings of any preset."""
    return checked(MethodChanges, _read(METHODS_FILE).get(method, {}))


@cache
def _read(name: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return values
