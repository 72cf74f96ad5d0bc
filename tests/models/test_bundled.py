"""The base that comes with the package: whole, small, and described."""

from __future__ import annotations

import json

import pytest
import torch

import ulda
from ulda.data import demo
from ulda.methods.ulda import UNADAPTED
from ulda.metrics import psnr
from ulda.models.bundled import bundled_names, model_folder
from ulda.physics import CartesianMRI, cartesian_mask, normalise_measurement


def test_the_base_is_small_and_has_a_card() -> None:
    assert "base" in bundled_names("base")
    folder = model_folder("base")
    assert sum(path.stat().st_size for path in folder.iterdir()) < 500_000
    card = json.loads((folder / "model.json").read_text())["card"]
    assert {entry["domain"] for entry in card["data"]} == {"brain", "prostate", "cardiac", "natural"}
    assert "not a medical device" in card["limits"].replace("\n", " ")
    assert "CC BY" in card["licences"]
    for name, found in card["test"]["domains"].items():
        assert found["n_slices"] > 0, name
        assert set(found["methods"]) == {"zero-filling", "TV", "wavelet", "ulda"}


@pytest.mark.parametrize("name", ["knee", "kidney"])
def test_the_base_helps_on_anatomies_it_has_never_seen(name: str) -> None:
    """Un-adapted, and every phase descends."""
    model = ulda.load("base")
    assert model.domain == UNADAPTED
    images = torch.stack([image / image.abs().max() for image in demo(name).take([2, 5]).images()])
    physics = CartesianMRI(cartesian_mask(images.shape[-2], 0.2))
    y = physics.A(images)
    result = ulda.reconstruct(model, y, physics)
    _, zero_filled, peak = normalise_measurement(y, physics)
    ours = psnr(result.image.abs(), images.abs(), data_range=1.0)
    assert (ours > psnr((zero_filled * peak).abs(), images.abs(), data_range=1.0) + 2).all()
    assert all(sample["every_step_descended"] for sample in result.certificate["samples"])
