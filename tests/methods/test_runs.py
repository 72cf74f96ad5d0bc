"""A training from its configuration to a model in a folder, of every method."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml

from tests.training.small_domains import write_domain
from ulda.errors import UldaError
from ulda.methods import METHODS, ULDA, load_method, method_settings
from ulda.methods.adaptation import adapt
from ulda.methods.listing import methods_table
from ulda.methods.runs import resolve, stage_steps, train
from ulda.training.config import Config, parse_config
from ulda.training.config_text import config_yaml
from ulda.training.history import Progress
from ulda.training.slices import opened

DOCUMENT = Path(__file__).parents[2] / "docs" / "methods.md"
SMALL = {
    "ulda": "{width: 3, depth: 2, initialise: 0.5}",
    "ulda-paper": "{width: 3, depth: 2, phases: 3}",
    "dncn": "{filters: 4, layers: 2, cascades: 2}",
    "unet": "{channels: 4, pools: 2}",
    "lda": "{width: 3, depth: 2}",
    "umri": "{filters: 4, layers: 2, cascades: 2}",
    "meta": "{width: 3, depth: 2, inner_steps: 2}",
    "humus": "{cascades: 1, embed: 4, depths: [1], heads: [1], bottleneck_depth: 1, bottleneck_heads: 2, window: 4}",
}
DATA = "data: [{name: kidney, file: kidney.npz}]\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_domain(folder / "kidney.npz", "kidney", n_subjects=4, every=2)
    write_domain(folder / "knee.npz", "knee", every=2)
    return folder


def config(place: Path, method: str = "dncn", changes: str = "") -> Config:
    text = f"""
method: {method}
network: {SMALL.get(method, "{}")}
data: [{{name: kidney, file: kidney.npz}}]
masks: {{ratios: [0.4], per_ratio: 2}}
train: {{steps: 6, batch_size: 1, validate_every: 3, checkpoint_every: 2, phases: []}}
{changes}"""
    return resolve(parse_config(text).resolved(place))


def interrupt_at(step: int, stage: str = "train") -> Callable[[Progress], None]:
    def report(progress: Progress) -> None:
        if (progress.step, progress.stage) == (step, stage):
            raise KeyboardInterrupt

    return report


@pytest.mark.parametrize("method", SMALL)
def test_an_interrupted_training_resumes_to_the_same_bytes(method: str, place: Path, tmp_path: Path) -> None:
    settings = config(place, method)
    stages: list[str] = []
    model = train(settings, tmp_path / "whole", report=lambda progress: stages.append(progress.stage))
    assert not model.training
    if method != "umri":  # whose steps are counted with those of its teachers
        assert {stage: stages.count(stage) for stage in dict.fromkeys(stages)} == stage_steps(settings)
    for number, stage in enumerate(dict.fromkeys(stages)):
        folder = tmp_path / f"paused-{number}"
        with pytest.raises(KeyboardInterrupt):
            train(settings, folder, report=interrupt_at(min(2, stages.count(stage)), stage))
        assert not (folder / "model.json").exists()
        train(settings, folder, resume=True)
        assert (folder / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("method", SMALL)
def test_an_interrupted_adaptation_resumes_to_the_same_model(method: str, place: Path, tmp_path: Path) -> None:
    train(config(place, method), tmp_path / "base")
    start = {name: p.clone() for name, p in load_method(tmp_path / "base").named_parameters()}
    with opened(place / "knee.npz", name="knee") as knee:
        again = partial(adapt, tmp_path / "base", knee, slices=3, ratio=0.4, changes={"steps": 6}, seed=1)
        whole = again(folder=tmp_path / "a")
        with pytest.raises(KeyboardInterrupt):
            again(folder=tmp_path / "b", report=interrupt_at(4))
        paused = again(folder=tmp_path / "b")
    for first, second in zip(whole.model.parameters(), paused.model.parameters(), strict=True):
        assert torch.equal(first, second)
    assert whole.facts["validation"] == paused.facts["validation"]
    assert whole.gain is not None
    assert whole.gain >= 0
    assert whole.facts["settings"]["learning_rate"] == method_settings(method, "adapt").learning_rate
    for name, parameter in whole.model.named_parameters():
        if not whole.model.is_adapted(name, "knee"):
            assert torch.equal(parameter, start[name])


def test_every_method_is_tested_here() -> None:
    assert SMALL.keys() == METHODS.keys()


def test_settings_of_the_file_go_before_those_of_the_method_and_those_before_the_preset() -> None:
    given = resolve(parse_config(DATA + "train: {clip: 0.02}\n"), "dncn", seconds=60)
    assert (given.train.learning_rate, given.train.clip, given.seconds) == (1e-3, 0.02, 60)
    assert given.train.warp == method_settings("ulda", "train").warp
    assert yaml.safe_load(config_yaml(given))["train"]["clip"] == 0.02
    assert parse_config(config_yaml(given)).values() == given.values()


def test_a_preset_is_named_by_the_file_or_the_command() -> None:
    by_file, by_command = resolve(parse_config(DATA + "preset: paper")), resolve(parse_config(DATA), preset="paper")
    assert by_file.values() == by_command.values()
    assert (by_file.network["phases"], by_file.network["proposal"], by_file.train.augment) == (15, "gradient", False)
    assert resolve(parse_config(DATA)).network["proposal"] == "accelerated"
    assert resolve(parse_config(DATA), "ulda-paper").preset == "paper"
    with pytest.raises(UldaError, match="ulda-paper is U-LDA with the preset paper"):
        resolve(parse_config(DATA), "ulda-paper", "default")
    with pytest.raises(UldaError, match="there is no preset 'papre'; did you mean 'paper'"):
        resolve(parse_config(DATA + "preset: papre"))


def test_sizes_belong_to_the_method_of_the_file() -> None:
    text = DATA + "method: dncn\nnetwork: {filters: 2}\n"
    assert resolve(parse_config(text)).network["filters"] == 2
    assert "filters" not in resolve(parse_config(text), "ulda").network
    with pytest.raises(UldaError, match="unknown size 'filter' of dncn; did you mean 'filters'"):
        resolve(parse_config(DATA + "method: dncn\nnetwork: {filter: 2}\n"))
    with pytest.raises(UldaError, match="30 phases are to be trained, but the network has 3"):
        resolve(parse_config(DATA + "network: {phases: 3}\ntrain: {phases: [30]}"))


def test_a_model_that_no_run_made_is_not_replaced(place: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    ULDA(sources=["brain"], width=2, depth=1, phases=1).save(base)
    before = (base / "model.safetensors").read_bytes()
    for resume in (False, True):
        with pytest.raises(UldaError, match="holds a model, but no training that could be continued"):
            train(config(place), base, resume=resume)
    assert (base / "model.safetensors").read_bytes() == before


def test_a_run_is_continued_with_its_own_configuration(place: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(config(place), tmp_path, report=interrupt_at(2))
    other = config(place, changes="seed: 3")
    with pytest.raises(UldaError, match=r"was started with another seed \(0, now 3\)"):
        train(other, tmp_path, resume=True)
    with pytest.raises(UldaError, match="continue it with --resume"):
        train(config(place), tmp_path)


def test_a_time_becomes_the_steps_that_fit(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that counts 0.5 s per look, which the loop takes once per step and once to begin."""
    ticks = itertools.count(step=0.5)
    monkeypatch.setattr("ulda.training.loop.time.perf_counter", lambda: next(ticks))
    timed = config(place, changes="seconds: 4")
    train(timed, tmp_path)
    spent = json.loads((tmp_path / "model.json").read_text())["card"]["spent"]
    assert (spent["steps"], spent["equal"]) == (8, "wall-clock")
    assert json.loads((tmp_path / "timed.json").read_text()) == {"steps": 8}


def test_the_table_in_the_document_is_that_of_the_code() -> None:
    assert methods_table() in DOCUMENT.read_text(), "run `make docs`"
