"""Runs may be run on another device; without one, what would break there is checked as far as a CPU can."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner

from tests.experiments.tiny import TINY
from tests.training.small_domains import write_domain
from ulda.cli import app
from ulda.errors import UldaError
from ulda.experiments import Experiment
from ulda.experiments.running import Runner
from ulda.experiments.runs import runs_of
from ulda.physics import CartesianMRI, MultiCoilMRI, cartesian_mask
from ulda.training.tasks import Task

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU on this machine")


def test_operators_follow_the_image() -> None:
    mask = cartesian_mask(16, 0.5)
    image = torch.zeros(2, 16, 16, dtype=torch.complex64)
    physics = CartesianMRI(mask)
    assert physics.A(image).device.type == "cpu"
    away = image.to("meta")
    assert physics.A_adjoint(physics.A(away)).device.type == "meta"
    maps = torch.ones(3, 16, 16, dtype=torch.complex64)
    several = MultiCoilMRI(mask, maps).to("meta")
    assert several.A_adjoint(several.A(away)).device.type == "meta"


def test_a_task_moves_with_all_its_slices() -> None:
    task = Task("knee", torch.zeros(2, 8, 8) + 0j, [cartesian_mask(8, 0.5)], torch.zeros(1, 8, 8) + 0j)
    moved = task.to("meta")
    assert {moved.images.device.type, moved.validation.device.type} == {"meta"}
    assert (moved.domain, moved.masks) == (task.domain, task.masks)


@pytest.mark.parametrize("device", ["nowhere", "cuda:99"])
def test_a_device_that_is_not_there_is_named(tmp_path: Path, device: str) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(TINY))
    found = CliRunner().invoke(app, ["experiment", "run", str(file), "--folder", str(tmp_path), "--device", device])
    assert isinstance(found.exception, UldaError)
    assert f"nothing can be computed on the device '{device}'" in str(found.exception)


@NO_GPU
def test_a_gpu_finds_what_the_cpu_finds(tmp_path: Path) -> None:
    write_domain(tmp_path / "knee.npz", every=3)
    write_domain(tmp_path / "hip.npz", size=48, every=4)
    experiment = Experiment.model_validate(TINY)
    found = {}
    for device in ("cpu", "cuda"):
        runner = Runner(experiment, "bench", tmp_path / device, tmp_path, device)
        wanted = [run for run in runs_of(runner.experiment, runner.data.scale) if run.draw == 0]
        found[device] = {run.key: runner.run(run) for run in wanted}
    for key, result in found["cpu"].items():
        other = found["cuda"][key]
        assert other["device"] == "cuda"
        for domain, scores in result["results"].items():
            assert np.allclose(scores["psnr"], other["results"][domain]["psnr"], atol=0.05)
