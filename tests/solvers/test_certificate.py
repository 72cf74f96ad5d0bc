from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch

from ulda.data import demo
from ulda.errors import UldaError
from ulda.models import Adapter, FeatureExtractor, Regularizer
from ulda.physics import CartesianMRI, MultiCoilMRI, cartesian_mask, espirit_maps
from ulda.solvers import Options, Reconstruction, Run, elda, load_run, save_run, verify
from ulda.solvers.certificate import digest

OPTIONS = Options(alpha=0.5, beta=[0.5, 50.0, 0.5, 0.5], eps_0=0.003, eps_tol=1e-5, iterations=4)


@pytest.fixture(scope="module")
def run() -> Run:
    """Two real slices, both branches."""
    images = torch.stack(list(demo("knee").take([6, 12]).images()))[:, :64, :64]
    physics = CartesianMRI(cartesian_mask(64, 0.25, seed=2))
    y = physics.A(images)
    regularizer = Regularizer(FeatureExtractor(6, 2), Adapter(6, weight=0.03))
    with torch.no_grad():
        x, trace = elda(Reconstruction(physics, y, regularizer), physics.A_adjoint(y), OPTIONS)
    return Run(y, physics, regularizer, x, None, trace.certificate(y, physics, regularizer, x))


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


def test_a_change_of_any_field_is_detected(run: Run) -> None:
    for path in leaves(run.certificate):
        forged = with_change(run.certificate, path, cover_up=False)
        verdict = verify(forged, run.y, run.physics, run.regularizer, run.x)
        assert not verdict.ok, path


UNVERIFIABLE: set[tuple[Any, ...]] = {("software", name) for name in ("ulda", "torch", "numpy", "python")}
"""A replay cannot tell which versions were used; the digest protects these from accident, not from forgery."""

IDLE_NAMES = ("max_line_search", "eps_tol", "gamma", "sigma", "eta2", "eta3")
IDLE: set[tuple[Any, ...]] = {("options", name) for name in IDLE_NAMES}
IDLE |= {("options", "beta", 1)}
"""Options whose change leaves this run as it is and its claims true: eps was not reduced, the second proposal was
rejected anyway, and the steps descended by more than a larger eta2 or eta3 asks for."""


def test_a_forger_who_renews_the_digest_is_caught_by_the_replay(run: Run) -> None:
    missed = set()
    for path in leaves(run.certificate):
        forged = with_change(run.certificate, path, cover_up=True)
        if verify(forged, run.y, run.physics, run.regularizer, run.x).ok:
            missed.add(path)
    assert missed <= UNVERIFIABLE | IDLE


def test_the_first_wrong_iteration_is_named(run: Run) -> None:
    forged = with_change(run.certificate, ("samples", 1, "iterations", 2, "phi"), cover_up=True)
    verdict = verify(forged, run.y, run.physics, run.regularizer, run.x)
    assert (verdict.sample, verdict.iteration) == (1, 2)
    assert "iteration 2 of sample 1: phi is" in verdict.problems[0]


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
    problem = Reconstruction(run.physics, run.y, run.regularizer)
    x0 = run.physics.A_adjoint(run.y)
    with torch.no_grad():
        x, trace = elda(problem, x0, Options(beta=50.0, eps_0=0.003, iterations=2, safeguard=False))
    certificate = trace.certificate(run.y, run.physics, run.regularizer, x)
    assert not certificate["samples"][0]["every_inequality_held"]
    verdict = verify(certificate, run.y, run.physics, run.regularizer, x)
    assert not verdict.ok
    assert "inequality" in verdict.problems[0]


def test_files_bring_everything_that_is_needed(tmp_path: Path) -> None:
    brain = demo("brain-multicoil")
    kspace = brain.kspace(0)[None, :, :96, :96].to(torch.complex128)
    physics = MultiCoilMRI(cartesian_mask(96, 0.3, center=0.2), espirit_maps(kspace)[0])
    y = kspace * physics.mask.lines[:, None]
    regularizer = Regularizer(FeatureExtractor(3, 2, kernel_size=5)).double()
    x0 = torch.zeros(1, 96, 96, dtype=torch.complex128)
    with torch.no_grad():
        x, trace = elda(Reconstruction(physics, y, regularizer), x0, Options(eps_0=0.01, iterations=2))
    save_run(tmp_path / "multi.h5", trace, y, physics, regularizer, x, x0)
    assert load_run(tmp_path / "multi.h5").verify().ok
    with h5py.File(tmp_path / "multi.h5") as file:
        assert file["trace/phi"].shape == (2, 1)
    with pytest.raises(UldaError, match="--force"):
        save_run(tmp_path / "multi.h5", trace, y, physics, regularizer, x, x0)


def test_the_command_verifies_and_refuses(tmp_path: Path, run: Run) -> None:
    with torch.no_grad():
        problem, x0 = Reconstruction(run.physics, run.y, run.regularizer), run.physics.A_adjoint(run.y)
        x, trace = elda(problem, x0, OPTIONS)
    path = tmp_path / "run.h5"
    save_run(path, trace, run.y, run.physics, run.regularizer, x)
    command = [sys.executable, "-m", "ulda", "verify", str(path)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    with h5py.File(path, "r+") as file:
        file["x"][0, 3, 3] += 1e-3
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert json.loads(done.stdout)["problems"][0] == "the result is not the one the certificate was made for"
    path.write_text("nothing")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: run.h5 cannot be read")
