"""The unrolled network, its losses and its files."""

from ulda.training.files import base_fingerprint, load_adapter, load_base, save_adapter, save_base
from ulda.training.losses import DescentPenalty, reconstruction_loss
from ulda.training.network import ULDA, Architecture

__all__ = [
    "ULDA",
    "Architecture",
    "DescentPenalty",
    "base_fingerprint",
    "load_adapter",
    "load_base",
    "reconstruction_loss",
    "save_adapter",
    "save_base",
]
