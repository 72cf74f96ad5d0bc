"""Files that earlier versions wrote are read as they were meant; a folder is named after the commit that wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import ulda
from ulda.data import demo
from ulda.solvers import load_run, verify_output
from ulda.training import base_fingerprint
from ulda.training.adaptation import default_settings

FIXTURES = Path(__file__).parents[1] / "fixtures"
FIRST = FIXTURES / "files-b76d114"


def test_a_base_and_its_adapter() -> None:
    model = ulda.load(FIRST / "base", FIRST / "knee")
    assert model.sources == ("brain", "prostate")
    assert model.domain == "knee"
    assert (model.architecture.width, model.architecture.depth, model.architecture.phases) == (3, 2, 3)
    assert base_fingerprint(model).startswith("8c4c77f46ceb")
    for name, tensor in load_file(FIRST / "base" / "model.safetensors").items():
        torch.testing.assert_close(model.get_parameter(name), tensor, rtol=0, atol=0)
    kernel = load_file(FIRST / "knee" / "adapter.safetensors")["adapter.layer.real"]
    torch.testing.assert_close(model.adapters["knee"].get_parameter("layer.real"), kernel, rtol=0, atol=0)


def test_the_base_adapts() -> None:
    """It is from before there was a step along what was not measured: there is still none."""
    for changes in ({}, {"mean_after": 0.0}):
        settings = default_settings(n_slices=1).model_copy(update={"steps": 2} | changes)
        adapted = ulda.adapt(FIRST / "base", demo("knee"), slices=1, settings=settings)
        assert not adapted.model.options("knee").has_extra_step


def test_a_run() -> None:
    run = load_run(FIRST / "run.h5")
    assert run.x.shape == (2, 32, 32)
    assert run.image is None
    assert run.verify().problems == ()
    assert verify_output(FIRST / "run.h5").verdict.ok
    weights = ulda.load(FIRST / "base", FIRST / "knee").regularizer("knee").state_dict()
    for name, tensor in run.regularizer.state_dict().items():
        torch.testing.assert_close(tensor, weights[name], rtol=0, atol=0)


@pytest.mark.parametrize("path", sorted(path for path in FIXTURES.rglob("*") if path.is_file()), ids=str)
def test_the_files_are_small(path: Path) -> None:
    assert path.stat().st_size < 100_000
