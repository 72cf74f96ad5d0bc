"""From data to an adapter: what learns, what is told about it, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ulda
from tests.training.small_domains import write_domain
from ulda.data import Domain, demo, import_domain
from ulda.errors import UldaError
from ulda.methods import ULDA
from ulda.methods.adaptation import Adaptation, adapt
from ulda.physics import CartesianMRI, cartesian_mask
from ulda.training.history import Progress
from ulda.training.settings import Settings
from ulda.training.slices import normalised_images

# so much regularisation that every adaptation has something to gain
SMALL: dict[str, Any] = {
    "width": 3,
    "depth": 2,
    "phases": 3,
    "proposal": "accelerated",
    "steps_per_phase": 2,
    "adapter_weight": 0.3,
    "rank": 2,
}
QUICK = Settings(
    steps=9,
    batch_size=2,
    validate_every=3,
    checkpoint_every=2,
    learning_rate=1e-2,
    adapter_multiplier=10.0,
    step_size_multiplier=1.0,
    penalty_weight=0.03,
)
AUG = QUICK.changed(augment=True)
WILD = {"adapter_multiplier": 1e4, "penalty_weight": 0.0}
"""At this rate training destroys the adapter."""


@pytest.fixture(scope="module")
def knee(tmp_path_factory: pytest.TempPathFactory) -> Domain:
    folder = tmp_path_factory.mktemp("knee")
    import_domain([write_domain(folder / "knee.npz")], folder / "knee.h5")
    return Domain.open(folder / "knee.h5")


@pytest.fixture
def base() -> ULDA:
    return ULDA(sources=["brain", "prostate"], **SMALL)


@pytest.fixture(scope="module")
def adapted(knee: Domain) -> Adaptation:
    return adapt(ULDA(sources=["brain", "prostate"], **SMALL), knee, settings=QUICK, acquisition="ideal")


@pytest.fixture(scope="module")
def augmented(knee: Domain) -> Adaptation:
    return adapt(ULDA(sources=["brain", "prostate"], **SMALL), knee, settings=AUG)


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def same(a: nn.Module, b: nn.Module) -> bool:
    first, second = weights(a), weights(b)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_only_the_new_adapter_changes(base: ULDA, knee: Domain) -> None:
    before = weights(base)
    result = adapt(base, knee, slices=3, settings=QUICK)
    assert weights(base).keys() == before.keys()
    after = weights(result.model)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert {name for name in after if name not in before} == {name for name in after if ".knee." in name}
    start = ULDA(sources=["brain", "prostate"], **SMALL)
    start.add_domain("knee")
    assert not same(start, result.model)


def test_the_facts_are_those_of_the_data(base: ULDA, knee: Domain) -> None:
    result = adapt(base, knee, slices=3, ratio=0.25, seed=2, settings=QUICK)
    facts = result.facts
    assert facts["mask"] == cartesian_mask(32, 0.25, seed=2).as_dict()
    assert (facts["n_slices"], facts["n_subjects"], facts["subjects"]) == (3, 1, ["mskt-block-train"])
    assert facts["normalisation"] == "peak of the zero-filled image"
    assert facts["validation"]["subjects"] == ["mskt-block-val"]
    assert facts["settings"]["steps"] == 9
    assert facts["seconds"] > 0
    json.dumps(facts, allow_nan=False)


def test_the_validation_in_the_facts_is_that_of_the_model(base: ULDA, knee: Domain, adapted: Adaptation) -> None:
    """Judged independently: the mean PSNR of magnitudes with peak 1, written out."""
    result = adapted
    images = normalised_images(knee.select(split="val"))
    physics = CartesianMRI(cartesian_mask(32, 0.2, seed=0), knee.header.phase_axis)
    base.add_domain("knee")
    assert isinstance(result.model, ULDA)
    for model, key in ((base, "unadapted"), (result.model, "adapted")):
        with torch.no_grad():
            x = model(physics.A(images), physics, "knee")
        error = (x.abs() - images.abs()).square().mean((-2, -1))
        assert float((-10 * error.log10()).mean()) == pytest.approx(result.facts["validation"][key]["psnr"], abs=1e-3)
    assert result.model.domain == "knee"


@pytest.mark.parametrize("augment", [True, False])
def test_it_never_ends_worse_than_the_start(knee: Domain, augment: bool) -> None:
    sensible = SMALL | {"adapter_weight": 0.03}
    result = adapt(
        ULDA(sources=["brain", "prostate"], **sensible), knee, settings=QUICK.changed(**WILD, augment=augment)
    )
    start = ULDA(sources=["brain", "prostate"], **sensible)
    start.add_domain("knee")
    assert same(result.model, start)
    assert result.gain == 0
    assert "did not help" in result.sentence()


def test_without_regular_validations_start_and_end_are_still_compared(base: ULDA, knee: Domain) -> None:
    result = adapt(base, knee, settings=QUICK.changed(validate_every=0))
    assert result.gain is not None
    assert result.gain >= 0


def test_adaptation_helps_and_says_so(adapted: Adaptation) -> None:
    gain = adapted.facts["validation"]["adapted"]["psnr"] - adapted.facts["validation"]["unadapted"]["psnr"]
    assert gain > 0.05
    assert f"helped on validation (2 slices of 1 subjects) by {gain:.2f} dB" in adapted.sentence()


def test_it_is_deterministic(base: ULDA, knee: Domain) -> None:
    first, second = (adapt(base, knee, slices=3, settings=QUICK, seed=1) for _ in range(2))
    assert same(first.model, second.model)
    other = adapt(base, knee, slices=3, settings=QUICK, seed=2)
    assert other.facts["data"] != first.facts["data"]


@pytest.mark.parametrize("stop_at", [2, 5, 8])
def test_an_interrupted_adaptation_continues_bit_exactly(
    base: ULDA, knee: Domain, augmented: Adaptation, tmp_path: Path, stop_at: int
) -> None:
    """In each of the three stages; the best parameters of earlier stages must come back, too."""

    def stop(progress: Progress) -> None:
        if progress.step == stop_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adapt(base, knee, settings=AUG, folder=tmp_path, report=stop)
    seen: list[int] = []
    resumed = adapt(base, knee, settings=AUG, folder=tmp_path, report=lambda progress: seen.append(progress.step))
    assert seen[0] == stop_at + 1
    assert same(resumed.model, augmented.model)
    assert resumed.facts["validation"] == augmented.facts["validation"]
    with pytest.raises(UldaError, match="another model or data"):
        adapt(ULDA(sources=["brain", "prostate"], seed=5, **SMALL), knee, settings=AUG, folder=tmp_path)


def test_an_adapter_folder_fits_its_base(base: ULDA, knee: Domain, tmp_path: Path) -> None:
    base.save(tmp_path / "base")
    result = ulda.adapt(tmp_path / "base", knee.path, settings=QUICK)
    assert isinstance(result, Adaptation)
    result.save(tmp_path / "adapter")
    fresh = ULDA.load(tmp_path / "base")
    assert fresh.load_adapter(tmp_path / "adapter") == "knee"
    assert same(fresh, result.model)
    facts = json.loads((tmp_path / "adapter" / "adapter.json").read_text())
    assert facts["validation"] == result.facts["validation"]
    with pytest.raises(UldaError, match="exists already"):
        result.save(tmp_path / "adapter")


def test_one_subject_without_splits_is_adapted_to_without_validation(base: ULDA) -> None:
    kidney = demo("kidney").take(range(3))
    result = adapt(base, kidney, settings=QUICK.changed(steps=3))
    assert result.gain is None
    assert "is not known" in result.sentence()
    assert "one subject" in result.facts["validation"]["origin"]


def test_several_coils_adapt_as_such(base: ULDA) -> None:
    brain = demo("brain-multicoil")
    unlabelled = replace(brain, labels=brain.labels | {"split": ("",)})
    result = adapt(base, unlabelled, settings=QUICK.changed(steps=1))
    assert result.facts["kspace"] == "measured, 4 coils"
    assert result.facts["acquisition"] == "ideal"
    assert result.domain == "brain-multicoil"


def test_mistakes_are_clear(base: ULDA, knee: Domain) -> None:
    with pytest.raises(UldaError, match="trained on a domain brain itself"):
        adapt(base, knee, name="brain")
    with pytest.raises(UldaError, match="the mask has 16 lines, but the slices of knee have 32"):
        adapt(base, knee, mask=cartesian_mask(16, 0.5))
    with pytest.raises(UldaError, match="20 slices were asked for, but there are 13"):
        adapt(base, knee, slices=20)
