"""What the theory promises, asserted for both proposals on the numbers of ``benchmarks/promises.py``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import promises
from benchmarks.promises import BAD_BETA, FIXED, NORMAL, SETTINGS, SHORT, SHRINKAGE, TOLERANCES

KINDS = pytest.mark.parametrize("kind", SETTINGS)
SIZES = pytest.mark.parametrize("bad", [{}, {"beta": BAD_BETA}], ids=["usual", "bad"])

ROUNDING = 1e-13
"""Of objectives of the order of 100, in double precision."""


@KINDS
@SIZES
def test_the_objective_never_increases(kind: str, bad: dict[str, Any]) -> None:
    found = promises.descent(replace(SETTINGS[kind], **bad), NORMAL)
    assert found["largest_increase"] <= ROUNDING
    assert found["n_reductions"] >= 20
    assert found["every_inequality_held"]
    assert found["proposals"] == 0 if bad else found["proposals"] > 0.15


@KINDS
@SIZES
def test_line_searches_are_bounded(kind: str, bad: dict[str, Any]) -> None:
    found = promises.line_searches(replace(SETTINGS[kind], **bad), NORMAL)
    for problem in ("learned", "shrinkage"):
        assert found[problem]["n_searches"] > 0
        assert found[problem]["least_slack"] >= 0
    assert found["shrinkage"]["most_reductions"] >= 3


@KINDS
@SIZES
def test_the_gradient_vanishes_at_fixed_smoothing(kind: str, bad: dict[str, Any]) -> None:
    found = promises.fixed_smoothing(replace(SETTINGS[kind], **bad), FIXED)
    assert found["curves"][0][0] > 1
    assert found["last"] < 1e-6


@KINDS
@SIZES
def test_iterations_grow_at_most_cubically(kind: str, bad: dict[str, Any]) -> None:
    found = promises.complexity(replace(SETTINGS[kind], **bad), NORMAL, TOLERANCES)
    assert len(found["tolerances"]) >= 5
    counts = np.array(found["iterations"])
    assert (np.diff(counts, axis=0) > 0).all()
    assert all(0 < exponent <= 3 for exponent in found["exponents"])


@KINDS
@SIZES
def test_the_known_minimiser_is_found(kind: str, bad: dict[str, Any]) -> None:
    found = promises.known_minimiser(replace(SHORT[kind], **bad), SHRINKAGE)
    assert found["zero_groups"] == 18
    assert found["largest_error"] < 1e-6
    assert found["proposals"] == 0 if bad else found["proposals"] > 0.05


def test_the_bound_on_the_curvature_is_a_bound() -> None:
    """The computed constant exceeds every measured change of the gradient."""
    problem, x = promises.learned_problem(n_samples=50)
    eps = torch.full((50,), 0.1, dtype=torch.float64)
    bound = promises.lipschitz_bound(problem.regularizer, 0.1)
    for scale in (1e-3, 0.1, 1.0):
        other = x + scale * torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            change = problem.evaluate(other, eps).grad - problem.evaluate(x, eps).grad
        ratio = change.flatten(1).norm(dim=1) / (other - x).flatten(1).norm(dim=1)
        assert float(ratio.max()) < bound
