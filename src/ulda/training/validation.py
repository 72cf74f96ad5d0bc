"""How good a model is on slices that it was not trained on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ulda.metrics import psnr, ssim
from ulda.training.tasks import Task

BATCH_SIZE = 8
"""Slices that are validated at a time; a slice's result does not depend on its batch."""


@torch.no_grad()
def validate(model: nn.Module, tasks: Sequence[Task]) -> dict[str, dict[str, float]]:
    """Return the mean PSNR and SSIM on the validation slices by domain, from zero-filling."""
    found = {}
    for task in tasks:
        if len(task.validation) == 0:
            continue
        images, references = [], []
        for y, physics, reference in task.measured_validation(BATCH_SIZE):
            images.append(model(y, physics, task.domain).abs())
            references.append(reference.abs())
        x, reference = torch.cat(images), torch.cat(references)
        found[task.domain] = {
            "psnr": float(psnr(x, reference, data_range=1.0).mean()),
            "ssim": float(ssim(x, reference, data_range=1.0).mean()),
        }
    return found
