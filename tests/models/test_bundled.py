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
from ulda.physics import ACQUISITIONS, CartesianMRI, cartesian_mask


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
    """Un-adapted, with phase, noise and coils, and every phase descends."""
    model = ulda.load("base")
    assert model.domain == UNADAPTED
    images = torch.stack([image / image.abs().max() for image in demo(name).take([2, 5]).images()])
    mask, generator = cartesian_mask(images.shape[-2], 0.2), torch.Generator().manual_seed(1)
    y, physics, x = ACQUISITIONS["scanner"].measure(images, generator, mask, keep_noise=True)
    result = ulda.reconstruct(model, y, physics)
    ours, zero_filled = (psnr(found.abs(), x.abs(), data_range=1.0) for found in (result.image, physics.A_adjoint(y)))
    assert ours.mean() > zero_filled.mean() + 1
    assert all(sample["every_step_descended"] for sample in result.certificate["samples"])


def test_a_global_phase_changes_nothing() -> None:
    model, physics = ulda.load("base"), CartesianMRI(cartesian_mask(128, 0.25))
    y = physics.A(demo("knee").image(8)[None])
    plain = ulda.reconstruct(model, y, physics).image
    turn = torch.polar(torch.ones(()), torch.tensor(0.785))
    turned = ulda.reconstruct(model, y * turn, physics).image
    assert float((turned - turn * plain).norm() / plain.norm()) < 1e-4
