from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ulda.data import demo
from ulda.errors import UldaError
from ulda.physics import cartesian_mask
from ulda.training import ULDA, Architecture, loop
from ulda.training.augmentation import artificial_masks
from ulda.training.history import Progress, last_validation
from ulda.training.loop import Batch, Task, draw, fit, learning_rate, phases_at, rate_factor, step_loss, validate
from ulda.training.network import WITHOUT_GAINS
from ulda.training.settings import Settings, read_settings
from ulda.training.stages import adapt, initialise

SMALL = Architecture(width=3, depth=2, phases=3, **WITHOUT_GAINS)
QUICK = Settings(steps=6, batch_size=2, validate_every=3, checkpoint_every=2)
CHAINED = {
    "lower_level": "equilibrium",
    "chains_after": 0.0,
    "restart": 0.1,
    "chains": 2,
    "continued_phases": 2,
    "longest_rollout": 3,
}


def task(name: str = "knee", n: int = 4) -> Task:
    images = torch.stack(list(demo("knee").take(range(4, 4 + n)).images()))[:, 32:80, 32:80]
    held_out = torch.stack(list(demo("knee").take([18]).images()))[:, 32:80, 32:80]
    masks = [cartesian_mask(48, ratio, seed=1) for ratio in (0.3, 0.4)]
    return Task(name, images, masks, held_out)


def trained(settings: Settings, folder: Path | None = None) -> ULDA:
    torch.set_num_threads(1)
    model = ULDA(SMALL, ["knee"])
    fit(model, [task()], settings, folder=folder)
    return model


def same(a: ULDA, b: ULDA) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("lower_level", ["unrolled", "equilibrium"])
@pytest.mark.parametrize("descent", ["acceptance", "penalty", "none"])
def test_training_is_deterministic(lower_level: str, descent: str) -> None:
    chained = CHAINED | {"chains": 1} if lower_level == "equilibrium" else {}
    settings = read_settings({"steps": 3, "batch_size": 2, "descent": descent} | chained)
    assert same(trained(settings), trained(settings))
    assert not same(trained(settings), trained(settings.model_copy(update={"seed": 1})))


def test_training_improves_the_validation() -> None:
    model = ULDA(SMALL, ["knee"])
    history = fit(model, [task()], QUICK.model_copy(update={"steps": 40, "validate_every": 1}))
    scores = [entry.validation["knee"]["psnr"] for entry in history if entry.validation]
    assert scores[-1] > scores[0] + 0.1


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
import torch
from tests.training.test_loop import QUICK, trained
changes = dict({changes!r}, steps=400, validate_every=7, checkpoint_every=3)
trained(QUICK.model_copy(update=changes), Path({folder!r}))
"""


@pytest.mark.parametrize("changes", [{}, CHAINED, {"mean_after": 0.0}], ids=["unrolled", "equilibrium", "mean"])
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
    settings = QUICK.model_copy(update={**changes, "steps": 400, "validate_every": 7, "checkpoint_every": 3})
    seen: list[int] = []
    resumed = ULDA(SMALL, ["knee"])

    def stop(progress: Progress) -> None:
        seen.append(progress.step)
        if progress.step >= 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(resumed, [task()], settings, folder=tmp_path, report=stop)
    whole = ULDA(SMALL, ["knee"])
    with pytest.raises(KeyboardInterrupt):
        fit(whole, [task()], settings, report=stop)
    assert 1 < seen[0] <= 30, "the run got too far before it was killed"
    assert same(resumed, whole)


def test_an_interrupted_run_is_saved(tmp_path: Path) -> None:
    model = ULDA(SMALL, ["knee"])

    def stop(progress: Progress) -> None:
        if progress.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(model, [task()], QUICK, folder=tmp_path, report=stop)
    again = ULDA(SMALL, ["knee"])
    seen: list[int] = []
    fit(again, [task()], QUICK, folder=tmp_path, report=lambda progress: seen.append(progress.step))
    assert seen == [4, 5, 6]
    assert same(again, trained(QUICK))
    assert (tmp_path / "log.csv").read_text().splitlines()[0] == "step,loss,learning_rate,knee_psnr,knee_ssim"


def test_a_loss_that_is_not_finite_names_step_batch_and_checkpoint(tmp_path: Path) -> None:
    model = ULDA(SMALL, ["knee"])

    def poison(progress: Progress) -> None:
        if progress.step == 3:
            model.extractor.layers[0].get_parameter("real").data.fill_(torch.nan)

    settings = QUICK.model_copy(update={"descent": "none"})
    pattern = r"not finite .* at step 3 \(domain knee, slices \[\d, \d\]\); .*checkpoint\.safetensors, of step 2"
    with pytest.raises(UldaError, match=pattern):
        fit(model, [task()], settings, folder=tmp_path, report=poison)


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    trained(QUICK, tmp_path)
    with pytest.raises(UldaError, match="other settings"):
        trained(QUICK.model_copy(update={"steps": 9}), tmp_path)
    trained(QUICK, tmp_path)  # the same settings are not
    (tmp_path / "checkpoint.safetensors").write_bytes(b"nothing")
    with pytest.raises(UldaError, match="cannot be read"):
        trained(QUICK, tmp_path)


def test_a_checkpoint_from_before_a_setting_existed_goes_on(tmp_path: Path) -> None:
    trained(QUICK, tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    with safe_open(path, framework="pt") as file:
        facts = json.loads(file.metadata()["facts"])
    del facts["settings"]["fresh"]
    save_file(load_file(path), path, metadata={"facts": json.dumps(facts)})
    assert same(trained(QUICK, tmp_path), trained(QUICK))


def test_the_mean_of_the_parameters() -> None:
    own: list[dict[str, torch.Tensor]] = []
    model = ULDA(SMALL, ["knee"])

    def keep(_: Progress) -> None:
        own.append({name: p.detach().clone() for name, p in model.named_parameters()})

    settings = QUICK.model_copy(update={"mean_after": 0.5, "validate_every": 6})
    history = fit(model, [task()], settings, report=keep)
    # the steps themselves are those of a training without a mean
    last = dict(trained(QUICK.model_copy(update={"validate_every": 6})).named_parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(own[-1][name], last[name])
        mean = torch.stack([state[name] for state in own[3:]]).mean(0)
        torch.testing.assert_close(parameter.detach(), mean)
        assert not torch.equal(parameter, last[name])
    assert history[-1].validation == validate(model, [task()])


def test_common_steps_train_what_a_new_domain_starts_from() -> None:
    model = ULDA(SMALL, ["knee", "brain"])
    for parameter in model.parameters():
        parameter.data.add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    settings = QUICK.model_copy(update={"common": 1.0, "phases": ()})
    batch = draw([task()], settings, 0, {})
    assert batch.is_common
    loss, x = step_loss(model, task(), batch, settings, 0)
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        if ".knee." in name:
            torch.testing.assert_close(parameter.grad, model.get_parameter(name.replace("knee", "brain")).grad)
            assert bool((parameter.grad != 0).any()) or not name.startswith("adapters.")
    model.add_domain("new")
    other, images = step_loss(model, task("new"), batch, settings, 0)
    torch.testing.assert_close(images, x)
    torch.testing.assert_close(other, loss)
    never = QUICK.model_copy(update={"common": 0.0})
    assert not any(draw([task()], never, step, {}).is_common for step in range(50))


def test_fresh_steps_leave_the_kept_batches_alone(tmp_path: Path) -> None:
    settings = read_settings(CHAINED | {"chains": 1, "fresh": 0.5, "restart": 0.2, "steps": 200})
    kept = {0: Batch(0, (0,), 0, torch.zeros(1, 48, 48))}
    drawn = [draw([task()], settings, step, kept) for step in range(200)]
    fresh = [batch for batch in drawn if not batch.is_kept]
    restarted = [batch for batch in drawn if batch.is_kept and batch.start is None]
    assert all(batch.start is None and batch.rollout == 0 for batch in fresh)
    assert 70 < len(fresh) < 130
    never = settings.model_copy(update={"fresh_of": {"knee": 0.0}})
    assert all(draw([task()], never, step, kept).is_kept for step in range(50))
    assert any(not draw([task("hip")], never, step, kept).is_kept for step in range(50))
    assert 5 < len(restarted) < 40
    # the kept batch is the same before and after a fresh step
    checkpoints = []
    for steps in (1, 2):
        always_fresh = settings.model_copy(update={"fresh": 0.999, "checkpoint_every": 1, "steps": steps})
        trained(always_fresh, tmp_path / str(steps))
        checkpoints.append(load_file(tmp_path / str(steps) / "checkpoint.safetensors"))
    chains = [{n: t for n, t in tensors.items() if n.startswith("extra/chain/")} for tensors in checkpoints]
    assert len(chains[0]) == 1
    assert torch.equal(*(next(iter(chain.values())) for chain in chains))


def test_failing_proposals_cost_nothing_in_kept_batches_if_so_wanted() -> None:
    model, one = ULDA(SMALL, ["knee"]), task()
    for name, parameter in model.named_parameters():
        if name.startswith("steps."):
            parameter.data.add_(3.0)  # so long that proposals fail

    def penalty(batch: Batch, **changes: object) -> float:
        settings = [read_settings(CHAINED | changes | {"penalty_weight": weight}) for weight in (0.0, 1.0)]
        without, with_it = (float(step_loss(model, one, batch, chosen, 0)[0].detach()) for chosen in settings)
        return with_it - without

    new, kept = Batch(0, (0, 1), 0), Batch(0, (0, 1), 0, one.images[:2])
    assert penalty(new) == penalty(new, penalise_kept=False) > 0
    assert penalty(kept) > 0
    assert penalty(kept, penalise_kept=False) == 0


def test_adaptation_leaves_everything_else_bit_identical() -> None:
    model = ULDA(SMALL, ["brain", "prostate"])
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    history = adapt(model, task(), QUICK.model_copy(update={"steps": 9}))
    assert history[-1].validation is not None
    for name, parameter in model.named_parameters():
        if "knee" in name:
            assert name not in before
        else:
            assert torch.equal(parameter, before[name])
    start = ULDA(SMALL, ["brain", "prostate"])
    start.add_domain("knee")
    assert not torch.equal(
        model.get_parameter("adapters.knee.layer.real"), start.get_parameter("adapters.knee.layer.real")
    )


def test_gains_learn_as_fast_as_step_sizes() -> None:
    model = ULDA(Architecture(width=3, depth=2, phases=1), ["knee"])
    settings = QUICK.model_copy(update={"steps": 2, "phases": ()})
    fit(model, [task()], settings)
    for name in ("log_lines", "log_channels"):
        gains = model.steps["knee"].get_parameter(name)
        assert (gains != 0).double().mean() > 0.9
        assert rate_factor(f"steps.knee.{name}", settings) == settings.step_size_rate


def test_the_best_validation_wins() -> None:
    model = ULDA(SMALL, ["brain"])
    history = adapt(model, task(), QUICK.model_copy(update={"steps": 12, "validate_every": 1}), augment=False)
    best = max(entry.validation["knee"]["psnr"] for entry in history if entry.validation)
    assert validate(model, [task()])["knee"]["psnr"] == pytest.approx(best, abs=1e-5)


def test_a_training_may_end_with_its_best_validation(tmp_path: Path) -> None:
    settings = QUICK.model_copy(update={"steps": 8, "validate_every": 2, "learning_rate": 0.3, "keep_best": True})
    model = ULDA(SMALL, ["knee"])
    start = validate(model, [task()])["knee"]["psnr"]
    history = fit(model, [task()], settings, folder=tmp_path)
    scores = [row.validation["knee"]["psnr"] for row in history if row.validation]
    assert scores[0] == pytest.approx(start)
    assert max(scores) > scores[-1] + 0.01, "so fast a rate must lose in the end"
    assert validate(model, [task()])["knee"]["psnr"] == pytest.approx(max(scores), abs=1e-5)
    assert same(trained(settings, tmp_path), model), "also from the last checkpoint"


@pytest.mark.parametrize("augment", [False, True])
def test_an_adaptation_looks_back_at_shares_of_its_way(tmp_path: Path, augment: bool) -> None:
    torch.set_num_threads(1)
    base = ULDA(replace(SMALL, steps_per_phase=1), ["brain"])
    base.add_domain("knee")
    shares = (0.25, 0.75)
    # nothing is validated on the way
    changes = {"steps": 9, "validate_every": 0, "learning_rate": 0.2, "phases": (), "shares": shares}
    settings = QUICK.model_copy(update=changes)

    def adapted() -> tuple[ULDA, Progress]:
        model = copy.deepcopy(base)
        history = adapt(model, task(), settings, augment=augment, folder=tmp_path)
        return model, history[-1]

    found, row = adapted()
    last = max(tmp_path.glob("stage-*/checkpoint.safetensors"))
    end = {name.removeprefix("parameter/"): value for name, value in load_file(last).items()}
    candidates = {}
    for share in (0.0, *shares, 1.0):
        candidates[share] = copy.deepcopy(base)
        for name, parameter in candidates[share].named_parameters():
            parameter.data.lerp_(end[name], share)
    scores = {share: validate(model, [task()])["knee"]["psnr"] for share, model in candidates.items()}
    assert row.share == max(scores, key=lambda share: scores[share]) > 0
    assert row.validation is not None
    assert row.validation["knee"]["psnr"] == pytest.approx(scores[row.share], abs=1e-5)
    for name, parameter in found.named_parameters():
        torch.testing.assert_close(parameter, candidates[row.share].get_parameter(name))
    again, _ = adapted()  # from its last checkpoint
    assert same(again, found)
    log = (last.parent / "log.csv").read_text().splitlines()
    assert log[0].endswith(",share")
    assert log[-1].endswith(f",{row.share}")


@pytest.mark.parametrize(
    ("scores", "share", "best"),
    [
        # the start, three times on the way, the end; then the start again, the end, and the two shares
        ([20.0, 26.0, 25.0, 24.0, 19.0, 20.0, 19.0, 22.0, 21.0], 0.25, 22.0),
        ([20.0, 26.0, 25.0, 24.0, 23.0, 20.0, 23.0, 22.0, 21.0], 1.0, 23.0),
        ([20.0, 26.0, 25.0, 24.0, 19.0, 20.0, 19.0, 18.0, 17.0], 0.0, 20.0),
    ],
)
def test_a_lucky_validation_on_the_way_does_not_win(
    monkeypatch: pytest.MonkeyPatch, scores: list[float], share: float, best: float
) -> None:
    torch.set_num_threads(1)
    model = ULDA(SMALL, ["brain"])
    model.add_domain("knee")
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    left, seen = iter(scores), list[dict[str, torch.Tensor]]()

    def scripted(found: ULDA, _: object) -> loop.ScoresOf:
        seen.append({name: parameter.detach().clone() for name, parameter in found.named_parameters()})
        return {"knee": {"psnr": torch.tensor([next(left)]), "ssim": torch.tensor([0.5])}}

    monkeypatch.setattr(loop, "scores_of", scripted)
    changes = {"steps": 4, "validate_every": 1, "phases": (), "shares": (0.25, 0.75)}
    history = adapt(model, task(), QUICK.model_copy(update=changes), augment=False)
    assert not list(left)
    winner = last_validation(history, is_best=True)
    assert winner is not None
    assert winner.validation == {"knee": {"psnr": best, "ssim": 0.5}}
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, start[name].lerp(seen[4][name], share))


def test_proposals_are_tested_after_a_part_of_the_steps() -> None:
    model = ULDA(SMALL, ["knee"])
    with torch.no_grad():  # steps far too long: no proposal descends
        for name, parameter in model.named_parameters():
            if "log_kappa" in name or "log_beta" in name:
                parameter.fill_(9.0)
    settings = QUICK.model_copy(update={"accept_after": 0.5, "phases": (), "common": 0.0})
    batch = draw([task()], settings, 0, {})

    def images(step: int, **changes: object) -> torch.Tensor:
        return step_loss(model, task(), batch, settings.model_copy(update=changes), step)[1]

    taken, tested = images(0, descent="penalty"), images(0, accept_after=0.0)
    assert not torch.allclose(taken, tested)
    assert torch.equal(images(2), taken)
    assert torch.equal(images(3), tested)
    # what persists is tested: the solver must reach it, too
    assert torch.equal(images(1, lower_level="equilibrium", chains_after=0.2), taken)
    assert torch.equal(images(2, lower_level="equilibrium", chains_after=0.2), tested)


def test_the_initialisation_is_the_average_of_the_sources() -> None:
    model = ULDA(SMALL, ["a", "b"])
    adapters = [p.detach().clone() for p in model.adapters.parameters()]
    tasks = [task("a"), task("b", n=2)]
    alone = []
    for one in tasks:
        single = ULDA(SMALL, ["a", "b"])
        initialise(single, [one], QUICK)
        alone.append(single.extractor)
    initialise(model, tasks, QUICK)
    for name, parameter in model.extractor.named_parameters():
        mean = (alone[0].get_parameter(name) + alone[1].get_parameter(name)) / 2
        assert torch.allclose(parameter, mean, atol=1e-7)
    assert all(torch.equal(p, q) for p, q in zip(adapters, model.adapters.parameters(), strict=True))


def test_many_slices_have_a_rate_of_the_adapter_of_their_own() -> None:
    rates = {"adapter_rate": 0.001, "adapter_rate_of_many": 0.003}
    many, few = (trained(Settings(steps=2, warped_slices=n, **rates)) for n in (3, 4))  # of four slices
    fast, slow = (trained(Settings(steps=2, adapter_rate=rate)) for rate in (0.003, 0.001))
    assert same(many, fast)
    assert same(few, slow)
    assert not same(fast, slow)


def test_the_schedules() -> None:
    settings = Settings(steps=101, learning_rate=1.0, warm_up=0.2, phases=(3, 5, 7))
    rates = [learning_rate(settings, step) for step in range(101)]
    assert max(rates) == pytest.approx(1.0)
    assert rates.index(max(rates)) == 20
    assert rates[0] == pytest.approx(0.04)
    assert rates[-1] == pytest.approx(0.01)
    model = ULDA(SMALL)
    assert [phases_at(model, settings, step) for step in (0, 33, 34, 67, 68, 100)] == [3, 3, 5, 5, 7, 7]
    model = ULDA(Architecture(width=1, phases=15))
    assert [phases_at(model, Settings(steps=3), step) for step in range(3)] == [7, 11, 15]
    assert [phases_at(model, Settings(steps=3, phases=()), step) for step in range(3)] == [15, 15, 15]


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
        ({"descent": "maybe"}, "descent is wrong"),
        ({"phases": [0]}, "at least 1"),
    ],
)
def test_wrong_settings_are_clear_errors(values: dict[str, object], message: str) -> None:
    with pytest.raises(UldaError, match=message):
        read_settings(values)
