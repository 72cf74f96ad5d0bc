from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tests.bart import run_bart
from ulda.data import demo
from ulda.physics import MultiCoilMRI, cartesian_mask, espirit_maps, root_sum_of_squares

if TYPE_CHECKING:
    from pathlib import Path


def as_bart(array: torch.Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.complex64]]:
    """Bring ``(coils, H, W)`` or ``(H, W)`` into BART's order (H, W, 1, coils)."""
    return array.movedim(0, -1)[:, :, None].numpy() if array.ndim == 3 else array.numpy()


def test_multicoil_measurement_is_barts(tmp_path: Path) -> None:
    brain = demo("brain-multicoil")
    maps = espirit_maps(brain.kspace(0))
    image = brain.image(0)
    mask = cartesian_mask(224, 0.25, seed=1)
    coil_images = run_bart("fmac", tmp_path, as_bart(maps), as_bart(image))
    kspace = run_bart("fft -u 3", tmp_path, coil_images)[:, :, 0].transpose(2, 0, 1)
    expected = kspace * mask.lines.numpy()[None, :, None]
    ours = MultiCoilMRI(mask, maps).A(image).numpy()
    assert np.abs(ours - expected).max() < 1e-5 * np.abs(expected).max()


def test_sensitivities_agree_with_barts(tmp_path: Path) -> None:
    kspace = demo("brain-multicoil").kspace(0)
    theirs = torch.from_numpy(run_bart("ecalib -m1 -r24", tmp_path, as_bart(kspace))[:, :, 0].copy()).movedim(-1, 0)
    ours = espirit_maps(kspace)
    both = (root_sum_of_squares(ours) > 0.5) & (root_sum_of_squares(theirs) > 0.5)
    assert float(both.float().mean()) > 0.4
    agreement = (ours.conj() * theirs).sum(0).abs()[both]
    assert float(agreement.mean()) > 0.995
