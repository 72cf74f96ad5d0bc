from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from benchmarks.promises import learned_problem
from ulda.data import demo
from ulda.errors import UldaError
from ulda.io.fingerprints import digest
from ulda.models import Adapter, FeatureExtractor, Regularizer
from ulda.models.adapter import LowRankUpdate
from ulda.physics import CartesianMRI, MultiCoilMRI, Physics, cartesian_mask, espirit_maps
from ulda.solvers import (
    AcceleratedProposal,
    GradientProposal,
    Options,
    Proposal,
    Reconstruction,
    Run,
    Trace,
    certify,
    describe,
    elda,
    load_run,
    save_run,
    verify,
)
from ulda.solvers.certificate import summarize
from ulda.solvers.trace import Step

OPTIONS = Options(eps_0=0.003, eps_tol=1e-5, iterations=4)

PROPOSALS = {
    "gradient": GradientProposal(4, alpha=0.5, beta=[0.5, 50.0, 0.5, 0.5]),
    "accelerated": AcceleratedProposal(
        8, 2, alpha=0.5, beta=[0.5, 0.5, 50.0, 50.0, 0.5, 50.0, 0.5, 0.5], kappa=0.2, momentum=0.5
    ),
}


def solve(
    run: Run, proposal: Proposal | None = None, options: Options = OPTIONS, x0: torch.Tensor | None = None
) -> tuple[torch.Tensor, Trace]:
    """Solve the problem of a run in another way."""
    x0 = run.physics.A_adjoint(run.y) if x0 is None else x0
    with torch.no_grad():
        return elda(Reconstruction(run.physics, run.y, run.regularizer), x0, proposal or GradientProposal(), options)


@pytest.fixture(scope="module", params=PROPOSALS)
def run(request: pytest.FixtureRequest) -> Run:
    """Two real slices, both branches."""
    images = torch.stack(list(demo("knee").take([6, 12]).images()))[:, :64, :64]
    physics = CartesianMRI(cartesian_mask(64, 0.25, seed=2))
    y = physics.A(images)
    regularizer = Regularizer(FeatureExtractor(6, 2), Adapter(6, weight=0.01))
    with torch.no_grad():
        x, trace = elda(
            Reconstruction(physics, y, regularizer), physics.A_adjoint(y), PROPOSALS[request.param], OPTIONS
        )
    return Run(y, physics, regularizer, x, None, certify(trace, y, physics, regularizer, x))


def parts(run: Run) -> tuple[torch.Tensor, Physics, Regularizer]:
    return run.y, run.physics, run.regularizer


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


def _pixel(run: Run) -> dict[str, Any]:
    x = run.x.clone()
    x[1, 40, 3] += 1e-6
    return {"x": x}


def _measurement(run: Run) -> dict[str, Any]:
    y = run.y.clone()
    y[0, 32, 32] *= 1.0001
    return {"y": y}


def _mask(run: Run) -> dict[str, Any]:
    del run
    return {"physics": CartesianMRI(cartesian_mask(64, 0.25, seed=3))}


def _axis(run: Run) -> dict[str, Any]:
    return {"physics": CartesianMRI(run.physics.mask, axis=-1)}


def _weight(run: Run) -> dict[str, Any]:
    regularizer = copy.deepcopy(run.regularizer)
    with torch.no_grad():
        regularizer.extractor.layers[1].imag[0, 0, 0, 0] += 1e-6  # type: ignore[index, operator]
    return {"regularizer": regularizer}


def _adapter(run: Run) -> dict[str, Any]:
    return {"regularizer": Regularizer(run.regularizer.extractor, Adapter(6, weight=0.011))}


def _delta(run: Run) -> dict[str, Any]:
    regularizer = copy.deepcopy(run.regularizer)
    regularizer.extractor.activation.delta = 0.11
    return {"regularizer": regularizer}


def _swapped_samples(run: Run) -> dict[str, Any]:
    return {"y": run.y.flip(0), "x": run.x.flip(0)}


def _fewer_samples(run: Run) -> dict[str, Any]:
    return {"y": run.y[:1], "x": run.x[:1]}


def _other_precision(run: Run) -> dict[str, Any]:
    return {"x": run.x.to(torch.complex128)}


def _other_start(run: Run) -> dict[str, Any]:
    return {"x0": torch.zeros_like(run.x)}


def _certificate(run: Run, change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    forged = copy.deepcopy(run.certificate)
    change(forged)
    forged["digest"] = digest({key: value for key, value in forged.items() if key != "digest"})
    return {"certificate": forged}


def _dropped_iteration(run: Run) -> dict[str, Any]:
    return _certificate(run, lambda c: c["samples"][0]["iterations"].pop())


def _repeated_iteration(run: Run) -> dict[str, Any]:
    return _certificate(run, lambda c: c["samples"][0]["iterations"].append(c["samples"][0]["iterations"][-1]))


def _dropped_sample(run: Run) -> dict[str, Any]:
    return _certificate(run, lambda c: c["samples"].pop())


def _swapped_iterations(run: Run) -> dict[str, Any]:
    return _certificate(run, lambda c: c["samples"][0]["iterations"].reverse())


def _missing_fingerprint(run: Run) -> dict[str, Any]:
    return _certificate(run, lambda c: c["fingerprints"].pop("mask"))


def _extra_entry(run: Run) -> dict[str, Any]:
    return _certificate(run, lambda c: c["samples"][0]["iterations"][0].update(note="trust me"))


def _missing_options(run: Run) -> dict[str, Any]:
    return _certificate(run, lambda c: c.pop("options"))


def _empty(run: Run) -> dict[str, Any]:
    del run
    return {"certificate": {}}


def _impossible_options(run: Run) -> dict[str, Any]:
    return _certificate(run, lambda c: c["options"].update(rho=2.0))


def _other_shape(run: Run) -> dict[str, Any]:
    return {"x": run.x[:, None]}


def _extra_statement(run: Run) -> dict[str, Any]:
    return _certificate(run, lambda c: c.update(approved="yes"))


def _missing_software(run: Run) -> dict[str, Any]:
    return _certificate(run, lambda c: c.pop("software"))


def _missing_option(run: Run) -> dict[str, Any]:
    return _certificate(run, lambda c: c["options"].pop("rho"))


def _foreign_proposal(run: Run) -> dict[str, Any]:
    return _certificate(run, lambda c: c["proposal"].update(kind="unet"))


def _other_proposal(run: Run) -> dict[str, Any]:
    del run
    return {"proposal": GradientProposal()}


def _huge_proposal(run: Run) -> dict[str, Any]:
    return _certificate(run, lambda c: c["proposal"].update(log_alpha=[0.0] * 100_000, log_beta=[0.0] * 100_000))


def _proposal_of_text(run: Run) -> dict[str, Any]:
    return _certificate(run, lambda c: c.update(proposal="gradient"))


def _missing_proposal(run: Run) -> dict[str, Any]:
    return _certificate(run, lambda c: c.pop("proposal"))


def _extra_summary(run: Run) -> dict[str, Any]:
    return _certificate(run, lambda c: c["samples"][0].update(globally_minimal=True))


def _number_as_text(run: Run) -> dict[str, Any]:
    return _certificate(run, lambda c: c["samples"][0]["iterations"][0].update(phi="1.0"))


def _false_for_zero(run: Run) -> dict[str, Any]:
    return _certificate(run, lambda c: c["samples"][0]["iterations"][0].update(line_search_steps=False))


def _endless(run: Run) -> dict[str, Any]:
    return _certificate(run, lambda c: c["options"].update(iterations=10**12, eps_tol=1e-300))


def _huge_number(run: Run) -> dict[str, Any]:
    return _certificate(run, lambda c: c["options"].update(alpha_bar=10**400))


def _not_a_number(run: Run) -> dict[str, Any]:
    forged = copy.deepcopy(run.certificate)
    forged["samples"][0]["stationarity"] = math.nan
    return {"certificate": forged}


def _bottomless(run: Run) -> dict[str, Any]:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    return {"certificate": run.certificate | {"software": nested}}


def _list(run: Run) -> dict[str, Any]:
    return {"certificate": [run.certificate]}


def _other_grid(run: Run) -> dict[str, Any]:
    return {"y": run.y[:, :32]}


def _double_weights(run: Run) -> dict[str, Any]:
    return {"regularizer": copy.deepcopy(run.regularizer).double()}


TAMPERINGS = [
    _pixel,
    _measurement,
    _mask,
    _axis,
    _weight,
    _adapter,
    _delta,
    _swapped_samples,
    _fewer_samples,
    _other_precision,
    _other_start,
    _dropped_iteration,
    _repeated_iteration,
    _dropped_sample,
    _swapped_iterations,
    _missing_fingerprint,
    _extra_entry,
    _missing_options,
    _empty,
    _impossible_options,
    _other_shape,
    _extra_statement,
    _missing_software,
    _missing_option,
    _foreign_proposal,
    _other_proposal,
    _huge_proposal,
    _proposal_of_text,
    _missing_proposal,
    _extra_summary,
    _number_as_text,
    _false_for_zero,
    _endless,
    _huge_number,
    _not_a_number,
    _bottomless,
    _list,
    _other_grid,
    _double_weights,
]


@pytest.mark.parametrize("tamper", TAMPERINGS, ids=lambda tamper: tamper.__name__.strip("_"))
def test_tampering_is_detected(run: Run, tamper: Callable[[Run], dict[str, Any]]) -> None:
    given: dict[str, Any] = {
        "certificate": run.certificate,
        "y": run.y,
        "physics": run.physics,
        "regularizer": run.regularizer,
        "x": run.x,
    }
    verdict = verify(**(given | tamper(run)))
    assert not verdict.ok
    assert verdict.problems


def test_a_run_that_does_not_descend_is_not_certified(run: Run) -> None:
    x, trace = solve(run, GradientProposal(beta=50.0), Options(eps_0=0.003, iterations=2, safeguard=False))
    certificate = certify(trace, run.y, run.physics, run.regularizer, x)
    assert not certificate["samples"][0]["every_inequality_held"]
    verdict = verify(certificate, run.y, run.physics, run.regularizer, x)
    assert not verdict.ok
    assert "inequality" in verdict.problems[0]


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


def test_a_replay_costs_no_more_than_the_record(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Options] = []

    def spy(objective: Any, x0: torch.Tensor, proposal: Proposal, options: Options) -> Any:
        seen.append(options)
        return elda(objective, x0, proposal, options)

    monkeypatch.setattr("ulda.solvers.verification.elda", spy)
    verdict = verify(_endless(run)["certificate"], *parts(run), run.x)
    assert verdict.problems == ("sample 0 has 4 iterations on record, the replay more",)
    searches = [step["line_search_steps"] for s in run.certificate["samples"] for step in s["iterations"]]
    assert (seen[0].iterations, seen[0].max_line_search) == (5, max(searches) + 1)


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


def test_a_run_that_blew_up_has_a_certificate_that_says_so(run: Run) -> None:
    options = Options(eps_0=0.003, iterations=2, safeguard=False)
    x, trace = solve(run, GradientProposal(beta=1e300), options)
    certificate = certify(trace, *parts(run), x)
    assert "NaN" not in json.dumps(certificate, allow_nan=False)
    assert not certificate["samples"][0]["every_step_descended"]
    assert describe(certificate) == ["Values that are not finite are on record: the run proves nothing."]
    assert not verify(certificate, *parts(run), x).ok


def _set(name: str, value: Any, where: str = "runs/0") -> Callable[[h5py.File], None]:
    def change(whole: h5py.File) -> None:
        file = whole[where]
        if name in file.attrs:
            fields = json.loads(file.attrs[name])
            file.attrs[name] = json.dumps(fields | value) if isinstance(value, dict) else value
        else:
            if name in file:
                del file[name]
            if value is not None:
                file[name] = value

    return change


def _claim_terabytes(file: h5py.File) -> None:
    del file["runs/0/x"]
    file.create_dataset("runs/0/x", shape=(10**6, 10**6), dtype="c8", chunks=(64, 64))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("x", None), "it has no array x"),
        (_set("weights", None, "/"), "weights"),
        (_set("weights/adapter.layer.real", None, "/"), "weights do not have the sizes"),
        (_set("weights/adapter.layer.real", np.zeros((2, 2), "f4"), "/"), "weights do not have the sizes"),
        (_set("regularizer", {"width": 10**9}, "/"), "weights do not have the sizes"),
        (_set("regularizer", {"depth": 10**12}, "/"), "weights do not have the sizes"),
        (_set("regularizer", {"kernel_size": 10**6}, "/"), "weights do not have the sizes"),
        (_set("regularizer", {"delta": -1.0}, "/"), "width delta"),
        (_set("regularizer", "[" * 10**4, "/"), "RecursionError|JSONDecodeError"),
        (_set("mask", {"n_lines": 10**15}), "mask has 1000000000000000 lines"),
        (_set("mask", {"sampled": [-1, 999]}), "IndexError"),
        (_set("mask", {"sampled": []}), "at least one sampled line"),
        (_set("y", np.zeros(())), "IndexError"),
        (_set("runs", None, "/"), "it holds no runs"),
        (_set("scale", np.ones(2), "/"), "it has no array image"),
        (_claim_terabytes, "claims 8000000000000 bytes, more than the whole file"),
    ],
)
def test_damaged_files_are_one_clear_sentence(
    tmp_path: Path, run: Run, change: Callable[[h5py.File], None], message: str
) -> None:
    x, trace = solve(run)
    save_run(tmp_path / "run.h5", trace, *parts(run), x)
    with h5py.File(tmp_path / "run.h5", "r+") as file:
        change(file)
    with pytest.raises(UldaError, match=message) as raised:
        load_run(tmp_path / "run.h5")
    assert str(raised.value).startswith("run.h5 cannot be read as a run file")
    assert "\n" not in str(raised.value)


def test_files_bring_everything_that_is_needed(tmp_path: Path) -> None:
    brain = demo("brain-multicoil")
    kspace = brain.kspace(0)[None, :, :96, :96].to(torch.complex128)
    physics = MultiCoilMRI(cartesian_mask(96, 0.3, center=0.2), espirit_maps(kspace)[0])
    y = kspace * physics.mask.lines[:, None]
    regularizer = Regularizer(FeatureExtractor(3, 2, kernel_size=5)).double()
    x0 = torch.zeros(1, 96, 96, dtype=torch.complex128)
    with torch.no_grad():
        x, trace = elda(Reconstruction(physics, y, regularizer), x0, options=Options(eps_0=0.01, iterations=2))
    save_run(tmp_path / "multi.h5", trace, y, physics, regularizer, x, x0)
    assert load_run(tmp_path / "multi.h5").verify().ok
    with h5py.File(tmp_path / "multi.h5") as file:
        assert file["runs/0/trace/phi"].shape == (2, 1)
    with pytest.raises(UldaError, match="--force"):
        save_run(tmp_path / "multi.h5", trace, y, physics, regularizer, x, x0)


@pytest.mark.parametrize("run", ["gradient"], indirect=True)
def test_the_command_verifies_and_refuses(tmp_path: Path, run: Run) -> None:
    x, trace = solve(run)
    path = tmp_path / "run.h5"
    save_run(path, trace, run.y, run.physics, run.regularizer, x)
    command = [sys.executable, "-m", "ulda", "verify", str(path)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    with h5py.File(path, "r+") as file:
        file["runs/0/x"][0, 3, 3] += 1e-3
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert json.loads(done.stdout)["problems"][0] == "the result is not the one the certificate was made for"
    path.write_text("nothing")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: run.h5 cannot be read")
