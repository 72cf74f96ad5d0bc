"""The loss of networks without a lower level, such as `ulda.baselines.DnCn`."""

from __future__ import annotations

from torch import Tensor, nn

from ulda.errors import UldaError
from ulda.physics import CartesianMRI
from ulda.training.loop import Batch, Task
from ulda.training.losses import reconstruction_loss
from ulda.training.settings import Settings


def supervised_loss(
    model: nn.Module,
    task: Task,
    batch: Batch,
    settings: Settings,
    step: int,  # noqa: ARG001
) -> tuple[Tensor, Tensor]:
    """Return the loss of one batch and its reconstructions ``(n, H, W)`` without gradient, for `fit`.

    Measurements, scale and loss are those of `ulda.training.loop.step_loss`.
    """
    if settings.lower_level != "unrolled":
        raise UldaError("a network without a lower level has no iterates to keep; set lower_level to unrolled")
    physics = CartesianMRI(task.masks[batch.mask], task.axis)
    images = task.images[list(batch.index)]
    x = model(physics.A(images), physics, task.domain)
    return reconstruction_loss(x, images, settings.ssim_weight).mean(), x.detach()
