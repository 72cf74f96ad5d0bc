from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from tests.training.small_domains import write_domain
from ulda.errors import UldaError
from ulda.methods import METHODS, TrainableMethod, load_method
from ulda.methods.listing import methods_table
from ulda.methods.runs import adapt_method, for_method, train
from ulda.training import ULDA, Architecture, save_base
from ulda.training.config import Config, parse_config
from ulda.training.config_text import config_yaml
from ulda.training.history import Progress
from ulda.training.slices import opened

DOCUMENT = Path(__file__).parents[2] / "docs" / "methods.md"
SMALL = {
    "dncn": "{filters: 4, layers: 2, cascades: 2}",
    "unet": "{channels: 4, pools: 2}",
    "lda": "{width: 3, depth: 2, phases: 2}",
    "umri": "{filters: 4, layers: 2, cascades: 2}",
    "meta": "{width: 3, depth: 2, phases: 2, inner_steps: 2}",
    "humus": "{cascades: 1, embed: 4, depths: [1], heads: [1], bottleneck_depth: 1, bottleneck_heads: 2, window: 4}",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_domain(folder / "kidney.npz", "kidney", n_subjects=4, every=2)
    write_domain(folder / "knee.npz", "knee", every=2)
    return folder


def config(place: Path, method: str = "dncn", changes: str = "") -> Config:
    text = f"""
method: {method}
sizes: {SMALL.get(method, "{}")}
data: [{{name: kidney, file: kidney.npz}}]
masks: {{ratios: [0.4], per_ratio: 2}}
train: {{steps: 6, batch_size: 1, validate_every: 3, checkpoint_every: 2}}
{changes}"""
    return for_method(parse_config(text).resolved(place))[0]


def interrupt_at(step: int) -> Callable[..., None]:
    def report(*reported: Progress | str) -> None:
        progress = reported[-1]
        assert isinstance(progress, Progress)
        if progress.step == step:
            raise KeyboardInterrupt

    return report


def assert_same_weights(first: Path, second: Path) -> None:
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()


@pytest.mark.parametrize("method", SMALL)
def test_an_interrupted_training_resumes_to_the_same_bytes(method: str, place: Path, tmp_path: Path) -> None:
    settings = config(place, method)
    model = train(settings, tmp_path / "whole")
    assert isinstance(model, TrainableMethod)
    assert not model.training
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "paused", report=interrupt_at(5))
    assert not (tmp_path / "paused" / "model.json").exists()
    train(settings, tmp_path / "paused", resume=True)
    assert_same_weights(tmp_path / "whole", tmp_path / "paused")


@pytest.mark.parametrize("method", SMALL)
def test_an_interrupted_adaptation_resumes_to_the_same_model(method: str, place: Path, tmp_path: Path) -> None:
    train(config(place, method), tmp_path / "base")
    start = {name: p.clone() for name, p in load_method(tmp_path / "base").named_parameters()}
    with opened(place / "knee.npz", name="knee") as knee:
        adapt = partial(adapt_method, tmp_path / "base", knee, slices=3, ratio=0.4, steps=6, seed=1)
        whole = adapt(folder=tmp_path / "a")
        with pytest.raises(KeyboardInterrupt):
            adapt(folder=tmp_path / "b", report=interrupt_at(4))
        paused = adapt(folder=tmp_path / "b")
    for first, second in zip(whole.model.parameters(), paused.model.parameters(), strict=True):
        assert torch.equal(first, second)
    assert whole.facts["validation"] == paused.facts["validation"]
    assert whole.gain is not None
    assert whole.gain >= 0
    assert whole.facts["settings"]["learning_rate"] == whole.model.adaptation_defaults["learning_rate"]
    for name, parameter in whole.model.named_parameters():
        if not whole.model.is_adapted(name, "knee"):
            assert torch.equal(parameter, start[name])


def test_every_other_method_is_tested_here() -> None:
    assert {*SMALL, "ulda"} == METHODS.keys()


def test_settings_of_the_file_go_before_those_of_the_method(place: Path) -> None:
    assert config(place).train.learning_rate == 1e-3
    text = "data: [{name: kidney, file: kidney.npz}]\ntrain: {learning_rate: 0.02}\n"
    given, notes = for_method(parse_config(text), "dncn", 60)
    assert (given.train.learning_rate, given.train.warm_up, given.seconds, notes) == (0.02, 0.1, 60, [])
    assert yaml.safe_load(config_yaml(given))["train"]["learning_rate"] == 0.02
    assert parse_config(config_yaml(given)).values() == given.values()


def test_sizes_of_another_method_are_ignored_with_a_note(place: Path) -> None:
    other, notes = for_method(config(place), "unet")
    assert (other.method, other.sizes) == ("unet", {})
    assert notes == ["the sizes in the file are those of dncn and are ignored for unet"]
    text = "data: [{name: kidney, file: kidney.npz}]\nmethod: dncn\nsizes: {filters: 2}\n"
    ours, notes = for_method(parse_config(text), "ulda")
    assert (ours.method, ours.sizes, ours.initialise) == ("ulda", {}, Config(data=ours.data).initialise)
    assert notes == ["the sizes in the file are those of dncn and are ignored for ulda"]


def test_phases_of_another_method_are_ignored_and_its_own_are_checked() -> None:
    data = "data: [{name: kidney, file: kidney.npz}]\n"
    text = data + "architecture: {phases: 15}\ntrain: {phases: [7, 15]}\n"
    other, notes = for_method(parse_config(text), "lda")
    assert other.train.phases is None
    assert notes == ["architecture, train.phases in the file belong to ulda and are ignored for lda"]
    with pytest.raises(UldaError, match="30 phases are to be trained, but the network has 3"):
        for_method(parse_config(data + "method: lda\nsizes: {phases: 3}\ntrain: {phases: [30]}"))


def test_a_model_that_no_run_made_is_not_replaced(place: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    save_base(ULDA(Architecture(width=2, depth=1, phases=1), ["brain"]), base)
    before = (base / "model.safetensors").read_bytes()
    for resume in (False, True):
        with pytest.raises(UldaError, match="holds a model, but no training that could be continued"):
            train(config(place), base, resume=resume)
    assert (base / "model.safetensors").read_bytes() == before


def test_the_best_is_not_the_start_for_want_of_a_validation(place: Path, tmp_path: Path) -> None:
    """Without a validation on the way the end is validated, and what is not chosen by any ends as trained."""
    given = config(place, "umri")
    changes = {"steps": 4, "validate_every": 0, "keep_best": True}
    train(given.model_copy(update={"train": given.train.model_copy(update=changes)}), tmp_path / "umri")
    rows = (tmp_path / "umri" / "log.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows if row.split(",")[3:] and row.split(",")[3]] == ["step", "0", "4"]
    teacher = load_file(tmp_path / "umri" / "teachers" / "kidney" / "checkpoint.safetensors")
    assert not any(name.startswith("best/") for name in teacher)


def test_a_file_for_ulda_stays_as_it_is() -> None:
    parsed = parse_config("data: [{name: kidney, file: kidney.npz}]\narchitecture: {width: 3}")
    given, notes = for_method(parsed)
    assert (given, notes) == (parsed, [])


def test_the_table_in_the_document_is_that_of_the_code() -> None:
    assert methods_table() in DOCUMENT.read_text(), "run `make docs`"
