from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import yaml

from tests.cli.conftest import Command
from tests.training.small_domains import write_domain
from ulda.methods import ULDA
from ulda.methods.runs import resolve, train
from ulda.physics import ACQUISITIONS, cartesian_mask
from ulda.training.config import MaskConfig, load_config, parse_config
from ulda.training.presets import load_preset
from ulda.training.slices import load_task

CONFIG = """
name: tiny
data: [{name: knee, file: knee.npz}, {name: kidney, file: kidney.npz, slices: 4}]
masks: {ratios: [0.3, 0.4], per_ratio: 2}
network: {width: 3, depth: 2, phases: 3, initialise: 0.1}
train: {steps: 40, batch_size: 2, validate_every: 20, checkpoint_every: 3, phases: [2, 3],
        equilibrium: {chains: 2, phases: 2, rollout: 2}}
card: {licences: MIT}
"""
SAME_BYTES = ("model.safetensors", "log.csv", "config.yaml", "initialise/knee/log.csv", "initialise/kidney/log.csv")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train")
    write_domain(folder / "knee.npz", "knee", every=2)
    write_domain(folder / "kidney.npz", "kidney", n_subjects=4, every=2)
    (folder / "tiny.yaml").write_text(CONFIG)
    return folder / "tiny.yaml"


@pytest.fixture(scope="module")
def whole(config: Path) -> Path:
    """Return the folder of a run without a pause."""
    folder = config.parent / "whole"
    train(resolve(load_config(config)), folder, command="ulda train tiny.yaml")
    return folder


def interrupted(config: Path, out: Path, number: signal.Signals, stage: str = "") -> subprocess.CompletedProcess[str]:
    """Start `ulda train`, and send it a signal once a stage, by default step 1, has written a checkpoint."""
    arguments = [sys.executable, "-m", "ulda", "train", str(config), "--out", str(out), "--threads", "1"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(arguments, env=environment, text=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    deadline = time.monotonic() + 120
    checkpoint = out / stage / "checkpoint.safetensors"
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(number)
    output, errors = process.communicate()
    assert not (out / "model.safetensors").exists(), f"the run ended before it was stopped: {output} {errors}"
    return subprocess.CompletedProcess(arguments, process.returncode, output, errors)


def assert_same_files(first: Path, second: Path, *others: str) -> None:
    for name in (*SAME_BYTES, *others):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_the_base_and_its_card(whole: Path) -> None:
    model = ULDA.load(whole)
    assert model.sources == ("knee", "kidney")
    assert model.n_phases == 3
    card = json.loads((whole / "model.json").read_text())["card"]
    assert card["licences"] == "MIT"
    assert card["command"] == "ulda train tiny.yaml"
    assert [entry["n_slices"] for entry in card["data"]] == [7, 4]
    assert [entry["validation"] for entry in card["data"]] == [
        "the val split",
        "subjects held out, as the data has no val split",
    ]
    assert card["config"]["data"][0]["file"] == "knee.npz"
    assert card["validation"]["step"] == 40
    assert card["training"]["seconds"] > 0
    assert card["training"]["peak_memory_mb"] > 50


def test_the_log_has_losses_between_the_validations(whole: Path) -> None:
    with (whole / "log.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    steps = [int(row["step"]) for row in rows]
    assert steps == [10, 20, 30, 40]
    assert [int(row["step"]) for row in rows if row["knee_psnr"]] == [20, 40]
    assert all(row["loss"] for row in rows)


def test_a_killed_run_resumes_to_the_same_bytes(config: Path, whole: Path, command: Command, tmp_path: Path) -> None:
    out = tmp_path / "run"
    interrupted(config, out, signal.SIGKILL)
    code, _, errors = command("train", config, "--out", out)
    assert code == 1
    assert "holds a training already; continue it with --resume" in errors
    code, output, _ = command("train", config, "--out", out, "--resume", "--threads", 1)
    assert (code, "trained tiny (ulda, preset default) on knee, kidney" in output) == (0, True)
    assert_same_files(out, whole)


def test_the_progress_bar_counts_all_stages(
    config: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int | None]] = []

    @contextmanager
    def recorded(_: str) -> Iterator[Callable[[int, int | None], None]]:
        yield lambda done, total: seen.append((done, total))

    monkeypatch.setattr("ulda.cli.train.progress_bar", recorded)
    short = config.with_name("bar.yaml")
    short.write_text(CONFIG.replace("steps: 40", "steps: 10"))
    assert command("train", short, "--out", tmp_path / "run", "--threads", 1)[0] == 0
    # two sources for a tenth of the steps each, then all
    assert seen == [(done, 12) for done in range(1, 13)]


def test_ctrl_c_saves_and_says_how_to_continue(config: Path, whole: Path, command: Command, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = interrupted(config, out, signal.SIGINT)
    assert done.returncode == 130
    sentence = f"stopped; the run is saved, continue with: ulda train {config} --out {out} --resume"
    assert done.stderr.splitlines() == [sentence]
    assert command("train", config, "--out", out, "--resume", "--threads", 1)[0] == 0
    assert_same_files(out, whole)


def test_resuming_a_finished_run_changes_nothing(config: Path, whole: Path) -> None:
    before = (whole / "model.safetensors").read_bytes()
    seen: list[str] = []
    train(resolve(load_config(config)), whole, resume=True, report=lambda progress: seen.append(progress.stage))
    assert seen == []
    assert (whole / "model.safetensors").read_bytes() == before


def test_resuming_with_another_configuration_names_the_key(config: Path, whole: Path, command: Command) -> None:
    changed = config.with_name("changed.yaml")
    changed.write_text(CONFIG.replace("per_ratio: 2", "per_ratio: 3"))
    code, _, errors = command("train", changed, "--out", whole, "--resume")
    assert code == 1
    assert "another masks.per_ratio (2, now 3)" in errors


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_print_config_prints_a_configuration(command: Command, preset: str) -> None:
    code, output, _ = command("train", "--print-config", "--preset", preset)
    assert code == 0
    assert resolve(parse_config(output)).values()["network"] == load_preset(preset).network.model_dump(mode="json")
    assert parse_config(output).train.steps == yaml.safe_load(output)["train"]["steps"]


def test_mistakes_are_one_sentence(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("data: [{name: a, file: none.h5}]\ntrain: {stpes: 3}")
    code, _, errors = command("train", path)
    assert (code, errors) == (1, "error: wrong.yaml: unknown setting 'train.stpes'; did you mean 'steps'?\n")
    path.write_text("data: [{name: a, file: none.h5}]")
    code, _, errors = command("train", path, "--out", tmp_path / "run")
    assert code == 1
    assert "none.h5" in errors
    code, _, errors = command("train")
    assert "name a configuration" in errors


def test_events_for_tensorboard(config: Path, command: Command, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    short = config.with_name("short.yaml")
    short.write_text(CONFIG.replace("steps: 40", "steps: 20"))
    assert command("train", short, "--out", tmp_path / "run", "--tensorboard", "--threads", 1)[0] == 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("initialise/loss")] == list(range(1, 5))
    assert [event.step for event in events.Scalars("train/knee/psnr")] == [20]


def test_the_masks_of_a_source(config: Path) -> None:
    """Two ratios with two masks each; the seeds count on, and the validation has its own mask."""
    masks = MaskConfig(ratios=(0.3, 0.4), per_ratio=2, center=0.1, seed=5, validation_ratio=0.25, validation_seed=9)
    task, facts = load_task(load_config(config).data[0], masks, ACQUISITIONS["ideal"])
    wanted = [(0.3, 5), (0.3, 6), (0.4, 7), (0.4, 8)]
    assert task.masks == [cartesian_mask(32, ratio, 0.1, seed) for ratio, seed in wanted]
    assert task.validation_mask == cartesian_mask(32, 0.25, 0.1, 9)
    assert torch.allclose(task.images.abs().amax((-2, -1)), torch.ones(facts["n_slices"]))
