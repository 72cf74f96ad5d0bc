"""The verification of a certificate by replay.

A certificate may come from anywhere: whatever it holds, `verify` answers, and replays no more iterations than are on
record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ulda.errors import UldaError
from ulda.io.fingerprints import digest
from ulda.models import Regularizer
from ulda.physics import Physics
from ulda.solvers.certificate import (
    FORMAT,
    SOFTWARE,
    VERSION,
    check_gradient,
    fingerprints_of,
    precision_of,
    summarize,
)
from ulda.solvers.composed import proposal_from_dict
from ulda.solvers.elda import elda
from ulda.solvers.objective import Reconstruction
from ulda.solvers.options import Options
from ulda.solvers.proposals import Proposal
from ulda.solvers.trace import Step

ENTRIES = (
    *("format", "version", "start", "precision", "fingerprints"),
    *("options", "proposal", "samples", "software", "digest"),
)
"""What a certificate holds."""

TOLERANCE = {"float32": 1e-4, "float64": 1e-8}
"""How far a replayed number may be from the recorded one, relative to its size: other machines round differently."""

SMALL = 1e-2
"""Numbers that have shrunk to less than this part of their first size are compared relative to that, since the
rounding has not shrunk with them."""


NOT_PROVEN = (
    "that the measurement, and the scale that was divided out of it, are what the scanner delivered",
    "what is only stated: input, base, domain, command, the origin of the mask, the place of the slices, software",
    "what it cannot see: changes below its rounding, options without influence, parts left out with all digests anew",
    "who made it: a signature does (ulda sign, ulda verify --key)",
)
"""What no replay can prove."""


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

    def joined(self, problems: Iterable[str]) -> Verdict:
        """Return the verdict with more disagreements, if there are any."""
        more = tuple(problems)
        return replace(self, ok=False, problems=self.problems + more) if more else self

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict for JSON."""
        return {
            "ok": self.ok,
            "problems": list(self.problems),
            "sample": self.sample,
            "iteration": self.iteration,
        }


def verify(
    certificate: dict[str, Any],
    y: Tensor,
    physics: Physics,
    regularizer: Regularizer,
    x: Tensor,
    x0: Tensor | None = None,
    proposal: Proposal | None = None,
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
    proposal
        What proposed; needed for kinds that cannot be built from their description. It must be the one on record.
    """
    try:
        return _verify(certificate, y, physics, regularizer, x, x0, proposal)
    except UldaError as error:
        return Verdict(False, (f"the run cannot be replayed: {error}",))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, MemoryError) as error:
        detail = str(error).partition("\n")[0]
        return Verdict(False, (f"the certificate is not of the expected form ({type(error).__name__}: {detail})",))


def _verify(
    certificate: dict[str, Any],
    y: Tensor,
    physics: Physics,
    regularizer: Regularizer,
    x: Tensor,
    x0: Tensor | None,
    proposal: Proposal | None,
) -> Verdict:
    if certificate.get("format") != FORMAT or certificate.get("version") != VERSION:
        return Verdict(False, (f"this is not a certificate of version {VERSION} of {FORMAT}",))
    problems = []
    content = {key: value for key, value in certificate.items() if key != "digest"}
    if certificate.get("digest") != digest(content):
        problems.append("the digest does not match: the certificate was changed after it was made")
    problems += _unexpected_entries(certificate)
    if certificate["start"] not in ("zero-filling", "given"):
        problems.append("the certificate does not say where the run started")
    zero_filled, tolerance = physics.A_adjoint(y), TOLERANCE[precision_of(x)]
    if certificate["start"] == "zero-filling":
        if x0 is not None and not _largest_difference(x0, zero_filled) <= tolerance:
            problems.append("the certificate speaks of a start from zero-filling, but the starting point is another")
        x0 = None
    elif x0 is None:
        return Verdict(False, (*problems, "the run did not start from zero-filling; give verify its starting point"))
    found = fingerprints_of(y, physics, regularizer, x, x0)
    problems += _other_fingerprints(certificate["fingerprints"], found)
    if certificate["precision"] != precision_of(x):
        problems.append(f"the certificate speaks of {certificate['precision']}, the result has another precision")
        return Verdict(False, tuple(problems))
    if proposal is None:
        proposal = proposal_from_dict(certificate["proposal"])
    if proposal.as_dict() != certificate["proposal"]:
        problems.append("the proposal is not the one the certificate was made for")
    start = zero_filled if x0 is None else x0
    problem, sample, iteration = _replay(certificate, y, physics, regularizer, x, start, proposal)
    problems += [problem] if problem else []
    return Verdict(not problems, tuple(problems), sample, iteration)


def _unexpected_entries(certificate: dict[str, Any]) -> list[str]:
    """Name the parts of a certificate with an entry too many or too few."""
    parts = {
        "the certificate": (certificate, ENTRIES),
        "the list of software": (certificate["software"], SOFTWARE),
        "the list of options": (certificate["options"], vars(Options())),
    }
    return [
        f"{name} does not have the expected entries" for name, (part, keys) in parts.items() if set(part) != set(keys)
    ]


def _other_fingerprints(recorded: dict[str, str], found: dict[str, str]) -> list[str]:
    """Name what is not what the certificate was made for."""
    problems = [
        f"the {name.replace('_', ' ')} is not the one the certificate was made for"
        for name, value in found.items()
        if recorded.get(name) != value
    ]
    return problems + (["the list of fingerprints is not the expected one"] if set(recorded) != set(found) else [])


def _replay(
    certificate: dict[str, Any],
    y: Tensor,
    physics: Physics,
    regularizer: Regularizer,
    x: Tensor,
    x0: Tensor,
    proposal: Proposal,
) -> tuple[str, int | None, int | None]:
    """Run the solver again and report the first iteration that disagrees, with its sample and its number."""
    check_gradient(regularizer)
    tolerance = TOLERANCE[certificate["precision"]]
    records = [sample["iterations"] for sample in certificate["samples"]]
    if len(records) != len(y):
        return f"the certificate has {len(records)} samples, the measurement {len(y)}", None, None
    options = Options(**certificate["options"])
    # one more than is on record suffices to see that a run, or a line search, went on
    longest = max(len(record) for record in records)
    most_steps = max((claim["line_search_steps"] for record in records for claim in record), default=0)
    bounded = replace(
        options,
        iterations=min(options.iterations, longest + 1),
        max_line_search=min(options.max_line_search, most_steps + 1),
    )
    with torch.no_grad():
        replayed, trace = elda(Reconstruction(physics, y, regularizer), x0, proposal, bounded)
    replays = [trace.steps(sample) for sample in range(len(records))]
    for t in range(longest + 1):
        for sample, (steps, record) in enumerate(zip(replays, records, strict=True)):
            if t < min(len(steps), len(record)):
                difference = _difference(steps[t], record[t], steps[0], options, tolerance) or _break(record, t)
                if difference:
                    return f"iteration {t} of sample {sample}: {difference}", sample, t
            elif t < max(len(steps), len(record)):
                more = "more" if t < len(steps) else "fewer"
                return f"sample {sample} has {len(record)} iterations on record, the replay {more}", sample, t
    for number, sample in enumerate(certificate["samples"]):
        summary = summarize([Step(**claim) for claim in sample["iterations"]], options)
        if set(sample) != {"iterations", *summary}:
            return f"sample {number} does not have the expected entries", number, None
        for name, fact in summary.items():
            if type(sample[name]) is not type(fact) or sample[name] != fact:
                return f"sample {number}: {name} does not follow from the iterations on record", number, None
    distance = _largest_difference(x, replayed)
    if not distance <= tolerance:
        return f"the replay ends at another image (largest difference {distance:.2g} of the peak)", None, None
    return "", None, None


def _difference(step: Step, claim: dict[str, Any], first: Step, options: Options, tolerance: float) -> str:
    """Name the first quantity of an iteration that disagrees; empty if none does."""
    if set(claim) != set(Step.__dataclass_fields__):
        return "it does not have the expected entries"
    sizes = {"eps": 0.0, "step_length": first.step_length}
    sizes |= dict.fromkeys(("grad_norm_before", "grad_norm"), first.grad_norm_before)
    sizes |= dict.fromkeys(("phi_before", "phi", "f", "r"), abs(first.phi_before))
    for name, theirs in claim.items():
        ours = getattr(step, name)
        if isinstance(ours, float) and type(theirs) is float:
            same = abs(ours - theirs) <= tolerance * max(abs(ours), SMALL * sizes[name])
        else:
            same = type(ours) is type(theirs) and ours == theirs
        if not same:
            return f"{name} is {theirs} on record and {ours} in the replay"
    if not Step(**claim).holds(options):
        return "the inequality that admits the step does not hold for the recorded numbers"
    # the numbers on record may be off by the tolerance, which a small rise could hide in
    if not step.holds(options):
        return "the inequality that admits the step does not hold in the replay"
    return ""


def _break(record: list[dict[str, Any]], t: int) -> str:
    """Name what an iteration does not begin with as the one before it ended; empty if all is in line."""
    before, claim = record[max(t - 1, 0)], record[t]
    if t == 0 or claim["eps"] != before["eps"]:
        return ""
    for name in ("phi", "grad_norm"):
        if claim[f"{name}_before"] != before[name]:
            return f"{name}_before is not the {name} that the iteration before it ends with"
    return ""


def _largest_difference(x: Tensor, reference: Tensor) -> float:
    """Return the largest difference of two images ``(n, H, W)`` relative to the peak of each reference."""
    if x.shape != reference.shape:
        return math.inf
    peak = reference.abs().amax((-2, -1)).clamp_min(torch.finfo(reference.real.dtype).tiny)
    return float(((x - reference).abs().amax((-2, -1)) / peak).max())
