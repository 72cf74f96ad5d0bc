"""What a training run reports, and what it remembers of it: the rows of its log and its best parameters."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ulda.io.atomic import atomic_output


@dataclass(frozen=True)
class Progress:
    """What a run reports after each step, and a row of its log.

    Attributes
    ----------
    step, steps
        Steps done and to do.
    loss
        The loss of the step; in a row of the log the mean since the row before. NaN before the first step.
    learning_rate
        The rate of the step.
    validation
        Metrics by domain, where the step was followed by a validation.
    seconds
        Time since the beginning of the run, without the pauses before it was resumed.
    stage
        What the step belongs to: ``train``, or what comes before it, such as ``initialise``.
    """

    step: int
    steps: int
    loss: float
    learning_rate: float
    validation: dict[str, dict[str, float]] | None = None
    seconds: float = 0.0
    stage: str = "train"


Report = Callable[[Progress], None]


def counted_on(report: Report | None, before: int, total: int, stage: str = "train") -> Report | None:
    """Make the report of one of several runs count the steps of all, and name the stage that they are."""
    return report and (lambda row: report(replace(row, step=before + row.step, steps=total, stage=stage)))


@dataclass
class Best:
    """The parameters of the best validation so far, of one run or of several that follow each other.

    Attributes
    ----------
    score, parameters
        Those of the best validation.

    Examples
    --------
    >>> weight = torch.tensor([1.0])
    >>> best = Best()
    >>> best.observe(30.0, {"weight": weight})
    >>> weight.fill_(2.0)
    tensor([2.])
    >>> best.observe(29.0, {"weight": weight})
    >>> best.restore({"weight": weight})
    >>> weight
    tensor([1.])
    """

    score: float = -math.inf
    parameters: dict[str, Tensor] = field(default_factory=dict)

    def observe(self, score: float, parameters: Mapping[str, Tensor]) -> None:
        """Keep a copy of the parameters if their score is the best."""
        if score > self.score:
            self.score, self.parameters = score, copied(parameters)

    def restore(self, parameters: Mapping[str, Tensor]) -> None:
        """Put the best parameters back, where there are any."""
        put(self.parameters, parameters)


def copied(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the values of parameters as they are now."""
    return {name: value.detach().clone() for name, value in parameters.items()}


@torch.no_grad()
def put(values: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
    """Copy values into the parameters of their names."""
    for name, value in values.items():
        parameters[name].copy_(value)


def chooses(scores: Mapping[str, float]) -> float:
    """Return the first of the scores of a validation: PSNR, where there are references.

    Examples
    --------
    >>> chooses({"psnr": 30.0, "ssim": 0.9})
    30.0
    """
    return next(iter(scores.values()))


def mean_score(progress: Progress) -> float:
    """Return the mean over the domains of what chooses, the first score; minus infinity without a validation."""
    scores = [chooses(entry) for entry in (progress.validation or {}).values()]
    return sum(scores) / len(scores) if scores else -math.inf


def last_validation(history: Sequence[Progress], *, is_best: bool = False) -> Progress | None:
    """Return the last row with a validation, or the first of the best ones; None without any.

    Examples
    --------
    >>> rows = [Progress(i, 3, 0.1, 1e-3, {"knee": {"psnr": score}}) for i, score in enumerate((20.0, 22.0, 21.0))]
    >>> last_validation(rows).step, last_validation(rows, is_best=True).step
    (2, 1)
    """
    validated = [row for row in history if row.validation]
    return (max(validated, key=mean_score) if is_best else validated[-1]) if validated else None


def total_seconds(history: Sequence[Progress]) -> float:
    """Add up the time of runs that followed each other, each with a clock of its own."""
    return sum(row.seconds for row in _last_rows(history))


def total_steps(history: Sequence[Progress]) -> int:
    """Add up the steps of runs that followed each other.

    Examples
    --------
    >>> total_steps([Progress(step, 9, 0.1, 1e-3) for step in (5, 9, 5, 7)])
    16
    >>> total_steps([Progress(2, 2, 0.1, 1e-3), Progress(4, 9, 0.1, 1e-3)])
    6
    """
    return sum(row.step for row in _last_rows(history))


def _last_rows(history: Sequence[Progress]) -> list[Progress]:
    def is_another_run(row: Progress, after: Progress) -> bool:
        return after.step <= row.step or after.steps != row.steps or after.seconds < row.seconds

    ends = [row for row, after in pairwise(history) if is_another_run(row, after)]
    return [*ends, *history[-1:]]


def write_log(path: Path, history: Sequence[Progress]) -> None:
    """Write the rows as CSV; a row without a validation, or without a loss, has empty fields."""
    rows: list[dict[str, Any]] = []
    for entry in history:
        loss = "" if math.isnan(entry.loss) else entry.loss
        row: dict[str, Any] = {"step": entry.step, "loss": loss, "learning_rate": entry.learning_rate}
        for domain, scores in (entry.validation or {}).items():
            row |= {f"{domain}_{name}": value for name, value in scores.items()}
        rows.append(row)
    columns = dict.fromkeys(column for row in rows for column in row)
    with (
        atomic_output(path, overwrite=True) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as stream,
    ):
        writer = csv.DictWriter(stream, fieldnames=list(columns) or ["step"])
        writer.writeheader()
        writer.writerows(rows)
