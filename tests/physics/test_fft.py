from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.linear_checks import TOLERANCE, assert_adjoint, complex_normal
from ulda.errors import UldaError
from ulda.physics import center_crop_or_pad, fft2c, fourier_resize, ifft2c

sides = st.integers(1, 17)
dtypes = st.sampled_from([torch.complex64, torch.complex128])


@given(sides, sides, dtypes)
def test_fft_agrees_with_numpy(height: int, width: int, dtype: torch.dtype) -> None:
    x = complex_normal(3, height, width, dtype=dtype)
    axes = (-2, -1)
    expected = np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(x.numpy(), axes), norm="ortho"), axes)
    assert np.abs(fft2c(x).numpy() - expected).max() < 10 * TOLERANCE[dtype]


@given(sides, sides, dtypes)
def test_fft_is_an_isometry_with_its_inverse_as_adjoint(height: int, width: int, dtype: torch.dtype) -> None:
    x, y = complex_normal(2, height, width, dtype=dtype, seed=1)
    assert float(fft2c(x).norm() / x.norm()) == pytest.approx(1, abs=TOLERANCE[dtype])
    assert float((ifft2c(fft2c(x)) - x).norm() / x.norm()) < 10 * TOLERANCE[dtype]
    assert_adjoint(fft2c, ifft2c, x, y)


@pytest.mark.parametrize("n", [4, 5])
def test_constant_image_has_its_energy_at_the_origin(n: int) -> None:
    k = fft2c(torch.ones(n, n, dtype=torch.complex128))
    assert k[n // 2, n // 2].real.item() == pytest.approx(n)
    k[n // 2, n // 2] = 0
    assert float(k.abs().max()) < 1e-14


@given(sides, sides, sides, sides)
def test_crop_and_pad_keep_the_origin_and_are_adjoint(h: int, w: int, new_h: int, new_w: int) -> None:
    x, y = complex_normal(h, w, dtype=torch.complex128), complex_normal(new_h, new_w, dtype=torch.complex128)
    resized = center_crop_or_pad(x, (new_h, new_w))
    assert resized.shape == (new_h, new_w)
    assert resized[new_h // 2, new_w // 2] == x[h // 2, w // 2]
    assert_adjoint(lambda u: center_crop_or_pad(u, (new_h, new_w)), lambda v: center_crop_or_pad(v, (h, w)), x, y)


def test_fourier_resize_samples_a_band_limited_image() -> None:
    def wave(n: int) -> torch.Tensor:
        position = (torch.arange(n, dtype=torch.float64) - n // 2) / n
        return (0.5 + torch.cos(2 * torch.pi * 3 * position))[:, None] * torch.ones(n, dtype=torch.float64) + 0j

    assert float((fourier_resize(wave(32), (16, 16)) - wave(16)).abs().max()) < 1e-13
    assert float((fourier_resize(wave(16), (27, 27)) - wave(27)).abs().max()) < 1e-13


def test_empty_size_is_refused() -> None:
    with pytest.raises(UldaError, match="at least 1"):
        center_crop_or_pad(torch.zeros(4, 4), (0, 4))
