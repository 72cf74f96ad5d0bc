from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Command
from tests.training.small_domains import write_domain
from ulda.data import DomainWriter, Header, Record, demo
from ulda.methods import METHODS, ULDA, DnCn, load_method

CONFIG = """
name: tiny
method: dncn
network: {filters: 4, layers: 2, cascades: 2}
data: [{name: kidney, file: kidney.npz}]
masks: {ratios: [0.3, 0.4], per_ratio: 2}
train: {steps: 12, batch_size: 2, validate_every: 6, checkpoint_every: 3}
card: {licences: MIT}
"""
FOR_ULDA = """
name: shared
data: [{name: kidney, file: kidney.npz}]
network: {width: 3, depth: 2, phases: 2, initialise: 0.5}
train: {steps: 4, batch_size: 1, validate_every: 0, phases: []}
"""
SPLITS = {"a": "train", "b": "train", "c": "val", "d": "test", "e": "test"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with configurations, their source, and a target domain of five subjects."""
    folder = tmp_path_factory.mktemp("methods")
    write_domain(folder / "kidney.npz", "kidney", n_subjects=4, every=2)
    (folder / "tiny.yaml").write_text(CONFIG)
    (folder / "shared.yaml").write_text(FOR_ULDA)
    with DomainWriter(folder / "knee.h5", Header("knee", "complex")) as writer:
        for image, subject in zip(demo("knee").take(range(10)).images(), "aabbccddee", strict=True):
            writer.append(Record(image[48:80, 48:80].numpy(), subject, split=SPLITS[subject]))
    return folder


def succeed(command: Command, *arguments: object) -> str:
    code, output, errors = command(*arguments)
    assert code == 0, errors
    return output + errors


def fail(command: Command, *arguments: object) -> str:
    code, _, errors = command(*arguments)
    assert code == 1
    assert "Traceback" not in errors
    assert errors.splitlines()[-1].startswith("error: ")
    return errors


def read(path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(path.read_text())
    return facts


@pytest.fixture
def trained(place: Path, command: Command) -> Path:
    """Return the folder of a trained DnCn."""
    out = place / "dncn"
    if not out.exists():
        succeed(command, "train", place / "tiny.yaml", "--out", out, "--threads", 1)
    return out


def test_the_list_has_every_method_with_its_counts(command: Command) -> None:
    rows = {row["name"]: row for row in json.loads(succeed(command, "methods", "--json"))}
    assert list(rows) == [*METHODS, "zero-filling", "TV", "wavelet"]
    # 5 cascades of 2 -> 32, three times 32 -> 32, and 32 -> 2, with 3 x 3 kernels and biases, by hand
    d5c5 = 5 * ((2 * 32 * 9 + 32) + 3 * (32 * 32 * 9 + 32) + (32 * 2 * 9 + 2))
    assert rows["dncn"]["n_parameters"] == rows["dncn"]["n_adapted"] == d5c5 == 144_650
    assert rows["unet"]["n_parameters"] == 7_756_097
    # 2 * 9 * (16 + 3 * 16 * 16) in the extractor, 2 * 9 * 16 * 16 in an adapter, for a new domain a low-rank update;
    # per adapter the noise scale, per step 4 step sizes and 6 gains of frequencies, of the paper 2 step sizes per phase
    update = 2 * 9 * 4 * (1 + 3 * 16) + 4 * 2 * 4 * 16
    assert rows["ulda"]["n_adapted"] == 4_608 + 1 + update + 15 * (4 + 6)
    assert rows["ulda"]["n_parameters"] == 14_112 + 2 * (4_608 + 1 + 15 * (4 + 6))
    assert rows["ulda-paper"]["n_adapted"] == 4_608 + 15 * 2
    assert rows["ulda-paper"]["title"] == "U-LDA (paper)"
    assert rows["TV"]["n_parameters"] is None
    text = succeed(command, "methods")
    assert "144,650" in text
    assert "DnCn: Schlemper et al. 2018" in text
    assert "zero-filling: the adjoint" in text


def test_the_sizes_of_a_method(command: Command) -> None:
    assert json.loads(succeed(command, "methods", "--sizes", "dncn", "--json")) == {
        "filters": 32,
        "layers": 5,
        "cascades": 5,
    }
    assert "cascades" in succeed(command, "methods", "--sizes", "dncn")
    assert "did you mean 'dncn'?" in fail(command, "methods", "--sizes", "dncnn")


def test_a_training_and_its_files(trained: Path, command: Command) -> None:
    model = load_method(trained)
    assert isinstance(model, DnCn)
    assert (model.sizes, model.sources) == ({"filters": 4, "layers": 2, "cascades": 2}, ("kidney",))
    card = read(trained / "model.json")["card"]
    assert (card["licences"], card["config"]["method"], card["data"][0]["domain"]) == ("MIT", "dncn", "kidney")
    assert card["validation"]["step"] == 12
    assert {key: card["spent"][key] for key in ("equal", "steps", "slices", "extra_steps")} == {
        "equal": "steps",
        "steps": 12,
        "slices": 24,
        "extra_steps": {},
    }
    with (trained / "log.csv").open() as stream:
        assert [int(row["step"]) for row in csv.DictReader(stream)] == [6, 10, 12]
    written = yaml.safe_load((trained / "config.yaml").read_text())
    # the file gives no rate: it is that of the method, not that of U-LDA
    assert written["train"]["learning_rate"] == 1e-3
    assert "holds a training already" in fail(command, "train", trained.parent / "tiny.yaml", "--out", trained)


def test_a_written_configuration_trains_the_same_model(trained: Path, command: Command, tmp_path: Path) -> None:
    succeed(command, "train", trained / "config.yaml", "--out", tmp_path / "again", "--threads", 1)
    first, second = (folder / "model.safetensors" for folder in (trained, tmp_path / "again"))
    assert first.read_bytes() == second.read_bytes()


def test_one_file_trains_other_methods_on_the_same_terms(place: Path, command: Command, tmp_path: Path) -> None:
    arguments = "train", place / "shared.yaml", "--threads", 1
    text = succeed(command, *arguments, "--method", "dncn", "--out", tmp_path / "dncn")
    assert "trained shared (dncn, preset default) on kidney: 144650 parameters" in text
    text = succeed(command, *arguments, "--method", "ulda", "--out", tmp_path / "ulda")
    assert "trained shared (ulda, preset default) on kidney" in text
    assert ULDA.load(tmp_path / "ulda").network.width == 3
    dncn, ulda = (*(read(tmp_path / name / "model.json")["card"] for name in ("dncn", "ulda")),)
    assert dncn["command"].endswith("shared.yaml --method dncn")
    assert dncn["data"] == ulda["data"]
    assert [card["spent"]["steps"] for card in (dncn, ulda)] == [4, 4]
    assert ulda["spent"]["extra_steps"] == {"initialise": 2}


@pytest.mark.parametrize("method", ["dncn", "ulda"])
def test_equal_wall_clock_is_recorded(method: str, place: Path, command: Command, tmp_path: Path) -> None:
    config = tmp_path / "timed.yaml"
    text = FOR_ULDA.replace("kidney.npz", str(place / "kidney.npz")).replace(", initialise: 0.5", "")
    config.write_text(text.replace("steps: 4", "steps: 30000"))
    out = tmp_path / "run"
    arguments = "train", config, "--method", method, "--out", out, "--threads", 1
    succeed(command, *arguments, "--seconds", 0.6)
    spent = read(out / "model.json")["card"]["spent"]
    assert spent["equal"] == "wall-clock"
    assert spent["steps"] == spent["slices"] == read(out / "timed.json")["steps"]
    assert spent["steps"] < 30_000
    errors = fail(command, *arguments, "--seconds", 0.7, "--resume")
    assert "another seconds (0.6, now 0.7)" in errors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("method: dncn", "method: dnc"), "there is no method 'dnc'; did you mean 'dncn'?"),
        (("filters", "filter"), "unknown size 'filter' of dncn; did you mean 'filters'?"),
        (("filters: 4", "filters: many"), "the size filters of dncn must be like 32, but it is 'many'"),
        (("filters: 4", "filters: 0"), "needs at least 1 filter"),
        (("masks:", "architecture: {width: 3}\nmasks:"), "unknown setting 'architecture'"),
        (("method: dncn", "method: ulda"), "unknown size 'filters' of ulda"),
        (("method: dncn", "preset: papr"), "there is no preset 'papr'; did you mean 'paper'?"),
        (("name: tiny", "seconds: 0"), "the setting seconds is wrong"),
    ],
)
def test_mistakes_are_found_before_any_data_is_read(
    change: tuple[str, str], message: str, command: Command, tmp_path: Path
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(CONFIG.replace(*change))
    assert message in fail(command, "train", path, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_options_are_checked(place: Path, command: Command) -> None:
    assert "there is no method 'best'" in fail(command, "train", place / "tiny.yaml", "--method", "best")
    assert "--seconds must be positive" in fail(command, "train", place / "tiny.yaml", "--seconds", 0)


def test_adapted_and_evaluated(trained: Path, place: Path, command: Command, tmp_path: Path) -> None:
    out = tmp_path / "dncn-knee"
    data = "--data", place / "knee.h5", "--slices", 3, "--ratio", 0.4, "--steps", 6, "--threads", 1
    text = succeed(command, "adapt", "--method", "dncn", "--base", trained, *data, "--out", out)
    assert "with 3 slices of 2 subjects" in text
    assert "the model is in" in text
    card = read(out / "model.json")["card"]
    facts = card["adaptation"]
    gain = facts["validation"]["adapted"]["psnr"] - facts["validation"]["unadapted"]["psnr"]
    told = f"helped on validation (2 slices of 1 subjects) by {gain:.2f} dB" if gain > 0 else "did not help"
    assert told in text
    assert facts["subjects"] == ["a", "b"]
    assert facts["base_weights"] == read(trained / "model.json")["weights"]
    assert (facts["spent"]["steps"], facts["spent"]["slices"]) == (6, 12)
    assert card["data"][0]["domain"] == "kidney"
    assert load_method(out).domain == "knee"

    ULDA(sources=["brain"], width=3, depth=2, phases=2).save(tmp_path / "base")
    compared = "evaluate", place / "knee.h5", "--model", tmp_path / "base", "--ratio", 0.4
    result = json.loads(succeed(command, *compared, "--against", trained, "--against", out, "--json"))
    means = {row["method"]: row["psnr"] for row in result["summary"]}
    names = ["DnCn (dncn)", "DnCn (dncn-knee)"]
    assert list(means) == ["zero-filling", "TV", "wavelet", *names, "un-adapted"]
    for name in names:
        difference = result["differences"][name]["psnr"]["mean"]
        assert difference == pytest.approx(means["un-adapted"] - means[name], abs=1e-4)
    assert [result["against"][name]["domain"] for name in names] == [None, "knee"]
    note = "DnCn (dncn): not adapted to a domain, so it is what an adaptation would start from"
    assert result["notes"][1:-1] == [note]
    assert result["against"][names[1]]["spent"]["adaptation"]["steps"] == 6
    result = json.loads(succeed(command, *compared, "--against", out, "--split", "val", "--json"))
    assert "DnCn" in result["differences"]
    assert any(note.startswith("DnCn: the adapter was chosen by its scores on 1") for note in result["notes"])
    errors = fail(command, *compared, "--against", out, "--split", "train")
    assert "DnCn: the model was trained on the subject a and on 1 more of these subjects" in errors
    assert "is a dncn, not a ulda" in fail(command, "evaluate", place / "knee.h5", "--model", out)
    assert "same name and method" in fail(command, *compared, "--against", out, "--against", out)

    rows = json.loads(succeed(command, "models", "list", "--path", tmp_path, "--json"))[-2:]
    assert [row["kind"] for row in rows] == ["base", "method"]
    assert (rows[1]["method"], rows[1]["domain"], rows[1]["parameters"]["file"]) == ("dncn", "knee", 2 * (76 + 74))
    assert "method dncn" in succeed(command, "models", "list", "--path", tmp_path)
    assert "card: adaptation: subjects" in succeed(command, "models", "inspect", out)


def test_an_adaptation_resumes(trained: Path, place: Path, command: Command, tmp_path: Path) -> None:
    arguments = "adapt", "--base", trained, "--data", place / "knee.h5", "--threads", 1, "--steps", 20
    succeed(command, *arguments, "--out", tmp_path / "whole")
    out = tmp_path / "paused"
    (out / "training" / "stage-0").mkdir(parents=True)
    source = tmp_path / "whole" / "training" / "stage-0" / "checkpoint.safetensors"
    (out / "training" / "stage-0" / "checkpoint.safetensors").write_bytes(source.read_bytes())
    assert "continue it with --resume" in fail(command, *arguments, "--out", out)
    succeed(command, *arguments, "--out", out, "--resume")
    first, second = (tmp_path / name / "model.safetensors" for name in ("whole", "paused"))
    assert first.read_bytes() == second.read_bytes()
    assert "continue it with --resume" in fail(command, *arguments, "--out", out)
    succeed(command, *arguments, "--out", out, "--force", "--seed", 1)
    assert first.read_bytes() != second.read_bytes()


def test_what_cannot_be_adapted(trained: Path, place: Path, command: Command, tmp_path: Path) -> None:
    ULDA(sources=["brain"], width=3, depth=2, phases=2).save(tmp_path / "base")
    data = "--data", place / "knee.h5", "--out", tmp_path / "out"
    assert "base holds a U-LDA, not a DnCn; name the folder of a trained DnCn with --base" in fail(
        command, "adapt", "--method", "dncn", "--base", tmp_path / "base", *data
    )
    assert "holds a DnCn, not a U-LDA" in fail(command, "adapt", "--method", "ulda", "--base", trained, *data)
    assert "did you mean 'dncn'" in fail(command, "adapt", "--method", "dncm", "--base", trained, *data)
    assert "DnCn has no low-rank update" in fail(command, "adapt", "--base", trained, "--rank", 3, *data)
    assert "is the folder of the DnCn itself" in fail(
        command, "adapt", "--base", trained, "--data", place / "knee.h5", "--out", trained, "--force"
    )
    assert "trained on a domain kidney itself" in fail(command, "adapt", "--base", trained, "--name", "kidney", *data)
    adapted = load_method(trained)
    adapted.adapted_to, adapted.domain = ("knee",), "knee"
    adapted.save(tmp_path / "adapted", {})
    assert "adapted to knee already" in fail(command, "adapt", "--base", tmp_path / "adapted", *data)
