"""The loss of networks without a lower level, such as `ulda.methods.DnCn`."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ulda.errors import UldaError
from ulda.training.settings import Settings
from ulda.training.tasks import Batch, Task


def supervised_loss(
    model: Callable[..., Tensor],
    task: Task,
    batch: Batch,
    settings: Settings,
    step: int,  # noqa: ARG001
    *,
    magnitude: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the loss of one batch and its reconstructions ``(n, H, W)`` without gradient, for `fit`.

    Measurements, scale and loss are those of `ulda.training.unrolled.unrolled_loss`. `magnitude` is
    for networks that return no phase.
    """
    if settings.equilibrium is not None:
        raise UldaError("a network without a lower level has no iterates that persist; leave out equilibrium")
    y, physics, judge = task.measure(batch)
    x = model(y, physics, task.domain)
    return judge.loss(x, settings, magnitude=magnitude).mean(), x.detach()
