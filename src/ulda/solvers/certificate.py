"""A certificate that a reconstruction descended a real objective, and its verification by replay.

A certificate is a small JSON document. It names by SHA-256 what went in (weights, measurement, mask, operator,
start) and what came out, and lists every iteration: the objective, its gradient, the branch, the line search. Whoever
has the measurement and the weights can run `verify`, which computes everything again.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import ulda
from ulda.errors import UldaError
from ulda.models import Regularizer
from ulda.physics import MultiCoilMRI, Physics
from ulda.solvers.elda import elda
from ulda.solvers.objective import Reconstruction
from ulda.solvers.options import Options
from ulda.solvers.trace import Step, Trace

FORMAT = "ulda-certificate"
VERSION = 1

TOLERANCE = {"float32": 1e-4, "float64": 1e-8}
"""How far a replayed number may be from the recorded one, relative to its size: other machines round differently."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of a verification.

    Attributes
    ----------
    ok
        Whether everything agreed.
    problems
        One sentence per disagreement, the most telling first.
    sample, iteration
        The first iteration that disagrees and its sample; None where all agree.
    """

    ok: bool
    problems: tuple[str, ...] = ()
    sample: int | None = None
    iteration: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict for JSON."""
        return {
            "ok": self.ok,
            "problems": list(self.problems),
            "sample": self.sample,
            "iteration": self.iteration,
        }


def certify(
    trace: Trace, y: Tensor, physics: Physics, regularizer: Regularizer, x: Tensor, x0: Tensor | None = None
) -> dict[str, Any]:
    """Make the certificate of a run.

    Parameters
    ----------
    trace
        The record of the run.
    y, physics, regularizer
        What was solved: measurements ``(n, H, W)`` or ``(n, coils, H, W)``, the operator, the regulariser.
    x
        The result ``(n, H, W)``.
    x0
        Where the run started; by default from zero-filling, ``A^H y``.
    """
    samples = [trace.steps(i) for i in range(trace.n_samples)]
    zero_filled = physics.A_adjoint(y)
    content = {
        "format": FORMAT,
        "version": VERSION,
        "start": "zero-filling" if x0 is None or torch.equal(x0, zero_filled) else "given",
        "precision": "float64" if x.dtype == torch.complex128 else "float32",
        "fingerprints": _fingerprints(y, physics, regularizer, x, zero_filled if x0 is None else x0),
        "options": trace.options.as_dict(),
        "samples": [
            {
                "iterations": [vars(step) for step in steps],
                "every_step_descended": all(step.phi <= step.phi_before for step in steps),
                "every_inequality_held": all(step.holds(trace.options) for step in steps),
                "stationarity": steps[-1].grad_norm,
            }
            for steps in samples
        ],
        "software": {
            "ulda": ulda.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }
    return content | {"digest": digest(content)}


def verify(
    certificate: dict[str, Any],
    y: Tensor,
    physics: Physics,
    regularizer: Regularizer,
    x: Tensor,
    x0: Tensor | None = None,
) -> Verdict:
    """Check a certificate against what it speaks of, and replay the run.

    Parameters
    ----------
    certificate
        What `certify` returned, possibly from a file.
    y, physics, regularizer, x
        The measurements, the operator, the regulariser and the result it was made for.
    x0
        Where the run started; needed when that was not zero-filling.
    """
    try:
        return _verify(certificate, y, physics, regularizer, x, x0)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        return Verdict(False, (f"the certificate is not of the expected form ({type(error).__name__}: {error})",))


def _verify(
    certificate: dict[str, Any],
    y: Tensor,
    physics: Physics,
    regularizer: Regularizer,
    x: Tensor,
    x0: Tensor | None,
) -> Verdict:
    if certificate.get("format") != FORMAT or certificate.get("version") != VERSION:
        return Verdict(False, (f"this is not a certificate of version {VERSION} of {FORMAT}",))
    problems = []
    content = {key: value for key, value in certificate.items() if key != "digest"}
    if certificate.get("digest") != digest(content):
        problems.append("the digest does not match: the certificate was changed after it was made")
    if x0 is None and certificate["start"] != "zero-filling":
        return Verdict(False, (*problems, "the run did not start from zero-filling; give verify its starting point"))
    start = physics.A_adjoint(y) if x0 is None else x0
    found = _fingerprints(y, physics, regularizer, x, start)
    for name, value in found.items():
        if certificate["fingerprints"].get(name) != value:
            problems.append(f"the {name.replace('_', ' ')} is not the one the certificate was made for")
    if set(certificate["fingerprints"]) != set(found):
        problems.append("the list of fingerprints is not the expected one")
    if certificate["precision"] != ("float64" if x.dtype == torch.complex128 else "float32"):
        problems.append(f"the certificate speaks of {certificate['precision']}, the result has another precision")
        return Verdict(False, tuple(problems))
    problems_of_run, sample, iteration = _replay(certificate, y, physics, regularizer, x, start)
    problems += problems_of_run
    return Verdict(not problems, tuple(problems), sample, iteration)


def _replay(
    certificate: dict[str, Any], y: Tensor, physics: Physics, regularizer: Regularizer, x: Tensor, x0: Tensor
) -> tuple[list[str], int | None, int | None]:
    """Run the solver again and report the first iteration that disagrees."""
    tolerance = TOLERANCE[certificate["precision"]]
    try:
        options = Options(**certificate["options"])
        with torch.no_grad():
            replayed, trace = elda(Reconstruction(physics, y, regularizer), x0, options)
    except UldaError as error:
        return [f"the run cannot be replayed: {error}"], None, None
    if trace.n_samples != len(certificate["samples"]):
        return (
            [f"the certificate has {len(certificate['samples'])} samples, the measurement {trace.n_samples}"],
            None,
            None,
        )
    for sample, recorded in enumerate(certificate["samples"]):
        steps = trace.steps(sample)
        for t, (step, claim) in enumerate(zip(steps, recorded["iterations"], strict=False)):
            difference = _difference(step, claim, options, tolerance)
            if difference:
                return [f"iteration {t} of sample {sample}: {difference}"], sample, t
        if len(steps) != len(recorded["iterations"]):
            t = min(len(steps), len(recorded["iterations"]))
            message = f"sample {sample} has {len(recorded['iterations'])} iterations on record, the replay {len(steps)}"
            return [message], sample, t
        claims = [Step(**claim) for claim in recorded["iterations"]]
        facts = {
            "every_step_descended": all(step.phi <= step.phi_before for step in claims),
            "every_inequality_held": all(step.holds(options) for step in claims),
            "stationarity": claims[-1].grad_norm,
        }
        for name, fact in facts.items():
            if recorded.get(name) != fact:
                return [f"sample {sample}: {name} does not follow from the iterations on record"], sample, None
    distance = float((replayed - x).abs().max() / x.abs().max().clamp_min(torch.finfo(x.real.dtype).tiny))
    if not distance <= tolerance:
        return [f"the replay ends at another image (largest difference {distance:.2g} of the peak)"], None, None
    return [], None, None


def _difference(step: Step, claim: dict[str, Any], options: Options, tolerance: float) -> str:
    """Name the first quantity of an iteration that disagrees; empty if none does."""
    for name in Step.__dataclass_fields__:
        ours, theirs = getattr(step, name), claim[name]
        if isinstance(ours, float):
            scale = max(abs(ours), 1e-12)
            same = abs(ours - theirs) <= tolerance * scale
        else:
            same = ours == theirs
        if not same:
            return f"{name} is {theirs} on record and {ours} in the replay"
    if set(claim) != set(Step.__dataclass_fields__):
        return "it has unexpected entries"
    if not Step(**claim).holds(options):
        return "the inequality that admits the step does not hold for the recorded numbers"
    return ""


def _fingerprints(y: Tensor, physics: Physics, regularizer: Regularizer, x: Tensor, x0: Tensor) -> dict[str, str]:
    operator = [("axis", torch.tensor(physics.axis)), ("lines", physics.mask.lines)]
    if isinstance(physics, MultiCoilMRI):
        operator.append(("maps", physics.maps))
    return {
        "weights": fingerprint_weights(regularizer),
        "measurement": fingerprint([("y", y)]),
        "mask": fingerprint([("lines", physics.mask.lines)]),
        "operator": fingerprint(operator),
        "starting_point": fingerprint([("x0", x0)]),
        "result": fingerprint([("x", x)]),
    }


def fingerprint_weights(module: nn.Module) -> str:
    """Return the SHA-256 of all parameters of a module, with their names."""
    named = sorted(module.named_parameters())
    if isinstance(module, Regularizer):
        named.append(("delta", nn.Parameter(torch.tensor(module.extractor.activation.delta, dtype=torch.float64))))
    return fingerprint(named)


def fingerprint(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return the SHA-256 of named tensors: names, types, shapes and bytes.

    Examples
    --------
    >>> import torch
    >>> fingerprint([("x", torch.zeros(2))])[:8]
    '551d55aa'
    """
    sha = hashlib.sha256()
    for name, tensor in tensors:
        array = np.ascontiguousarray(tensor.detach().cpu().resolve_conj().numpy())
        sha.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()


def digest(content: dict[str, Any]) -> str:
    """Return the SHA-256 of a JSON document in canonical form."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
