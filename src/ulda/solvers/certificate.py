"""A certificate that a reconstruction descended a real objective.

It is a small JSON document. It names by SHA-256 what went in (weights, measurement, mask, operator, start) and what
came out, and lists every iteration: the objective, its gradient, the branch, the line search. Whoever has the
measurement and the weights can have `ulda.solvers.verify` compute everything again.
"""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ulda.errors import UldaError
from ulda.io.fingerprints import digest, fingerprint
from ulda.models import Regularizer
from ulda.physics import MultiCoilMRI, Physics
from ulda.solvers.options import Options
from ulda.solvers.trace import Step, Trace
from ulda.version import __version__

FORMAT = "ulda-certificate"
VERSION = 1

SOFTWARE = ("ulda", "torch", "numpy", "python")


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
    check_gradient(regularizer)
    samples = [trace.steps(i) for i in range(trace.n_samples)]
    if x0 is not None and torch.equal(x0, physics.A_adjoint(y)):
        x0 = None
    content = {
        "format": FORMAT,
        "version": VERSION,
        "start": "zero-filling" if x0 is None else "given",
        "precision": precision_of(x),
        "fingerprints": fingerprints_of(y, physics, regularizer, x, x0),
        "options": trace.options.as_dict(),
        "proposal": trace.proposal.as_dict(),
        "samples": [
            {"iterations": [step.as_dict() for step in steps]} | summarize(steps, trace.options) for steps in samples
        ],
        "software": software_versions(),
    }
    return content | {"digest": digest(content)}


def describe(certificate: dict[str, Any], sample: int = 0) -> list[str]:
    """Return in words what a certificate says of a sample; `ulda.solvers.verify` tells whether it is true.

    Parameters
    ----------
    certificate
        What `certify` returned.
    sample
        The place of the sample in the batch.

    Returns
    -------
    list of str
        Sentences: the tests that were passed, the fall of phi, the lowest phi visited, the last gradient.
    """
    options, steps = (
        Options(**certificate["options"]),
        [Step(**s) for s in certificate["samples"][sample]["iterations"]],
    )
    if any(value is None for step in steps for value in vars(step).values()):
        return ["Values that are not finite are on record: the run proves nothing."]
    passed = [step for step in steps if step.branch != "stalled" and step.holds(options)]
    searched = sum(step.branch == "v" for step in passed)
    fall = sum(step.phi_before - step.phi for step in steps)
    values, last = [steps[0].phi_before, *(step.phi for step in steps)], steps[-1]
    lowest = min(range(len(values)), key=values.__getitem__)
    threshold = options.sigma * options.gamma * last.eps
    is_below = last.grad_norm < threshold
    return [
        f"{len(passed)} of {_counted(len(steps), 'iteration')} passed their acceptance test: "
        f"{_counted(len(passed) - searched, 'proposal')} accepted, "
        f"{_counted(searched, 'line search', 'line searches')}.",
        f"phi went from {values[0]:.6g} to {last.phi:.6g}; the iterations lowered it by {fall:.3g} in all, "
        + ("and none raised it." if all(step.phi <= step.phi_before for step in steps) else "but some raised it."),
        f"The lowest phi visited is {values[lowest]:.6g}, "
        + (f"after iteration {lowest} of {len(steps)}." if lowest else "that of the start."),
        f"The last gradient has norm {last.grad_norm:.3g}; the threshold sigma gamma eps is {threshold:.3g}: "
        + ("a stationary point of phi_eps to this accuracy." if is_below else "not yet a stationary point of phi_eps."),
    ]


def _counted(n: int, one: str, many: str = "") -> str:
    return f"{n} {one if n == 1 else many or one + 's'}"


def software_versions() -> dict[str, str]:
    """Return the versions of what computed a result."""
    versions = (__version__, torch.__version__, np.__version__, platform.python_version())
    return dict(zip(SOFTWARE, versions, strict=True))


def summarize(steps: list[Step], options: Options) -> dict[str, Any]:
    """Return what the certificate concludes from the iterations of a sample."""
    return {
        "every_step_descended": all(step.phi <= step.phi_before for step in steps),
        "every_inequality_held": all(step.holds(options) for step in steps),
        "stationarity": steps[-1].as_dict()["grad_norm"],
    }


def precision_of(x: Tensor) -> str:
    """Return the precision of a complex image."""
    return "float64" if x.dtype == torch.complex128 else "float32"


def fingerprints_of(
    y: Tensor, physics: Physics, regularizer: Regularizer, x: Tensor, x0: Tensor | None
) -> dict[str, str]:
    """Return the fingerprints of all that a run depends on and of its result; `x0` is None for zero-filling."""
    operator = [("axis", torch.tensor(physics.axis)), ("lines", physics.mask.lines)]
    if isinstance(physics, MultiCoilMRI):
        operator.append(("maps", physics.maps))
    operator += [(name, known) for name in ("phase", "noise") if (known := getattr(physics, name)) is not None]
    operator.append(("keeps_noise", torch.tensor(physics.keeps_noise)))
    found = {
        "weights": fingerprint_weights(regularizer),
        "measurement": fingerprint([("y", y)]),
        "mask": fingerprint([("lines", physics.mask.lines)]),
        "operator": fingerprint(operator),
        "result": fingerprint([("x", x)]),
    }
    # zero-filling follows from the measurement, up to rounding, which would change a fingerprint
    return found if x0 is None else found | {"starting_point": fingerprint([("x0", x0)])}


def check_gradient(regularizer: Regularizer) -> None:
    """Refuse a regulariser that the solver does not follow the gradient of: nothing can be certified."""
    if not regularizer.has_true_gradient:
        raise UldaError("this regulariser has no gradient, only what stands for one: there is no certificate of it")


def fingerprint_weights(module: nn.Module) -> str:
    """Return the SHA-256 of all parameters of a module, with their names; of a regulariser, of all its kernels."""
    owner = module.materialize() if isinstance(module, Regularizer) else module
    named = sorted(owner.named_parameters())
    if isinstance(module, Regularizer):
        named.append(("delta", nn.Parameter(torch.tensor(module.extractor.activation.delta, dtype=torch.float64))))
    return fingerprint(named)
