"""What every learned method promises, ours among them."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.methods.test_dncn import knee_task
from tests.methods.test_methods import coil_maps, images
from ulda.errors import UldaError
from ulda.methods import METHODS, TrainableMethod, load_method, method_class, method_settings, new_method
from ulda.metrics import psnr
from ulda.physics import ACQUISITIONS, CartesianMRI, MultiCoilMRI, Physics, cartesian_mask
from ulda.training.presets import Stage
from ulda.training.settings import Settings
from ulda.training.tasks import Batch, Task, draw, step_generator

SMALL: dict[str, dict[str, Any]] = {
    "ulda": {"width": 4, "depth": 2},
    "ulda-paper": {"width": 4, "depth": 2, "phases": 3},
    "lda": {"width": 4, "depth": 2},
    "dncn": {"filters": 6, "layers": 3, "cascades": 2},
    "unet": {"channels": 4, "pools": 2},
    "umri": {"filters": 6, "layers": 3, "cascades": 2},
    "meta": {"width": 4, "depth": 2, "inner_steps": 2},
    "humus": {
        "embed": 8,
        "depths": (2,),
        "heads": (2,),
        "bottleneck_depth": 1,
        "bottleneck_heads": 4,
        "window": 4,
    },
}
every_method = pytest.mark.parametrize("name", METHODS)
SOURCES = ("brain", "knee")
SOLVERS = ("ulda", "ulda-paper", "lda", "meta")
QUICK: dict[str, Any] = {"batch_size": 2, "phases": (), "validate_every": 3}


def build(name: str, sources: Sequence[str] = SOURCES, seed: int = 0, **sizes: Any) -> TrainableMethod:
    return new_method(name, sources, seed, **(sizes or SMALL[name]))


def settings_of(name: str, stage: Stage, **changes: Any) -> Settings:
    return method_settings(name, stage, **QUICK | changes)


def small(name: str, sources: tuple[str, ...] = SOURCES, seed: int = 0) -> TrainableMethod:
    """Return a small network whose weights are not those of a special start, such as layers of zeros."""
    model = build(name, sources, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            # where a solver refuses steps that do not descend, strong noise would leave it none to accept
            scale = 1e-4 if name in SOLVERS else 0.05 * float(parameter.abs().mean()) + 0.005
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    model.domain = sources[0]
    return model


def knee(name: str = "knee", n: int = 2, size: int = 32) -> Task:
    return replace(knee_task(n, size), domain=name)


def weights(model: TrainableMethod) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def measured(shape: tuple[int, int], n: int = 3, coils: int = 0) -> tuple[Tensor, Physics]:
    mask = cartesian_mask(shape[0], 0.4)
    physics = MultiCoilMRI(mask, coil_maps(coils, *shape)) if coils else CartesianMRI(mask)
    return physics.A(images(n, *shape)), physics


@every_method
@pytest.mark.parametrize("coils", [0, 3], ids=["one coil", "three coils"])
@pytest.mark.parametrize("shape", [(32, 32), (33, 27), (40, 50)])
def test_any_size(name: str, shape: tuple[int, int], coils: int) -> None:
    y, physics = measured(shape, coils=coils)
    with torch.no_grad():
        x = small(name)(y, physics)
    assert x.shape == (3, *shape)
    assert x.dtype == torch.complex64
    assert torch.isfinite(torch.view_as_real(x)).all()
    assert (x - physics.A_adjoint(y)).norm() > 1e-3 * x.norm()


@every_method
def test_neither_scale_nor_batch_matters(name: str) -> None:
    y, physics = measured((32, 32))
    model = small(name)
    with torch.no_grad():
        together = model(y, physics)
        torch.testing.assert_close(model(1e3 * y, physics) / 1e3, together, atol=1e-4, rtol=0)
        torch.testing.assert_close(model(y[1:2], physics)[0], together[1], atol=1e-4, rtol=0)
        assert torch.equal(model(y, physics), together)


@every_method
def test_the_seed_decides_and_nothing_else_is_drawn(name: str) -> None:
    state = torch.get_rng_state()
    first, again, other = (build(name, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


@every_method
def test_gradient_flows_to_every_parameter(name: str) -> None:
    """Over the steps of a training that visits every domain, each parameter is reached by some loss."""
    model = small(name)
    noisy = ACQUISITIONS["single-coil"]  # some parameters have to do with noise alone
    tasks = [replace(knee(source, size=32), acquisition=noisy) for source in SOURCES]
    settings, reached = Settings(batch_size=2), set()
    for step in range(12):
        model.zero_grad(set_to_none=True)
        batch = draw(tasks, settings, step_generator(settings, step))
        value, x = model.loss(tasks[batch.task], batch, settings, step)
        value.backward()
        assert not x.requires_grad
        reached |= {n for n, p in model.named_parameters() if p.grad is not None and bool((p.grad != 0).any())}
    assert reached == set(weights(model))


@every_method
def test_training_is_deterministic_and_reports_what_it_spent(name: str) -> None:
    tasks, found = [knee(source) for source in SOURCES], []
    for _ in range(2):
        model = build(name, seed=3)
        before = weights(model)
        training = model.fit(tasks, settings_of(name, "train", steps=4, seed=5))
        found.append(weights(model))
        assert (training.spent.steps, training.spent.slices) == (4, 8)
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])
    assert any(not torch.equal(found[0][key], before[key]) for key in before)


@every_method
def test_adaptation_leaves_the_frozen_parameters_bit_identical(name: str) -> None:
    model = small(name)
    before = weights(model)
    training = model.adapt(knee("hip"), settings_of(name, "adapt", steps=6, seed=1))
    assert model.domain == "hip"
    assert training.spent.steps == 6
    adapted = {key for key in weights(model) if model.is_adapted(key, "hip")}
    probe = small(name)
    probe.add_domain("hip")
    assert sum(model.get_parameter(key).numel() for key in adapted) == probe.n_adapted("hip")
    assert all(torch.equal(weights(model)[key], before[key]) for key in before if key not in adapted)
    changed = [key for key in adapted if key not in before or not torch.equal(weights(model)[key], before[key])]
    assert changed


@every_method
def test_an_adaptation_that_only_harms_ends_where_it_began(name: str) -> None:
    task = replace(knee("hip"), validation=knee().images)
    start = small(name)
    start.add_domain("hip")
    model = copy.deepcopy(start)
    model.adapt(task, settings_of(name, "adapt", steps=2, learning_rate=0.3))
    assert psnr_of(model, task) >= psnr_of(start, task)


def psnr_of(model: TrainableMethod, task: Task) -> float:
    physics = CartesianMRI(task.masks[0])
    with torch.no_grad():
        x = model(physics.A(task.images), physics, task.domain)
    return float(psnr(x.abs(), task.images.abs(), data_range=1.0).mean())


@every_method
def test_saved_and_loaded(name: str, tmp_path: Path) -> None:
    y, physics = measured((33, 27))
    model = small(name)
    for domain in ("hip", "elbow", "hip"):
        model.adapt(knee(domain), settings_of(name, "adapt", steps=2))
    model.save(tmp_path / "model", {"licence": "CC0"})
    again = load_method(tmp_path / "model")
    assert type(again) is type(model)
    assert (again.sources, again.adapted_to, again.domain) == (SOURCES, ("elbow", "hip"), "hip")
    assert again.n_parameters == model.n_parameters
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"model.safetensors", "model.json"}
    with torch.no_grad():
        for chosen in (*SOURCES, "elbow", None):
            assert torch.equal(again(y, physics, chosen), model(y, physics, chosen))
    with pytest.raises(UldaError, match=f"is a {model.name}, not a"):
        method_class("dncn" if name != "dncn" else "unet").load(tmp_path / "model")


@every_method
def test_a_training_is_continued_bit_by_bit(name: str, tmp_path: Path) -> None:
    tasks = [knee(source) for source in SOURCES]

    def train(folder: Path, stop_after: int | None = None) -> dict[str, Tensor]:
        model = build(name)
        seen = iter(range(1000))

        def report(_: object) -> None:
            if next(seen) == stop_after:
                raise RuntimeError("the power went out")

        settings = settings_of(name, "train", steps=6, checkpoint_every=1)
        if stop_after is None:
            model.fit(tasks, settings, folder=folder, report=report)
        else:
            with pytest.raises(RuntimeError, match="power"):
                model.fit(tasks, settings, folder=folder, report=report)
        return weights(model)

    whole = train(tmp_path / "whole")
    train(tmp_path / "broken", stop_after=3)
    continued = train(tmp_path / "broken")
    assert all(torch.equal(whole[key], continued[key]) for key in whole)


@every_method
def test_one_slice_without_a_batch(name: str) -> None:
    """Either it is the first of a batch of one, or a sentence says that a batch is wanted."""
    y, physics = measured((32, 32), n=1)
    model = small(name)
    with torch.no_grad():
        if name in SOLVERS:
            with pytest.raises(UldaError, match=r"needs a batch of measurements \(n, ...\)"):
                model(y[0], physics)
        else:
            torch.testing.assert_close(model(y[0], physics), model(y, physics)[0], atol=1e-6, rtol=0)


@every_method
def test_a_source_that_is_added_again_keeps_its_parameters(name: str) -> None:
    model = small(name)
    before = weights(model)
    model.add_domain("knee")
    assert all(torch.equal(value, before[key]) for key, value in weights(model).items())


DAMAGE: list[tuple[str, Any, str]] = [
    ("domain", 7, "it is to use the domain 7, which it does not have"),
    ("domain", "elbow", "it is to use the domain 'elbow', which it does not have"),
    ("sources", [1, 2], "its domains are not names"),
    ("card", None, "its card is missing"),
    ("sizes", {"filters": 2**15}, "describes a larger model than model.safetensors holds"),
    ("sizes", {"filters": -1}, "needs at least 1 filter"),
    ("sizes", {"filters": "many"}, "cannot be read as the description of a dncn"),
    ("sizes", {"width": 2}, "cannot be read as the description of a dncn"),
    ("method", "lda", "is a lda, not a dncn"),
    ("weights", "0" * 64, "are not those model.json was written for"),
]


@pytest.mark.parametrize(("key", "value", "message"), DAMAGE, ids=[f"{key} {i}" for i, (key, *_) in enumerate(DAMAGE)])
def test_a_damaged_description_is_refused_in_a_sentence(tmp_path: Path, key: str, value: Any, message: str) -> None:
    small("dncn").save(tmp_path)
    facts = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps(facts | {key: value}))
    with pytest.raises(UldaError, match=message):
        method_class("dncn").load(tmp_path)
    del facts[key]
    (tmp_path / "model.json").write_text(json.dumps(facts))
    with pytest.raises(UldaError):
        method_class("dncn").load(tmp_path)


@pytest.mark.parametrize("name", ["ulda", "lda", "umri", "meta"])
@pytest.mark.parametrize("domain", ["proposals", "adapters", "task_weights"])
def test_a_domain_cannot_have_the_name_of_a_rate(name: str, domain: str) -> None:
    with pytest.raises(UldaError, match=f"a domain cannot be called '{domain}'"):
        build(name, [domain])


OVERFIT: dict[str, tuple[dict[str, Any], int, int, float]] = {
    "dncn": ({"filters": 32}, 32, 180, 4e-3),
    "unet": ({"channels": 8, "pools": 3}, 32, 300, 5e-3),
    "umri": ({"filters": 16, "cascades": 3}, 32, 150, 5e-3),
    "humus": (
        {"depths": (1, 1), "heads": (3, 6), "bottleneck_depth": 1, "bottleneck_heads": 12, "window": 4},
        32,
        90,
        3e-3,
    ),
    "ulda": ({}, 32, 400, 6e-3),
    "ulda-paper": ({"phases": 7}, 32, 400, 6e-3),
    "lda": ({}, 32, 300, 1e-2),
    "meta": ({}, 32, 480, 6e-3),
}
"""Sizes, side of the slices, steps and rate with which each method overfits two slices."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SOLVERS else []) for name in METHODS]
)
def test_two_slices_are_overfitted(name: str) -> None:
    sizes, side, steps, rate = OVERFIT[name]
    task = knee(size=side)
    model = build(name, ["knee"], **sizes)
    model.fit([task], settings_of(name, "train", steps=steps, learning_rate=rate, validate_every=0, warp=0.0))
    assert psnr_of(model, task) > 35


def test_a_source_is_not_a_new_domain() -> None:
    with pytest.raises(UldaError, match="knee is a source of this DnCn; give the new domain another name"):
        small("dncn").adapt(knee("knee"), Settings(steps=1))


def test_a_source_must_be_known() -> None:
    with pytest.raises(UldaError, match="hip is not a source of this DnCn; its sources are: brain, knee"):
        small("dncn").fit([knee("hip")], Settings(steps=1))


def test_a_wrong_name_lists_the_methods() -> None:
    with pytest.raises(UldaError, match="there is no method 'dcnn'; did you mean 'dncn'"):
        method_class("dcnn")


def test_batches_of_one_domain_do_not_move_the_others() -> None:
    """LDA has a net per domain: a step on one leaves the others alone."""
    model = small("lda")
    value, _ = model.loss(knee("brain"), Batch(0, (0, 1), 0), Settings(), 0)
    value.backward()
    touched = {n.split(".")[1] for n, p in model.named_parameters() if p.grad is not None and bool((p.grad != 0).any())}
    assert touched == {"brain"}
