from __future__ import annotations

from math import log10

import pytest
import torch

from benchmarks.real_kspace import score, summary


def test_psnr_counts_the_support_alone() -> None:
    """Inside, an error of 0.2 at a peak of 2 is 20 dB; outside, a peak of 9 and an error of 5 count nothing."""
    reference, support = torch.full((32, 32), 9.0), torch.zeros(32, 32, dtype=torch.bool)
    support[4:28, 6:20] = True
    reference[support] = 2.0
    x = torch.where(support, reference - 0.2, reference - 5.0)
    assert score(x, reference, support)[0] == pytest.approx(20 * log10(2 / 0.2), abs=1e-4)


def test_ssim_counts_windows_with_their_centre_in_the_support() -> None:
    """Of two constants a and b, SSIM is (2ab + c1) / (a^2 + b^2 + c1) with c1 = (0.01 peak)^2; identical, it is 1."""
    reference = torch.ones(40, 40)
    x = reference.clone()
    x[:, :20] = 0.5
    support = torch.zeros(40, 40, dtype=torch.bool)
    support[10:30, 5:14] = True  # the windows of 11 pixels end at column 18, where x is 0.5
    expected = (2 * 0.5 + 1e-4) / (1.25 + 1e-4)
    assert score(x, reference, support)[1] == pytest.approx(expected, abs=1e-5)
    assert score(x, reference, support.flip(-1))[1] == pytest.approx(1.0, abs=1e-5)


def test_margin_is_over_the_best_mean() -> None:
    classical = {"TV": {"psnr": [30.0, 32.0]}, "wavelet": {"psnr": [36.0, 24.0]}}
    compared = summary(classical, {"psnr": [31.0, 33.5]}, bar=1.0)
    assert compared["best"] == "TV"
    assert compared["margin"] == pytest.approx(1.25)
    assert compared["met"]
    assert not summary(classical, {"psnr": [31.0, 32.8]}, bar=1.0)["met"]
    assert summary(classical, None, bar=1.0)["margin"] is None
