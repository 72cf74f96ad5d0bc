from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from ulda.errors import UldaError
from ulda.training import Architecture
from ulda.training.config import CheckedArchitecture, Config, DataConfig, MaskConfig, load_config, parse_config
from ulda.training.config_text import attribute_texts, config_table, config_yaml, default_config
from ulda.training.settings import Settings, SourceSettings, annotations_of

DOCUMENT = Path(__file__).parents[2] / "docs" / "train.md"
CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
DATA = "data: [{name: knee, file: knee.npz}]\n"


def test_the_printed_configuration_holds_every_default() -> None:
    printed = parse_config(default_config())
    plain = Config(data=printed.data)
    assert printed == plain
    assert [entry.file for entry in printed.data] == ["demo:knee", "demo:kidney"]
    assert yaml.safe_load(default_config()).keys() == Config.model_fields.keys()
    assert yaml.safe_load(default_config())["train"].keys() == Settings.model_fields.keys()


def test_a_resolved_configuration_reads_back() -> None:
    text = DATA + "seed: 3\ninitialise: null\ntrain: {phases: [2, 3], learning_rate: 1e-3}\ncard: {licence: CC0}"
    config = parse_config(text)
    assert config.train.learning_rate == 0.001
    assert config.initialise is None
    assert parse_config(config_yaml(config)) == config


def test_rounds_have_the_settings_of_a_stage() -> None:
    config = parse_config(DATA + "train: {steps: 7}\nrounds: [{lower_level: equilibrium}, {fresh_of: {knee: 0.5}}]")
    assert config.rounds == (SourceSettings(lower_level="equilibrium"), SourceSettings(fresh_of={"knee": 0.5}))
    assert parse_config(config_yaml(config)) == config
    assert parse_config(DATA).rounds == ()
    assert "\nrounds: []\n" in default_config()
    assert [row.split("|")[1:3] for row in config_table().splitlines() if "| `rounds" in row] == [
        [" `rounds` ", " `[]` "]
    ]


def test_the_example_of_rounds_in_the_document_is_valid() -> None:
    example = DOCUMENT.read_text().partition("```yaml\n")[2].partition("```")[0]
    assert len(parse_config(DATA + example).rounds) == 2


def test_the_sizes_are_those_of_the_network() -> None:
    assert vars(CheckedArchitecture()) == asdict(Architecture())
    assert parse_config(DATA + "architecture: {width: 3}").architecture == CheckedArchitecture(width=3)


@pytest.mark.parametrize("part", [Config, DataConfig, MaskConfig, CheckedArchitecture, Settings])
def test_every_key_is_explained(part: type) -> None:
    assert attribute_texts(part).keys() == annotations_of(part).keys()


def test_the_table_in_the_document_is_complete() -> None:
    assert config_table() in DOCUMENT.read_text(), "run `make docs`"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dta: []", "unknown setting 'dta'; did you mean 'data'?"),
        (DATA + "train: {learning_rat: 1}", "unknown setting 'train.learning_rat'; did you mean 'learning_rate'?"),
        (DATA + "initialise: {step: 1}", "unknown setting 'initialise.step'; did you mean 'steps'?"),
        (
            DATA + "rounds: [{steps: 2}, {learning_rat: 1}]",
            "unknown setting 'rounds[1].learning_rat'; did you mean 'learning_rate'?",
        ),
        (DATA + "rounds: [{steps: 0}]", "the setting rounds[0].steps is wrong"),
        (DATA + "rounds: {steps: 2}", "the setting rounds is wrong"),
        (DATA + "seconds: 60\nrounds: [{steps: 2}]", "a time (seconds) and rounds exclude each other"),
        (DATA + "method: unet\nrounds: []", "rounds belongs to ulda, but the method is unet"),
        (DATA + "masks: {ratio: [0.2]}", "unknown setting 'masks.ratio'; did you mean 'ratios'?"),
        (DATA + "architecture: {widht: 3}", "unknown setting 'architecture.widht'; did you mean 'width'?"),
        (DATA + "architecture: {width: 0}", "the setting architecture is wrong: width must be positive"),
        (DATA + "architecture: {width: much}", "the setting architecture.width is wrong"),
        (DATA + "train: {phases: [1, 15]}", "15 phases are to be trained, but the network has 3"),
        (DATA + "rounds: [{phases: [4]}]", "4 phases are to be trained, but the network has 3"),
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
    with pytest.raises(UldaError, match="cannot read the configuration"):
        load_config(tmp_path / "none.yaml")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_the_examples_are_valid(path: Path) -> None:
    assert load_config(path).data
