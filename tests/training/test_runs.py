from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.training.small_domains import write_domain
from ulda.errors import UldaError
from ulda.methods.runs import for_method
from ulda.training import ULDA, Architecture, load_base
from ulda.training.config import Config, parse_config
from ulda.training.history import Progress
from ulda.training.runs import has_checkpoint, load_tasks, prepare, stage_steps, train_base
from ulda.training.stages import train_sources

TEXT = """
data: [{name: knee, file: knee.npz}]
masks: {ratios: [0.4], per_ratio: 2}
architecture: {width: 3, depth: 2, phases: 2}
initialise: null
train: {steps: 4, batch_size: 2, validate_every: 4, checkpoint_every: 2, mean_after: 0.5}
rounds:
  - {steps: 5, batch_size: 1, learning_rate: 0.002, validate_every: 3, checkpoint_every: 2, lower_level: equilibrium,
     chains_after: 0, chains: 2, continued_phases: 2, longest_rollout: 2, mean_after: 0.2}
  - {steps: 4, batch_size: 3, learning_rate: 0.001, validate_every: 0, checkpoint_every: 2, seed: 1}
"""
STAGES = {"train": 4, "round-1": 5, "round-2": 4}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rounds")
    write_domain(folder / "knee.npz", "knee", every=2)
    return folder


@pytest.fixture(scope="module")
def config(place: Path) -> Config:
    return parse_config(TEXT).resolved(place)


@pytest.fixture(scope="module")
def whole(config: Config, place: Path) -> Path:
    """Return the folder of a run without a pause."""
    train_base(config, place / "whole")
    return place / "whole"


def test_a_round_starts_where_the_one_before_ended(config: Config, whole: Path) -> None:
    tasks, _ = load_tasks(config)
    model = ULDA(Architecture(width=3, depth=2, phases=2), ["knee"])
    for settings in config.all_rounds:
        train_sources(model, tasks, settings)
    written = dict(load_base(whole).named_parameters())
    assert all(torch.equal(value, written[name]) for name, value in model.named_parameters())


def test_the_stages_follow_each_other(config: Config, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    train_base(config, tmp_path, report=lambda stage, progress: seen.append((stage, progress.step, progress.steps)))
    assert seen == [(stage, step, steps) for stage, steps in STAGES.items() for step in range(1, steps + 1)]
    assert all((tmp_path / stage / "log.csv").exists() for stage in ("", "round-1", "round-2"))
    assert stage_steps(config) == STAGES
    assert stage_steps(config.model_copy(update={"initialise": config.rounds[0]})) == {"initialise": 5, **STAGES}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("step", [1, 3])
def test_a_run_that_broke_off_in_a_round_resumes_to_the_same_bytes(
    stage: str, step: int, config: Config, whole: Path, tmp_path: Path
) -> None:
    """Unlike Ctrl-C, an error in the report leaves what SIGKILL leaves: the last checkpoint that was due."""

    def break_off(name: str, progress: Progress) -> None:
        if (name, progress.step) == (stage, step):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        train_base(config, tmp_path, report=break_off)
    assert has_checkpoint(tmp_path) == ((stage, step) != ("train", 1))
    seen: list[str] = []
    train_base(config, tmp_path, resume=True, report=lambda name, _: seen.append(name))
    for name in ("model.safetensors", "log.csv", "round-1/log.csv", "round-2/log.csv"):
        assert (tmp_path / name).read_bytes() == (whole / name).read_bytes(), name
    stages = list(STAGES)
    assert list(dict.fromkeys(seen)) == stages[stages.index(stage) :], "finished rounds are restored"


def test_ctrl_c_in_a_round_saves_the_round(config: Config, whole: Path, tmp_path: Path) -> None:
    def interrupt(name: str, progress: Progress) -> None:
        if (name, progress.step) == ("round-1", 3):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_base(config, tmp_path, report=interrupt)
    seen: list[tuple[str, int]] = []
    train_base(config, tmp_path, resume=True, report=lambda name, progress: seen.append((name, progress.step)))
    assert seen[0] == ("round-1", 4)
    assert (tmp_path / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_a_round_that_keeps_no_checkpoint_is_repeated(config: Config, whole: Path, tmp_path: Path) -> None:
    first, second = config.rounds
    forgetful = config.model_copy(update={"rounds": (first.model_copy(update={"checkpoint_every": 0}), second)})
    train_base(forgetful, tmp_path)
    seen: list[str] = []
    train_base(forgetful, tmp_path, resume=True, report=lambda name, _: seen.append(name))
    assert seen == ["round-1"] * 5
    assert (tmp_path / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_a_run_of_before_phases_had_several_steps_is_not_continued_with_them(config: Config, tmp_path: Path) -> None:
    """Its configuration does not say how many."""
    prepare(tmp_path, config, resume=False)
    place = tmp_path / "config.yaml"
    place.write_text(re.sub(r"steps_per_phase: \d+,?", "", place.read_text()))
    with pytest.raises(UldaError, match=r"started with another architecture.steps_per_phase \(1, now 5\)"):
        prepare(tmp_path, config, resume=True)


def test_a_run_of_before_steps_had_gains_is_not_continued_with_them(config: Config, tmp_path: Path) -> None:
    prepare(tmp_path, config, resume=False)
    place = tmp_path / "config.yaml"
    kept = re.sub(r"(line|channel)_steps: \w+,?", "", place.read_text())
    place.write_text(kept)
    with pytest.raises(UldaError, match=r"started with another architecture.line_steps \(False, now True\)"):
        prepare(tmp_path, config, resume=True)
    assert place.read_text() == kept
    without = replace(config.architecture, line_steps=False, channel_steps=False)
    prepare(tmp_path, config.model_copy(update={"architecture": without}), resume=True)


def test_the_card_counts_all_rounds(config: Config, whole: Path, tmp_path: Path) -> None:
    card = json.loads((whole / "model.json").read_text())["card"]
    spent = {key: card["spent"][key] for key in ("equal", "steps", "slices", "extra_steps")}
    assert spent == {"equal": "steps", "steps": 13, "slices": 4 * 2 + 5 * 1 + 4 * 3, "extra_steps": {}}
    # the second round has no validation, so the last one is that of the first
    assert card["validation"]["step"] == 5
    assert [entry["batch_size"] for entry in card["config"]["rounds"]] == [1, 3]
    ends: dict[str, float] = {}
    with_step_0 = config.model_copy(update={"initialise": config.rounds[1].model_copy(update={"steps": 2})})
    train_base(with_step_0, tmp_path, report=lambda stage, progress: ends.update({stage: progress.seconds}))
    card = json.loads((tmp_path / "model.json").read_text())["card"]
    assert (card["spent"]["steps"], card["spent"]["extra_steps"]) == (13, {"initialise": 2})
    assert card["spent"]["seconds"] == pytest.approx(sum(ends.values()), abs=0.0051)
    assert card["training"]["seconds"] == pytest.approx(sum(ends.values()), abs=0.051)


def test_a_round_that_stopped_early_counts_what_it_took(config: Config, tmp_path: Path) -> None:
    """Both stages plan 9 steps, and the first row of the second is later than the last of the first."""
    # with this rate nothing changes, so that the second validation is no better than the first
    still = {"steps": 9, "learning_rate": 1e-30, "validate_every": 1, "patience": 1}
    stalled = config.train.model_copy(update=still)
    later = config.rounds[1].model_copy(update={"steps": 9, "log_every": 7})
    train_base(config.model_copy(update={"train": stalled, "rounds": (later,)}), tmp_path)
    spent = json.loads((tmp_path / "model.json").read_text())["card"]["spent"]
    assert (spent["steps"], spent["slices"]) == (2 + 9, 2 * 2 + 9 * 3)


def test_rounds_are_those_of_ulda(config: Config) -> None:
    ours, notes = for_method(config)
    assert (ours.rounds, notes) == (config.rounds, [])
    other, notes = for_method(config, "unet", 60)
    assert (other.rounds, other.seconds, other.initialise) == ((), 60, None)
    assert notes == ["architecture, initialise, rounds in the file belong to ulda and are ignored for unet"]
    assert "rounds" not in other.values()
    assert parse_config("data: [{name: a, file: b}]\nmethod: unet").rounds == ()
    with pytest.raises(UldaError, match=r"a time \(seconds\) and rounds exclude each other"):
        for_method(config, seconds=60)
