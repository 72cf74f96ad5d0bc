"""U-LDA among the other methods: with any number of phases, its records kept, and its quality phase by phase."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from ulda.methods.base import Method
from ulda.metrics import psnr

if TYPE_CHECKING:
    from torch import Tensor

    from ulda.methods.ulda import ULDA
    from ulda.physics import Physics
    from ulda.solvers import Options, Status, Trace


@dataclass(frozen=True)
class Learned(Method):
    """A model with the adapter of one domain, as ``model(y, physics, domain)`` but for the phases.

    Attributes
    ----------
    model
        The model.
    domain
        Whose adapter to use.
    iterations
        How many phases; None for as many as the model was trained with.
    keep
        Called with the record of every batch.

    Examples
    --------
    >>> import torch
    >>> from ulda.methods.ulda import ULDA
    >>> from ulda.physics import CartesianMRI, cartesian_mask
    >>> method = Learned(ULDA(sources=["knee"], width=4, depth=2, phases=3), "knee", iterations=5)
    >>> physics = CartesianMRI(cartesian_mask(32, 0.4))
    >>> method(physics.A(torch.ones(2, 32, 32, dtype=torch.complex64)), physics).shape
    torch.Size([2, 32, 32])
    """

    name: ClassVar[str] = "learned"

    model: ULDA
    domain: str
    iterations: int | None = None
    keep: Callable[[Trace], None] | None = None

    @torch.no_grad()
    def __call__(self, y: Tensor, physics: Physics) -> Tensor:
        """Reconstruct a batch ``(n, H, W)`` or ``(n, coils, H, W)``."""
        scaled, physics, peak = self.model.prepared(y, physics)
        x, trace = self.model.solve(scaled, physics, self.domain, _options(self.model, self.domain, self.iterations))
        if self.keep is not None:
            self.keep(trace)
        return physics.shown(x, scaled) * peak


@torch.no_grad()
def psnr_per_phase(
    model: ULDA,
    y: Tensor,
    physics: Physics,
    reference: Tensor,
    domain: str | None = None,
    iterations: int | None = None,
) -> Tensor:
    """Return the PSNR of the start of the solver and after each phase: ``(phases + 1, n)``.

    Parameters
    ----------
    model, domain, iterations
        As for `ulda.reconstruct`; a slice whose run ended early keeps its last value.
    y, physics
        A batch of measurements and their operator.
    reference
        The magnitude images ``(n, H, W)``, whose peaks are the data ranges.
    """
    scaled, physics, peak = model.prepared(y, physics)
    found = [model.start(scaled, physics)]

    def keep(status: Status) -> None:
        solution = found[-1].clone()
        solution[status.samples] = status.x_next
        found.append(solution)

    chosen = model.active_domain(domain)
    model.solve(scaled, physics, chosen, _options(model, chosen, iterations), callback=keep)
    images = torch.stack([physics.shown(solution, scaled) for solution in found]).abs() * peak
    return psnr(images, reference.expand_as(images), data_range=reference.amax((-2, -1)))


def _options(model: ULDA, domain: str, iterations: int | None) -> Options | None:
    return None if iterations is None else model.options(domain, iterations=iterations)
