"""Every change of a certificate, or of what it speaks of, is found."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.solvers.certified_runs import PROPOSALS, certified, parts
from ulda.io.fingerprints import digest
from ulda.models import Adapter, Regularizer
from ulda.physics import CartesianMRI, cartesian_mask
from ulda.solvers import (
    GradientProposal,
    Options,
    Proposal,
    Run,
    elda,
    verify,
)


@pytest.fixture(scope="module", params=PROPOSALS)
def run(request: pytest.FixtureRequest) -> Run:
    return certified(PROPOSALS[request.param])


def _pixel(run: Run) -> dict[str, Any]:
    x = run.x.clone()
    x[1, 20, 3] += 1e-6
    return {"x": x}


def _measurement(run: Run) -> dict[str, Any]:
    y = run.y.clone()
    y[0, 16, 16] *= 1.0001
    return {"y": y}


def _mask(run: Run) -> dict[str, Any]:
    del run
    return {"physics": CartesianMRI(cartesian_mask(32, 0.25, seed=3))}


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
    return {"y": run.y[:, :16]}


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
