"""The strength of a regulariser is chosen by what predicts held-out lines best."""

from __future__ import annotations

from math import log2
from typing import Any

import pytest
import torch

from ulda.data import demo
from ulda.errors import UldaError
from ulda.methods import ULDA
from ulda.methods.strength import STRENGTHS, chosen_strength
from ulda.physics import CartesianMRI, Mask, Physics, cartesian_mask


class Shrinking(ULDA):
    """Adds an error to each reconstruction that is smallest for one strength."""

    best: float
    strength = 1.0

    def scale(self, domain: str, strength: float) -> None:
        super().scale(domain, strength)
        self.strength *= strength

    def solve(self, y: torch.Tensor, physics: Physics, domain: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        expected = physics.A(knee())
        size = float((expected.conj() * y).sum().real / expected.abs().square().sum())
        wrong = 0.01 + 0.1 * abs(log2(self.strength / self.best))
        return size * (1 + wrong) * knee(), None


def knee() -> torch.Tensor:
    return torch.stack(list(demo("knee").take([8]).images()))


@pytest.mark.parametrize("best", STRENGTHS)
def test_the_best_on_held_out_lines_is_chosen(best: float) -> None:
    physics = CartesianMRI(cartesian_mask(128, 0.3))
    model = Shrinking(sources=["knee"], width=2, depth=1, phases=1)
    model.best = best
    weights = {name: parameter.clone() for name, parameter in model.named_parameters()}
    assert chosen_strength(model, "knee", [(physics.A(knee()), physics)]) == best
    assert all(torch.equal(weights[name], parameter) for name, parameter in model.named_parameters())


def test_without_lines_to_hold_out_the_strength_stays() -> None:
    physics = CartesianMRI(Mask(tuple(56 <= i < 72 for i in range(128))))
    model = Shrinking(sources=["knee"], width=2, depth=1, phases=1)
    model.best = STRENGTHS[-1]
    assert chosen_strength(model, "knee", [(physics.A(knee()), physics)]) == 1


def test_a_new_domain_is_calibrated_where_the_network_says_so() -> None:
    physics = CartesianMRI(cartesian_mask(128, 0.3))
    for wanted in (False, True):
        model = Shrinking(sources=["knee"], width=2, depth=1, phases=1, choose_strength=wanted)
        model.best = 0.25
        model.add_domain("scan")
        before = model.regularizer("scan").value(knee(), 1e-9)
        assert model.calibrate("scan", [(physics.A(knee()), physics)]) == (0.25 if wanted else 1)
        after = model.regularizer("scan").value(knee(), 1e-9)
        torch.testing.assert_close(after, before * (0.25 if wanted else 1), rtol=1e-5, atol=0)
    with pytest.raises(UldaError, match="must be positive and finite"):
        model.scale("scan", 0.0)
