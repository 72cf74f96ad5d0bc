"""How good a model is on slices, or lines, that it was not trained on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ulda.training.tasks import Task


def validate(model: nn.Module, tasks: Sequence[Task]) -> dict[str, dict[str, float]]:
    """Return the mean scores of the validation by domain: PSNR and SSIM, where there are references."""
    return {task.domain: task.scores(model) for task in tasks if task.n_validated}
