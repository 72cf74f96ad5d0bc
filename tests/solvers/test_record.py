from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from ulda.data import demo
from ulda.errors import UldaError
from ulda.models import Adapter, FeatureExtractor, Regularizer
from ulda.physics import CartesianMRI, Physics, cartesian_mask
from ulda.solvers import Options, Reconstruction, Trace, elda, load_run, load_runs, run_output, verify_output

REGULARIZER = Regularizer(FeatureExtractor(3, 2), Adapter(3, weight=0.03))


def solved(n: int, seed: int, size: int = 48) -> tuple[Trace, torch.Tensor, Physics, torch.Tensor]:
    physics = CartesianMRI(cartesian_mask(size, 0.4, seed=seed))
    y = physics.A(torch.stack(list(demo("knee").take(range(6, 6 + n)).images()))[:, 40 : 40 + size, 40:88])
    with torch.no_grad():
        x, trace = elda(
            Reconstruction(physics, y, REGULARIZER), physics.A_adjoint(y), options=Options(eps_0=0.01, iterations=2)
        )
    return trace, y, physics, x


def test_runs_with_different_masks_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.h5"
    with run_output(path, REGULARIZER) as writer:
        for n, seed in ((2, 1), (1, 2)):
            writer.append(*solved(n, seed), scale=torch.full((n,), 10.0 * seed))
    first, second = load_runs(path)
    assert (len(first.x), len(second.x)) == (2, 1)
    assert first.physics.mask != second.physics.mask
    assert first.verify().ok
    assert second.verify().ok
    assert second.image is not None
    torch.testing.assert_close(second.image, 20 * second.x)
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["scale"], [10, 10, 20])
        assert file["image"].shape == (3, 48, 48)
    with pytest.raises(UldaError, match="several runs"):
        load_run(path)
    checked = verify_output(path)
    assert checked.verdict.ok
    assert len(checked.samples) == 3


def test_the_first_wrong_slice_is_counted_over_all_runs(tmp_path: Path) -> None:
    path = tmp_path / "runs.h5"
    with run_output(path, REGULARIZER) as writer:
        for n, seed in ((2, 1), (2, 2)):
            writer.append(*solved(n, seed))
    with h5py.File(path, "r+") as file:
        file["runs/1/y"][1, 24, 24] *= 1.5
    verdict = verify_output(path).verdict
    assert not verdict.ok
    assert (verdict.sample, verdict.iteration) == (3, 0)
    assert verdict.problems[0].startswith("run of the slices 2 to 3: the measurement is not the one")


def _write(path: Path, *runs: Any) -> None:
    with run_output(path, REGULARIZER) as writer:
        for run in runs:
            writer.append(*run)


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.h5"
    one = torch.ones(1)
    with pytest.raises(UldaError, match="some runs have a scale"):
        _write(path, (*solved(1, 1), None, None), (*solved(1, 1), None, one))
    with pytest.raises(UldaError, match="48 x 48 and 40 x 48"):
        _write(path, (*solved(1, 1), None, one), (*solved(1, 1, 40), None, one))
    with pytest.raises(UldaError, match="no runs to write"), run_output(path, REGULARIZER):
        pass
    assert not list(tmp_path.iterdir())
    _write(path, (*solved(1, 1), None, one))
    with h5py.File(path, "r+") as file:
        file["image"].resize(2, axis=0)
    with pytest.raises(UldaError, match="another number of images"):
        load_run(path)
