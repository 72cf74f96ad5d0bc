"""The parameters of Algorithm 1, checked once."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from ulda.errors import UldaError

MOST_LINE_SEARCH = 1000
"""More steps than a sensible line search has."""


@dataclass(frozen=True)
class Options:
    """Parameters of the modified ELDA; step sizes of the proposals belong to the proposals.

    The defaults suit images with peak 1 and an operator of norm at most 1.

    Attributes
    ----------
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
        Test the proposals. Without it every one is taken and nothing is promised.
    max_line_search
        Give up a line search after this many steps: in finite precision the decrease is then below rounding.

    Examples
    --------
    >>> Options(iterations=3).eta1
    0.01
    """

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
        for name in ("iterations", "max_line_search"):
            if type(value := getattr(self, name)) is not int or value < 1:
                raise UldaError(f"{name} must be at least 1 and a whole number, but it is {value!r}")
        if self.max_line_search > MOST_LINE_SEARCH:
            raise UldaError(f"max_line_search must be at most {MOST_LINE_SEARCH}, but it is {self.max_line_search}")
        if not isinstance(self.safeguard, bool):
            raise UldaError(f"safeguard must be true or false, but it is {self.safeguard!r}")

    def as_dict(self) -> dict[str, Any]:
        """Return the options for JSON; `Options` of it are these options again."""
        return dict(vars(self))


def beta_from_gamma(alpha: float, gamma: float) -> float:
    """Return the step ``alpha * gamma / (alpha + gamma)`` of the proximal form of the method.

    Examples
    --------
    >>> beta_from_gamma(1.0, 1.0)
    0.5
    """
    return alpha * gamma / (alpha + gamma)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
