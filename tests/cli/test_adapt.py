from __future__ import annotations

import json
from pathlib import Path

import pytest

import ulda
from tests.cli.conftest import Command
from tests.training.small_domains import write_domain
from ulda.physics import cartesian_mask
from ulda.training import ULDA, Architecture, load_base, save_adapter, save_base
from ulda.training.adaptation import adapt, default_settings
from ulda.training.history import Progress
from ulda.training.slices import opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapt")
    write_domain(folder / "knee.npz")
    save_base(ULDA(Architecture(width=3, depth=2, phases=3), ["brain"]), folder / "base")
    return folder


def test_an_adapter_is_made_and_its_gain_told(folder: Path, command: Command, tmp_path: Path) -> None:
    out = tmp_path / "adapter"
    mask = cartesian_mask(32, 0.3, seed=4)
    mask.save(tmp_path / "mask.json")
    arguments = ["--data", folder / "knee.npz", "--slices", 3, "--mask", tmp_path / "mask.json", "--steps", 6]
    code, output, _ = command("adapt", "--base", folder / "base", *arguments, "--out", out)
    assert code == 0
    facts = json.loads((out / "adapter.json").read_text())
    assert (facts["domain"], facts["n_slices"], facts["augment"], facts["mask"]) == ("knee", 3, False, mask.as_dict())
    gain = facts["validation"]["adapted"]["psnr"] - facts["validation"]["unadapted"]["psnr"]
    told = f"helped on validation (2 slices of 1 subjects) by {gain:.2f} dB" if gain > 0 else "did not clearly help"
    assert told in output
    assert ulda.load(folder / "base", out).domain == "knee"
    code, _, errors = command("adapt", "--base", folder / "base", *arguments, "--out", out)
    assert code == 1
    assert "continue it with --resume or replace it with --force" in errors
    code, output, _ = command(
        "adapt", "--base", folder / "base", *arguments, "--out", out, "--force", "--aug", "--json"
    )
    assert json.loads(output)["augment"] is True
    assert json.loads((out / "adapter.json").read_text())["augment"] is True
    into_base = ["adapt", "--base", folder / "base", *arguments, "--out", folder / "base", "--force"]
    code, _, errors = command(*into_base)
    assert code == 1
    assert "holds the files of another model, and this makes an adapter" in errors


def test_an_interrupted_adaptation_resumes_to_the_same_bytes(folder: Path, command: Command, tmp_path: Path) -> None:
    changes = ["--size", 24, "--name", "joint", "--steps", 9, "--aug"]
    arguments = ["--base", folder / "base", "--data", folder / "knee.npz", *changes]
    assert command("adapt", *arguments, "--out", tmp_path / "whole")[0] == 0
    model = load_base(folder / "base")
    settings = default_settings(n_pixels=24 * 24, steps=9)

    def stop(progress: Progress) -> None:
        if progress.step == 5:
            raise KeyboardInterrupt

    place = tmp_path / "paused" / "training"
    with opened(folder / "knee.npz", size=(24, 24), name="joint") as joint, pytest.raises(KeyboardInterrupt):
        adapt(model, joint, settings=settings, augment=True, name="joint", folder=place, report=stop)
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

    monkeypatch.setattr("ulda.training.adaptation.adapt", interrupt)
    arguments = ["--base", folder / "base", "--data", "demo:knee", "--out", tmp_path / "out"]
    code, _, errors = command("adapt", *arguments)
    assert code == 130
    assert errors == "stopped; there was nothing to save yet, continue with the same command and --resume\n"


def test_what_cannot_be_continued_is_not_replaced(folder: Path, command: Command, tmp_path: Path) -> None:
    out = tmp_path / "shared"
    save_adapter(load_base(folder / "base"), "brain", out)
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
