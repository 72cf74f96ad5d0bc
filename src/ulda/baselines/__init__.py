"""The methods `ulda` is compared with, behind one interface: ``x_hat = method(y, physics)``."""

from ulda.baselines.base import Method
from ulda.baselines.dncn import DnCn
from ulda.baselines.total_variation import TotalVariation
from ulda.baselines.wavelet import Wavelet
from ulda.baselines.zero_filled import ZeroFilled

__all__ = ["DnCn", "Method", "TotalVariation", "Wavelet", "ZeroFilled"]
