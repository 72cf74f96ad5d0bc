"""The regulariser written a second time, in complex NumPy arithmetic, straight from its definition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ulda.models import ComplexConv2d, Regularizer

if TYPE_CHECKING:
    from torch import Tensor

ComplexArray = NDArray[np.complex128]
RealArray = NDArray[np.float64]


def smoothed_relu(x: RealArray, delta: float) -> RealArray:
    """Return the smoothed ReLU, piece by piece."""
    result = np.zeros_like(x)
    middle = (x >= -delta) & (x <= delta)
    result[middle] = x[middle] ** 2 / (4 * delta) + x[middle] / 2 + delta / 4
    result[x > delta] = x[x > delta]
    return result


def complex_convolution(x: ComplexArray, kernel: ComplexArray) -> ComplexArray:
    """Correlate images ``(in, H, W)`` with a kernel ``(out, in, K, K)``; zeros outside of the image."""
    size, (height, width) = kernel.shape[-1], x.shape[-2:]
    pad = size // 2
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad)))
    result = np.zeros((kernel.shape[0], height, width), complex)
    for i in range(size):
        for j in range(size):
            result += np.tensordot(kernel[:, :, i, j], padded[:, i : i + height, j : j + width], 1)
    return result


def complex_kernel(layer: ComplexConv2d) -> ComplexArray:
    """Return ``Wr + i Wi``."""
    return layer.real.detach().double().numpy() + 1j * layer.imag.detach().double().numpy()


def feature_lengths(regularizer: Regularizer, image: Tensor) -> RealArray:
    """Return ``||q_k||`` of one image ``(H, W)``."""
    s = image.detach().to("cpu").numpy().astype(complex)[None]
    delta = regularizer.extractor.activation.delta
    for layer in regularizer.extractor.layers:
        assert isinstance(layer, ComplexConv2d)
        a = complex_convolution(s, complex_kernel(layer))
        s = smoothed_relu(a.real, delta) + 1j * smoothed_relu(a.imag, delta)
    if regularizer.adapter is not None:
        s = complex_convolution(s, complex_kernel(regularizer.adapter.layer))
    return np.sqrt((np.abs(s) ** 2).sum(0))


def smoothed_value(regularizer: Regularizer, image: Tensor, eps: float) -> float:
    """Return ``r_eps`` of one image ``(H, W)``."""
    lengths = feature_lengths(regularizer, image)
    return float(np.where(lengths <= eps, lengths**2 / (2 * eps), lengths - eps / 2).sum())
