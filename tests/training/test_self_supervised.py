"""Learning without references: which lines judge, which are held out, and what comes of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.training.small_domains import write_domain
from ulda.data import Domain, DomainWriter, Header, Record, import_domain
from ulda.errors import UldaError
from ulda.methods import ULDA, DnCn, new_method
from ulda.methods.adaptation import Adaptation, adapt
from ulda.methods.lda import LDA
from ulda.methods.trainable import TrainableMethod, method_loss
from ulda.methods.unet import UNet
from ulda.metrics import psnr
from ulda.physics import ACQUISITIONS, CartesianMRI, Mask, MultiCoilMRI, Physics, cartesian_mask, fft2c, random_mask
from ulda.physics.acquisition import loop_maps, normalised
from ulda.training.history import Progress
from ulda.training.loop import fit
from ulda.training.self_supervised import (
    HELD_OUT,
    JUDGING,
    SCORE,
    UndersampledSlice,
    UndersampledTask,
    lines_with_signal,
    outer_lines,
    split_lines,
    undersampled_task,
)
from ulda.training.settings import Settings
from ulda.training.slices import normalised_images
from ulda.training.tasks import Batch, Gain
from ulda.training.unrolled import unrolled_loss

SMALL: dict[str, Any] = {"width": 3, "depth": 2, "phases": 2, "rank": 2}
QUICK = Settings(
    steps=6,
    batch_size=2,
    validate_every=2,
    checkpoint_every=2,
    learning_rate=5e-3,
    adapter_multiplier=0.1,
    penalty_weight=0.03,
)
OTHERS: dict[str, dict[str, Any]] = {
    "lda": {"width": 3, "depth": 2, "phases": 2},
    "meta": {"width": 3, "depth": 2, "phases": 2},
    "umri": {"filters": 4, "layers": 2, "cascades": 2},
    "humus": {},
}
SIDE = 32
IDEAL = ACQUISITIONS["ideal"]


def centred_fft(images: NDArray[np.complex64]) -> NDArray[np.complex128]:
    shifted = np.fft.ifftshift(images, axes=(-2, -1))
    return np.fft.fftshift(np.fft.fft2(shifted, norm="ortho"), axes=(-2, -1))


@pytest.fixture(scope="module")
def knee(tmp_path_factory: pytest.TempPathFactory) -> Domain:
    folder = tmp_path_factory.mktemp("knee")
    import_domain([write_domain(folder / "knee.npz")], folder / "knee.h5")
    return Domain.open(folder / "knee.h5")


def masks_of(n: int) -> list[Mask]:
    """Return a mask of its own for every slice."""
    return [random_mask(SIDE, 2.5, center=0.125, seed=number) for number in range(n)]


def write_scan(path: Path, images: Tensor, masks: list[Mask], n_coils: int = 1, axis: int = -1) -> Domain:
    """Write what a scanner delivers: undersampled k-space, of one coil or several, in any scale."""
    kspace = images
    if n_coils > 1:
        maps = normalised(loop_maps(n_coils, (SIDE, SIDE), torch.Generator().manual_seed(1))[None])
        kspace = images[:, None] * maps
    kspace = 7.5 * fft2c(kspace)
    with DomainWriter(path, Header("scan", "kspace", "measured", phase_axis=axis)) as writer:
        for number, (one, mask) in enumerate(zip(kspace, masks, strict=True)):
            lines = mask.lines[:, None] if axis == -2 else mask.lines
            writer.append(Record((one * lines).numpy(), f"s{number % 3}", lines=mask.lines.numpy()))
    return Domain.open(path)


@pytest.fixture(scope="module")
def images(knee: Domain) -> Tensor:
    return normalised_images(knee.select(split="train"))[:6]


@pytest.fixture(scope="module")
def scan(images: Tensor, tmp_path_factory: pytest.TempPathFactory) -> Domain:
    return write_scan(tmp_path_factory.mktemp("scan") / "scan.h5", images, masks_of(len(images)))


def task_of(domain: Domain, seed: int = 0) -> UndersampledTask:
    return undersampled_task("scan", domain, random_mask(SIDE, 2.5, center=0.125), IDEAL, seed)


def base(**sizes: Any) -> ULDA:
    return ULDA(sources=["brain", "prostate"], **SMALL | sizes)


def same(a: nn.Module, b: nn.Module) -> bool:
    first, second = dict(a.named_parameters()), dict(b.named_parameters())
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@given(
    n_lines=st.integers(24, 200), ratio=st.floats(0.3, 0.9), center=st.floats(0.04, 0.2), seed=st.integers(0, 1 << 31)
)
def test_a_split_never_overlaps_and_keeps_the_calibration_lines(
    n_lines: int, ratio: float, center: float, seed: int
) -> None:
    mask = cartesian_mask(n_lines, ratio, center, seed % 1000)
    outer = outer_lines(mask)
    assume(len(outer) >= 2)
    rest, part = split_lines(mask, outer, JUDGING, seed)
    taken, kept = np.array(part.sampled), np.array(rest.sampled)
    assert not (taken & kept).any()
    assert ((taken | kept) == np.array(mask.sampled)).all()
    assert rest.n_center == mask.n_center
    assert part.n_sampled == max(1, round(0.35 * len(outer)))
    assert len(outer) == mask.n_sampled - mask.n_center
    assert split_lines(mask, outer, JUDGING, seed) == (rest, part)


def test_the_lines_of_a_step_are_new_and_those_held_out_are_not_among_them(scan: Domain) -> None:
    task = task_of(scan)
    draws: dict[int, set[tuple[bool, ...]]] = {}
    judged: dict[int, set[int]] = {}
    for seed in range(60):
        for part in task.parts(Batch(0, (1, 4), 0, seed=100 * seed)):
            (number,) = part.index
            one = task.slices[number]
            y, physics, judge = task.measure(part)
            seen, judging, held_out = (
                set(np.flatnonzero(m.sampled).tolist()) for m in (physics.mask, judge.physics.mask, one.held_out)
            )
            assert not seen & judging
            assert not (seen | judging) & held_out
            assert seen | judging | held_out == set(np.flatnonzero(one.physics.mask.sampled))
            # and what is not seen is not in the measurements either
            assert set(np.flatnonzero(y.abs().amax((0, 1)))) == seen
            assert set(np.flatnonzero(judge.y.abs().amax((0, 1)))) == judging
            draws.setdefault(number, set()).add(physics.mask.sampled)
            judged.setdefault(number, set()).update(judging)
    assert all(len(found) >= 3 for found in draws.values())
    # every visible line outside the centre judges at some time
    assert all(found == set(task.slices[number].judges) for number, found in judged.items())
    n_outer = [len(outer_lines(one.physics.mask)) for one in task.slices]
    assert [one.held_out.n_sampled for one in task.slices] == [max(1, round(HELD_OUT * n)) for n in n_outer]
    assert len({one.held_out for one in task.slices}) > 1


def test_two_slices_of_one_step_are_split_apart_even_if_they_are_the_same(scan: Domain) -> None:
    task = task_of(scan)
    first, second = (task.measure(part)[1].mask for part in task.parts(Batch(0, (2, 2), 0, seed=5)))
    assert first != second


def test_the_loss_is_the_relative_error_of_the_judging_lines(scan: Domain) -> None:
    """By NumPy, for U-LDA and for a network without a lower level, in a step with slices of different masks."""
    task, batch, settings = task_of(scan), Batch(0, (0, 3), 0, seed=11), Settings()
    for model in (ULDA(sources=["scan"], **SMALL), DnCn(filters=4, layers=2, cascades=2)):
        expected = []
        for position, number in enumerate(batch.index):
            one = task.slices[number]
            kept, judging = split_lines(one.visible, one.judges, 0.35, 11 + position)
            sampled = scan.kspace(number).numpy()
            physics = CartesianMRI(kept, -1)
            with torch.no_grad():
                x = model(torch.from_numpy(sampled * np.array(kept.sampled))[None], physics, "scan")[0].numpy()
            lines = np.array(judging.sampled)
            error = np.abs((centred_fft(x) - sampled)[:, lines]) ** 2
            expected.append(error.sum() / (np.abs(sampled[:, lines]) ** 2).sum())
        loss, x = method_loss(model, task, batch, settings, 0)
        assert loss.item() == pytest.approx(np.mean(expected), rel=1e-4)
        assert x.shape == (2, SIDE, SIDE)


def test_a_penalty_is_added_as_with_references(scan: Domain) -> None:
    model, task = ULDA(sources=["scan"], **SMALL), task_of(scan)
    with torch.no_grad():
        for parameter in model.proposal("scan").parameters():
            parameter.add_(1.5)  # steps too long to descend
    part = task.parts(Batch(0, (1,), 0, seed=3))[0]
    plain, weighed, twice = (
        unrolled_loss(model, task, part, Settings(penalty_weight=weight), 0)[0].item() for weight in (0.0, 0.1, 0.2)
    )
    assert weighed > plain
    assert twice - plain == pytest.approx(2 * (weighed - plain), rel=1e-3)


def test_the_score_is_that_of_the_held_out_lines(scan: Domain) -> None:
    task = task_of(scan)

    def zero_filled(y: Tensor, physics: Physics, domain: str) -> Tensor:  # noqa: ARG001
        return 0.5 * physics.A_adjoint(y)

    # zero-filling predicts nothing: 0 dB; half of the truth leaves a quarter of the energy: 6.02 dB
    torch.testing.assert_close(task.slice_scores(zero_filled), torch.zeros(6, dtype=torch.float64), atol=1e-5, rtol=0)

    def half(y: Tensor, physics: Physics, domain: str) -> Tensor:  # noqa: ARG001
        sampled = next(one for one in task.slices if one.visible == physics.mask)
        return 0.5 * sampled.physics.A_adjoint(sampled.y)

    assert task.scores(half) == {SCORE: pytest.approx(-10 * math.log10(0.25), abs=1e-4)}


def changed_where(task: UndersampledTask, which: str) -> UndersampledTask:
    """Return a task with other values in some lines of every slice."""

    def change(one: UndersampledSlice) -> UndersampledSlice:
        lines = getattr(one, which).lines
        return replace(one, y=torch.where(lines, 3j - 2 * one.y, one.y))

    return replace(task, slices=tuple(change(one) for one in task.slices))


def test_held_out_lines_have_no_influence_on_the_training(scan: Domain) -> None:
    """Bit-identical parameters after steps; other lines do have an influence."""
    task = task_of(scan)
    found = []
    for one in (task, changed_where(task, "held_out"), changed_where(task, "visible")):
        model = base()
        model.add_domain("scan")
        history = fit(model, [one], QUICK, method_loss, trainable=lambda name: ".scan." in name)
        found.append((model, [row.loss for row in history], history[-1].validation))
    (plain, losses, score), (other, other_losses, other_score), (different, _, _) = found
    assert same(plain, other)
    assert losses == other_losses
    assert score != other_score
    assert not same(plain, different)
    start = base()
    start.add_domain("scan")
    assert not same(plain, start)


def test_lda_chooses_its_nearest_source_without_the_held_out_lines(scan: Domain) -> None:
    task = task_of(scan)
    few = task.compared(3)
    assert few.n_slices == 3
    for one, whole in zip(few.slices, task.slices[::2], strict=True):
        assert one.physics.mask == whole.visible
        assert not np.any(np.array(one.physics.mask.sampled) & np.array(whole.held_out.sampled))
    model = LDA(sources=["brain", "prostate"], **OTHERS["lda"])
    assert model.nearest_source(task) == model.nearest_source(changed_where(task, "held_out"))


def test_lines_that_are_not_sampled_are_not_looked_at(tmp_path: Path, images: Tensor) -> None:
    """As a test on fully sampled data: other values outside the mask give the same task."""
    mask, everything = random_mask(SIDE, 2.5, center=0.125), [cartesian_mask(SIDE, 1.0)] * len(images)
    for n_coils in (1, 4):
        full = write_scan(tmp_path / f"full{n_coils}.h5", images, everything, n_coils)
        assert not full.undersampled
        only = write_scan(tmp_path / f"only{n_coils}.h5", images, [mask] * len(images), n_coils)
        assert only.undersampled
        first, second = (undersampled_task("scan", domain, mask, IDEAL) for domain in (full, only))
        for (name, a), (_, b) in zip(first.tensors(), second.tensors(), strict=True):
            # the import scales slices by their peak, which nothing depends on
            a, b = (one.to(torch.complex64) for one in (a, b))
            torch.testing.assert_close(a / a.abs().max(), b / b.abs().max(), msg=name)


def test_simulated_slices_keep_their_phase_noise_and_coils(knee: Domain) -> None:
    mask = random_mask(SIDE, 2.5, center=0.125)
    task = undersampled_task("k", knee.take(range(8)), mask, ACQUISITIONS["scanner"], seed=3)
    assert {type(one.physics) for one in task.slices} == {CartesianMRI, MultiCoilMRI}
    assert all(one.physics.noise is None for one in task.slices)
    again = undersampled_task("k", knee.take(range(8)), mask, ACQUISITIONS["scanner"], seed=3)
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(task.tensors(), again.tensors(), strict=True))
    adapted = adapt(base(), knee, slices=4, mask=mask, self_supervised=True, settings=QUICK)
    assert adapted.facts["acquisition"] == "scanner"


def test_zero_padding_does_not_judge() -> None:
    mask = Mask(tuple(i in (0, 1, 4, 9, 10, 11, 12, 15, 17, 19) for i in range(20)))
    y = torch.ones(1, 6, 20, dtype=torch.complex64)
    y[..., :2] = y[..., 18:] = 0
    assert outer_lines(mask) == [0, 1, 4, 12, 15, 17, 19]
    assert lines_with_signal(y, CartesianMRI(mask, -1)) == [4, 12, 15, 17]


@pytest.mark.parametrize("n_coils", [1, 4])
def test_undersampled_kspace_is_adapted_to(images: Tensor, tmp_path: Path, n_coils: int) -> None:
    axis = -2 if n_coils > 1 else -1
    domain = write_scan(tmp_path / "scan.h5", images, masks_of(len(images)), n_coils, axis)
    result = adapt(base(), domain, self_supervised=True, settings=QUICK)
    assert isinstance(result, Adaptation)
    facts = result.facts
    lines = facts["self_supervised"]["lines_per_slice"]
    assert (lines["all"], lines["sampled"]) == (
        SIDE,
        np.mean([mask.n_sampled for mask in masks_of(len(images))]).round(2),
    )
    assert facts["kspace"] == ("measured, 4 coils" if n_coils > 1 else "measured, single-coil")
    assert "mask" not in facts  # there are several
    assert facts["validation"]["n_slices"] == 6
    assert "psnr" not in json.dumps(facts["validation"])
    assert result.gain == facts["validation"]["adapted"][SCORE] - facts["validation"]["unadapted"][SCORE] >= 0
    assert "not a PSNR" in result.sentence()
    json.dumps(facts, allow_nan=False)
    if n_coils > 1:
        task = task_of(domain)
        assert all(one.y.shape == (1, 4, SIDE, SIDE) and isinstance(one.physics, MultiCoilMRI) for one in task.slices)


@pytest.mark.parametrize("name", ["lda", "meta", "umri", "humus"])
def test_other_methods_learn_so_too(scan: Domain, name: str) -> None:
    model = new_method(name, ["brain"], **OTHERS[name])
    settings = QUICK.changed(steps=2, validate_every=0, penalty_weight=0.0)
    result = adapt(model, scan, slices=2, self_supervised=True, settings=settings)
    assert result.facts["validation"]["n_slices"] == 2


def test_a_network_without_phase_is_refused(scan: Domain) -> None:
    model = UNet(sources=["brain"], outputs=1)
    with pytest.raises(UldaError, match="a network that returns no phase predicts no k-space"):
        adapt(model, scan, self_supervised=True, settings=QUICK)


@pytest.mark.parametrize(
    ("differences", "is_clear"), [((0.3, 0.1), True), ((0.3, -0.2), False), ((-0.1, -0.2), False), ((0.0, 0.0), False)]
)
def test_a_gain_is_clear_above_its_standard_error(
    scan: Domain, differences: tuple[float, float], is_clear: bool
) -> None:
    """Of two slices the standard error is half of the distance of their differences."""
    task = task_of(scan)
    task = replace(task, slices=task.slices[:2])
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    before = torch.tensor([10.0, 20.0])

    class Scored(UndersampledTask):
        def slice_scores(self, model: Any) -> Tensor:
            return before + (torch.tensor(differences) if float(model.weight.detach()) == 1 else 0)

    scored = Scored(**vars(task))
    gain = scored.keep_clear_gain(model, {"weight": torch.zeros(1, 1)})
    assert gain.is_clear is is_clear
    assert float(model.weight.detach()) == (1.0 if is_clear else 0.0)
    assert gain.before == 15
    assert gain.difference == pytest.approx(sum(differences) / 2, abs=1e-5)
    assert gain.standard_error == pytest.approx(abs(differences[0] - differences[1]) / 2, abs=1e-5)
    assert not Gain(1, 1.1, 0.1, 0.1).is_clear


def test_the_start_stays_where_nothing_is_gained(scan: Domain) -> None:
    """At this rate training destroys the network."""
    model = DnCn(filters=4, layers=2, cascades=2, sources=["brain"])
    result = adapt(model, scan, self_supervised=True, settings=QUICK.changed(learning_rate=1.0))
    assert same(result.model, model)
    validation = result.facts["validation"]
    assert validation["adapted"] == validation["unadapted"]
    assert (validation["is_kept"], result.gain) == (False, 0)
    assert "did not clearly help" in result.sentence()
    assert "the model is the un-adapted start" in result.sentence()


@pytest.fixture(scope="module")
def whole(scan: Domain) -> Adaptation:
    return adapt(base(), scan, self_supervised=True, settings=QUICK)


@pytest.mark.parametrize("stop_at", [1, 5])
def test_a_resumed_adaptation_has_the_same_bits(scan: Domain, whole: Adaptation, tmp_path: Path, stop_at: int) -> None:

    def stop(progress: Progress) -> None:
        if progress.step == stop_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adapt(base(), scan, self_supervised=True, settings=QUICK, folder=tmp_path, report=stop)
    seen: list[int] = []
    resumed = adapt(
        base(), scan, self_supervised=True, settings=QUICK, folder=tmp_path, report=lambda row: seen.append(row.step)
    )
    assert seen[0] == stop_at + 1
    assert same(whole.model, resumed.model)
    assert whole.facts["validation"] == resumed.facts["validation"]
    assert not same(whole.model, base())
    # other held-out lines are another run
    with pytest.raises(UldaError, match=r"other settings|another model or data"):
        adapt(base(), scan, self_supervised=True, settings=QUICK, folder=tmp_path, seed=1)


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (ULDA(sources=["brain"], **SMALL | {"rank": 0}), QUICK.changed(steps=20, validate_every=10)),
        (
            DnCn(filters=8, layers=3, cascades=2, sources=["brain"]),
            QUICK.changed(steps=60, validate_every=20, learning_rate=1e-2),
        ),
    ],
    ids=["U-LDA", "DnCn"],
)
def test_it_improves_images_that_it_has_no_references_of(
    knee: Domain, tmp_path: Path, model: TrainableMethod, settings: Settings
) -> None:
    """Judged by the PSNR of slices that the training has not seen, of another subject, with other masks."""
    seen = normalised_images(knee.select(split="train"))
    scan = write_scan(tmp_path / "scan.h5", seen, masks_of(len(seen)))
    result = adapt(model, scan, self_supervised=True, settings=settings)
    assert result.facts["validation"]["is_kept"]
    model.add_domain("scan")
    others = normalised_images(knee.select(split="test"))
    gains = []
    for seed in range(50, 56):
        physics = CartesianMRI(random_mask(SIDE, 2.5, center=0.125, seed=seed), -1)
        y = physics.A(others)
        with torch.no_grad():
            before, after = (
                psnr(one(y, physics, "scan").abs(), others.abs(), data_range=1.0) for one in (model, result.model)
            )
        gains.append(float((after - before).mean()))
    assert np.mean(gains) > 0.2


def test_what_cannot_be_learned_from_is_refused(knee: Domain, scan: Domain, images: Tensor, tmp_path: Path) -> None:
    with pytest.raises(UldaError, match=r"arrived undersampled.*learn from its sampled lines alone with --self-super"):
        adapt(base(), scan, settings=QUICK)
    with pytest.raises(UldaError, match="needs 2 slices to tell a gain from chance"):
        adapt(base(), scan, slices=1, self_supervised=True, settings=QUICK)
    for lines in ({"mask": cartesian_mask(SIDE, 0.3)}, {"ratio": 0.3}):
        with pytest.raises(UldaError, match="is undersampled already; leave out the mask and the ratio"):
            adapt(base(), scan, **lines, self_supervised=True, settings=QUICK)
    with pytest.raises(UldaError, match="leave out augment"):
        adapt(base(), scan, self_supervised=True, settings=QUICK, changes={"augment": True})
    center = Mask(tuple(12 <= i < 20 for i in range(SIDE)))
    narrow = write_scan(tmp_path / "narrow.h5", images, [center] * len(images))
    with pytest.raises(UldaError, match=r"slice 0 .* has 0 sampled lines beside its 8 calibration lines"):
        adapt(base(), narrow, self_supervised=True, settings=QUICK)
    with pytest.raises(UldaError, match="the mask has 20 lines, but the slices of knee have 32"):
        adapt(base(), knee, mask=cartesian_mask(20, 0.5), self_supervised=True, settings=QUICK)
