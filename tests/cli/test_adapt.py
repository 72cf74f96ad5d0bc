from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ulda
from tests.cli.conftest import Command
from tests.training.small_domains import write_domain
from ulda.methods import ULDA
from ulda.methods.adaptation import adapt
from ulda.physics import cartesian_mask
from ulda.training.history import Progress
from ulda.training.slices import opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapt")
    write_domain(folder / "knee.npz")
    ULDA(sources=["brain"], width=3, depth=2, phases=3).save(folder / "base")
    return folder


def test_an_adapter_is_made_and_its_gain_told(folder: Path, command: Command, tmp_path: Path) -> None:
    out = tmp_path / "adapter"
    mask = cartesian_mask(32, 0.3, seed=4)
    mask.save(tmp_path / "mask.json")
    arguments = ["--data", folder / "knee.npz", "--slices", 3, "--mask", tmp_path / "mask.json", "--steps", 6]
    arguments += ["--acquisition", "ideal"]
    code, output, _ = command("adapt", "--base", folder / "base", *arguments, "--out", out)
    assert code == 0
    facts = json.loads((out / "adapter.json").read_text())
    assert (facts["domain"], facts["n_slices"], facts["mask"]) == ("knee", 3, mask.as_dict())
    assert facts["acquisition"] == "ideal"
    gain = facts["validation"]["adapted"]["psnr"] - facts["validation"]["unadapted"]["psnr"]
    told = f"helped on validation (2 slices of 1 subjects) by {gain:.2f} dB" if gain > 0 else "did not help"
    assert told in output
    assert ulda.load(folder / "base", out).domain == "knee"
    code, _, errors = command("adapt", "--base", folder / "base", *arguments, "--out", out)
    assert code == 1
    assert "continue it with --resume or replace it with --force" in errors
    code, output, _ = command(
        "adapt", "--base", folder / "base", *arguments, "--out", out, "--force", "--aug", "--json"
    )
    assert json.loads(output)["settings"]["augment"] is True
    assert json.loads((out / "adapter.json").read_text())["settings"]["augment"] is True
    into_base = ["adapt", "--base", folder / "base", *arguments, "--out", folder / "base", "--force"]
    code, _, errors = command(*into_base)
    assert code == 1
    assert "holds the files of another model, and this makes an adapter" in errors


def test_an_interrupted_adaptation_resumes_to_the_same_bytes(folder: Path, command: Command, tmp_path: Path) -> None:
    options = ["--size", 24, "--name", "joint", "--steps", 9, "--aug"]
    arguments = ["--base", folder / "base", "--data", folder / "knee.npz", *options]
    assert command("adapt", *arguments, "--out", tmp_path / "whole")[0] == 0
    changes = {"steps": 9, "augment": True}

    def stop(progress: Progress) -> None:
        if progress.step == 5:
            raise KeyboardInterrupt

    place = tmp_path / "paused" / "training"
    with opened(folder / "knee.npz", size=(24, 24), name="joint") as joint, pytest.raises(KeyboardInterrupt):
        adapt(folder / "base", joint, changes=changes, name="joint", folder=place, report=stop)
    assert command("adapt", *arguments, "--out", tmp_path / "paused", "--resume")[0] == 0
    first, second = (tmp_path / name / "adapter.safetensors" for name in ("whole", "paused"))
    assert first.read_bytes() == second.read_bytes()
    for stage in ("stage-0", "stage-1", "stage-2"):
        logs = [tmp_path / name / "training" / stage / "log.csv" for name in ("whole", "paused")]
        assert logs[0].read_bytes() == logs[1].read_bytes()


def test_ctrl_c_says_how_to_continue(
    folder: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ulda.methods.adaptation.adapt", interrupt)
    arguments = ["--base", folder / "base", "--data", "demo:knee", "--out", tmp_path / "out"]
    code, _, errors = command("adapt", *arguments)
    assert code == 130
    assert errors == "stopped; there was nothing to save yet, continue with the same command and --resume\n"


def test_what_cannot_be_continued_is_not_replaced(folder: Path, command: Command, tmp_path: Path) -> None:
    out = tmp_path / "shared"
    model = ULDA.load(folder / "base")
    model.add_domain("hip")
    model.save_adapter("hip", out)
    before = (out / "adapter.safetensors").read_bytes()
    arguments = ["--base", folder / "base", "--data", folder / "knee.npz", "--steps", 2, "--out", out]
    for more in ([], ["--resume"]):
        code, _, errors = command("adapt", *arguments, *more)
        assert (code, "without checkpoints to continue from" in errors) == (1, True)
    assert (out / "adapter.safetensors").read_bytes() == before
    assert command("adapt", *arguments, "--force")[0] == 0
    # a mistake does not cost the checkpoints
    checkpoints = sorted(out.glob("training/**/checkpoint.safetensors"))
    assert checkpoints
    code, _, errors = command("adapt", *arguments, "--force", "--base", "nowhere")
    assert (code, "nowhere" in errors) == (1, True)
    assert sorted(out.glob("training/**/checkpoint.safetensors")) == checkpoints


def test_mistakes_are_one_sentence(folder: Path, command: Command, tmp_path: Path) -> None:
    code, _, errors = command("adapt", "--base", "nowhere", "--data", "demo:knee", "--out", tmp_path / "out")
    assert (code, "nowhere" in errors) == (1, True)
    code, _, errors = command("adapt", "--base", folder / "base", "--data", "demo:kne", "--out", tmp_path / "out")
    assert (code, "there is no embedded domain 'kne'" in errors) == (1, True)


def test_a_preset_and_a_rank_decide_what_learns(folder: Path, command: Command, tmp_path: Path) -> None:
    """The paper trains h and the step sizes alone; the default trains a low-rank update of g, too."""
    arguments = ["--base", folder / "base", "--data", folder / "knee.npz", "--slices", 3, "--steps", 3]
    found = {}
    choices: dict[str, list[Any]] = {"paper": ["--preset", "paper"], "rank": ["--rank", 2], "none": ["--rank", 0]}
    for name, options in choices.items():
        code, output, errors = command("adapt", *arguments, *options, "--out", tmp_path / name)
        assert code == 0, errors
        facts = json.loads((tmp_path / name / "adapter.json").read_text())
        trained, used = facts["parameters"]["trained"], facts["parameters"]["of"]
        assert f"trains {trained:,} of {used:,} parameters ({100 * trained / used:.1f} %)" in output
        found[name] = (facts["rank"], trained, facts["settings"]["augment"])
    # h of three channels, and alpha and beta of three phases
    own = 2 * 9 * 3 * 3 + 2 * 3
    assert found["paper"] == (0, own, True)
    assert found["none"] == (0, own, False)
    assert found["rank"] == (2, own + 2 * 2 * (9 * 1 + 3) + 2 * 2 * (9 * 3 + 3), False)
    code, _, errors = command("adapt", *arguments, "--preset", "papre", "--out", tmp_path / "wrong")
    assert (code, "there is no preset 'papre'; did you mean 'paper'" in errors) == (1, True)
