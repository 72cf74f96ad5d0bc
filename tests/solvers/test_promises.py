"""What the theory promises, asserted on the numbers of ``benchmarks/promises.py``."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks import promises
from benchmarks.promises import BAD_BETA, FIXED, NORMAL, SHRINKAGE, TOLERANCES
from scripts.marked import between
from ulda.experiments.figures.style import COLOURS

PROPOSALS = pytest.mark.parametrize("bad", [{}, {"beta": BAD_BETA}], ids=["usual", "bad proposals"])

ROUNDING = 1e-13
"""Of objectives of the order of 100, in double precision."""


@PROPOSALS
def test_the_objective_never_increases(bad: dict[str, Any]) -> None:
    found = promises.descent(replace(NORMAL, **bad))
    assert found["largest_increase"] <= ROUNDING
    assert found["n_reductions"] >= 20
    assert found["every_inequality_held"]
    assert found["proposals"] == 0 if bad else found["proposals"] > 0.2


@PROPOSALS
def test_line_searches_are_bounded(bad: dict[str, Any]) -> None:
    found = promises.line_searches(replace(NORMAL, **bad))
    for problem in ("learned", "shrinkage"):
        assert found[problem]["n_searches"] > 0
        assert found[problem]["least_slack"] >= 0
    assert found["shrinkage"]["most_reductions"] >= 3


@PROPOSALS
def test_the_gradient_vanishes_at_fixed_smoothing(bad: dict[str, Any]) -> None:
    found = promises.fixed_smoothing(replace(FIXED, **bad))
    assert found["curves"][0][0] > 1
    assert found["last"] < 1e-6


@PROPOSALS
def test_iterations_grow_at_most_cubically(bad: dict[str, Any]) -> None:
    found = promises.complexity(replace(NORMAL, **bad), TOLERANCES)
    assert len(found["tolerances"]) >= 5
    counts = np.array(found["iterations"])
    assert (np.diff(counts, axis=0) > 0).all()
    assert all(0 < exponent <= 3 for exponent in found["exponents"])


@PROPOSALS
def test_the_known_minimiser_is_found(bad: dict[str, Any]) -> None:
    found = promises.known_minimiser(replace(SHRINKAGE, **bad))
    assert found["zero_groups"] == 18
    assert found["largest_error"] < 1e-6
    assert found["proposals"] == 0 if bad else found["proposals"] > 0.05


def test_the_bound_on_the_curvature_is_a_bound() -> None:
    """The computed constant exceeds every measured change of the gradient."""
    import torch

    problem, x = promises.learned_problem(n_samples=50)
    eps = torch.full((50,), 0.1, dtype=torch.float64)
    bound = promises.lipschitz_bound(problem.regularizer, 0.1)
    for scale in (1e-3, 0.1, 1.0):
        other = x + scale * torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            change = problem.evaluate(other, eps).grad - problem.evaluate(x, eps).grad
        ratio = change.flatten(1).norm(dim=1) / (other - x).flatten(1).norm(dim=1)
        assert float(ratio.max()) < bound


def test_the_page_shows_the_stored_results() -> None:
    found = json.loads((promises.ROOT / "benchmarks" / "results" / "promises.json").read_text())
    page = (promises.ROOT / "docs" / "theory.md").read_text()
    assert between(page, promises.BEGIN, promises.END) == promises.table(found)


def test_the_figure_has_the_style_of_all_figures() -> None:
    drawn = (promises.ROOT / "docs" / "figures" / "promises.svg").read_text(encoding="utf-8").upper()
    assert COLOURS[0] in drawn
    assert "#1F77B4" not in drawn, "the first colour of matplotlib"
