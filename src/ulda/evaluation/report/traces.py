"""The iterations of a run as tables of numbers, for files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulda.evaluation.report.content import Traces
from ulda.solvers import Step
from ulda.solvers.batch import BRANCHES

NUMBERS = tuple(name for name in Step.__dataclass_fields__ if name != "branch")
_COUNTS = tuple(name for name in NUMBERS if Step.__dataclass_fields__[name].type in (int, "int"))
_STOPPED = -1


def step_of(numbers: Mapping[str, Any], branch: str) -> Step:
    """Return an iteration; a number that is null is NaN."""
    if branch not in BRANCHES:
        raise ValueError(f"there is no branch {branch!r}")
    fields: dict[str, Any] = {
        name: int(numbers[name]) if name in _COUNTS else float("nan" if numbers[name] is None else numbers[name])
        for name in NUMBERS
    }
    return Step(branch=branch, **fields)


def to_tables(traces: Traces) -> dict[str, NDArray[Any]]:
    """Return one table per quantity, ``(slices, iterations)``: NaN, and branch -1, once a slice has stopped."""
    shape = len(traces), max(map(len, traces), default=0)
    tables: dict[str, NDArray[Any]] = {name: np.full(shape, np.nan) for name in NUMBERS}
    tables["branch"] = np.full(shape, _STOPPED, np.int8)
    for i, steps in enumerate(traces):
        for name in NUMBERS:
            tables[name][i, : len(steps)] = [getattr(step, name) for step in steps]
        tables["branch"][i, : len(steps)] = [BRANCHES.index(step.branch) for step in steps]
    return tables


def from_tables(tables: Mapping[str, NDArray[Any]]) -> Traces:
    """Return the iterations that `to_tables` wrote."""
    return tuple(
        tuple(
            step_of({name: tables[name][i, t] for name in NUMBERS}, BRANCHES[row[t]])
            for t in np.flatnonzero(row > _STOPPED)
        )
        for i, row in enumerate(tables["branch"])
    )
