"""The learned regulariser: layers, feature extractor, adapter, value and gradient."""

from ulda.models.adapter import Adapter, LowRankUpdate
from ulda.models.extractor import FeatureExtractor
from ulda.models.layers import ComplexConv2d, SmoothedReLU
from ulda.models.regularizer import Regularizer
from ulda.models.ulda import UniversalPrior

__all__ = [
    "Adapter",
    "ComplexConv2d",
    "FeatureExtractor",
    "LowRankUpdate",
    "Regularizer",
    "SmoothedReLU",
    "UniversalPrior",
]
