"""What a run does and writes, also after an interruption."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.experiments.tiny import BENCH, SIZES, TINY, TINY_DNCN, TINY_ULDA, runner
from ulda.errors import UldaError
from ulda.experiments.definition import Variant
from ulda.experiments.running import Runner, shared_parameters
from ulda.experiments.runs import Run, read_runs, runs_of, write_run
from ulda.methods import ZeroFilled, new_method
from ulda.methods.registry import method_settings
from ulda.metrics import psnr
from ulda.physics import CartesianMRI
from ulda.training.slices import normalised_images


def test_a_run_tells_all(done: Runner) -> None:
    result = json.loads((done.runs_folder / "adapt-dncn-hip-100-1.json").read_text())
    test = done.data.test(done.experiment.targets[0])
    scores = result["results"]["hip"]
    assert (result["spent"]["steps"], result["spent"]["slices"]) == (3, 6)
    assert 0 < result["spent"]["processor_seconds"] < 60
    assert scores["data"] == test.fingerprint()
    assert scores["subjects"] == list(test.subjects)
    assert len(scores["mask"]) == 64
    recipe = result["recipe"]
    assert (recipe["slices"], recipe["draw"], recipe["settings"]["seed"]) == (100, 1, 1)
    assert recipe["settings"]["learning_rate"] == method_settings("dncn", "adapt").learning_rate
    assert recipe["sizes"]["filters"] == 2
    assert len(result["software"]["code"]) == 16
    # there are fewer than 100
    assert scores["n"] == len(done.data.domain(done.experiment.targets[0]).select(split="train"))
    assert result["wall_clock"] > 0
    assert result["peak_memory_mb"] > 50
    assert result["variant"]["method"] == "dncn"
    assert (result["scale"]["name"], result["scale"]["side"]) == ("bench", done.data.scale.side)
    assert result["software"]["torch"] == torch.__version__
    assert result["n_adapted"] == result["n_parameters"]


def test_the_scores_are_those_of_the_test_slices(done: Runner) -> None:
    entry = done.experiment.targets[0]
    images = normalised_images(done.data.test(entry))
    physics = CartesianMRI(done.data.mask(entry))
    expected = psnr(ZeroFilled()(physics.A(images), physics).abs(), images.abs(), data_range=1.0)
    found = read_runs(done.runs_folder)["classical-zero-filling-hip"]["results"]["hip"]["psnr"]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-3)


def test_draws_differ_and_nothing_of_the_test_is_trained_on(done: Runner) -> None:
    entry = done.experiment.targets[0]
    drawn = [done.data.task(entry, 2, draw)[1] for draw in range(4)]
    assert len({slices.fingerprint() for slices in drawn}) > 1
    assert {label for slices in drawn for label in slices.label("split")} == {"train"}


def test_a_killed_run_continues_where_it_was(tmp_path: Path, data: Path) -> None:
    changes = {"variants": [TINY_ULDA, TINY_DNCN | {"train": {"checkpoint_every": 1}}]}
    broken, whole = (runner(tmp_path / name, data, **changes) for name in ("broken", "whole"))
    run = Run("train", "dncn")

    def stop(progress: Any) -> None:
        if progress.step == 1:
            time.sleep(0.3)  # the checkpoint of the second step knows of it
        if progress.step == 2:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        broken.run(run, stop)
    assert not broken.is_done(run)
    steps: list[int] = []
    continued = broken.run(run, lambda progress: steps.append(progress.step))
    assert steps == [3, 4]
    expected = whole.run(run)["results"]["knee"]["psnr"]
    assert continued["results"]["knee"]["psnr"] == expected
    # the time before the interruption counts
    assert continued["wall_clock"] > continued["spent"]["seconds_before"] >= 0.3
    assert "processor_seconds" not in continued["spent"]


def test_an_adaptation_tells_the_training_that_it_is_from(tmp_path: Path, data: Path) -> None:
    one = runner(tmp_path, data)
    one.run(Run("train", "dncn"))
    other = runner(tmp_path, data, scales={"bench": BENCH | {"steps": 5}})
    other.run(Run("adapt", "dncn", "hip", 0))
    # a new training, and the adaptation is still one of the old
    other.forget(Run("train", "dncn"))
    assert not other.is_done(Run("adapt", "dncn", "hip", 0))
    one.run(Run("train", "dncn"))
    other.run(Run("adapt", "dncn", "hip", 0))
    kept = read_runs(other.runs_folder)["adapt-dncn-hip-0-0"]
    other.forget(Run("train", "dncn"))
    other.run(Run("train", "dncn"))
    write_run(other.runs_folder, Run("adapt", "dncn", "hip", 0), {k: v for k, v in kept.items() if k != "run"})
    assert [run.key for run in other.outdated()] == ["adapt-dncn-hip-0-0"]


def test_a_lost_model_is_trained_again_where_it_is_needed(tmp_path: Path, data: Path) -> None:
    one = runner(tmp_path, data)
    train, start = Run("train", "dncn"), Run("adapt", "dncn", "hip", 0)
    first = one.run(train)
    shutil.rmtree(one.folder / "models" / "dncn")
    with pytest.raises(UldaError, match="the model of train-dncn is gone; `ulda experiment run --renew` trains it"):
        one.run(start)
    one.forget_lost([start.key])  # the training is not among these
    assert one.is_done(train)
    one.forget_lost([train.key])
    assert not one.is_done(train)
    assert one.run(train)["results"]["knee"]["psnr"] == first["results"]["knee"]["psnr"]
    # nothing waits for the other method's model, nor for this one once all is adapted
    for run in runs_of(one.experiment, one.data.scale):
        if run.kind == "adapt":
            write_run(one.runs_folder, run, {})
    shutil.rmtree(one.folder / "models" / "dncn")
    one.forget_lost([train.key])
    assert one.is_done(train)


def test_data_that_is_imported_otherwise_is_kept_apart(tmp_path: Path, data: Path) -> None:
    plain, combined = (
        runner(tmp_path, data, scales={"bench": BENCH | {"single_coil": single}}).data for single in (False, True)
    )
    entry = runner(tmp_path, data).experiment.domain("knee")
    assert plain.domain(entry).path.name == "knee-32.h5"
    assert combined.domain(entry).path.name == "knee-32-combined.h5"


def test_a_training_is_taken_over(tmp_path: Path, data: Path) -> None:
    narrow = {"label": "narrow", "method": "ulda", "sizes": SIZES | {"rank": 0}, "trained_as": "ulda"}
    one = runner(tmp_path, data, variants=[*TINY["variants"], narrow])
    runs = {run.key: run for run in runs_of(one.experiment, one.data.scale)}
    assert "train-narrow" not in runs
    assert runs["adapt-narrow-hip-2-0"].needs == "train-ulda"
    one.run(runs["train-ulda"])
    found = {key: one.run(runs[key]) for key in ("adapt-ulda-hip-0-0", "adapt-narrow-hip-0-0", "adapt-narrow-hip-2-0")}
    unadapted = [found[f"adapt-{name}-hip-0-0"]["results"]["hip"]["psnr"] for name in ("ulda", "narrow")]
    assert unadapted[0] == unadapted[1]
    assert found["adapt-narrow-hip-2-0"]["n_adapted"] < found["adapt-ulda-hip-0-0"]["n_adapted"]


@pytest.mark.parametrize("method", ["ulda", "ulda-paper", "lda", "meta", "umri", "dncn"])
def test_parameters_of_other_domains_do_not_count(method: str) -> None:
    """Those that serve every domain, and those that one domain has: as many as in a model of that domain alone."""
    shared = shared_parameters(Variant(method=method))
    counts = [new_method(method, [f"d{i}" for i in range(n)]).n_parameters for n in (1, 2, 3)]
    assert shared + (counts[2] - shared) // 3 == shared + (counts[1] - shared) // 2 == counts[0]
