"""The curves that a training and a reconstruction leave behind, for `ulda.evaluation.save_curves`."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING

from ulda.errors import UldaError
from ulda.io.untrusted import read_text, reading

if TYPE_CHECKING:
    from ulda.solvers import Trace
    from ulda.solvers.trace import Step

History = dict[str, tuple[list[float], list[float]]]


def validation_curves(log: str | Path, metric: str = "psnr") -> History:
    """Read the validations of a training's ``log.csv``: a metric over the steps, by domain."""
    log, ending = Path(log), f"_{metric}"
    found: History = {}
    content = read_text(log, "the log of a training")
    with reading(log, "the log of a training"):
        for row in csv.DictReader(io.StringIO(content, newline="")):
            for name in [name for name in row if name and name.endswith(ending) and row[name]]:
                steps, values = found.setdefault(name.removesuffix(ending), ([], []))
                steps.append(float(row["step"]))
                values.append(float(row[name]))
    if not found:
        raise UldaError(f"{log.name} holds no validations with the metric {metric}; was there a validation split?")
    return found


def gradient_curves(trace: Trace) -> History:
    """Return the norm of the gradient after each phase, by slice."""
    return {
        name: (_phases(steps), [step.grad_norm for step in steps]) for name, steps in _steps_by_slice(trace).items()
    }


def objective_curves(trace: Trace, n_pixels: int) -> History:
    """Return ``phi + n_pixels * eps / 2`` after each phase, by slice: what no phase may increase.

    The objective alone jumps where its smoothing eps changes.
    """
    return {
        name: (_phases(steps), [step.phi + n_pixels * step.eps / 2 for step in steps])
        for name, steps in _steps_by_slice(trace).items()
    }


def _steps_by_slice(trace: Trace) -> dict[str, list[Step]]:
    return {f"slice {i}": trace.steps(i) for i in range(trace.n_samples)}


def _phases(steps: list[Step]) -> list[float]:
    return [float(phase) for phase in range(1, len(steps) + 1)]
