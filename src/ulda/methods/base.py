"""The interface all reconstruction methods share, and what the iterative ones have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from ulda.errors import UldaError

if TYPE_CHECKING:
    from torch import Tensor

    from ulda.physics import Physics

Progress = Callable[[int], object]
"""Called after every iteration with the number of iterations done, e.g. to drive a progress bar."""


class Method(ABC):
    """A reconstruction method: ``x_hat = method(y, physics)``.

    A method is deterministic, and the result for a slice does not depend on the other slices of its batch.

    Examples
    --------
    >>> import torch
    >>> from ulda.methods import Method
    >>> class Silence(Method):
    ...     name = "silence"
    ...
    ...     def __call__(self, y, physics):
    ...         return torch.zeros_like(physics.A_adjoint(y))
    >>> Silence().name
    'silence'
    """

    name: ClassVar[str]
    """The name that stands in tables and figures."""

    @abstractmethod
    def __call__(self, y: Tensor, physics: Physics) -> Tensor:
        """Reconstruct images from masked k-space.

        Parameters
        ----------
        y
            Complex k-space, ``(..., H, W)`` or ``(..., coils, H, W)``, zero where it was not sampled.
        physics
            The operator that measured `y`.

        Returns
        -------
            Complex images, ``(..., H, W)``.
        """


def check_settings(method: str, weight: float, iterations: int) -> None:
    """Refuse a negative (or NaN) weight and a run without iterations."""
    if not weight >= 0:
        raise UldaError(f"the weight of {method} must be at least 0, but it is {weight:g}")
    if iterations < 1:
        raise UldaError(f"{method} needs at least 1 iteration, but {iterations} were asked for")
