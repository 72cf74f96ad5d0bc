"""The learned regulariser: layers, feature extractor, adapter, value and gradient."""

from ulda.models.extractor import Adapter, FeatureExtractor
from ulda.models.layers import ComplexConv2d, SmoothedReLU
from ulda.models.regularizer import Regularizer

__all__ = ["Adapter", "ComplexConv2d", "FeatureExtractor", "Regularizer", "SmoothedReLU"]
