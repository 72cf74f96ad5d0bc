from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.methods.test_dncn import knee_task
from tests.methods.test_methods import images
from ulda.errors import UldaError
from ulda.methods.lda import LDA
from ulda.methods.meta import Meta, restricted, split_slices
from ulda.models import Adapter, Regularizer
from ulda.physics import CartesianMRI, cartesian_mask, normalise_measurement
from ulda.training.history import Progress
from ulda.training.losses import reconstruction_loss
from ulda.training.schedule import learning_rate, rate_multiplier
from ulda.training.settings import Settings
from ulda.training.tasks import Batch, Task, draw, step_generator

SMALL: dict[str, Any] = {"width": 4, "depth": 3, "phases": 3, "proposal": "accelerated", "steps_per_phase": 5}
SOURCES = ("brain", "prostate")


def task(domain: str, n: int = 7) -> Task:
    """Return `n` different slices: crops of two, shifted."""
    data = knee_task(2, size=48)
    crops = [data.images[k % 2, k : k + 32, 5:37] for k in range(n)]
    peaked = torch.stack([crop / crop.abs().max() for crop in crops])
    return Task(domain, peaked, [cartesian_mask(32, 0.3, seed=1)])


def weights(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def set_w(model: Meta, **values: float) -> Meta:
    with torch.no_grad():
        for domain, value in values.items():
            model.get_parameter(f"task_weights.{domain}.w").fill_(value)
    return model


def test_parameter_count() -> None:
    """One net of LDA, and a number per domain."""
    net = LDA(sources=["one"]).n_parameters
    assert Meta(sources=SOURCES).n_parameters == net + 2
    assert Meta(sources=SOURCES).n_trainable(adapt=True) == net + 1


def test_the_start_is_that_of_lda() -> None:
    physics = CartesianMRI(cartesian_mask(33, 0.4))
    y = physics.A(images(2, 33, 27))
    lda, meta = LDA(seed=4, sources=SOURCES, **SMALL), Meta(seed=4, sources=SOURCES, **SMALL)
    with torch.no_grad():
        assert torch.equal(meta(y, physics, "brain"), lda(y, physics, "brain"))
        meta.domain = "brain"
        set_w(meta, brain=2.0)
        assert not torch.allclose(meta(y, physics), lda(y, physics, "brain"), atol=1e-4)
        assert torch.equal(meta(y, physics, "prostate"), lda(y, physics, "brain"))


@pytest.mark.parametrize("w", [-2.0, 0.0, 1.25])
def test_the_sigmoid_multiplies_the_regulariser(w: float) -> None:
    """Against the regulariser of the shared convolutions: its values and gradients, and eps scaled alike."""
    model = set_w(Meta(sources=SOURCES, **SMALL), brain=w).double()
    shared = model.prior.adapters["shared"]
    assert isinstance(shared, Adapter)
    plain, weighted = Regularizer(model.prior.extractor, shared), model.regularizer("brain")
    weight, eps = 1 / (1 + torch.tensor(-w, dtype=torch.float64).exp()), 2e-4
    x = images(2, 14, 12, dtype=torch.complex128)
    torch.testing.assert_close(weighted.value(x, weight * eps), weight * plain.value(x, eps), rtol=1e-12, atol=0)
    found = weighted.value_and_grad(x, weight * eps)
    expected = plain.value_and_grad(x, eps)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, weight * theirs, rtol=1e-10, atol=1e-14)
    # the solver's eps follows the weight
    assert model.options("brain").eps_0 == pytest.approx(2 * float(weight) * model.options("prostate").eps_0, rel=1e-12)


def test_inner_steps_move_the_shared_weights_and_outer_steps_one_w() -> None:
    model = Meta(sources=SOURCES, inner_steps=2, **SMALL)
    tasks = [task(source) for source in SOURCES]
    states = [weights(model)]
    settings = Settings(steps=9, batch_size=2, seed=1)
    drawn = [tasks[draw(tasks, settings, step_generator(settings, step)).task].domain for step in range(9)]

    def keep(_: Progress) -> None:
        states.append(weights(model))

    model.fit(tasks, settings, report=keep)
    assert set(drawn[2::3]) == set(SOURCES)
    shared = {name for name in states[0] if not name.startswith("task_weights.")}
    for step, (before, after) in enumerate(pairwise(states)):
        moved = {name for name in before if not torch.equal(before[name], after[name])}
        assert moved == ({f"task_weights.{drawn[step]}.w"} if step % 3 == 2 else shared)


def test_a_cycle_is_two_optimisers_in_turns() -> None:
    """The whole training against a loop with one optimiser for the shared weights and one per w, on their own slices.

    Without the penalty of the solver and the SSIM the loss is the mean squared error of the forward pass.
    """
    settings = Settings(steps=6, batch_size=2, seed=3, ssim_weight=0.0, learning_rate=2e-3, adapter_multiplier=0.01)
    model, other = (Meta(sources=["brain"], inner_steps=2, **SMALL).double() for _ in range(2))
    data = task("brain")
    data = replace(data, images=data.images.to(torch.complex128))
    model.fit([data], settings)

    w = other.get_parameter("task_weights.brain.w")
    shared = [(name, p) for name, p in other.named_parameters() if p is not w]
    groups = [{"params": [p], "factor": rate_multiplier(name, settings)} for name, p in shared]
    inner = torch.optim.Adam(groups)
    outer = torch.optim.Adam([{"params": [w], "factor": settings.step_size_multiplier}])
    physics = CartesianMRI(data.masks[0])
    for step in range(6):
        optimiser, allowed = (outer, [4]) if step in (2, 5) else (inner, [0, 1, 2, 3, 5, 6])
        batch = restricted(
            draw([data], settings, step_generator(settings, step)), allowed, (1 << 40) + 3 * 1_000_003 + step
        )
        truth = data.images[list(batch.index)]
        x = other(physics.A(truth), physics, "brain")
        loss = (x - truth).abs().square().mean()
        other.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for g in optimiser.param_groups for p in g["params"]], settings.clip)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(settings, step) * group["factor"]
        optimiser.step()
    assert float(w.detach().abs()) > 1e-3
    for name, parameter in weights(model).items():
        torch.testing.assert_close(parameter, weights(other)[name], rtol=1e-8, atol=1e-12)


def test_the_gradient_of_an_outer_step_by_finite_differences() -> None:
    """Of the loss on the held-out slices, in double precision; the smoothing eps is a constant, as in all training."""
    model, data = Meta(sources=SOURCES, **SMALL | {"phases": 2}).double(), task("brain", n=10)
    data = replace(data, images=data.images.to(torch.complex128))
    settings = Settings(phases=(), penalty_weight=0.0)
    set_w(model, brain=0.4)
    value, _ = model.loss(data, Batch(0, (0, 1, 4, 9), 0), settings, step=5)
    value.backward()
    w = model.get_parameter("task_weights.brain.w")
    assert w.grad is not None
    assert [name for name, p in model.named_parameters() if p.grad is not None] == ["task_weights.brain.w"]

    used = restricted(Batch(0, (0, 1, 4, 9), 0), [4, 9], (1 << 40) + 5).index
    assert set(used) <= {4, 9}
    physics, truth = CartesianMRI(data.masks[0]), data.images[list(used)]
    y, _, peak = normalise_measurement(physics.A(truth), physics)
    options = model.options("brain")

    @torch.no_grad()
    def loss(logit: float) -> float:
        x, _ = set_w(model, brain=logit).solve(y, physics, "brain", options)
        return float(reconstruction_loss(x * peak, truth, settings.ssim_weight).mean())

    assert value.item() == pytest.approx(loss(0.4), rel=1e-10)
    slope = (loss(0.4 + 1e-5) - loss(0.4 - 1e-5)) / 2e-5
    assert abs(slope) > 1e-6
    assert w.grad.item() == pytest.approx(slope, rel=1e-6)


def test_inner_and_outer_steps_see_different_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[bool, Counter[int]] = {False: Counter(), True: Counter()}
    model, data, settings = Meta(sources=SOURCES, **SMALL), task("brain", n=11), Settings(batch_size=4)

    def spy(_: Meta, __: Task, batch: Batch, ___: Settings, step: int) -> tuple[Tensor, Tensor]:
        seen[step % 6 == 5].update(batch.index)
        return torch.zeros(()), torch.zeros(())

    monkeypatch.setattr("ulda.methods.ulda.unrolled_loss", spy)
    for step in range(1200):
        model.loss(data, draw([data], settings, step_generator(settings, step)), settings, step)
    assert set(seen[True]) == {4, 9}
    assert set(seen[False]) == set(range(11)) - {4, 9}
    for counts in seen.values():  # evenly, within five standard deviations
        mean = counts.total() / len(counts)
        assert all(abs(count - mean) < 5 * mean**0.5 for count in counts.values())


@pytest.mark.parametrize("n", [1, 4, 5, 23])
def test_every_slice_has_one_purpose(n: int) -> None:
    inner, held_out = split_slices(n)
    if n < 5:
        assert inner == held_out == list(range(n))
    else:
        assert sorted(inner + held_out) == list(range(n))
        assert len(held_out) == n // 5


def test_a_new_domain_starts_from_the_mean_and_leaves_the_other_weights_alone() -> None:
    model = set_w(Meta(sources=SOURCES, inner_steps=1, **SMALL), brain=0.5, prostate=-1.5)
    start = weights(model)
    model.adapt(task("hip"), Settings(steps=1, batch_size=2))
    assert model.get_parameter("task_weights.hip.w").item() == pytest.approx(-0.5)
    model.adapt(task("hip"), Settings(steps=2, batch_size=2))
    after = weights(model)
    assert after["task_weights.hip.w"] != -0.5
    for name, parameter in after.items():
        is_free = not name.startswith("task_weights.") or name == "task_weights.hip.w"
        assert model.is_adapted(name, "hip") == is_free
        assert name == "task_weights.hip.w" or torch.equal(parameter, start[name]) == (not is_free)
    model.add_domain("brain")
    assert torch.equal(model.get_parameter("task_weights.brain.w"), start["task_weights.brain.w"])


def test_the_first_outer_step_is_as_long_as_its_rate() -> None:
    """Adam's first step has the length of the learning rate, which is five times that of the kernels."""
    model = Meta(sources=["brain"], inner_steps=2, **SMALL)
    model.fit([task("brain")], Settings(steps=3, batch_size=2))
    rate = learning_rate(Settings(steps=3), 2)
    assert model.get_parameter("task_weights.brain.w").abs().item() == pytest.approx(5 * rate, rel=1e-3)


def test_impossible_requests() -> None:
    with pytest.raises(UldaError, match="at least 1 inner step"):
        Meta(inner_steps=0)
    model = Meta(sources=["knee"], **SMALL)
    y, physics = torch.zeros(1, 32, 32, dtype=torch.complex64), CartesianMRI(cartesian_mask(32, 0.4))
    with pytest.raises(UldaError, match="no weight for the domain 'shared'; it has some for: knee"):
        model(y, physics, "shared")
    with pytest.raises(UldaError, match="knee is a source of this Meta"):
        model.adapt(task("knee"), Settings(steps=1, batch_size=1))
    with pytest.raises(UldaError, match="leave out equilibrium"):
        model.loss(task("knee"), Batch(0, (0,), 0), Settings(equilibrium={}), 0)
    for name, message in {"a.b": "without dots", "keys": "a meaning of its own"}.items():
        with pytest.raises(UldaError, match=message):
            model.add_domain(name)
