"""The parameters of the solver, checked once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ulda.errors import UldaError
from ulda.physics.spectrum import KNOTS, LINE_KNOTS

StepSize = float | Sequence[float] | Tensor
"""One number, one per learned step ``(n_steps,)``, or one per learned step and sample ``(n_steps, n)``.

An iteration has as many learned steps as `Options.steps_per_phase` says; beyond T the last one's are used again.
"""

MOST_LINE_SEARCH = 1000
"""More steps than a sensible line search has."""

MOST_STEPS = 100
"""More learned steps than a sensible proposal has."""

Gains = Sequence[Any] | Tensor | None
"""Several gains for all learned steps, or a set of them per learned step; None for gain 1."""

STEP_SIZES = ("alpha", "beta", "kappa", "momentum")

GAINS = {"spectrum": 1, "lines": 1, "channels": 2}
"""The options that are gains, and how many axes one set of them has."""


@dataclass(frozen=True)
class Options:
    """Parameters of the modified ELDA.

    The defaults suit images with peak 1 and an operator of norm at most 1.

    Attributes
    ----------
    alpha
        Step along the data fidelity; 1 is its inverse Lipschitz constant.
    beta
        Step along the regulariser; see `beta_from_gamma` for the other form of the method.
    kappa
        Extra step along the regulariser in what was not measured; 0 is the method of the paper. The data fidelity has
        curvature 1 in what was measured and 0 in the rest, so there longer steps are right. For a single coil it does
        not move the point where proposals come to rest, which is closest to a stationary one for ``alpha = beta`` and
        without gains of channels.
    spectrum
        Gains of the extra step by spatial frequency, at `ulda.physics.spectrum.KNOTS`: ``(6,)``, or ``(n_steps, 6)``
        for one set per learned step; None for gain 1. A regulariser that looks at differences of neighbours is curved
        most for high frequencies, so the low ones take longer steps.
    lines
        Gains of the extra step by line of k-space, at `ulda.physics.spectrum.LINE_KNOTS`: ``(15,)``, or
        ``(n_steps, 15)``; None for gain 1. How far a line is from the next sampled one depends on the mask.
    channels
        Gains of the channels of every layer of the regulariser in the proposals, ``(n_layers, width)``, or
        ``(n_steps, n_layers, width)``; None for gain 1. Each learned step then follows the gradient of a regulariser
        that weighs its features in its own way, as the steps of unrolled networks do. Values, gradients and tests are
        those of the regulariser without gains: they decide what is accepted.
    momentum
        How far a proposal starts ahead of ``x_t``, along the last step; 0 is the method of the paper. The acceptance
        test does not care where a proposal comes from. Its gradient is extrapolated, exactly so for linear operators.
    steps_per_phase
        How many learned steps a proposal takes, each from where the one before it ended and with step sizes of its
        own; only the last point is tested. 1 is the method of the paper. Long steps may climb before they pay.
    alpha_bar
        First step of the line search.
    eta1, eta2
        A proposal u is accepted if ``||grad phi(x)|| <= ||u - x|| / eta1`` and
        ``phi(u) <= phi(x) - eta2 / 2 ||u - x||^2``; smaller values accept more.
    eta3
        A line-search step v is accepted if ``phi(v) <= phi(x) - eta3 / eps ||v - x||^2``.
    rho
        Factor by which the line search shortens its step.
    sigma, gamma
        ``eps`` is multiplied by gamma once ``||grad phi(x)|| < sigma * gamma * eps``.
    eps_0, eps_tol
        First smoothing; the run ends when ``sigma * eps < eps_tol``.
    iterations
        T, the largest number of iterations (phases).
    safeguard
        Check the acceptance of u. Without it every u is taken and nothing is promised.
    max_line_search
        Give up a line search after this many steps: in finite precision the decrease is then below rounding.
    """

    alpha: StepSize = 1.0
    beta: StepSize = 0.5
    kappa: StepSize = 0.0
    spectrum: Gains = None
    lines: Gains = None
    channels: Gains = None
    momentum: StepSize = 0.0
    steps_per_phase: int = 1
    alpha_bar: float = 1.0
    eta1: float = 0.01
    eta2: float = 0.01
    eta3: float = 1e-4
    rho: float = 0.5
    sigma: float = 0.9
    gamma: float = 0.8
    eps_0: float = 0.1
    eps_tol: float = 1e-3
    iterations: int = 15
    safeguard: bool = True
    max_line_search: int = 60

    def __post_init__(self) -> None:
        for name in ("alpha_bar", "eta1", "eta2", "eta3", "eps_0", "eps_tol"):
            if not _is_number(value := getattr(self, name)) or not 0 < value <= sys.float_info.max:
                raise UldaError(f"{name} must be positive and finite, but it is {value!r}")
        for name in ("rho", "sigma", "gamma"):
            if not _is_number(value := getattr(self, name)) or not 0 < value < 1:
                raise UldaError(f"{name} must lie strictly between 0 and 1, but it is {value!r}")
        for name in ("steps_per_phase", "iterations", "max_line_search"):
            if type(value := getattr(self, name)) is not int or value < 1:
                raise UldaError(f"{name} must be at least 1 and a whole number, but it is {value!r}")
        for name, most in (("max_line_search", MOST_LINE_SEARCH), ("steps_per_phase", MOST_STEPS)):
            if (value := getattr(self, name)) > most:
                raise UldaError(f"{name} must be at most {most}, but it is {value}")
        if not isinstance(self.safeguard, bool):
            raise UldaError(f"safeguard must be true or false, but it is {self.safeguard!r}")
        for name in STEP_SIZES:
            _check_step_size(name, getattr(self, name))
        for name, n_axes in GAINS.items():
            _check_gains(name, getattr(self, name), n_axes)

    def check_batch(self, n_samples: int) -> None:
        """Raise a clear error if step sizes are given for another number of samples."""
        for name in STEP_SIZES:
            values = _tensor(getattr(self, name))
            if values.ndim == 2 and values.shape[1] not in (1, n_samples):
                raise UldaError(f"{name} is given for {values.shape[1]} samples, but the batch has {n_samples}")

    def step(self, name: str, number: int, samples: Tensor, like: Tensor) -> Tensor:
        """Return the size `name` of a learned step, shaped to multiply the samples of `like`."""
        values = _tensor(getattr(self, name)).to(dtype=_real(like.dtype), device=like.device)
        if values.ndim > 0:
            values = values[self._place(number, len(values))]
        if values.ndim > 0:
            values = values[samples] if len(values) > 1 else values[0]
        return values.reshape(-1, *(1,) * (like.ndim - 1))

    def gains(self, name: str, number: int, like: Tensor) -> Tensor | None:
        """Return the gains `name` of a learned step; None for gain 1."""
        if getattr(self, name) is None:
            return None
        values = _tensor(getattr(self, name)).to(dtype=_real(like.dtype), device=like.device)
        return values if values.ndim == GAINS[name] else values[self._place(number, len(values))]

    def _place(self, number: int, n_sizes: int) -> int:
        """Return whose sizes a learned step has: beyond the last, those of the last iteration are used again."""
        if number < n_sizes:
            return number
        period = min(self.steps_per_phase, n_sizes)
        return n_sizes - period + (number - n_sizes) % period

    @property
    def has_extra_step(self) -> bool:
        """Whether any kappa differs from 0."""
        return bool((_tensor(self.kappa) != 0).any())

    def as_dict(self) -> dict[str, Any]:
        """Return the options with plain numbers, for JSON; `Options` of it are these options again."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name in STEP_SIZES:
            plain[name] = _tensor(plain[name]).detach().double().tolist()
        for name in GAINS:
            if plain[name] is not None:
                plain[name] = _tensor(plain[name]).detach().double().tolist()
        return plain


def beta_from_gamma(alpha: float, gamma: float) -> float:
    """Return the step ``alpha * gamma / (alpha + gamma)`` of the proximal form of the method.

    Examples
    --------
    >>> beta_from_gamma(1.0, 1.0)
    0.5
    """
    return alpha * gamma / (alpha + gamma)


def _check_step_size(name: str, step_size: StepSize) -> None:
    try:
        values = _tensor(step_size).detach()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UldaError(f"{name} must hold numbers only, in rows of equal length") from error
    if values.ndim > 2 or values.numel() == 0:
        raise UldaError(
            f"{name} must be a number, one per learned step, or one per step and sample, "
            f"but it has shape {tuple(values.shape)}"
        )
    if name == "momentum" and not ((values >= 0) & (values < 1)).all():
        raise UldaError("momentum must lie in [0, 1) throughout")
    if name == "kappa" and not ((values >= 0) & torch.isfinite(values)).all():
        raise UldaError("kappa must be finite and at least 0 throughout")
    if name in ("alpha", "beta") and not ((values > 0) & torch.isfinite(values)).all():
        raise UldaError(f"{name} must be positive and finite throughout")


def _check_gains(name: str, gains: Any, n_axes: int) -> None:
    if gains is None:
        return
    try:
        values = _tensor(gains).detach()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UldaError(f"{name} must hold numbers only, in rows of equal length") from error
    n_gains = {"spectrum": len(KNOTS), "lines": len(LINE_KNOTS)}.get(name)
    is_wrong = n_gains is not None and values.shape[-1:] != (n_gains,)
    if values.ndim not in (n_axes, n_axes + 1) or values.numel() == 0 or is_wrong:
        one_set = f"{n_gains} gains" if n_gains else "gains for each layer and channel"
        raise UldaError(f"{name} must hold {one_set}, or as many per learned step; its shape is {tuple(values.shape)}")
    if not ((values >= 0) & torch.isfinite(values)).all():
        raise UldaError(f"{name} must be finite and at least 0 throughout")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _tensor(values: Any) -> Tensor:
    return values if isinstance(values, Tensor) else torch.tensor(values, dtype=torch.float64)


def _real(dtype: torch.dtype) -> torch.dtype:
    return {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype)
