from __future__ import annotations

import pytest
import torch

from tests.small_models import small_model
from ulda.data import demo
from ulda.evaluation.learned import Learned, psnr_per_phase
from ulda.methods.ulda import ULDA
from ulda.metrics import evaluate
from ulda.physics import CartesianMRI, MultiCoilMRI, cartesian_mask


@pytest.fixture
def model() -> ULDA:
    return small_model("a", "b", phases=4)


def test_it_is_the_model(model: ULDA) -> None:
    physics = CartesianMRI(cartesian_mask(48, 0.4, seed=1))
    y = 50 * physics.A(torch.stack(list(demo("knee").take([6, 12]).images()))[:, 40:88, 40:88])
    expected = model(y, physics, "b")
    assert torch.equal(Learned(model, "b")(y, physics), expected)
    assert not Learned(model, "b")(y, physics).requires_grad
    longer = Learned(model, "b", iterations=9)(y, physics)
    assert torch.equal(Learned(model, "b", iterations=4)(y, physics), expected)
    assert (longer - expected).norm() > 1e-3 * expected.norm()


def test_several_coils(model: ULDA) -> None:
    mask, x = cartesian_mask(32, 0.4), torch.ones(2, 32, 30, dtype=torch.complex64)
    single, multi = CartesianMRI(mask), MultiCoilMRI(mask, torch.ones(1, 32, 30, dtype=torch.complex64))
    method = Learned(model, "a")
    torch.testing.assert_close(method(multi.A(x), multi), method(single.A(x), single), atol=1e-5, rtol=0)


def test_quality_phase_by_phase(model: ULDA) -> None:
    physics = CartesianMRI(cartesian_mask(48, 0.4, seed=1))
    images = torch.stack(list(demo("knee").take([6, 12]).images()))[:, 40:88, 40:88]
    y, reference = physics.A(images), images.abs()
    found = psnr_per_phase(model, y, physics, reference, "a")
    assert found.shape == (5, 2)
    torch.testing.assert_close(found[0], evaluate(physics.A_adjoint(y).abs(), reference).psnr)
    for phases in (1, 2, 4):
        x = Learned(model, "a", phases)(y, physics).abs()
        torch.testing.assert_close(found[phases], evaluate(x, reference).psnr, atol=1e-3, rtol=0)
    model.domain = "a"
    assert psnr_per_phase(model, y, physics, reference, iterations=2).shape == (3, 2)
