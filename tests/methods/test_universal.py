"""The options of U-LDA that ablations switch: step 0, further undersampling, what adapts, the safeguard."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Module

from tests.methods.test_dncn import knee_task
from ulda.errors import UldaError
from ulda.methods import Budget, load_method
from ulda.methods.universal import UniversalLDA
from ulda.methods.untied import Untied
from ulda.models.extractor import OWN_KERNELS, ChannelMixing
from ulda.physics import CartesianMRI, Mask
from ulda.training import loop, network, stages
from ulda.training.augmentation import artificial_masks
from ulda.training.loop import Task, rate_factor
from ulda.training.network import OWN_KERNELS_OF_MANY, ULDA, WITHOUT_GAINS, Architecture
from ulda.training.settings import FEW_STEPS, Settings

SMALL: dict[str, Any] = {"width": 4, "depth": 2, "phases": 3}
SOURCES = ("brain", "knee")


def task(domain: str) -> Task:
    return replace(knee_task(2, size=32), domain=domain)


def weights(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def test_a_file_of_before_there_were_options_is_read(tmp_path: Path) -> None:
    model = UniversalLDA(sources=SOURCES, adapt_only="adapter and steps", **SMALL)
    assert model.sizes == vars(Architecture(**SMALL))
    model.add_domain("hip")
    model.adapted_to, model.domain = ("hip",), "hip"
    model.save(tmp_path)
    assert json.loads((tmp_path / "model.json").read_text())["sizes"] == vars(Architecture(**SMALL))
    again = load_method(tmp_path)
    assert isinstance(again, UniversalLDA)
    assert again.adapt_only == "adapter and steps"
    assert "hip" not in again.own_layers
    assert "hip" not in again.mixings


@pytest.mark.parametrize("has_gains", [True, False])
def test_a_domain_of_many_steps_adds_more_kernels_and_its_file_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_gains: bool
) -> None:
    model = UniversalLDA(sources=SOURCES, **SMALL, **({} if has_gains else WITHOUT_GAINS))
    data = task("hip")
    many = FEW_STEPS + 1
    assert model.adapted_sizes(many) == {"kernels": OWN_KERNELS_OF_MANY}
    assert model.adapted_sizes(FEW_STEPS) == {}
    assert UniversalLDA(sources=SOURCES, adapt_only="mixing, adapter and steps").adapted_sizes(many) == {}
    monkeypatch.setattr(network, "FEW_STEPS", 1)
    for name, steps in (("hip", 1), ("wrist", 2)):
        model.adapt(replace(data, domain=name), Budget.of_steps(steps, slices=2))
    assert model.own_facts()["kernels"] == {"hip": OWN_KERNELS, "wrist": OWN_KERNELS_OF_MANY}
    gains = {
        name: parameter
        for name, parameter in model.steps.named_parameters()
        if name.startswith(("hip.", "wrist.")) and name.endswith(("log_channels", "log_lines"))
    }
    assert len(gains) == 4 * has_gains
    for name, parameter in (*model.mixings.named_parameters(), *gains.items()):
        is_short = torch.equal(parameter, parameter.half().float())
        assert is_short == (name.startswith("wrist.") or has_gains), name
    model.save(tmp_path)
    again = load_method(tmp_path)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name)), name
    path = tmp_path / "model.json"
    facts = json.loads(path.read_text())
    for wrong in ([4], {"wrist": -1}, {"ankle": 4}):
        path.write_text(json.dumps(facts | {"kernels": wrong}))
        with pytest.raises(UldaError):
            load_method(tmp_path)


def test_in_a_file_that_does_not_say_its_kernels_they_are_few(tmp_path: Path) -> None:
    model = UniversalLDA(sources=SOURCES, **SMALL)
    model.adapt(task("hip"), Budget.of_steps(1, slices=2))
    model.save(tmp_path)
    path = tmp_path / "model.json"
    facts = json.loads(path.read_text())
    assert facts.pop("kernels") == {"hip": OWN_KERNELS}
    path.write_text(json.dumps(facts))
    again = load_method(tmp_path)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name)), name


def test_what_learns_is_counted() -> None:
    model, plain = UniversalLDA(sources=SOURCES), ULDA(Architecture(), SOURCES)
    assert model.n_parameters == sum(p.numel() for p in plain.parameters())
    own: tuple[Module, ...] = (plain.adapters["knee"], plain.steps["knee"], ChannelMixing(rank=OWN_KERNELS_OF_MANY))
    assert model.n_trainable(adapt=True) == sum(p.numel() for part in own for p in part.parameters())
    own = (*own[:2], ChannelMixing(rank=0))
    mixing = UniversalLDA(sources=SOURCES, adapt_only="mixing, adapter and steps")
    assert mixing.n_trainable(adapt=True) == sum(p.numel() for part in own for p in part.parameters())
    own = (*own[:2], plain.extractor.layers[-1])
    layer = UniversalLDA(sources=SOURCES, adapt_only="layer, adapter and steps")
    assert layer.n_trainable(adapt=True) == sum(p.numel() for part in own for p in part.parameters())
    narrow = UniversalLDA(sources=SOURCES, adapt_only="adapter and steps")
    assert narrow.n_trainable(adapt=True) == sum(p.numel() for part in own[:2] for p in part.parameters())


def test_options_are_saved_and_restored(tmp_path: Path) -> None:
    options: dict[str, Any] = {"initialise": 0.5, "augment": True, "adapt_only": "steps", "safeguard": False}
    UniversalLDA(sources=SOURCES, **SMALL, **options).save(tmp_path)
    again = load_method(tmp_path)
    assert isinstance(again, UniversalLDA)
    assert (again.initialise, again.augment, again.adapt_only, again.safeguard) == (0.5, True, "steps", False)
    assert again.sizes["width"] == 4


def test_step_0_comes_before_the_training_and_is_counted_apart() -> None:
    tasks = [task(source) for source in SOURCES]
    model = UniversalLDA(sources=SOURCES, initialise=0.5, **SMALL)
    by_hand = UniversalLDA(sources=SOURCES, **SMALL)
    changes = {"descent": "none"}
    spent = model.fit(tasks, Budget.of_steps(6, slices=12), seed=4, changes=changes).spent
    assert (spent.steps, spent.slices, spent.extra_steps) == (6, 12, {"initialise": 6})
    alone = Settings(steps=3, batch_size=2, learning_rate=5e-3, validate_every=0, seed=4, descent="none")
    stages.initialise(by_hand, tasks, alone)
    by_hand.fit(tasks, Budget.of_steps(6, slices=12), seed=4, changes=changes)
    for name, value in weights(by_hand).items():
        assert torch.equal(value, model.get_parameter(name)), name


def test_an_interrupted_step_0_is_continued(tmp_path: Path) -> None:
    tasks, found = [task(source) for source in SOURCES], list[dict[str, Tensor]]()
    for stop_after in (None, 2, 3, None):
        model = UniversalLDA(sources=SOURCES, initialise=0.5, **SMALL)
        folder = tmp_path / ("whole" if not found else "broken")
        seen = iter(range(100))

        def report(_: object, seen: Any = seen, stop_after: int | None = stop_after) -> None:
            if next(seen) == stop_after:
                raise RuntimeError("killed")

        def train(model: UniversalLDA = model, folder: Path = folder, report: Any = report) -> None:
            changes = {"checkpoint_every": 1, "descent": "none"}
            model.fit(tasks, Budget.of_steps(4, slices=4), changes=changes, folder=folder, report=report)

        if stop_after is None:
            train()
            found.append(weights(model))
        else:
            with pytest.raises(RuntimeError, match="killed"):
                train()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_augmentation_goes_through_further_undersampled_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Mask, int]] = []
    original = loop.fit

    def spy(model: Any, tasks: list[Task], settings: Settings, **options: Any) -> Any:
        seen.append((tasks[0].masks[0], settings.steps))
        return original(model, tasks, settings, **options)

    monkeypatch.setattr("ulda.training.stages.fit", spy)
    hip = replace(task("hip"), validation=task("hip").images)
    model = UniversalLDA(sources=SOURCES, augment=True, **SMALL)
    before = weights(model)
    spent = model.adapt(hip, Budget.of_steps(8, slices=16), seed=2, changes={"descent": "none"}).spent
    first, second = artificial_masks(hip.masks[0], 2)
    assert [(mask.lines.tolist(), steps) for mask, steps in seen] == [
        (first.lines.tolist(), 2),
        (second.lines.tolist(), 2),
        (hip.masks[0].lines.tolist(), 4),
    ]
    assert (spent.steps, spent.slices) == (8, 16)
    assert model.domain == "hip"
    assert all(torch.equal(model.get_parameter(name), value) for name, value in before.items())


@pytest.mark.parametrize("augment", [False, True])
def test_the_step_sizes_alone_may_adapt(augment: bool) -> None:
    model = UniversalLDA(sources=SOURCES, adapt_only="steps", augment=augment, **SMALL)
    assert model.n_trainable(adapt=True) == sum(p.numel() for p in model.steps["knee"].parameters())
    start = UniversalLDA(sources=SOURCES, adapt_only="steps", **SMALL)
    start.add_domain("hip")
    model.adapt(task("hip"), Budget.of_steps(3, slices=6), changes={"descent": "none"})
    for name, value in weights(start).items():
        assert torch.equal(value, model.get_parameter(name)) == (not name.startswith("steps.hip.")), name


@pytest.mark.parametrize("own", ["kernels, mixing", "mixing", "layer"])
def test_a_domain_has_something_of_its_own(own: str) -> None:
    adapted: Any = f"{own}, adapter and steps"
    model = UniversalLDA(sources=SOURCES, adapt_only=adapted, **SMALL)
    before = weights(model)
    model.add_domain("hip")
    data = task("hip")
    physics = CartesianMRI(data.masks[0])
    y = physics.A(data.images)
    narrow = UniversalLDA(sources=SOURCES, adapt_only="adapter and steps", **SMALL)
    narrow.add_domain("hip")
    with torch.no_grad():
        torch.testing.assert_close(model(y, physics, "hip"), narrow(y, physics, "hip"), atol=1e-6, rtol=1e-5)
    model.adapt(data, Budget.of_steps(3, slices=6), changes={"descent": "none"})
    for name, value in before.items():
        assert torch.equal(value, model.get_parameter(name)), name
    used, common = model.regularizer("hip").extractor.layers, model.extractor.layers
    changed = [not torch.equal(a.kernel(), b.kernel()) for a, b in zip(used, common, strict=True)]  # type: ignore[operator]
    assert changed == ([False] * (len(used) - 1) + [True] if own == "layer" else [True] * len(used))
    if own == "kernels, mixing":
        mixing = model.mixings["hip"]
        assert isinstance(mixing, ChannelMixing)
        assert all(p.abs().min() > 0 for layer in mixing.weights for p in layer.parameters()), "they started as zero"
    assert model.regularizer("knee").extractor is model.extractor


def test_without_the_safeguard_every_proposal_is_taken() -> None:
    """With step sizes that are far too long the safeguard refuses, and without it the objective rises."""
    data = task("knee")
    physics = CartesianMRI(data.masks[0])
    found = {}
    for safeguard in (True, False):
        model = UniversalLDA(sources=["knee"], safeguard=safeguard, **SMALL)
        with torch.no_grad():
            for parameter in model.steps.parameters():
                parameter.add_(3.0)
            _, trace = model(physics.A(data.images), physics, "knee", return_trace=True)
        rises = [step.phi > step.phi_before for step in trace.steps(0)]
        found[safeguard] = trace.accepted_fraction(), any(rises)
        assert trace.options.safeguard == safeguard
    assert found[False] == (1.0, True)
    assert found[True][0] < 1
    assert not found[True][1]


def test_impossible_options() -> None:
    with pytest.raises(UldaError, match="initialise is a fraction of the steps, from 0 to 1, but it is 100"):
        UniversalLDA(initialise=100)
    with pytest.raises(
        UldaError, match="adapt_only must be one of: kernels, mixing, adapter and steps, mixing, adapter"
    ):
        UniversalLDA(adapt_only="everything")  # type: ignore[arg-type]


def test_the_weights_of_added_kernels_learn_faster_where_there_are_many() -> None:
    model = UniversalLDA(sources=SOURCES, **SMALL)
    for name in ("hip", "weights"):  # whatever a domain is called
        model.add_domain(name)
    few, many = (model.settings_of_adaptation(Budget.of_batches(steps, 2)) for steps in (FEW_STEPS, FEW_STEPS + 1))
    for domain in ("hip", "weights"):
        factors = {
            part: rate_factor(f"mixings.{domain}.{part}.0.real", many) for part in ("layers", "kernels", "weights")
        }
        assert factors == {"layers": 1.0, "kernels": 1.0, "weights": 4.0}
        assert rate_factor(f"mixings.{domain}.weights.0.real", few) == 1.0
    assert "mixings.hip.weights.0.real" in weights(model)
    assert rate_factor("adapters.hip.layer.real", many) == many.adapter_rate == 0.001
    without = UniversalLDA(sources=SOURCES, adapt_only="mixing, adapter and steps", **SMALL)
    assert without.settings_of_adaptation(Budget.of_batches(FEW_STEPS + 1, 2)).added_rate == 1.0


@pytest.mark.parametrize("kind", [UniversalLDA, Untied])
@pytest.mark.parametrize(("batch_size", "factor"), [(1, 0.5), (2, 1.0), (4, 1.0)])
def test_a_step_with_one_slice_has_half_the_rate(
    monkeypatch: pytest.MonkeyPatch, kind: type[UniversalLDA], batch_size: int, factor: float
) -> None:
    model = kind(sources=SOURCES, **SMALL)
    seen: list[Settings] = []

    def keep(self: UniversalLDA, task: Task, settings: Settings, *rest: Any) -> Any:
        seen.append(settings)
        return real(self, task, settings, *rest)

    real = UniversalLDA.adapt_stages
    monkeypatch.setattr(UniversalLDA, "adapt_stages", keep)
    model.adapt(task("hip"), Budget.of_steps(2, 2 * batch_size))
    assert seen[0].learning_rate == factor * model.adaptation_defaults["learning_rate"]
    model.adapt(task("hip"), Budget.of_steps(2, 2 * batch_size), changes={"learning_rate": 0.01})
    assert seen[1].learning_rate == 0.01
