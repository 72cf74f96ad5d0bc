"""What a training may spend, the same for all methods that are compared."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ulda.errors import UldaError

Equal = Literal["steps", "wall-clock"]


@dataclass(frozen=True)
class Budget:
    """A number of gradient steps and of slices seen, or a time.

    Attributes
    ----------
    steps
        Gradient steps; None where the time decides.
    slices
        Slices seen in all steps together, repetitions counted; None where the time decides.
    seconds
        As many steps as fit into this time; None where the steps are given.
    batch_size
        Slices per step.

    Examples
    --------
    >>> Budget.of_steps(500, slices=1000).batch_size
    2
    >>> Budget.of_seconds(60, batch_size=2).settled(seconds_per_step=0.5).steps
    120
    """

    steps: int | None
    slices: int | None
    seconds: float | None
    batch_size: int

    @classmethod
    def of_steps(cls, steps: int, slices: int) -> Budget:
        """Give every method as many gradient steps, and as many slices to see in them."""
        if steps < 1 or slices < steps or slices % steps:
            raise UldaError(
                f"a training of {steps} steps cannot see {slices} slices; give a whole number of slices per step"
            )
        return cls(steps, slices, None, slices // steps)

    @classmethod
    def of_batches(cls, steps: int, batch_size: int) -> Budget:
        """Give every method as many gradient steps, with so many slices in each."""
        return cls.of_steps(steps, steps * batch_size)

    @classmethod
    def of_seconds(cls, seconds: float, batch_size: int = 2) -> Budget:
        """Give every method as much time."""
        if not 0 < seconds < math.inf or batch_size < 1:
            raise UldaError(f"a training needs time and slices, but got {seconds:g} s and {batch_size} slices per step")
        return cls(None, None, seconds, batch_size)

    @property
    def equal(self) -> Equal:
        """What is equal between methods with the same budget."""
        return "steps" if self.seconds is None else "wall-clock"

    def settled(self, seconds_per_step: float) -> Budget:
        """Return the budget with the number of steps that its time allows."""
        if self.seconds is None:
            return self
        steps = max(1, int(self.seconds / seconds_per_step))
        return Budget(steps, steps * self.batch_size, self.seconds, self.batch_size)


@dataclass(frozen=True)
class Spent:
    """What a training has spent, for its result file.

    Attributes
    ----------
    equal
        What was to be equal between the methods.
    steps, slices, seconds
        Gradient steps taken, slices seen in them, and time.
    extra_steps
        Gradient steps of networks that only help in the training, such as teachers.
    """

    equal: Equal
    steps: int
    slices: int
    seconds: float
    extra_steps: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return asdict(self)
