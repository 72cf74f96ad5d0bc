from __future__ import annotations

import json
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from benchmarks.promises import learned_problem, shrinkage_problem
from ulda.errors import UldaError
from ulda.solvers import GradientProposal, Options, Step, Trace, elda


@pytest.fixture
def trace() -> Trace:
    problem = shrinkage_problem()
    start = problem.y.clone()
    start[1] = problem.minimiser()[1]
    with torch.no_grad():
        return elda(problem, start, options=Options(eps_0=0.5, eps_tol=0.1, iterations=100, gamma=0.7))[1]


def test_json_and_hdf5_hold_the_same(trace: Trace, tmp_path: Path) -> None:
    trace.save_json(tmp_path / "trace.json")
    stored = json.loads((tmp_path / "trace.json").read_text())
    with h5py.File(tmp_path / "trace.h5", "w") as file:
        trace.save_hdf5(file.create_group("trace"))
        phi, branch = file["trace/phi"][()], file["trace/branch"][()]
    for i in range(3):
        steps = trace.steps(i)
        assert [Step(**step) for step in stored["samples"][i]] == steps
        assert np.array_equal(phi[: len(steps), i], [step.phi for step in steps])
        assert np.isnan(phi[len(steps) :, i]).all()
        assert (branch[len(steps) :, i] == -1).all()
    assert stored["options"]["gamma"] == 0.7
    assert stored["proposal"] == GradientProposal().as_dict()


def test_a_run_that_blew_up_is_still_json(tmp_path: Path) -> None:
    problem, x0 = learned_problem(1)
    with torch.no_grad():
        _, trace = elda(problem, x0, GradientProposal(beta=1e300), Options(eps_0=0.5, iterations=2, safeguard=False))
    trace.save_json(tmp_path / "trace.json")
    stored = json.loads((tmp_path / "trace.json").read_text(), parse_constant=pytest.fail)
    assert stored["samples"][0][-1]["phi"] is None


def test_a_step_checks_its_inequality() -> None:
    options = Options(eta1=0.1, eta2=1.0, eta3=0.01)
    step = Step(0.1, 2.0, 3.0, 1.5, 1.0, 0.5, 1.0, 1.0, "u", 0, 1)
    assert step.holds(options)
    assert not Step(**(vars(step) | {"phi": 1.51})).holds(options)
    assert not Step(**(vars(step) | {"grad_norm_before": 10.1})).holds(options)
    assert Step(**(vars(step) | {"branch": "v", "phi": 1.9})).holds(options)
    assert not Step(**(vars(step) | {"branch": "v", "phi": 1.91})).holds(options)
    assert not Step(**(vars(step) | {"branch": "stalled"})).holds(options)


def test_the_plot_shows_every_sample(trace: Trace, tmp_path: Path) -> None:
    figure = trace.plot()
    assert len(figure.axes[0].lines) == 3
    steps = trace.steps(0)
    remaining = np.asarray(figure.axes[0].lines[0].get_ydata())
    assert remaining[0] == pytest.approx(sum(step.phi_before - step.phi for step in steps))
    assert (np.diff(remaining) <= 0).all()
    figure.savefig(tmp_path / "trace.png")
    assert (tmp_path / "trace.png").stat().st_size > 5000


def test_a_missing_plot_library_is_named(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UldaError, match=r'pip install "ulda\[plot\]"'):
        trace.plot()


def test_an_unknown_sample_is_a_clear_error(trace: Trace) -> None:
    with pytest.raises(UldaError, match="no sample 3"):
        trace.steps(3)
