from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from ulda.data import demo
from ulda.errors import UldaError
from ulda.methods import ULDA
from ulda.methods.trainable import method_loss
from ulda.models.ulda import MEAN
from ulda.physics import cartesian_mask
from ulda.training.augmentation import artificial_masks
from ulda.training.equilibrium import Chains
from ulda.training.history import Progress
from ulda.training.loop import fit
from ulda.training.schedule import learning_rate, phases_at, rate_multiplier
from ulda.training.settings import Equilibrium, Settings, checked
from ulda.training.stages import adapt, initialise
from ulda.training.tasks import Batch, Task, draw, step_generator
from ulda.training.unrolled import unrolled_loss
from ulda.training.validation import validate

SMALL: dict[str, Any] = {"width": 3, "depth": 2, "phases": 3, "proposal": "accelerated", "steps_per_phase": 2}
PAPER: dict[str, Any] = {"width": 3, "depth": 2, "phases": 3}
QUICK = Settings(steps=6, batch_size=2, validate_every=3, checkpoint_every=2, penalty_weight=0.03)
CHAINED: dict[str, Any] = {"equilibrium": {"restart": 0.1, "chains": 2, "phases": 2, "rollout": 3}}


def task(name: str = "knee", n: int = 4) -> Task:
    images = torch.stack(list(demo("knee").take(range(4, 4 + n)).images()))[:, 32:80, 32:80]
    held_out = torch.stack(list(demo("knee").take([18]).images()))[:, 32:80, 32:80]
    masks = [cartesian_mask(48, ratio, seed=1) for ratio in (0.3, 0.4)]
    return Task(name, images, masks, held_out)


def trained(settings: Settings, folder: Path | None = None, sizes: dict[str, Any] | None = None) -> ULDA:
    torch.set_num_threads(1)
    model = ULDA(sources=["knee"], **(sizes or SMALL))
    model.fit([task()], settings, folder=folder)
    return model


def same(a: ULDA, b: ULDA) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("sizes", [SMALL, PAPER], ids=["accelerated", "gradient"])
@pytest.mark.parametrize(
    "changes", [{}, CHAINED, {"penalty_weight": 0.0}], ids=["unrolled", "equilibrium", "no penalty"]
)
def test_training_is_deterministic(sizes: dict[str, Any], changes: dict[str, Any]) -> None:
    settings = QUICK.changed(steps=3, validate_every=0, **changes)
    assert same(trained(settings, sizes=sizes), trained(settings, sizes=sizes))
    assert not same(trained(settings, sizes=sizes), trained(settings.changed(seed=1), sizes=sizes))


def test_training_improves_the_validation() -> None:
    model = ULDA(sources=["knee"], **SMALL)
    history = fit(model, [task()], QUICK.changed(steps=40, validate_every=1), method_loss)
    scores = [entry.validation["knee"]["psnr"] for entry in history if entry.validation]
    assert scores[-1] > scores[0] + 0.1


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
import torch
from tests.training.test_loop import QUICK, trained
changes = dict({changes!r}, steps=400, validate_every=7, checkpoint_every=3)
trained(QUICK.changed(**changes), Path({folder!r}))
"""


@pytest.mark.parametrize("changes", [{}, CHAINED], ids=["unrolled", "equilibrium"])
def test_a_killed_run_continues_bit_exactly(tmp_path: Path, changes: dict[str, object]) -> None:
    """The run is killed as soon as it has written a checkpoint; where exactly depends on the machine."""
    root = str(Path(__file__).parents[2])
    code = KILLED.format(root=root, folder=str(tmp_path), changes=changes)
    process = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"OMP_NUM_THREADS": "1"})
    checkpoint = tmp_path / "checkpoint.safetensors"
    deadline = time.monotonic() + 120
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert checkpoint.exists()
    settings = QUICK.changed(**changes, steps=400, validate_every=7, checkpoint_every=3)
    seen: list[int] = []
    resumed = ULDA(sources=["knee"], **SMALL)

    def stop(progress: Progress) -> None:
        seen.append(progress.step)
        if progress.step >= 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(resumed, [task()], settings, method_loss, folder=tmp_path, report=stop)
    whole = ULDA(sources=["knee"], **SMALL)
    with pytest.raises(KeyboardInterrupt):
        fit(whole, [task()], settings, method_loss, report=stop)
    assert 1 < seen[0] <= 30, "the run got too far before it was killed"
    assert same(resumed, whole)


def test_an_interrupted_run_is_saved(tmp_path: Path) -> None:
    model = ULDA(sources=["knee"], **SMALL)

    def stop(progress: Progress) -> None:
        if progress.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(model, [task()], QUICK, method_loss, folder=tmp_path, report=stop)
    again = ULDA(sources=["knee"], **SMALL)
    seen: list[int] = []
    fit(again, [task()], QUICK, method_loss, folder=tmp_path, report=lambda progress: seen.append(progress.step))
    assert seen == [4, 5, 6]
    assert same(again, trained(QUICK))
    assert (tmp_path / "log.csv").read_text().splitlines()[0] == "step,loss,learning_rate,knee_psnr,knee_ssim"


def test_a_loss_that_is_not_finite_names_step_batch_and_checkpoint(tmp_path: Path) -> None:
    model = ULDA(sources=["knee"], **SMALL)

    def poison(progress: Progress) -> None:
        if progress.step == 3:
            model.prior.extractor.layers[0].get_parameter("real").data.fill_(torch.nan)

    settings = QUICK.changed(penalty_weight=0.0)
    pattern = r"not finite .* at step 3 \(domain knee, slices \[\d, \d\]\); .*checkpoint\.safetensors, of step 2"
    with pytest.raises(UldaError, match=pattern):
        fit(model, [task()], settings, method_loss, folder=tmp_path, report=poison)


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    trained(QUICK, tmp_path)
    with pytest.raises(UldaError, match="other settings"):
        trained(QUICK.changed(steps=9), tmp_path)
    trained(QUICK, tmp_path)  # the same settings are not
    (tmp_path / "checkpoint.safetensors").write_bytes(b"nothing")
    with pytest.raises(UldaError, match="cannot be read"):
        trained(QUICK, tmp_path)


def test_mean_adapter_steps_train_what_a_new_domain_starts_from() -> None:
    model = ULDA(sources=["knee", "brain"], **SMALL)
    for parameter in model.parameters():
        parameter.data.add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    settings = QUICK.changed(mean_adapter=1.0)
    batch = draw([task()], settings, step_generator(settings, 0))
    assert batch.is_mean
    loss, x = unrolled_loss(model, task(), batch, settings, 0)
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        if ".knee." in name:
            torch.testing.assert_close(parameter.grad, model.get_parameter(name.replace("knee", "brain")).grad)
            assert bool((parameter.grad != 0).any()) or ".adapters." not in name
    model.add_domain("new")
    other, images = unrolled_loss(model, task("new"), batch, settings, 0)
    torch.testing.assert_close(images, x)
    torch.testing.assert_close(other, loss)
    torch.testing.assert_close(model.adapter(MEAN).layer.kernel(), model.adapter("new").layer.kernel())
    never = [draw([task()], QUICK, step_generator(QUICK, step)) for step in range(50)]
    assert not any(batch.is_mean for batch in never)


def test_chains_persist_once_all_phases_are_trained() -> None:
    settings = QUICK.changed(steps=9, phases=(1, 2, 3), equilibrium=Equilibrium(chains=2, restart=0.01).model_dump())
    chains, start = Chains(settings), torch.zeros(2, 48, 48)
    for step in range(9):
        chains.keep(Batch(0, (step,), 0), start + step, step)
    assert {number: batch.index for number, batch in chains.batches.items()} == {0: (8,), 1: (7,)}
    fresh = Batch(0, (0,), 0)
    assert chains.visit(fresh, 5, step_generator(settings, 5)) is fresh
    visited = chains.visit(fresh, 7, step_generator(settings, 7))
    assert visited.start is not None
    assert torch.equal(visited.start, start + 7)
    assert 0 <= visited.rollout <= 20
    again = Chains(settings)
    again.restore(chains.facts(), chains.iterates())
    assert all(torch.equal(again.batches[n].start, chains.batches[n].start) for n in (0, 1))  # type: ignore[arg-type]


def test_refused_proposals_cost_as_much_as_they_fail() -> None:
    model, one = ULDA(sources=["knee"], **SMALL), task()
    for name, parameter in model.named_parameters():
        if name.startswith("proposals."):
            parameter.data.add_(3.0)  # so long that proposals fail

    def loss(weight: float) -> float:
        found, _ = unrolled_loss(model, one, Batch(0, (0, 1), 0), QUICK.changed(penalty_weight=weight), 0)
        return float(found.detach())

    assert loss(1.0) > loss(0.0)
    assert loss(1.0) - loss(0.0) == pytest.approx(2 * (loss(0.5) - loss(0.0)), rel=1e-4)


@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("rank", [0, 2])
def test_adaptation_leaves_everything_else_bit_identical(augment: bool, rank: int) -> None:
    model = ULDA(sources=["brain", "prostate"], **SMALL | {"rank": rank})
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    training = model.adapt(task(), QUICK.changed(steps=9, augment=augment))
    assert training.history[-1].validation is not None
    assert training.spent.steps == 9
    for name, parameter in model.named_parameters():
        if ".knee." in name:
            assert name not in before
        else:
            assert torch.equal(parameter, before[name])
    start = ULDA(sources=["brain", "prostate"], **SMALL)
    start.add_domain("knee")
    learned = "prior.adapters.knee.layer.real"
    assert not torch.equal(model.get_parameter(learned), start.get_parameter(learned))
    assert any("updates.knee" in name for name, _ in model.named_parameters()) == bool(rank)


def test_the_best_validation_wins() -> None:
    model = ULDA(sources=["brain"], **SMALL)
    model.add_domain("knee")
    settings = QUICK.changed(steps=12, validate_every=1)
    history = adapt(model, task(), settings, method_loss, trainable=lambda name: model.is_adapted(name, "knee"))
    best = max(entry.validation["knee"]["psnr"] for entry in history if entry.validation)
    assert validate(model, [task()])["knee"]["psnr"] == pytest.approx(best, abs=1e-5)


def test_the_initialisation_is_the_average_of_the_sources() -> None:
    model = ULDA(sources=["a", "b"], **SMALL)
    adapters = [p.detach().clone() for p in model.prior.adapters.parameters()]
    tasks = [task("a"), task("b", n=2)]
    alone = []
    for one in tasks:
        single = ULDA(sources=["a", "b"], **SMALL)
        initialise(single, [one], QUICK, method_loss)
        alone.append(single.prior.extractor)
    initialise(model, tasks, QUICK, method_loss)
    for name, parameter in model.prior.extractor.named_parameters():
        mean = (alone[0].get_parameter(name) + alone[1].get_parameter(name)) / 2
        assert torch.allclose(parameter, mean, atol=1e-7)
    assert all(torch.equal(p, q) for p, q in zip(adapters, model.prior.adapters.parameters(), strict=True))


def test_the_schedules() -> None:
    settings = Settings(steps=101, learning_rate=1.0, phases=(3, 5, 7))
    rates = [learning_rate(settings, step) for step in range(101)]
    assert max(rates) == pytest.approx(1.0)
    assert rates.index(max(rates)) == 10
    assert rates[0] == pytest.approx(0.04)
    assert rates[-1] == pytest.approx(0.01)
    assert [phases_at(7, settings, step) for step in (0, 33, 34, 67, 68, 100)] == [3, 3, 5, 5, 7, 7]
    assert [phases_at(15, Settings(steps=3), step) for step in range(3)] == [15, 15, 15]
    decayed = settings.changed(stage_decay=0.5)
    assert [learning_rate(decayed, step) for step in (10, 33, 34, 68, 100)] == [1.0, 1.0, 0.5, 0.25, 0.25]
    names = (
        "prior.adapters.knee.layer.real",
        "proposals.knee.log_alpha",
        "nets.a.proposals.a.log_beta",
        "prior.extractor",
    )
    assert [rate_multiplier(name, settings) for name in names] == [0.003, 5.0, 5.0, 1.0]


def test_artificial_masks_share_the_centre_and_nothing_else() -> None:
    mask = cartesian_mask(128, 0.25, center=0.06, seed=4)
    first, second = (torch.tensor(m.sampled) for m in artificial_masks(mask))
    assert int(first.sum()) == int(second.sum()) == mask.n_sampled // 2
    assert not (first & ~mask.lines).any()
    assert not (second & ~mask.lines).any()
    shared = torch.nonzero(first & second).flatten()
    assert len(shared) == round(0.75 * mask.n_center)
    assert int((shared - 64).abs().max()) <= mask.n_center // 2 + 1
    assert artificial_masks(mask, 1) == artificial_masks(mask, 1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learning_rat": 1.0}, "did you mean 'learning_rate'"),
        ({"zzz": 1}, "the settings are steps"),
        ({"steps": 0}, "steps is wrong"),
        ({"equilibrium": {"chain": 3}}, "did you mean 'chains'"),
        ({"phases": [0]}, "at least 1"),
    ],
)
def test_wrong_settings_are_clear_errors(values: dict[str, object], message: str) -> None:
    with pytest.raises(UldaError, match=message):
        checked(Settings, values)
