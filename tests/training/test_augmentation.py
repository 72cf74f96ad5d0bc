"""Slices are turned, scaled and sheared as said, and a training with such slices is as repeatable as any."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.ndimage import affine_transform

from ulda.data import demo
from ulda.methods import ULDA
from ulda.physics import cartesian_mask
from ulda.training.augmentation import MOST_SCALED, MOST_SHEARED, MOST_TURNED, warped
from ulda.training.history import Progress
from ulda.training.settings import Settings
from ulda.training.tasks import Batch, Task, draw, step_generator


def slices(n: int = 3, side: int = 48) -> torch.Tensor:
    images = torch.stack(list(demo("knee").take(range(4, 4 + n)).images()))
    start = (images.shape[-1] - side) // 2
    images = images[:, start : start + side, start : start + side]
    return images / images.abs().amax((-2, -1), keepdim=True)


def task(n: int = 3) -> Task:
    images = slices(n + 1)
    return Task("knee", images[:n], [cartesian_mask(48, 0.3)], images[n:])


def test_a_warp_is_the_affine_map_that_it_says() -> None:
    """SciPy, with the map drawn again from the same seed, finds the same slice; its splines differ at edges."""
    images, seed = slices(1), 7
    generator = torch.Generator().manual_seed(seed)
    torch.rand(1, generator=generator)  # whether it is warped
    turned, scaled, sheared = (2 * torch.rand(3, 1, generator=generator) - 1)[:, 0].tolist()
    angle, scale = math.radians(turned * MOST_TURNED), math.exp(scaled * MOST_SCALED)
    # in SciPy the rows come first
    matrix = np.array(
        [
            [math.cos(angle) * scale, math.sin(angle) * scale],
            [-math.sin(angle) * scale + sheared * MOST_SHEARED, math.cos(angle) * scale],
        ]
    )
    middle = np.full(2, (images.shape[-1] - 1) / 2)
    image = images[0].numpy()
    expected = affine_transform(image, matrix, middle - matrix @ middle, order=3, mode="constant", cval=0.0)
    expected /= np.abs(expected).max()
    found = warped(images, 1.0, seed)[0].numpy()
    assert np.abs(found - image).max() > 0.2  # it has moved
    inside = (slice(6, -6), slice(6, -6))
    assert np.abs(found - expected)[inside].mean() < 0.1 * np.abs(found - image)[inside].mean()


def test_turning_a_slice_that_is_not_square_does_not_stretch_it() -> None:
    """The disc stays one, whatever the seed: its width and height differ by the shear alone."""
    rows, columns = torch.meshgrid(torch.arange(96) - 47.5, torch.arange(48) - 23.5, indexing="ij")
    disc = ((rows**2 + columns**2).sqrt() < 15).to(torch.complex64)[None]
    for seed in range(20):
        weight = warped(disc, 1.0, seed)[0].abs().double()
        total = weight.sum()
        spread = torch.stack(
            [(weight * a * b).sum() / total for a in (rows, columns) for b in (rows, columns)]
        ).reshape(2, 2)
        long, short = torch.linalg.eigvalsh(spread).sqrt().flip(0).tolist()
        assert long / short < 1.13


def test_the_share_decides_how_many_are_warped() -> None:
    images = slices(1).expand(400, -1, -1)
    found = warped(images, 0.5, seed=3)
    changed = (found - images).abs().amax((-2, -1)) > 1e-3
    assert 0.4 < changed.float().mean() < 0.6
    assert torch.allclose(found.abs().amax((-2, -1)), torch.ones(400))
    assert not torch.equal(found[changed][0], found[changed][1])  # each in its own way
    assert torch.equal(warped(images, 0.5, seed=3), found)
    assert not torch.equal(warped(images, 0.5, seed=4), found)


def test_a_slice_of_zeros_stays_one() -> None:
    assert torch.equal(warped(torch.zeros(1, 8, 8, dtype=torch.complex64), 1.0, 0), torch.zeros(1, 8, 8) + 0j)


def test_a_step_draws_its_own_warp_and_nothing_else_changes() -> None:
    plain, settings = (Settings(steps=9, warp=share) for share in (0.0, 0.5))
    batches = [draw([task()], settings, step_generator(settings, step)) for step in range(4)]
    assert len({batch.seed for batch in batches}) == 4
    for step, batch in enumerate(batches):
        before = draw([task()], plain, step_generator(plain, step))
        assert (batch.index, batch.mask, batch.is_mean) == (before.index, before.mask, before.is_mean)
    whole = task()
    batch = Batch(0, (0, 1), 0)
    assert torch.equal(whole.images_of(batch), whole.images[:2])
    assert not torch.equal(whole.images_of(replace(batch, warp=1.0)), whole.images[:2])


@pytest.mark.parametrize("chained", [{}, {"equilibrium": {"chains": 2, "restart": 0.1, "phases": 2, "rollout": 3}}])
def test_a_training_with_warps_continues_bit_exactly(tmp_path: Path, chained: dict[str, object]) -> None:
    torch.set_num_threads(1)
    settings = Settings.model_validate(
        {"steps": 8, "batch_size": 2, "warp": 0.5, "validate_every": 4, "checkpoint_every": 1} | chained
    )
    start = ULDA(sources=["knee"], width=2, depth=1, phases=2)
    whole, killed, parts = (copy.deepcopy(start) for _ in range(3))
    whole.fit([task()], settings)

    def stop(progress: Progress) -> None:
        if progress.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        killed.fit([task()], settings, folder=tmp_path, report=stop)
    parts.fit([task()], settings, folder=tmp_path)
    assert all(torch.equal(p, q) for p, q in zip(whole.parameters(), parts.parameters(), strict=True))
