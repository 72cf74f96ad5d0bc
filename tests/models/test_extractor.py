from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.fft import idctn
from scipy.ndimage import correlate
from torch import Tensor

from tests.linear_checks import complex_normal
from ulda.errors import UldaError
from ulda.models import Adapter, ComplexConv2d, FeatureExtractor, Regularizer
from ulda.models import extractor as extractor_module
from ulda.models.adapter import LowRankUpdate
from ulda.models.extractor import cosine_filters, set_pair_difference
from ulda.models.layers import SmoothedReLU, convolve


def layers(extractor: FeatureExtractor) -> list[ComplexConv2d]:
    return [layer for layer in extractor.layers if isinstance(layer, ComplexConv2d)]


def pair_difference(width: int, size: int) -> Tensor:
    kernel = torch.zeros(width, width, size, size)
    kernel[..., size // 2, size // 2] = torch.kron(torch.eye(width // 2), torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
    return kernel


@pytest.fixture
def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extractor_module, "NOISE", 0.0)
    monkeypatch.setattr("ulda.models.adapter.NOISE", 0.0)


def test_parameter_counts() -> None:
    def count(module: torch.nn.Module) -> int:
        return sum(p.numel() for p in module.parameters())

    assert count(FeatureExtractor()) == 14_112
    assert count(Adapter()) == 4_608
    assert count(FeatureExtractor(width=8, depth=2, kernel_size=5)) == 2 * 25 * (8 + 8 * 8)
    assert count(Regularizer(FeatureExtractor(), Adapter())) == 14_112 + 4_608


@pytest.mark.parametrize(("width", "depth", "size"), [(1, 1, 1), (3, 2, 5), (16, 4, 3)])
def test_shapes(width: int, depth: int, size: int) -> None:
    extractor = FeatureExtractor(width, depth, size)
    assert extractor(torch.zeros(2, 2, 7, 5)).shape == (2, 2 * width, 7, 5)
    assert len(layers(extractor)) == depth
    assert Adapter(width, size)(torch.zeros(2, 2 * width, 7, 5)).shape == (2, 2 * width, 7, 5)


@pytest.mark.parametrize("size", [3, 5])
def test_the_filters_are_the_cosine_basis_of_scipy(size: int) -> None:
    filters = cosine_filters(size).numpy()
    assert len(filters) == size * size - 1
    for number in range(1, size * size):
        unit = np.zeros(size * size)
        unit[number] = 1
        np.testing.assert_allclose(filters[number - 1], idctn(unit.reshape(size, size), norm="ortho"), atol=1e-6)


def test_a_kernel_of_one_pixel_has_the_constant_filter() -> None:
    assert cosine_filters(1).tolist() == [[[1.0]]]


def test_the_first_layer_starts_as_plus_and_minus_the_cosine_filters() -> None:
    first = layers(FeatureExtractor(seed=3))[0]
    filters = cosine_filters(3)
    signed = torch.stack([sign * f for f in filters for sign in (1, -1)])[:, None]
    for difference in (first.real.detach() - signed, first.imag.detach()):
        assert 0.004 < float(difference.std()) < 0.006
        assert abs(float(difference.mean())) < 0.0015
        assert float(difference.abs().max()) < 0.025


def test_the_other_layers_start_as_differences_of_pairs() -> None:
    for layer in layers(FeatureExtractor(seed=3))[1:]:
        for difference in (layer.real.detach() - pair_difference(16, 3), layer.imag.detach()):
            assert 0.0045 < float(difference.std()) < 0.0055
            assert float(difference.abs().max()) < 0.03


def test_the_adapter_starts_as_a_multiple_of_the_differences() -> None:
    adapter = Adapter(weight=0.5, seed=4)
    for difference in (adapter.layer.real.detach() - 0.5 * pair_difference(16, 3), adapter.layer.imag.detach()):
        assert 0.00225 < float(difference.std()) < 0.00275
    assert torch.allclose(Adapter(weight=0.5, seed=4).layer.real, 5 * Adapter(seed=4).layer.real)


@pytest.mark.usefixtures("without_noise")
def test_the_untrained_features_are_filter_responses() -> None:
    extractor = FeatureExtractor(depth=1)
    x = torch.randn(2, 2, 9, 8, generator=torch.Generator().manual_seed(0))
    features = extractor(x).detach()
    responses = [convolve(x[:, part : part + 1], cosine_filters(3)[:, None]) for part in (0, 1)]
    # plus minus minus: the smoothed ReLU of a number less that of its negative is the number
    torch.testing.assert_close(features[:, 0::2] - features[:, 1::2], torch.cat(responses, 1), rtol=0, atol=1e-5)


@pytest.mark.usefixtures("without_noise")
def test_the_untrained_regulariser_is_a_generalised_total_variation() -> None:
    """For any delta: the differences of pairs undo the activations, so only the filters are left."""
    weight, eps = 0.3, 1e-6
    regularizer = Regularizer(FeatureExtractor(delta=0.1), Adapter(weight=weight))
    x = complex_normal(2, 12, 11)
    squares = np.zeros(x.shape)
    for f in cosine_filters(3).double().numpy():
        response = [correlate(image.numpy(), f, mode="constant") for image in x]
        squares = squares + 2 * np.abs(np.stack(response)) ** 2
    expected = weight * np.sqrt(squares).sum((-2, -1))
    np.testing.assert_allclose(regularizer.value(x, eps).detach().numpy(), expected, rtol=1e-5)


@pytest.mark.usefixtures("without_noise")
def test_a_wide_extractor_repeats_the_filters() -> None:
    first = layers(FeatureExtractor(width=20))[0]
    assert torch.equal(first.real[16:], first.real[:4])


def test_a_seed_decides_the_start() -> None:
    for start in ("filter-bank", "random"):
        a, b, c = (FeatureExtractor(start=start, seed=seed) for seed in (1, 1, 2))
        assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
        assert not any(torch.equal(p, q) for p, q in zip(a.parameters(), c.parameters(), strict=True))
    assert torch.equal(Adapter(seed=1).layer.imag, Adapter(seed=1).layer.imag)
    assert not torch.equal(Adapter(seed=1).layer.imag, Adapter(seed=2).layer.imag)


def test_the_start_leaves_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    FeatureExtractor()
    Adapter()
    assert torch.equal(torch.get_rng_state(), state)


def test_a_random_start_is_that_of_glorot() -> None:
    second = layers(FeatureExtractor(start="random"))[1]
    assert float(second.real.detach().std()) == pytest.approx(math.sqrt(1 / (32 * 9)), rel=0.05)


def test_differences_of_pairs_undo_the_activation_and_pass_on_a_channel_without_a_partner() -> None:
    layer = ComplexConv2d(3, 3, 5)
    set_pair_difference(layer)
    s = complex_normal(2, 2, 4, 4).real
    activation = SmoothedReLU(0.7)
    features = torch.stack([activation(s[:, 0]), activation(-s[:, 0]), s[:, 1]] * 2, dim=1)
    expected = torch.stack([s[:, 0], -s[:, 0], s[:, 1]] * 2, dim=1)
    torch.testing.assert_close(layer(features), expected, rtol=0, atol=1e-6)


def test_wrong_options_are_clear_errors() -> None:
    with pytest.raises(UldaError, match="at least one layer"):
        FeatureExtractor(depth=0)
    with pytest.raises(UldaError, match="needs channels"):
        FeatureExtractor(width=0)
    with pytest.raises(UldaError, match="must be odd"):
        FeatureExtractor(kernel_size=2)
    with pytest.raises(UldaError, match="must be positive"):
        FeatureExtractor(delta=0)
    with pytest.raises(UldaError, match="filter-bank"):
        FeatureExtractor(start="zeros")  # type: ignore[arg-type]
    with pytest.raises(UldaError, match="must be odd"):
        Adapter(kernel_size=4)
    with pytest.raises(UldaError, match="rank 1 or more, but it is asked for 0"):
        LowRankUpdate(rank=0)


@pytest.mark.parametrize("rank", [1, 3])
def test_a_low_rank_update_adds_two_convolutions_to_each_layer(rank: int) -> None:
    """Against the layers one by one: what A and then B make of their input is added to what they return."""
    g, update = FeatureExtractor(width=4, depth=2).double(), LowRankUpdate(4, 2, rank).double()
    x = torch.randn(1, 2, 9, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(update.applied_to(g)(x), g(x), rtol=0, atol=0)
    with torch.no_grad():
        for number, parameter in enumerate(update.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    expected = x
    for layer, down, up in zip(g.layers, update.down, update.up, strict=True):
        expected = g.activation(layer(expected) + up(down(expected)))
    torch.testing.assert_close(update.applied_to(g)(x), expected)
    assert not list(update.applied_to(g).parameters())
