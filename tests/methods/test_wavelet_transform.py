from __future__ import annotations

import warnings

import numpy as np
import pytest
import pywt
import torch

from ulda.errors import UldaError
from ulda.methods._wavelet_transform import WaveletName, dwt2, idwt2

WAVELETS: list[WaveletName] = ["haar", "db2", "db4"]
SHAPES = [(8, 8), (16, 40), (3, 64, 48)]


def complex_images(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.complex128, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("wavelet", WAVELETS)
@pytest.mark.parametrize("shape", SHAPES)
def test_coefficients_are_those_of_pywavelets(shape: tuple[int, ...], wavelet: WaveletName) -> None:
    x = complex_images(*shape)
    approximation, details = dwt2(x, wavelet, levels=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where a filter is longer than the signal
        expected = pywt.wavedec2(x.numpy(), wavelet, mode="periodization", level=3)
    np.testing.assert_allclose(approximation.numpy(), expected[0], atol=1e-11)
    for ours, theirs in zip(reversed(details), expected[1:], strict=True):
        np.testing.assert_allclose(ours.numpy(), np.stack(theirs, axis=-3), atol=1e-11)


@pytest.mark.parametrize("wavelet", WAVELETS)
@pytest.mark.parametrize("shape", SHAPES)
def test_reconstruction_and_isometry(shape: tuple[int, ...], wavelet: WaveletName) -> None:
    x = complex_images(*shape)
    approximation, details = dwt2(x, wavelet, levels=3)
    torch.testing.assert_close(idwt2(approximation, details, wavelet), x, atol=1e-11, rtol=0)
    energy = approximation.abs().square().sum() + sum(bands.abs().square().sum() for bands in details)
    torch.testing.assert_close(energy, x.abs().square().sum())


@pytest.mark.parametrize("wavelet", WAVELETS)
def test_vanishing_details_of_a_constant(wavelet: WaveletName) -> None:
    _, details = dwt2(torch.ones(16, 16, dtype=torch.float64), wavelet, levels=2)
    assert max(bands.abs().max().item() for bands in details) < 1e-12


def test_indivisible_side() -> None:
    with pytest.raises(UldaError, match="divisible by 8"):
        dwt2(torch.ones(16, 20), "haar", levels=3)
