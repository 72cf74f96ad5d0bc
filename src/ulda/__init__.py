"""Learn an MRI image prior once, from many domains, and adapt it to a new one with a handful of slices.

Examples
--------
>>> import ulda
>>> ulda.reconstruct.__module__
'ulda.reconstruction'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ulda.version import __version__ as __version__

if TYPE_CHECKING:
    from ulda.methods.adaptation import Adaptation as Adaptation
    from ulda.methods.adaptation import adapt as adapt
    from ulda.reconstruction import Result as Result
    from ulda.reconstruction import load as load
    from ulda.reconstruction import reconstruct as reconstruct

__all__ = ["Adaptation", "Result", "adapt", "load", "reconstruct"]

_HOMES = {
    "Adaptation": "ulda.methods.adaptation",
    "Result": "ulda.reconstruction",
    "adapt": "ulda.methods.adaptation",
    "load": "ulda.reconstruction",
    "reconstruct": "ulda.reconstruction",
}
"""Where the public names live: they need PyTorch, which takes long to import, so they are fetched when asked for."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
