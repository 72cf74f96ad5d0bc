"""Proposals for the next iterate: anything may propose, the solver accepts only descent.

A proposal owns its step sizes and its memory. It returns candidates, the preferred one first; `ulda.solvers.elda` takes
the first that passes the acceptance test, for each sample alone, and searches along a line where none does.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ulda.errors import UldaError
from ulda.io.fingerprints import fingerprint
from ulda.physics.spectrum import KNOTS, radial_filter
from ulda.solvers.objective import Evaluation, SmoothedObjective

Memory = tuple[Tensor, ...]
"""What a proposal remembers from one iteration to the next: tensors with one entry per sample; () for nothing."""

MOST_STEPS = 100
"""More steps than a sensible phase has."""

MOST_NUMBERS = 10_000
"""More parameters than a sensible certificate has."""


class Candidate(NamedTuple):
    """A point per sample, and what the proposal remembers if this point is accepted."""

    x: Tensor
    memory: Memory = ()

    def take(self, index: Tensor) -> Candidate:
        """Keep some samples."""
        return Candidate(self.x[index], tuple(part[index] for part in self.memory))


class Proposal(nn.Module, ABC):
    """What proposes the next iterate; a subclass needs a `kind` and `forward`.

    Each sample must be treated alone, and the same input must give the same output: a replay depends on it.
    """

    kind: ClassVar[str]
    """The name in a certificate."""

    n_phases: int = 1
    """How many phases differ; from the last of them on all are alike."""

    def first_memory(self, x0: Tensor, at_x0: Evaluation) -> Memory:  # noqa: ARG002
        """Return what there is to remember before the first iteration; nothing by default."""
        return ()

    @abstractmethod
    def forward(
        self, problem: SmoothedObjective, x: Tensor, at_x: Evaluation, eps: Tensor, t: int, memory: Memory
    ) -> list[Candidate]:
        """Return candidates for the next iterate, the preferred one first and the most cautious one last.

        Parameters
        ----------
        problem
            The problems of the samples that still run.
        x, at_x
            Their iterates ``(n, ...)``, and the objective with its gradients there.
        eps
            Their smoothing ``(n,)``.
        t
            The iteration, from 0.
        memory
            That of the accepted candidate; where a line search was needed, that of the last candidate.
        """

    def as_dict(self) -> dict[str, Any]:
        """Return for the certificate what makes this proposal: its kind and the SHA-256 of its weights by default."""
        return {"kind": self.kind, "weights": fingerprint(sorted(self.state_dict().items()))}


class GradientProposal(Proposal):
    """The proposal of the paper: ``z = x - alpha_t grad f(x)``, ``u = z - beta_t grad r_eps(z)``.

    Parameters
    ----------
    n_steps
        How many phases have step sizes of their own; later ones use the last. 1 means shared by all.
    alpha, beta
        Where the step sizes start, one number or one per phase. 1 is the inverse Lipschitz constant of the fidelity;
        see `ulda.solvers.beta_from_gamma` for the other form of the method.

    Examples
    --------
    >>> GradientProposal(15, alpha=1.0, beta=0.5).log_alpha.shape
    torch.Size([15])
    """

    kind: ClassVar[str] = "gradient"

    def __init__(
        self, n_steps: int = 1, alpha: float | Sequence[float] = 1.0, beta: float | Sequence[float] = 0.5
    ) -> None:
        super().__init__()
        self.n_phases = _checked_count("n_steps", n_steps, MOST_NUMBERS)
        self.log_alpha = _logarithms("alpha", alpha, n_steps)
        self.log_beta = _logarithms("beta", beta, n_steps)

    def forward(
        self, problem: SmoothedObjective, x: Tensor, at_x: Evaluation, eps: Tensor, t: int, memory: Memory
    ) -> list[Candidate]:
        """Return u."""
        del memory
        t = min(t, self.n_phases - 1)
        z = x - _factor(self.log_alpha[t].exp(), x) * at_x.grad_f
        return [Candidate(z - _factor(self.log_beta[t].exp(), x) * problem.regularizer_grad(z, eps))]

    def as_dict(self) -> dict[str, Any]:
        """Return the kind and the parameters."""
        return _described(self)


def inverse_frequency() -> Tensor:
    """Return gains of roughly one over the frequency ``(6,)``.

    They undo the curvature of a total variation, which the network starts as.

    Examples
    --------
    >>> inverse_frequency()[-1]
    tensor(0.4000)
    """
    return 0.4 * ((torch.tensor(KNOTS).square() + 0.01) / 1.01) ** -0.5


class AcceleratedProposal(Proposal):
    """Several steps with momentum, longer where nothing was measured.

    Step ``i`` leads from ``x_i`` to::

        ahead = x_i + momentum_i (x_i - x_{i-1})            no momentum where that leads uphill
        z     = ahead - alpha_i grad f(ahead)
        x_{i+1} = z - (beta_i + kappa_i S_i (I - A^H A)) grad r_eps(z)

    ``S_i`` multiplies spatial frequencies by gains. The fidelity has curvature 1 in what was measured and 0 in the
    rest, so longer steps are right there; a regulariser that looks at differences of neighbours is curved most for
    high frequencies, so the low ones take longer steps. The end of the last step is the preferred candidate; the ends
    of the steps before it follow, the last one first.

    Parameters
    ----------
    n_steps
        How many steps have sizes of their own: 1 (shared by all), or a multiple of `steps_per_phase`. Beyond the last,
        those of the last phase are used again.
    steps_per_phase
        How many steps are taken before the acceptance test.
    alpha, beta, kappa, momentum
        Where the sizes start, one number or one per step.
    gains
        Have gains by spatial frequency at `ulda.physics.spectrum.KNOTS`; they start as
        `inverse_frequency`.

    Examples
    --------
    >>> AcceleratedProposal(15, steps_per_phase=5).log_gains.shape
    torch.Size([15, 6])
    """

    kind: ClassVar[str] = "accelerated"

    def __init__(
        self,
        n_steps: int = 1,
        steps_per_phase: int = 1,
        alpha: float | Sequence[float] = 1.0,
        beta: float | Sequence[float] = 1.0,
        kappa: float | Sequence[float] = 1.0,
        momentum: float | Sequence[float] = 0.9,
        gains: bool = True,
    ) -> None:
        super().__init__()
        _checked_count("n_steps", n_steps, MOST_NUMBERS)
        self.steps_per_phase = _checked_count("steps_per_phase", steps_per_phase, MOST_STEPS)
        if n_steps != 1 and n_steps % steps_per_phase:
            raise UldaError(f"n_steps must be 1 or a multiple of steps_per_phase, {steps_per_phase}, not {n_steps}")
        self.n_phases = max(1, n_steps // steps_per_phase)
        self.log_alpha = _logarithms("alpha", alpha, n_steps)
        self.log_beta = _logarithms("beta", beta, n_steps)
        self.log_kappa = _logarithms("kappa", kappa, n_steps)
        self.logit_momentum = nn.Parameter(_numbers("momentum", momentum, n_steps, below=1).logit().float())
        first = inverse_frequency().log().expand(n_steps, -1)
        self.log_gains = nn.Parameter(first.clone()) if gains else None

    def first_memory(self, x0: Tensor, at_x0: Evaluation) -> Memory:
        """Return where the last step began, and the gradient of the fidelity there: at first, where the run starts."""
        return x0, at_x0.grad_f

    def forward(
        self, problem: SmoothedObjective, x: Tensor, at_x: Evaluation, eps: Tensor, t: int, memory: Memory
    ) -> list[Candidate]:
        """Return the ends of the steps of a phase, the last one first."""
        if self.log_gains is not None and not (x.is_complex() and x.ndim > 2):
            raise UldaError("gains by spatial frequency need complex images (n, ..., H, W); pass gains=False")
        x_before, slope_before = memory
        keeps_momentum = is_downhill(x - x_before, at_x)
        candidates: list[Candidate] = []
        for number in range(t * self.steps_per_phase, (t + 1) * self.steps_per_phase):
            i = self._place(number)
            slope = problem.fidelity_grad(x) if candidates else at_x.grad_f
            momentum = _factor(self.logit_momentum[i].sigmoid(), x) * (1 if candidates else keeps_momentum)
            # for a linear operator the extrapolated gradient is the gradient at the extrapolated point
            ahead, slope_ahead = x + momentum * (x - x_before), slope + momentum * (slope - slope_before)
            z = ahead - _factor(self.log_alpha[i].exp(), x) * slope_ahead
            slope_r = problem.regularizer_grad(z, eps)
            extra = problem.unmeasured(slope_r)
            if self.log_gains is not None:
                extra = radial_filter(extra, self.log_gains[i].exp().to(x.real.dtype))
            u = z - _factor(self.log_beta[i].exp(), x) * slope_r - _factor(self.log_kappa[i].exp(), x) * extra
            candidates.append(Candidate(u, (x, slope)))
            x_before, slope_before, x = x, slope, u
        return candidates[::-1]

    def as_dict(self) -> dict[str, Any]:
        """Return the kind and the parameters."""
        return _described(self) | {"steps_per_phase": self.steps_per_phase}

    def _place(self, number: int) -> int:
        """Return whose sizes a step has: beyond the last, those of the last phase are used again."""
        n_sizes = len(self.log_alpha)
        if number < n_sizes:
            return number
        period = min(self.steps_per_phase, n_sizes)
        return n_sizes - period + (number - n_sizes) % period


def is_downhill(step: Tensor, at_x: Evaluation) -> Tensor:
    """Tell which samples still descend along their last step; the others have gone too far and lose their momentum."""
    with torch.no_grad():
        along = (step * at_x.grad.conj()).real.flatten(1).sum(1, dtype=torch.float64)
    return (along <= 0).to(step.real.dtype).reshape(-1, *(1,) * (step.ndim - 1))


def _factor(size: Tensor, like: Tensor) -> Tensor:
    """Return a step size in the precision of what it multiplies."""
    return size.to(dtype=like.real.dtype, device=like.device).reshape(*(1,) * like.ndim)


def _described(proposal: Proposal) -> dict[str, Any]:
    """Return the kind, the precision and the raw parameters, from which the step sizes follow exactly."""
    parameters = dict(proposal.named_parameters())
    dtype = next(iter(parameters.values())).dtype
    found: dict[str, Any] = {"kind": proposal.kind, "precision": "float64" if dtype == torch.float64 else "float32"}
    return found | {name: parameter.detach().double().tolist() for name, parameter in parameters.items()}


def _checked_count(name: str, value: int, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise UldaError(f"{name} must be a whole number from 1 to {most}, but it is {value!r}")
    return value


def _numbers(name: str, values: float | Sequence[float], n_steps: int, below: float = math.inf) -> Tensor:
    """Return positive numbers, one per step."""
    try:
        found = torch.tensor(values, dtype=torch.float64, device="cpu").expand(n_steps)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UldaError(f"{name} must be a number, or {n_steps} of them: one per step") from error
    if not ((found > 0) & (found < below)).all():
        raise UldaError(f"{name} must be positive and " + ("finite" if below == math.inf else f"below {below:g}"))
    return found.to(torch.get_default_device())


def _logarithms(name: str, values: float | Sequence[float], n_steps: int) -> nn.Parameter:
    return nn.Parameter(_numbers(name, values, n_steps).log().float())
