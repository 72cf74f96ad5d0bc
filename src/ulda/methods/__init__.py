"""The methods `ulda` is compared with, behind one interface: ``x_hat = method(y, physics)``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ulda.methods.base import Method
from ulda.methods.total_variation import TotalVariation
from ulda.methods.wavelet import Wavelet
from ulda.methods.zero_filled import ZeroFilled

if TYPE_CHECKING:
    from ulda.methods.budget import Budget, Spent
    from ulda.methods.dncn import DnCn
    from ulda.methods.registry import METHODS, load_method, method_class
    from ulda.methods.trainable import TrainableMethod, Training

__all__ = [
    "CLASSICAL",
    "METHODS",
    "Budget",
    "DnCn",
    "Method",
    "Spent",
    "TotalVariation",
    "TrainableMethod",
    "Training",
    "Wavelet",
    "ZeroFilled",
    "load_method",
    "method_class",
]

CLASSICAL: dict[str, Callable[[], Method]] = {
    "zero-filling": ZeroFilled,
    "TV": TotalVariation,
    "wavelet": Wavelet,
}
"""The methods without training, by their names in commands and tables."""

# the learned methods are trained by `ulda.training`, which takes its metrics from a room that imports this one
_LATER = {
    "Budget": "budget",
    "Spent": "budget",
    "DnCn": "dncn",
    "METHODS": "registry",
    "load_method": "registry",
    "method_class": "registry",
    "TrainableMethod": "trainable",
    "Training": "trainable",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
