from __future__ import annotations

import doctest
import json
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from skimage import metrics as skimage_metrics

from tests.shared_data import shared_data_file
from ulda import metrics
from ulda.errors import UldaError
from ulda.metrics import PER_SLICE, PER_VOLUME, Convention, evaluate, nmse, psnr, ssim

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import Tensor

    from ulda.metrics import Window

normalized_root_mse: Callable[..., float] = skimage_metrics.normalized_root_mse
peak_signal_noise_ratio: Callable[..., float] = skimage_metrics.peak_signal_noise_ratio
structural_similarity: Callable[..., float] = skimage_metrics.structural_similarity

SHAPES = [(11, 11), (16, 24), (33, 47), (64, 64)]
SKIMAGE_OPTIONS: dict[Window, dict[str, object]] = {
    "gaussian": {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False},
    "uniform": {},
}


def noisy_pair(shape: tuple[int, ...], scale: float = 1.0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(sum(shape))
    reference = torch.rand(shape, generator=generator, dtype=torch.float64).cumsum(-1)
    reference = scale * reference / reference.max()
    x = (reference + 0.1 * scale * torch.randn(shape, generator=generator, dtype=torch.float64)).abs()
    return x.to(dtype), reference.to(dtype)


def skimage_ssim(x: Tensor, reference: Tensor, data_range: float, window: Window) -> float:
    """Return the reference value, in double precision so that only our own rounding is seen."""
    a, b = x.double().numpy(), reference.double().numpy()
    return float(structural_similarity(a, b, data_range=data_range, **SKIMAGE_OPTIONS[window]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 255.0, 1e-4])
@pytest.mark.parametrize("shape", SHAPES)
class TestAgainstScikitImage:
    @pytest.mark.parametrize("window", ["gaussian", "uniform"])
    def test_ssim(self, shape: tuple[int, int], scale: float, dtype: torch.dtype, window: Window) -> None:
        x, reference = noisy_pair(shape, scale, dtype)
        value = ssim(x, reference, data_range=scale, window=window)
        assert value.dtype == dtype
        assert value.item() == pytest.approx(skimage_ssim(x, reference, scale, window), abs=1e-5)

    def test_psnr_and_nmse(self, shape: tuple[int, int], scale: float, dtype: torch.dtype) -> None:
        x, reference = noisy_pair(shape, scale, dtype)
        a, b = x.double().numpy(), reference.double().numpy()
        expected = peak_signal_noise_ratio(b, a, data_range=scale)
        assert psnr(x, reference, data_range=scale).item() == pytest.approx(expected, abs=1e-5)
        assert nmse(x, reference).item() == pytest.approx(normalized_root_mse(b, a) ** 2, rel=1e-5)


@pytest.mark.parametrize("window", ["gaussian", "uniform"])
@pytest.mark.parametrize("domain", ["brain", "prostate", "cardiac"])
def test_ssim_of_real_slices_agrees_with_scikit_image(domain: str, window: Window) -> None:
    with np.load(shared_data_file(f"{domain}.npz")) as file:
        slices: NDArray[np.float32] = file["images"][:2].astype(np.float32) / 4095
    reference = torch.from_numpy(slices)
    x = (reference + 0.05 * reference.roll(3, -1)).clamp(0, 1)
    values = ssim(x, reference, data_range=1.0, window=window)
    expected = [skimage_ssim(a, b, 1.0, window) for a, b in zip(x, reference, strict=True)]
    np.testing.assert_allclose(values.numpy(), expected, atol=1e-5)


def test_single_precision_survives_a_large_offset() -> None:
    """A flat, bright image has local variances far below the rounding of its squares."""
    x, reference = noisy_pair((32, 32), 1e-3, torch.float32)
    x, reference = x + 10, reference + 10
    expected = skimage_ssim(x, reference, 1e-3, "gaussian")
    assert ssim(x, reference, data_range=1e-3).item() == pytest.approx(expected, abs=1e-5)


def test_batch_shape_and_a_data_range_per_slice() -> None:
    x, reference = noisy_pair((2, 3, 16, 20))
    peaks = reference.amax((-2, -1))
    for value in (
        psnr(x, reference, data_range=peaks),
        ssim(x, reference, data_range=peaks),
        nmse(x, reference),
    ):
        assert value.shape == (2, 3)
    single = ssim(x[1, 2], reference[1, 2], data_range=float(peaks[1, 2]))
    assert ssim(x, reference, data_range=peaks)[1, 2].item() == pytest.approx(single.item(), abs=1e-12)


def test_psnr_by_hand() -> None:
    """An error of 0.01 everywhere against a peak of 2: 20 log10(200)."""
    reference = torch.full((8, 8), 2.0, dtype=torch.float64)
    value = psnr(reference + 0.01, reference, data_range=2.0).item()
    assert value == pytest.approx(20 * math.log10(200), abs=1e-9)


def test_identical_images() -> None:
    _, reference = noisy_pair((16, 16))
    assert psnr(reference, reference, data_range=1.0).item() == math.inf
    assert ssim(reference, reference, data_range=1.0).item() == pytest.approx(1.0, abs=1e-12)
    assert nmse(reference, reference).item() == 0


def test_nan_and_a_reference_without_signal() -> None:
    x, reference = noisy_pair((16, 16))
    broken = x.clone()
    broken[3, 3] = math.nan
    for value in (
        psnr(broken, reference, data_range=1.0),
        ssim(broken, reference, data_range=1.0),
        nmse(broken, reference),
    ):
        assert math.isnan(value.item())
    assert nmse(x, torch.zeros_like(x)).item() == math.inf
    assert math.isnan(nmse(torch.zeros_like(x), torch.zeros_like(x)).item())


@pytest.mark.parametrize("window", ["gaussian", "uniform"])
def test_ssim_gradient(window: Window) -> None:
    x, reference = noisy_pair((2, 12, 13))
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda a: ssim(a, reference, data_range=1.0, window=window), x)


class TestEvaluate:
    def test_per_slice_is_data_range_1_on_images_of_peak_1(self) -> None:
        x, reference = noisy_pair((4, 16, 16))
        peak = reference.amax((-2, -1), keepdim=True)
        x, reference = x / peak, reference / peak
        scores = evaluate(x, reference, PER_SLICE)
        torch.testing.assert_close(scores.psnr, psnr(x, reference, data_range=1.0))
        torch.testing.assert_close(scores.ssim, ssim(x, reference, data_range=1.0))
        torch.testing.assert_close(scores.nmse, nmse(x, reference))

    @pytest.mark.parametrize("convention", [PER_SLICE, PER_VOLUME])
    def test_does_not_depend_on_the_unit(self, convention: Convention) -> None:
        x, reference = noisy_pair((4, 16, 16))
        scores, scaled = evaluate(x, reference, convention), evaluate(300 * x, 300 * reference, convention)
        torch.testing.assert_close(scores.psnr, scaled.psnr)
        torch.testing.assert_close(scores.ssim, scaled.ssim)

    def test_per_volume_is_what_fastmri_computes(self) -> None:
        """The formulas of fastmri/evaluate.py, written with scikit-image as there."""
        x, reference = noisy_pair((5, 24, 31))
        reference = reference * torch.linspace(0.2, 1, 5, dtype=torch.float64)[:, None, None]
        prediction, target = x.numpy(), reference.numpy()
        scores = evaluate(x, reference, PER_VOLUME)
        expected_ssim = np.mean(
            [structural_similarity(t, p, data_range=target.max()) for t, p in zip(target, prediction, strict=True)]
        )
        expected_psnr = peak_signal_noise_ratio(target, prediction, data_range=target.max())
        expected_nmse = np.linalg.norm(target - prediction) ** 2 / np.linalg.norm(target) ** 2
        assert scores.psnr.item() == pytest.approx(expected_psnr, abs=1e-9)
        assert scores.ssim.item() == pytest.approx(expected_ssim, abs=1e-9)
        assert scores.nmse.item() == pytest.approx(expected_nmse, abs=1e-9)

    def test_a_batch_of_volumes(self) -> None:
        x, reference = noisy_pair((2, 3, 16, 16))
        scores = evaluate(x, reference, PER_VOLUME)
        assert scores.psnr.shape == scores.ssim.shape == scores.nmse.shape == (2,)
        torch.testing.assert_close(scores.ssim[1], evaluate(x[1], reference[1], PER_VOLUME).ssim)

    def test_scores_carry_their_convention_into_json(self) -> None:
        x, reference = noisy_pair((3, 16, 16))
        stored = json.loads(json.dumps(evaluate(x, reference, PER_VOLUME).as_dict()))
        assert stored["convention"] == {
            "name": "per volume, fastMRI",
            "data_range": "volume peak",
            "window": "uniform",
        }
        assert stored["psnr"] == evaluate(x, reference, PER_VOLUME).psnr.item()


class TestErrors:
    @pytest.mark.parametrize(("window", "size"), [("gaussian", 10), ("uniform", 6)])
    def test_smaller_than_the_window(self, window: Window, size: int) -> None:
        with pytest.raises(UldaError, match=f"{window} window needs images of at least"):
            ssim(torch.ones(20, size), torch.ones(20, size), data_range=1.0, window=window)

    def test_complex_images(self) -> None:
        with pytest.raises(UldaError, match="magnitudes"):
            psnr(torch.ones(16, 16, dtype=torch.complex64), torch.ones(16, 16), data_range=1.0)

    def test_integer_images(self) -> None:
        with pytest.raises(UldaError, match="floating-point"):
            nmse(torch.ones(16, 16, dtype=torch.int16), torch.ones(16, 16))

    def test_shapes_differ(self) -> None:
        with pytest.raises(UldaError, match="one shape"):
            nmse(torch.ones(2, 16, 16), torch.ones(16, 16))

    def test_unknown_window(self) -> None:
        with pytest.raises(UldaError, match="window"):
            ssim(torch.ones(16, 16), torch.ones(16, 16), data_range=1.0, window="hann")  # type: ignore[arg-type]

    def test_data_range_without_signal(self) -> None:
        with pytest.raises(UldaError, match="must be positive"):
            evaluate(torch.ones(16, 16), torch.zeros(16, 16))

    def test_a_volume_is_expected(self) -> None:
        with pytest.raises(UldaError, match="scores volumes"):
            evaluate(torch.ones(16, 16), torch.ones(16, 16), PER_VOLUME)


def test_doctests() -> None:
    outcome = doctest.testmod(metrics)
    assert outcome.attempted > 0
    assert outcome.failed == 0
