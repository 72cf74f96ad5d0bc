"""The learned methods by name. A new one is a file in this folder and a line here."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

from ulda.errors import UldaError
from ulda.methods.trainable import TrainableMethod
from ulda.training.files import METHOD_FORMAT, read_facts

METHODS = {
    "ulda": "universal:UniversalLDA",
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


def method_class(name: str) -> type[TrainableMethod]:
    """Return a learned method by its name.

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


def load_method(folder: str | Path) -> TrainableMethod:
    """Read a method from the folder that its `save` wrote, whichever it is."""
    name = read_facts(Path(folder) / "model.json", METHOD_FORMAT).get("method")
    return method_class(str(name)).load(folder)
