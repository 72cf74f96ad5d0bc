from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ulda.errors import UldaError
from ulda.training.config import Config, DataConfig, MaskConfig, load_config, parse_config
from ulda.training.config_text import attribute_texts, config_table, config_yaml, default_config
from ulda.training.presets import load_preset
from ulda.training.settings import Equilibrium, Network, Settings, annotations_of

DOCUMENT = Path(__file__).parents[2] / "docs" / "train.md"
CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
DATA = "data: [{name: knee, file: knee.npz}]\n"


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_the_printed_configuration_holds_every_value_of_its_preset(preset: str) -> None:
    printed, values = parse_config(default_config(preset)), load_preset(preset)
    assert (printed.train, printed.network) == (values.train, values.network.model_dump())
    assert [entry.file for entry in printed.data] == ["demo:knee", "demo:kidney"]
    assert yaml.safe_load(default_config()).keys() == Config.model_fields.keys()
    assert yaml.safe_load(default_config())["train"].keys() == Settings.model_fields.keys()


def test_a_resolved_configuration_reads_back() -> None:
    text = DATA + "seed: 3\npreset: paper\ntrain: {phases: [2, 3], learning_rate: 1e-3}\ncard: {licence: CC0}"
    config = parse_config(text)
    assert config.train.learning_rate == 0.001
    assert config.given == {"phases": (2, 3), "learning_rate": 0.001}
    assert parse_config(config_yaml(config)).values() == config.values()


def test_there_are_few_settings() -> None:
    assert len(Settings.model_fields) <= 18
    assert len(Equilibrium.model_fields) <= 4


@pytest.mark.parametrize("part", [Config, DataConfig, MaskConfig, Network, Settings, Equilibrium])
def test_every_key_is_explained(part: type) -> None:
    assert attribute_texts(part).keys() == annotations_of(part).keys()


def test_the_table_in_the_document_is_complete() -> None:
    assert config_table() in DOCUMENT.read_text(), "run `make docs`"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dta: []", "unknown setting 'dta'; did you mean 'data'?"),
        (DATA + "train: {learning_rat: 1}", "unknown setting 'train.learning_rat'; did you mean 'learning_rate'?"),
        (
            DATA + "train: {equilibrium: {chain: 2}}",
            "unknown setting 'train.equilibrium.chain'; did you mean 'chains'?",
        ),
        (DATA + "masks: {ratio: [0.2]}", "unknown setting 'masks.ratio'; did you mean 'ratios'?"),
        ("data: [{name: a, fil: b}]", "unknown setting 'data[0].fil'; did you mean 'file'?"),
        (DATA + "train: {zzz: 1}", "unknown setting 'train.zzz'; the settings are steps, batch_size,"),
        ("name: x", "the setting data is missing"),
        ("data: []", "the setting data is wrong"),
        (DATA + "train: {steps: 0}", "the setting train.steps is wrong"),
        (DATA + "masks: {ratios: [0.2, 1.5]}", "the setting masks.ratios is wrong: a sampling ratio must lie in"),
        (DATA + "train: {steps: 1}\ntrain: {steps: 2}", "the key 'train' is given twice, again in line 3"),
        ("data: [{name: a, file: b}, {name: a, file: c}]", "two source domains have the name a"),
        ("data: [{name: a.b, file: b}]", "the setting data[0].name is wrong"),
        ("[", "is not YAML"),
        ("3", "not a list of keys and values"),
    ],
)
def test_mistakes_are_one_sentence_with_the_path_of_the_key(text: str, message: str) -> None:
    with pytest.raises(UldaError) as caught:
        parse_config(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_paths_are_relative_to_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("data: [{name: a, file: sub/a.h5}, {name: b, file: /b.h5}, {name: c, file: 'demo:knee'}]")
    files = [entry.file for entry in load_config(path).data]
    assert files == [str(tmp_path / "sub" / "a.h5"), "/b.h5", "demo:knee"]
    with pytest.raises(UldaError, match="there is no file"):
        load_config(tmp_path / "none.yaml")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_the_examples_are_valid(path: Path) -> None:
    assert load_config(path).data
