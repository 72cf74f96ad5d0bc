"""What a domain is trained on, and what a step takes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ulda.errors import UldaError
from ulda.io.fingerprints import fingerprint
from ulda.physics import Mask
from ulda.training.augmentation import warped
from ulda.training.settings import Settings

_SEEDS = 1 << 31
"""How many seeds the warp of a batch is drawn from."""


@dataclass(frozen=True)
class Task:
    """What a domain is trained on.

    Attributes
    ----------
    domain
        The domain's name in the model.
    images
        Training slices ``(n, H, W)``, complex with peak 1.
    masks
        The family of masks; a step draws one.
    validation
        Slices ``(m, H, W)`` of other subjects; may be empty.
    axis
        The phase-encode axis.
    validation_mask
        The mask the validation uses; the first of the masks if None.
    """

    domain: str
    images: Tensor
    masks: Sequence[Mask]
    validation: Tensor = field(default_factory=lambda: torch.zeros(0, 1, 1, dtype=torch.complex64))
    axis: int = -2
    validation_mask: Mask | None = None

    def to(self, device: str | torch.device) -> Task:
        """Return the task with its slices on a device."""
        return replace(self, images=self.images.to(device), validation=self.validation.to(device))

    def images_of(self, batch: Batch) -> Tensor:
        """Return the slices of a batch, turned, scaled and sheared where it says so."""
        images = self.images[list(batch.index)]
        return warped(images, batch.warp, batch.warp_seed) if batch.warp else images


@dataclass(frozen=True)
class Batch:
    """What a step works on.

    Attributes
    ----------
    task, index, mask
        Numbers of the task, of its slices and of the mask among the task's.
    start
        Where the phases start; None for zero-filling.
    rollout
        Phases without gradient before the differentiated ones.
    is_mean
        Whether the mean of the source adapters is used instead of that of the domain.
    warp, warp_seed
        The probability of its slices to be warped, and the seed of that.
    """

    task: int
    index: tuple[int, ...]
    mask: int
    start: Tensor | None = None
    rollout: int = 0
    is_mean: bool = False
    warp: float = 0.0
    warp_seed: int = 0


def step_generator(settings: Settings, step: int) -> torch.Generator:
    """Return the random numbers of a step, which depend on nothing but the seed and its number."""
    return torch.Generator().manual_seed(settings.seed * 1_000_003 + step)


def draw(tasks: Sequence[Task], settings: Settings, generator: torch.Generator) -> Batch:
    """Draw the batch of a step: a domain in proportion to its slices, then slices and a mask of it."""
    sizes = torch.tensor([float(len(task.images)) for task in tasks])
    number = int(torch.multinomial(sizes, 1, generator=generator))
    index = torch.randint(len(tasks[number].images), (settings.batch_size,), generator=generator)
    mask = int(torch.randint(len(tasks[number].masks), (1,), generator=generator))
    is_mean = bool(torch.rand(1, generator=generator) < settings.mean_adapter)
    warp_seed = int(torch.randint(_SEEDS, (1,), generator=generator))
    return Batch(number, tuple(index.tolist()), mask, is_mean=is_mean, warp=settings.warp, warp_seed=warp_seed)


def check_tasks(tasks: Sequence[Task]) -> None:
    """Refuse a domain with nothing to train on."""
    for task in tasks:
        if len(task.images) == 0 or not task.masks:
            raise UldaError(f"the domain {task.domain} has no slices or no masks to train on")


def fingerprint_of(tasks: Sequence[Task], parameters: Sequence[tuple[str, Tensor]]) -> str:
    """Name what a run starts from, so that it is not continued with anything else."""
    tensors = list(parameters)
    for task in tasks:
        judged_with = task.validation_mask or task.masks[0]
        tensors += [(f"{task.domain} {task.axis}", task.images), ("validation", task.validation)]
        tensors += [("mask", mask.lines) for mask in (judged_with, *task.masks)]
    return fingerprint(tensors)
