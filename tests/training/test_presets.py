"""The presets: `paper` is the paper, and `default` says what it adds."""

from __future__ import annotations

import pytest

from ulda.errors import UldaError
from ulda.methods import METHODS, ULDA, method_settings, new_method
from ulda.training.presets import FOLDER, load_preset, preset_names


def test_the_preset_paper_is_the_paper() -> None:
    """T = 15, each phase tested, alpha_t and beta_t, step 0, g frozen in step 2, AUG, warm-up by two phases."""
    paper = load_preset("paper")
    net = paper.network
    assert (net.phases, net.proposal, net.steps_per_phase, net.rank, net.safeguard) == (15, "gradient", 1, 0, True)
    assert not net.shared_steps
    assert net.initialise > 0
    assert paper.train.phases == (3, 5, 7, 9, 11, 13, 15)
    assert paper.adapt.augment
    for stage in (paper.train, paper.adapt):
        assert (stage.penalty_weight, stage.warp, stage.mean_adapter, stage.equilibrium) == (0, 0, 0, None)
        assert (stage.ssim_weight, stage.stage_decay) == (0.01, 0.8)
    model = new_method("ulda-paper", ["brain", "knee"])
    model.add_domain("hip")
    learning = {name for name, _ in model.named_parameters() if model.is_adapted(name, "hip")}
    assert learning == {
        *(f"prior.adapters.hip.layer.{part}" for part in ("real", "imag")),
        *(f"proposals.hip.log_{name}" for name in ("alpha", "beta")),
    }


def test_the_default_adapter_is_at_most_half_of_fine_tuning() -> None:
    model = new_method("ulda", ["brain"])
    assert isinstance(model, ULDA)
    model.add_domain("hip")
    assert model.n_adapted("hip") <= model.n_used("hip") / 2


def test_every_extra_of_the_default_has_a_comment() -> None:
    """A line with a value that the paper does not have says what it does, and what it is worth."""
    paper = (FOLDER / "paper.yaml").read_text().splitlines()
    lines = (FOLDER / "default.yaml").read_text().splitlines()
    extras = ("proposal", "steps_per_phase", "rank", "penalty_weight", "mean_adapter", "warp")
    found = [line for line in lines if line.strip().split(":")[0] in extras and line not in paper]
    assert len(found) >= len(extras)
    for line in found:
        assert "#" in line, line


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_settings(method: str) -> None:
    for preset in {"default", "paper"} if method != "ulda-paper" else {"paper"}:
        assert method_settings(method, "train", preset, steps=3).steps == 3
        assert method_settings(method, "adapt", preset).steps > 0


def test_a_wrong_name_is_one_sentence() -> None:
    assert preset_names() == ["default", "paper"]
    with pytest.raises(UldaError, match="there is no preset 'papier'; did you mean 'paper'"):
        load_preset("papier")
    with pytest.raises(UldaError, match="did you mean 'steps'"):
        method_settings("ulda", "train", step=3)
