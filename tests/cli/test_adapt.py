from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import ulda
from tests.cli.conftest import Command
from tests.data.readers import test_fastmri as fastmri
from tests.training.small_domains import write_domain
from ulda.data import Domain, import_domain
from ulda.methods import ULDA
from ulda.methods.adaptation import adapt
from ulda.physics import cartesian_mask, fft2c, random_mask
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


@pytest.fixture(scope="module")
def scans(folder: Path) -> Path:
    """Write undersampled files of two coils in the layout of fastMRI, each with a mask of its own."""
    import_domain([folder / "knee.npz"], folder / "knee.h5")
    images = list(Domain.open(folder / "knee.h5").images())
    (folder / "scans").mkdir()
    for number in range(3):
        lines = random_mask(32, 2.5, center=0.15, seed=number).lines.numpy()
        image = images[number].numpy()
        ramp = np.linspace(0.2, 0.9, 32, dtype=np.float32)
        coils = np.stack([image * ramp, image * np.sqrt(1 - ramp**2)])
        kspace = 1e-4 * fft2c(torch.from_numpy(np.stack([coils, 0.7 * coils]))).numpy() * lines
        fastmri.write(folder / "scans" / f"file{number}.h5", kspace=kspace, mask=lines)
    return folder / "scans"


@pytest.mark.parametrize("command_name", ["adapt", "evaluate"])
def test_scans_without_a_mask_are_no_references(
    folder: Path, scans: Path, command: Command, tmp_path: Path, command_name: str
) -> None:
    path = tmp_path / "scan.h5"
    path.write_bytes((scans / "file0.h5").read_bytes())
    with h5py.File(path, "r+") as file:
        del file["mask"]
    n_empty = 32 - int(random_mask(32, 2.5, center=0.15, seed=0).n_sampled)
    arguments = {
        "adapt": ("--base", folder / "base", "--data", path, "--steps", 2, "--out", tmp_path / "out"),
        "evaluate": (path, "--model", folder / "base", "--iterations", 1),
    }
    code, _, errors = command(command_name, *arguments[command_name])
    assert code == 1
    assert f"arrived undersampled: {n_empty} of 32 lines of slice 0 are empty, so there is no reference" in errors


def test_undersampled_scans_are_adapted_to_without_references(
    folder: Path, scans: Path, command: Command, tmp_path: Path
) -> None:
    arguments = ["adapt", "--base", folder / "base", "--data", scans, "--steps", 6, "--name", "scanner"]
    code, _, errors = command(*arguments, "--out", tmp_path / "out")
    assert code == 1
    assert "arrived undersampled: 20 of 32 lines of slice 0 are empty, so there is no reference to learn from" in errors
    assert "--self-supervised" in errors
    code, output, errors = command(*arguments, "--out", tmp_path / "out", "--self-supervised")
    assert code == 0, errors
    assert "lines of k-space and is not a PSNR" in output
    facts = json.loads((tmp_path / "out" / "adapter.json").read_text())
    masks = [random_mask(32, 2.5, center=0.15, seed=number) for number in range(3)]
    lines = facts["self_supervised"]["lines_per_slice"]
    assert (facts["n_slices"], facts["kspace"]) == (6, "measured, 2 coils")
    assert lines["sampled"] == pytest.approx(sum(mask.n_sampled for mask in masks) / 3, abs=0.01)
    assert facts["validation"]["score"].endswith("not a PSNR")
    assert facts["validation"]["unadapted"]["held_out_db"] <= facts["validation"]["adapted"]["held_out_db"]
    # and the adapter reconstructs such a scan
    assert ulda.load(folder / "base", tmp_path / "out").domain == "scanner"
    scan = [scans / "file0.h5", "--model", folder / "base", "--adapter", tmp_path / "out"]
    code, _, errors = command("reconstruct", *scan, "--out", tmp_path / "x.h5")
    assert code == 0, errors


def test_an_interrupted_self_supervised_adaptation_resumes_to_the_same_bytes(
    folder: Path, scans: Path, command: Command, tmp_path: Path
) -> None:
    options = ["--steps", 6, "--name", "scanner", "--self-supervised", "--preset", "paper"]
    arguments = ["adapt", "--base", folder / "base", "--data", scans, *options]
    assert command(*arguments, "--out", tmp_path / "whole")[0] == 0

    def stop(progress: Progress) -> None:
        if progress.step == 4:
            raise KeyboardInterrupt

    place = tmp_path / "paused" / "training"
    how: dict[str, Any] = {"preset": "paper", "changes": {"steps": 6}, "name": "scanner", "self_supervised": True}
    with opened(scans, name="scanner") as domain, pytest.raises(KeyboardInterrupt):
        adapt(folder / "base", domain, folder=place, report=stop, **how)
    assert command(*arguments, "--out", tmp_path / "paused", "--resume")[0] == 0
    first, second = (tmp_path / name / "adapter.safetensors" for name in ("whole", "paused"))
    assert first.read_bytes() == second.read_bytes()
    code, _, errors = command(*arguments, "--out", tmp_path / "aug", "--aug")
    assert (code, "leave out augment" in errors) == (1, True)


def test_fully_sampled_data_can_test_it(folder: Path, command: Command, tmp_path: Path) -> None:
    mask = random_mask(32, 2.5, center=0.15, seed=1)
    mask.save(tmp_path / "mask.json")
    arguments = ["--data", folder / "knee.npz", "--mask", tmp_path / "mask.json", "--steps", 4, "--slices", 3]
    how = ["--self-supervised", "--acquisition", "ideal", "--json"]
    code, output, errors = command("adapt", "--base", folder / "base", *arguments, *how, "--out", tmp_path / "out")
    assert code == 0, errors
    facts = json.loads(output)
    assert facts["mask"] == mask.as_dict()
    assert facts["self_supervised"]["lines_per_slice"]["sampled"] == mask.n_sampled
    assert facts["gain"] >= 0
