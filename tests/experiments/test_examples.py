"""Which reconstructions are kept, and that they are those of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from ulda.errors import UldaError
from ulda.experiments.examples import Examples, example_indices, load_examples, save_examples, trace_arrays
from ulda.experiments.running import Runner
from ulda.experiments.runs import read_runs
from ulda.solvers import GradientProposal, Options, Trace
from ulda.solvers.batch import LINE_SEARCH, Batch, Outcome
from ulda.solvers.objective import Evaluation


def test_the_examples_are_the_reconstructions(done: Runner) -> None:
    """Their PSNR is that in the result, but for the half precision."""
    found = load_examples(done.examples_folder / "train-ulda.npz")["knee"]
    listed = read_runs(done.runs_folder)["train-ulda"]["results"]["knee"]["psnr"]
    error = ((found.images - found.reference) ** 2).mean((1, 2))
    peak = found.reference.max((1, 2))
    expected = [listed[i] for i in found.indices]
    np.testing.assert_allclose(10 * np.log10(peak**2 / error), expected, atol=0.02)
    assert found.phases == 3
    assert found.trace["phi"].shape == (8 * 3 + 1, len(found.indices))
    # no step may raise this
    bounded = found.trace["phi"] + found.reference[0].size * found.trace["eps"] / 2
    assert (np.diff(bounded, axis=0) <= 1e-9 * bounded[:-1]).all()
    assert not load_examples(done.examples_folder / "train-dncn.npz")["knee"].trace


def test_examples_of_several_domains_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "examples" / "run.npz"
    image = np.linspace(0, 1, 16, dtype=np.float32).reshape(1, 4, 4)
    for domain, factor in (("knee", 1.0), ("hip", 0.5), ("knee", 0.25)):
        save_examples(path, domain, Examples(np.array([3]), image, factor * image))
    found = load_examples(path)
    assert sorted(found) == ["hip", "knee"]
    np.testing.assert_allclose(found["knee"].images, image / 4, atol=1e-3)
    path.write_bytes(b"nothing")
    with pytest.raises(UldaError, match=r"run\.npz cannot be read as a NumPy archive"):
        load_examples(path)
    assert load_examples(tmp_path / "absent.npz") == {}


def test_a_record_without_a_part_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    image = np.ones((1, 4, 4), np.float32)
    save_examples(path, "hip", Examples(np.array([0]), image, image, 2, {"phi": np.ones((3, 1))}))
    with pytest.raises(UldaError, match=r"run\.npz cannot be read as the examples of a run .*hip\.eps"):
        load_examples(path)


def test_a_slice_that_stopped_early_has_a_shorter_trace() -> None:
    trace = Trace(2, Options(), GradientProposal(1))
    for samples in ([0, 1], [1]):
        n = len(samples)
        ones, zeros, x = torch.ones(n, dtype=torch.float64), torch.zeros(n), torch.zeros(n, 2, 2)
        at_x = Evaluation(f=ones, grad_f=torch.ones(n, 2, 2), r=2 * ones, grad_r=0 * x)
        batch = Batch(cast(Any, None), torch.tensor(samples), x, at_x, ones, ())
        trace.record(batch, Outcome(x, at_x, (), torch.full_like(zeros, LINE_SEARCH), zeros, zeros))
    found = trace_arrays(trace)
    assert found["phi"][:, 1].tolist() == [3.0, 3.0, 3.0]
    np.testing.assert_array_equal(found["branch"], [[np.nan, np.nan], [1, 1], [np.nan, 1]])
    assert found["grad_norm"][:, 0].tolist()[:2] == [2.0, 2.0]
    assert np.isnan(found["phi"][:, 0]).tolist() == [False, False, True]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 100])
def test_examples_are_spread_evenly(n: int) -> None:
    found = example_indices(["a"] * n)
    assert len(found) == min(n, 3)
    assert found == sorted(set(found))
    assert [i + 0.5 for i in found] == pytest.approx([(k + 0.5) * n / len(found) for k in range(len(found))], abs=0.5)


def test_examples_are_of_distinct_subjects() -> None:
    # nine slice positions, one echo after the other: as the knee has them
    knee = [f"slice{15 + i % 9}" for i in range(27)]
    found = example_indices(knee)
    assert [knee[i] for i in found] == ["slice16", "slice19", "slice22"]
    assert found == [10, 13, 16]
    # volumes of different lengths: the middle of each
    assert example_indices(["a"] * 82 + ["b"] * 39 + ["c"] * 26) == [41, 82 + 19, 82 + 39 + 13]
    # fewer subjects than examples: all of them, also one with a single slice
    for subjects in (["a"] * 100 + ["b"], ["a"] + ["b"] * 100):
        assert {subjects[i] for i in example_indices(subjects)} == {"a", "b"}
