from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.promises import learned_problem
from tests.solvers.certified_runs import OPTIONS, PROPOSALS, certified, parts, solve
from ulda.models import Adapter, FeatureExtractor, Regularizer
from ulda.models.adapter import LowRankUpdate
from ulda.solvers import (
    GradientProposal,
    Options,
    Reconstruction,
    Run,
    certify,
    describe,
    elda,
    load_run,
    save_run,
    verify,
)


@pytest.fixture(scope="module", params=PROPOSALS)
def run(request: pytest.FixtureRequest) -> Run:
    return certified(PROPOSALS[request.param])


def test_an_honest_certificate_is_verified(run: Run) -> None:
    assert run.verify().ok
    assert run.verify().problems == ()


def test_it_says_what_it_should(run: Run) -> None:
    text = json.dumps(run.certificate)
    assert len(text) < 10_000
    assert set(run.certificate["fingerprints"]) >= {"weights", "measurement", "mask", "result"}
    assert {step["branch"] for step in run.certificate["samples"][0]["iterations"]} == {"u", "v"}
    for sample in run.certificate["samples"]:
        assert sample["every_step_descended"]
        assert sample["every_inequality_held"]
        assert sample["stationarity"] == sample["iterations"][-1]["grad_norm"]
    assert set(run.certificate["software"]) >= {"ulda", "torch", "python"}


def test_it_says_in_words_what_it_proves(run: Run) -> None:
    """Each number in the sentences is computed here from the iterations."""
    steps = run.certificate["samples"][1]["iterations"]
    tests, fall, lowest, gradient = describe(run.certificate, 1)
    n_proposals = sum(step["branch"] == "u" for step in steps)
    assert tests.startswith(f"4 of 4 iterations passed their acceptance test: {n_proposals} proposal")
    assert tests.endswith(f", {4 - n_proposals} line search{'' if n_proposals == 3 else 'es'}.")
    first, last = steps[0]["phi_before"], steps[-1]["phi"]
    assert fall == (
        f"phi went from {first:.6g} to {last:.6g}; the iterations lowered it by {first - last:.3g} in all, "
        "and none raised it."
    )
    assert lowest == f"The lowest phi visited is {last:.6g}, after iteration 4 of 4."
    assert gradient == (
        f"The last gradient has norm {steps[-1]['grad_norm']:.3g}; the threshold sigma gamma eps is "
        f"{0.9 * 0.8 * 0.003:.3g}: not yet a stationary point of phi_eps."
    )


def test_the_words_of_a_run_that_converged() -> None:
    problem, x0 = learned_problem(1)
    with torch.no_grad():
        x, trace = elda(problem, x0, GradientProposal(alpha=0.1, beta=0.1), Options(eps_0=3.0, eps_tol=2.0))
    certificate = certify(trace, problem.y, problem.physics, problem.regularizer, x)
    assert len({step["eps"] for step in certificate["samples"][0]["iterations"]}) > 1
    assert describe(certificate)[-1].endswith(": a stationary point of phi_eps to this accuracy.")


def test_kernels_that_are_computed_from_others_count(tmp_path: Path, run: Run) -> None:
    """A domain may change the layers of the extractor: its certificate speaks of those as they then are."""
    extractor = FeatureExtractor(4, 2)
    update = LowRankUpdate(4, 2, rank=1)
    with torch.no_grad():
        for parameter in update.up.parameters():
            parameter.fill_(0.1)
    regularizer = Regularizer(update.applied_to(extractor), Adapter(4, weight=0.01))
    with torch.no_grad():
        x, trace = elda(Reconstruction(run.physics, run.y, regularizer), run.physics.A_adjoint(run.y), options=OPTIONS)
    certificate = save_run(tmp_path / "run.h5", trace, run.y, run.physics, regularizer, x)
    assert load_run(tmp_path / "run.h5").verify().ok
    assert verify(certificate, run.y, run.physics, regularizer.materialize(), x).ok
    with torch.no_grad():
        extractor.get_parameter("layers.0.real").add_(1e-3)
    problems = verify(certificate, run.y, run.physics, regularizer, x).problems
    assert problems[0] == "the weights is not the one the certificate was made for"


def test_a_run_that_does_not_descend_is_not_certified(run: Run) -> None:
    x, trace = solve(run, GradientProposal(beta=50.0), Options(eps_0=0.003, iterations=2, safeguard=False))
    certificate = certify(trace, run.y, run.physics, run.regularizer, x)
    assert not certificate["samples"][0]["every_inequality_held"]
    verdict = verify(certificate, run.y, run.physics, run.regularizer, x)
    assert not verdict.ok
    assert "inequality" in verdict.problems[0]


def test_a_run_that_blew_up_has_a_certificate_that_says_so(run: Run) -> None:
    options = Options(eps_0=0.003, iterations=2, safeguard=False)
    x, trace = solve(run, GradientProposal(beta=1e300), options)
    certificate = certify(trace, *parts(run), x)
    assert "NaN" not in json.dumps(certificate, allow_nan=False)
    assert not certificate["samples"][0]["every_step_descended"]
    assert describe(certificate) == ["Values that are not finite are on record: the run proves nothing."]
    assert not verify(certificate, *parts(run), x).ok
