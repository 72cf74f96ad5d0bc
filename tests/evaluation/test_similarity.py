from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from ulda.errors import UldaError
from ulda.evaluation.similarity import centred_kernel_alignment as cka
from ulda.evaluation.similarity import normalised_cross_correlation as ncc


def maps(seed: int, channels: int = 5, n: int = 2, shape: tuple[int, int] = (7, 6)) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((n, channels, *shape), dtype=torch.float64, generator=generator) + 0.7


def related(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return maps that share a part, so that they are neither equal nor independent."""
    return maps(seed), maps(seed) + 0.8 * maps(seed + 1)


def orthogonal(n: int, seed: int = 0) -> Tensor:
    matrix, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(n, n)))
    return torch.from_numpy(matrix)


def gram_cka(a: Tensor, b: Tensor) -> float:
    """Return CKA from the centred Gram matrices of all pixels, as in the publication (HSIC)."""

    def centred_gram(features: Tensor) -> NDArray[Any]:
        rows = features.numpy().transpose(0, 2, 3, 1).reshape(-1, features.shape[1])
        gram, n = rows @ rows.T, len(rows)
        centring = np.eye(n) - np.ones((n, n)) / n
        centred: NDArray[Any] = centring @ gram @ centring
        return centred

    first, second = centred_gram(a), centred_gram(b)
    hsic = [np.trace(x @ y) for x, y in ((first, second), (first, first), (second, second))]
    return float(hsic[0] / np.sqrt(hsic[1] * hsic[2]))


@pytest.mark.parametrize("seed", [0, 3])
def test_ncc_is_the_mean_of_pearson_correlations(seed: int) -> None:
    a, b = related(seed)
    pairs = zip(a.flatten(0, 1).numpy(), b.flatten(0, 1).numpy(), strict=True)
    expected = np.mean([np.corrcoef(x.ravel(), y.ravel())[0, 1] for x, y in pairs])
    assert ncc(a, b) == pytest.approx(expected, abs=1e-12)
    assert 0.5 < expected < 0.95


def test_ncc_knows_neither_scale_nor_mean_but_the_sign() -> None:
    a, b = related()
    assert ncc(a, a) == pytest.approx(1)
    scales = torch.rand(2, 5, 1, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(5)) + 0.1
    assert ncc(scales * a + 3, 1e-4 * b - 2) == pytest.approx(ncc(a, b), abs=1e-9)
    assert ncc(a, -b) == pytest.approx(-ncc(a, b))
    assert ncc(a, b.flip(1)) != pytest.approx(ncc(a, b), abs=0.1)  # a channel is compared with its own counterpart


def test_constant_maps() -> None:
    a, b = related()
    both, one = a.clone(), b.clone()
    both[0, 0], one[0, 0] = 0.1, 0.3
    kept = (torch.ones(2, 5) == 1).logical_and(torch.arange(10).reshape(2, 5) > 0)
    correlations = [
        np.corrcoef(x.numpy().ravel(), y.numpy().ravel())[0, 1] for x, y in zip(a[kept], b[kept], strict=True)
    ]
    assert ncc(both, one) == pytest.approx(np.mean(correlations))
    assert ncc(both, b) == pytest.approx(np.sum(correlations) / 10)
    with pytest.raises(UldaError, match="all feature maps are constant"):
        ncc(torch.ones(1, 2, 3, 3), torch.ones(1, 2, 3, 3))
    with pytest.raises(UldaError, match="the same in every pixel"):
        cka(torch.ones(1, 2, 3, 3), a[:1, :, :3, :3])


@pytest.mark.parametrize("channels", [5, 8])
def test_cka_is_that_of_the_gram_matrices(channels: int) -> None:
    a, b = maps(0), maps(0, channels)
    assert cka(a, b) == pytest.approx(gram_cka(a, b), rel=1e-9)
    assert cka(*related()) == pytest.approx(gram_cka(*related()), rel=1e-9)
    assert 0 < cka(*related()) < 1


def test_cka_knows_neither_scale_nor_mean_nor_rotations_of_the_channels() -> None:
    a, b = related()
    assert cka(a, a) == pytest.approx(1)
    rotated = torch.einsum("ij,njhw->nihw", orthogonal(5), b)
    assert cka(a, rotated) == pytest.approx(cka(a, b), rel=1e-9)
    assert ncc(a, rotated) != pytest.approx(ncc(a, b), abs=0.05)
    assert cka(1e3 * a + 5, -0.01 * b) == pytest.approx(cka(a, b), rel=1e-9)
    stretched = b * torch.tensor([1.0, 10.0, 1.0, 1.0, 1.0], dtype=torch.float64)[:, None, None]
    assert cka(a, stretched) != pytest.approx(cka(a, b), abs=0.02)


def test_independent_features_are_not_alike() -> None:
    a, b = maps(0, shape=(40, 40)), maps(1, shape=(40, 40))
    assert abs(ncc(a, b)) < 0.05
    assert cka(a, b) < 0.02


@pytest.mark.parametrize("compare", [ncc, cka])
def test_what_cannot_be_compared(compare: Any) -> None:
    with pytest.raises(UldaError, match=r"they are \(2, 5, 7, 6\) and \(3, 5, 7, 6\)"):
        compare(maps(0), maps(0, n=3))
    with pytest.raises(UldaError, match="compared, but they are"):
        compare(maps(0)[0], maps(0)[0])
