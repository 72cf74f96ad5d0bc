"""Iterates that persist: a step continues where the same slices were left, so that the solution becomes good.

Training T phases from zero-filling makes the T-th iterate good, and the solution of the objective may be far from it.
Here some batches persist with their iterates; each visit solves on, without gradient and then with it, and the loss is
that of where it ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ulda.training.settings import Settings
from ulda.training.tasks import Batch


@dataclass
class Chains:
    """The batches that persist, by their number."""

    settings: Settings
    batches: dict[int, Batch] = field(default_factory=dict)

    def visit(self, batch: Batch, step: int, generator: torch.Generator) -> Batch:
        """Return the chain that is due at a step, or the new batch where there is none, or it is replaced."""
        equilibrium = self.settings.equilibrium
        if equilibrium is None or not persists(self.settings, step):
            return batch
        restarts = bool(torch.rand(1, generator=generator) < equilibrium.restart)
        rollout = int(torch.randint(equilibrium.rollout + 1, (1,), generator=generator))
        chain = self.batches.get(step % equilibrium.chains)
        return batch if chain is None or restarts else replace(chain, rollout=rollout)

    def keep(self, batch: Batch, x: Tensor, step: int) -> None:
        """Keep where a step ended, for its next visit."""
        equilibrium = self.settings.equilibrium
        if equilibrium is not None and persists(self.settings, step):
            self.batches[step % equilibrium.chains] = replace(batch, start=x, is_mean=False)

    def facts(self) -> dict[str, Any]:
        """Return what a checkpoint says about the chains, other than their iterates."""
        return {
            str(number): [batch.task, batch.index, batch.mask, batch.warp, batch.seed]
            for number, batch in self.batches.items()
        }

    def iterates(self) -> dict[str, Tensor]:
        """Return the iterates for a checkpoint, by the numbers of the chains."""
        return {str(number): batch.start for number, batch in self.batches.items() if batch.start is not None}

    def restore(self, facts: dict[str, Any], iterates: dict[str, Tensor]) -> None:
        """Take up the chains of a checkpoint."""
        for number, (task, index, mask, warp, seed) in facts.items():
            batch = Batch(task, tuple(index), mask, iterates[number], warp=warp, seed=seed)
            self.batches[int(number)] = batch


def persists(settings: Settings, step: int) -> bool:
    """Tell whether iterates persist at a step: from when all phases are trained.

    Examples
    --------
    >>> from ulda.training.settings import Equilibrium
    >>> settings = Settings(steps=90, phases=(1, 2, 3), equilibrium=Equilibrium())
    >>> persists(settings, 59), persists(settings, 60)
    (False, True)
    """
    n_stages = max(1, len(settings.phases))
    return step * n_stages >= (n_stages - 1) * settings.steps
