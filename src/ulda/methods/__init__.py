"""U-LDA and the methods it is compared with, behind one interface: ``x_hat = method(y, physics)``."""

from __future__ import annotations

from collections.abc import Callable

from ulda.methods.base import Method
from ulda.methods.dncn import DnCn
from ulda.methods.registry import METHODS, load_method, method_class, method_settings, new_method
from ulda.methods.total_variation import TotalVariation
from ulda.methods.trainable import Spent, TrainableMethod, Training
from ulda.methods.ulda import ULDA
from ulda.methods.wavelet import Wavelet
from ulda.methods.weights import ChosenWeight, chosen_weight
from ulda.methods.zero_filled import ZeroFilled

__all__ = [
    "CLASSICAL",
    "METHODS",
    "ULDA",
    "WEIGHTED",
    "ChosenWeight",
    "DnCn",
    "Method",
    "Spent",
    "TotalVariation",
    "TrainableMethod",
    "Training",
    "Wavelet",
    "ZeroFilled",
    "chosen_weight",
    "load_method",
    "method_class",
    "method_settings",
    "new_method",
]

CLASSICAL: dict[str, Callable[[], Method]] = {
    "zero-filling": ZeroFilled,
    "TV": TotalVariation,
    "wavelet": Wavelet,
}
"""The methods without training, by their names in commands and tables."""

WEIGHTED: dict[str, Callable[[float], Method]] = {
    "TV": lambda weight: TotalVariation(weight=weight),
    "wavelet": lambda weight: Wavelet(weight=weight),
}
"""Those of them that have a weight."""
