"""What a replay finds: any change of a certificate, and of what it speaks of."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from tests.solvers.certified_runs import OPTIONS, PROPOSALS, certified, parts, solve
from ulda.io.fingerprints import digest
from ulda.solvers import (
    GradientProposal,
    Options,
    Reconstruction,
    Run,
    certify,
    elda,
    verify,
)
from ulda.solvers.certificate import summarize
from ulda.solvers.trace import Step


@pytest.fixture(scope="module", params=PROPOSALS)
def run(request: pytest.FixtureRequest) -> Run:
    return certified(PROPOSALS[request.param])


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every plain value in a JSON document."""
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in leaves(item, (*path, key))]
    if isinstance(value, list):
        return [leaf for key, item in enumerate(value) for leaf in leaves(item, (*path, key))]
    return [path]


def changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value * 1.01 + 1
    return f"{value}x"


def with_change(certificate: dict[str, Any], path: tuple[Any, ...], *, cover_up: bool) -> dict[str, Any]:
    forged = copy.deepcopy(certificate)
    target = forged
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = changed(target[path[-1]])
    if cover_up and path != ("digest",):
        forged["digest"] = digest({key: value for key, value in forged.items() if key != "digest"})
    return forged


def test_a_change_of_any_field_changes_the_digest(run: Run) -> None:
    for path in leaves(run.certificate):
        forged = with_change(run.certificate, path, cover_up=False)
        assert forged["digest"] != digest({key: value for key, value in forged.items() if key != "digest"}), path
    problems = verify(forged, run.y, run.physics, run.regularizer, run.x).problems
    assert problems == ("the digest does not match: the certificate was changed after it was made",)


UNVERIFIABLE: set[tuple[Any, ...]] = {("software", name) for name in ("ulda", "torch", "numpy", "python")}
"""A replay cannot tell which versions were used; the digest protects these from accident, not from forgery."""

IDLE_NAMES = ("max_line_search", "eps_tol", "gamma", "sigma", "eta2", "eta3")
IDLE: set[tuple[Any, ...]] = {("options", name) for name in IDLE_NAMES}
"""Options whose change leaves this run as it is and its claims true: eps was not reduced, and the steps descended by
more than a larger eta2 or eta3 asks for."""

REFUSED = {"gradient": {1}, "accelerated": {2, 3, 5}}
"""Steps that were refused: with other sizes they are refused as well."""


def is_idle(path: tuple[Any, ...], run: Run) -> bool:
    """Tell whether a change at a place may go unnoticed, since it leaves the run as it is and its claims true."""
    if path in UNVERIFIABLE | IDLE:
        return True
    # at the frequency zero everything was measured, so there is no extra step for its gain to change
    is_lowest_gain = path[:2] == ("proposal", "log_gains") and path[3] == 0
    of_refused = path[0] == "proposal" and len(path) > 2 and path[2] in REFUSED[run.certificate["proposal"]["kind"]]
    # and before the first step there is no momentum
    return is_lowest_gain or of_refused or path == ("proposal", "logit_momentum", 0)


def test_a_forger_who_renews_the_digest_is_caught_by_the_replay(run: Run) -> None:
    missed = set()
    for path in leaves(run.certificate):
        forged = with_change(run.certificate, path, cover_up=True)
        if verify(forged, run.y, run.physics, run.regularizer, run.x).ok:
            missed.add(path)
    assert not [path for path in missed if not is_idle(path, run)]


def test_the_first_wrong_iteration_is_named(run: Run) -> None:
    forged = with_change(run.certificate, ("samples", 1, "iterations", 2, "phi"), cover_up=True)
    verdict = verify(forged, run.y, run.physics, run.regularizer, run.x)
    assert (verdict.sample, verdict.iteration) == (1, 2)
    assert "iteration 2 of sample 1: phi is" in verdict.problems[0]


@pytest.fixture(scope="module")
def rising(run: Run) -> Run:
    """Go on without a safeguard from where the objective is small: it rises a little in every iteration."""
    uphill = Options(eta1=1e-9, eta2=1e-9, eps_0=0.003, iterations=10, safeguard=False)
    x0, _ = solve(run, GradientProposal(alpha=0.5), Options(eps_0=0.003, eps_tol=1e-30, iterations=60))
    x, trace = solve(run, GradientProposal(alpha=1e-4, beta=0.002), uphill, x0)
    rises = [step.phi / step.phi_before - 1 for sample in range(2) for step in trace.steps(sample)]
    assert all(0 < rise < 1e-4 for rise in rises)
    return Run(*parts(run), x, x0, certify(trace, *parts(run), x, x0))


def test_a_rise_that_hides_in_the_tolerance_is_found(rising: Run) -> None:
    """Each number on record is within the tolerance of the replay, and on record all descend."""
    forged = copy.deepcopy(rising.certificate)
    for sample in forged["samples"]:
        for step in sample["iterations"]:
            mean = (step["phi"] + step["phi_before"]) / 2
            step["phi"], step["phi_before"] = mean * (1 - 1e-7), mean * (1 + 1e-7)
        steps = [Step(**step) for step in sample["iterations"]]
        assert all(step.holds(Options(**forged["options"])) for step in steps)
        sample |= summarize(steps, Options(**forged["options"]))
        assert sample["every_step_descended"]
    forged["digest"] = digest({key: value for key, value in forged.items() if key != "digest"})
    verdict = verify(forged, *parts(rising), rising.x, rising.x0)
    expected = "iteration 0 of sample 0: the inequality that admits the step does not hold in the replay"
    assert verdict.problems == (expected,)


def test_iterations_begin_where_the_ones_before_end(run: Run) -> None:
    for name in ("phi", "grad_norm"):
        forged = copy.deepcopy(run.certificate)
        forged["samples"][1]["iterations"][2][f"{name}_before"] *= 1 + 1e-6
        forged["digest"] = digest({key: value for key, value in forged.items() if key != "digest"})
        problems = verify(forged, *parts(run), run.x).problems
        end = f"{name}_before is not the {name} that the iteration before it ends with"
        assert problems == (f"iteration 2 of sample 1: {end}",)


def test_another_start_cannot_pass_for_zero_filling(run: Run) -> None:
    x0 = torch.ones_like(run.x)
    x, trace = solve(run, x0=x0)
    certificate = certify(trace, run.y, run.physics, run.regularizer, x, x0)
    assert certificate["start"] == "given"
    assert verify(certificate, run.y, run.physics, run.regularizer, x, x0).ok
    assert "give verify its starting point" in verify(certificate, run.y, run.physics, run.regularizer, x).problems[0]
    forged = certificate | {"start": "zero-filling", "fingerprints": {**certificate["fingerprints"]}}
    del forged["fingerprints"]["starting_point"]
    forged["digest"] = digest({key: value for key, value in forged.items() if key != "digest"})
    verdict = verify(forged, run.y, run.physics, run.regularizer, x, x0)
    assert "the starting point is another" in verdict.problems[0]
    assert verify(run.certificate, run.y, run.physics, run.regularizer, run.x, run.physics.A_adjoint(run.y)).ok


def test_a_faint_sample_is_compared_with_its_own_peak(run: Run) -> None:
    y = run.y * torch.tensor([1.0, 1e-5])[:, None, None]
    x, trace = solve(replace(run, y=y))
    forged = x.clone()
    forged[1, 20:30] = 0
    certificate = certify(trace, y, run.physics, run.regularizer, forged)
    verdict = verify(certificate, y, run.physics, run.regularizer, forged)
    assert "the replay ends at another image" in verdict.problems[0]


def test_a_run_ended_by_its_callback_is_verified(run: Run) -> None:
    problem, x0 = Reconstruction(run.physics, run.y, run.regularizer), run.physics.A_adjoint(run.y)
    with torch.no_grad():
        x, trace = elda(problem, x0, None, OPTIONS, lambda status: status.iteration < 1)
    assert verify(certify(trace, run.y, run.physics, run.regularizer, x), *parts(run), x).ok


def test_other_machines_may_round_differently(run: Run) -> None:
    """Small numbers late in a run carry the rounding of the large ones at its start."""
    claims = copy.deepcopy(run.certificate)
    for sample in claims["samples"]:
        first = sample["iterations"][0]["grad_norm_before"]
        for step in sample["iterations"]:
            step["grad_norm"] += 5e-7 * first
            step["f"] += 5e-7 * step["phi"]
        for step, after in pairwise(sample["iterations"]):
            after["grad_norm_before"] = step["grad_norm"]
        sample["stationarity"] = sample["iterations"][-1]["grad_norm"]
    claims["digest"] = digest({key: value for key, value in claims.items() if key != "digest"})
    assert verify(claims, *parts(run), run.x).ok
    with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None):
        assert run.verify().ok
