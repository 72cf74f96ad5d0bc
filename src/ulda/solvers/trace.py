"""The record of a run: what happened in every iteration, to every sample."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ulda.errors import MissingExtraError, UldaError
from ulda.io.atomic import atomic_output
from ulda.solvers.batch import BRANCHES, PROPOSAL, Batch, Outcome
from ulda.solvers.objective import Evaluation, square_norm
from ulda.solvers.options import Options

if TYPE_CHECKING:
    import h5py
    from matplotlib.figure import Figure

    from ulda.solvers.proposals import Proposal


@dataclass(frozen=True)
class Status:
    """What the callback sees after each iteration, for the samples that were still running.

    Attributes
    ----------
    iteration
        t, from 0.
    samples
        Which samples of the batch these are ``(n,)``.
    x, x_next
        The iterate before and after.
    at_x, at_next
        The objective there, at this iteration's eps.
    u, at_u
        The preferred candidate of the proposal, taken or not, and the objective there.
    eps
        This iteration's smoothing ``(n,)``.
    branch
        PROPOSAL, LINE_SEARCH or STALLED ``(n,)``; of a proposal with several candidates `x_next` may be another than
        `u`.
    """

    iteration: int
    samples: Tensor
    x: Tensor
    x_next: Tensor
    at_x: Evaluation
    at_next: Evaluation
    u: Tensor
    at_u: Evaluation
    eps: Tensor
    branch: Tensor

    @classmethod
    def of(cls, t: int, batch: Batch, u: Outcome, after: Outcome) -> Status:
        """Return the status after an iteration of a batch, which proposed u and led to `after`."""
        points = batch.x, after.x, batch.at_x, after.at_x, u.x, u.at_x
        return cls(t, batch.samples, *points, batch.eps, after.branch)


Callback = Callable[[Status], bool | None]
"""Called after each iteration; returning False ends the run."""


@dataclass(frozen=True)
class Step:
    """One iteration of one sample.

    Attributes
    ----------
    eps
        The smoothing of this iteration.
    phi_before, grad_norm_before
        The objective and the norm of its gradient at ``x_t``.
    phi, f, r, grad_norm
        The objective, its two terms and the norm of its gradient at ``x_{t+1}``, with the same smoothing.
    step_length
        ``||x_{t+1} - x_t||``.
    branch
        ``"u"``, ``"v"`` or ``"stalled"``.
    line_search_steps
        How often the line search shortened its step; 0 for a proposal.
    proposal_steps
        How many steps of the proposal were kept: as many as it has candidates where the preferred one passed, one less
        for each candidate that failed before; 0 for the other branches.
    """

    eps: float
    phi_before: float
    grad_norm_before: float
    phi: float
    f: float
    r: float
    grad_norm: float
    step_length: float
    branch: str
    line_search_steps: int
    proposal_steps: int

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers for JSON, which has none that are not finite: they become null."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in vars(self).items()
        }

    def holds(self, options: Options) -> bool:
        """Tell whether the inequality that admitted this step holds for the recorded numbers."""
        # squaring the recorded length rounds in the last digit
        decrease, square = self.phi - self.phi_before, self.step_length**2 * (1 - 1e-14)
        if self.branch == "stalled":
            return self.step_length == 0
        if self.branch == "v":
            return decrease <= -options.eta3 / self.eps * square
        return decrease <= -options.eta2 / 2 * square and self.grad_norm_before <= self.step_length / options.eta1


def trace_arrays(samples: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, NDArray[Any]]:
    """Return the iterations of samples as one array per quantity, ``(iterations, samples)``.

    Parameters
    ----------
    samples
        For each sample its iterations as `Step.as_dict` gives them.

    Returns
    -------
    dict
        Numbers are NaN where a sample had stopped, and where they are not finite; its ``branch`` is then -1.
    """
    shape = (max(map(len, samples)), len(samples))
    table = {name: np.full(shape, np.nan) for name in Step.__dataclass_fields__}
    table["branch"] = np.full(shape, -1, np.int8)
    for sample, steps in enumerate(samples):
        for t, step in enumerate(steps):
            for name, array in table.items():
                value = BRANCHES.index(step[name]) if name == "branch" else step[name]
                array[t, sample] = np.nan if value is None else value
    return table


@dataclass
class Trace:
    """All iterations of all samples of a run.

    Recording keeps small tensors; they become numbers when asked for. A run that its callback ended is on record as
    one with so many iterations in its options: it went the same way.
    """

    n_samples: int
    options: Options
    proposal: Proposal
    _records: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def record(self, batch: Batch, after: Outcome) -> None:
        """Append one iteration of the running samples."""
        at_x, at_next = batch.at_x, after.at_x
        with torch.no_grad():
            length = square_norm(after.x - batch.x).sqrt()
            columns = (
                *(batch.eps, at_x.phi, at_x.grad_norm, at_next.phi, at_next.f, at_next.r, at_next.grad_norm, length),
                *(after.branch, after.line_search_steps, after.proposal_steps),
            )
            self._records.append((batch.samples, torch.stack([column.double() for column in columns], 1)))

    def __len__(self) -> int:
        return len(self._records)

    def steps(self, sample: int) -> list[Step]:
        """Return the iterations of one sample."""
        if not 0 <= sample < self.n_samples:
            raise UldaError(f"there is no sample {sample} in a batch of {self.n_samples}")
        found = []
        for samples, numbers in self._records:
            for *floats, branch, n_searches, n_kept in numbers[samples == sample].tolist():
                names = list(Step.__dataclass_fields__)[: len(floats)]
                values: dict[str, Any] = dict(zip(names, floats, strict=True))
                values |= {"line_search_steps": int(n_searches), "proposal_steps": int(n_kept)}
                found.append(Step(**values, branch=BRANCHES[int(branch)]))
        return found

    def accepted_fraction(self) -> float:
        """Return the fraction of iterations, over all samples, that took a candidate of the proposal."""
        branches = torch.cat([numbers[:, 8] for _, numbers in self._records])
        return float((branches == PROPOSAL).double().mean())

    def as_dict(self) -> dict[str, Any]:
        """Return the options, the proposal and every iteration of every sample, for JSON."""
        samples = [[step.as_dict() for step in self.steps(i)] for i in range(self.n_samples)]
        return {"options": self.options.as_dict(), "proposal": self.proposal.as_dict(), "samples": samples}

    def save_json(self, path: str | Path) -> None:
        """Write the trace as JSON."""
        with atomic_output(path, overwrite=True) as temporary:
            temporary.write_text(json.dumps(self.as_dict(), allow_nan=False) + "\n", encoding="utf-8")

    def save_hdf5(self, group: h5py.Group) -> None:
        """Write the trace into an HDF5 group: the arrays of `trace_arrays`, the options and the proposal."""
        for name, values in trace_arrays(self.as_dict()["samples"]).items():
            group.create_dataset(name, data=values)
        group.attrs["branches"] = list(BRANCHES)
        group.attrs["options"] = json.dumps(self.options.as_dict())
        group.attrs["proposal"] = json.dumps(self.proposal.as_dict())

    def plot(self) -> Figure:
        """Draw by how much the objective still decreases, and the norm of its gradient, on logarithmic scales."""
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise MissingExtraError("plotting a trace", "plot") from error
        figure = Figure(figsize=(9, 3.5), layout="constrained")
        left, right = figure.subplots(1, 2)
        for sample in range(self.n_samples):
            steps = self.steps(sample)
            iterations = range(1, len(steps) + 1)
            # not phi itself, which jumps where the smoothing changes
            remaining = list(accumulate(step.phi_before - step.phi for step in reversed(steps)))[::-1]
            left.semilogy(iterations, [max(decrease, 1e-300) for decrease in remaining])
            (line,) = right.semilogy(iterations, [step.grad_norm + 1e-300 for step in steps])
            searched = [t for t, step in zip(iterations, steps, strict=True) if step.branch == "v"]
            right.plot(searched, [steps[t - 1].grad_norm for t in searched], "v", ms=3, color=line.get_color())
        left.set(xlabel="iteration", ylabel="decrease from here to the end", title="objective")
        right.set(xlabel="iteration", ylabel=r"$\|\nabla\phi\|$", title="gradient (triangles: line search)")
        return figure
