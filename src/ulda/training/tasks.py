"""What a domain is trained on, and what a step takes of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from ulda.errors import UldaError
from ulda.io.fingerprints import fingerprint
from ulda.metrics import psnr, ssim
from ulda.physics import ACQUISITIONS, Acquisition, Mask, MultiCoilMRI, Physics
from ulda.training.augmentation import warped
from ulda.training.losses import Judge, References
from ulda.training.settings import Settings

_SEEDS = 1 << 31
"""How many seeds that of a batch is drawn from."""

_VALIDATION_SEED = 1

BATCH_SIZE = 8
"""Slices that are validated at a time; a slice's result does not depend on its batch."""

_KEPT_NOISE = 0.5
"""The probability that the reference of a step has the noise of a full scan."""


@dataclass(frozen=True)
class Coils:
    """Fully sampled k-space of several coils, and their sensitivity maps: both ``(n, coils, H, W)``."""

    kspace: Tensor
    maps: Tensor

    def to(self, device: str | torch.device) -> Coils:
        """Return both on a device."""
        return Coils(self.kspace.to(device), self.maps.to(device))

    def take(self, index: Tensor) -> Coils:
        """Keep some slices."""
        return Coils(self.kspace[index], self.maps[index])

    def sampled(self, mask: Mask, axis: int) -> tuple[Tensor, Physics]:
        """Return the sampled lines, and their operator."""
        return self.kspace * mask.along(axis).to(self.kspace.device), MultiCoilMRI(mask, self.maps, axis)


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
        The family of masks; a step draws one. Empty where the acquisition draws them.
    validation
        Slices ``(m, H, W)`` of other subjects; may be empty.
    axis
        The phase-encode axis.
    validation_mask
        The mask the validation uses; the first of the masks if None.
    acquisition
        How measurements are simulated from the slices, of a step and of the validation; it draws the masks where there
        are none.
    coils, validation_coils
        The k-space that several coils measured of the slices, and its maps; then nothing is simulated.
    """

    domain: str
    images: Tensor
    masks: Sequence[Mask]
    validation: Tensor = field(default_factory=lambda: torch.zeros(0, 1, 1, dtype=torch.complex64))
    axis: int = -2
    validation_mask: Mask | None = None
    acquisition: Acquisition = ACQUISITIONS["ideal"]
    coils: Coils | None = None
    validation_coils: Coils | None = None

    def to(self, device: str | torch.device) -> Task:
        """Return the task with its slices on a device."""
        coils = [part if part is None else part.to(device) for part in (self.coils, self.validation_coils)]
        images, validation = self.images.to(device), self.validation.to(device)
        return replace(self, images=images, validation=validation, coils=coils[0], validation_coils=coils[1])

    @property
    def n_slices(self) -> int:
        """How many slices there are to train on."""
        return len(self.images)

    @property
    def n_validated(self) -> int:
        """How many slices the validation has."""
        return len(self.validation)

    def parts(self, batch: Batch) -> list[Batch]:
        """Split a batch into those whose slices have one operator."""
        return [batch]

    def images_of(self, batch: Batch) -> Tensor:
        """Return the slices of a batch, turned, scaled and sheared where it says so."""
        images = self.images[list(batch.index)]
        return warped(images, batch.warp, batch.seed) if batch.warp else images

    def measure(self, batch: Batch) -> tuple[Tensor, Physics, Judge]:
        """Return the measurements of a batch, their operator, and what judges; simulated, where nothing is measured.

        The same batch gives the same measurements.
        """
        mask = self.masks[batch.mask] if self.masks else None
        if self.coils is not None:
            assert mask is not None
            index = torch.tensor(batch.index)
            return (*self.coils.take(index).sampled(mask, self.axis), References(self.images[index]))
        generator = torch.Generator().manual_seed(batch.seed)
        keeps = bool(torch.rand(1, generator=generator) < _KEPT_NOISE)
        images = self.images_of(batch)
        y, physics, images = self.acquisition.measure(images, generator, mask, self.axis, keep_noise=keeps)
        return y, physics, References(images)

    @torch.no_grad()
    def scores(self, model: Callable[..., Tensor]) -> dict[str, float]:
        """Return how good a model is on the validation, in the mean over the slices; the first score chooses."""
        images, references = [], []
        for y, physics, reference in self.measured_validation(BATCH_SIZE):
            images.append(model(y, physics, self.domain).abs())
            references.append(reference.abs())
        x, reference = torch.cat(images), torch.cat(references)
        return {
            "psnr": float(psnr(x, reference, data_range=1.0).mean()),
            "ssim": float(ssim(x, reference, data_range=1.0).mean()),
        }

    def compared(self, most: int) -> Task:
        """Return the task with up to so many training slices, spread over all, in the place of the validation."""
        return replace(self, validation=self.images[:: max(1, -(-len(self.images) // most))])

    def keep_clear_gain(self, model: nn.Module, start: Mapping[str, Tensor]) -> Gain | None:  # noqa: ARG002
        """Take a model back to its start unless it is clearly better; None where the best validation is enough."""
        return None

    def tensors(self) -> list[tuple[str, Tensor]]:
        """Return the data, by name."""
        found = [("images", self.images), ("validation", self.validation)]
        for coils in (self.coils, self.validation_coils):
            found += [] if coils is None else [("coils", coils.kspace), ("maps", coils.maps)]
        return found

    def measured_validation(self, batch_size: int) -> Iterator[tuple[Tensor, Physics, Tensor]]:
        """Return the validation slices, their operators and references, always the same measurements."""
        mask = self.validation_mask or self.masks[0]
        generator = torch.Generator().manual_seed(_VALIDATION_SEED)
        for index in torch.arange(len(self.validation)).split(batch_size):
            reference = self.validation[index]
            if self.validation_coils is not None:
                yield (*self.validation_coils.take(index).sampled(mask, self.axis), reference)
            else:
                yield self.acquisition.measure(reference, generator, mask, self.axis, keep_noise=True)


@dataclass(frozen=True)
class Gain:
    """How the end of an adaptation compares with its start, slice by slice; in dB.

    Attributes
    ----------
    before, after
        The mean scores of the start and of the best validation.
    difference, standard_error
        The mean of the paired differences, and its standard error.
    """

    before: float
    after: float
    difference: float
    standard_error: float

    @property
    def is_clear(self) -> bool:
        """Whether the difference is above 0 and above its standard error."""
        return self.difference > max(0.0, self.standard_error)


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
    warp, seed
        The probability of its slices to be warped, and the seed of that and of the simulated acquisition.
    """

    task: int
    index: tuple[int, ...]
    mask: int
    start: Tensor | None = None
    rollout: int = 0
    is_mean: bool = False
    warp: float = 0.0
    seed: int = 0


def step_generator(settings: Settings, step: int) -> torch.Generator:
    """Return the random numbers of a step, which depend on nothing but the seed and its number."""
    return torch.Generator().manual_seed(settings.seed * 1_000_003 + step)


def draw(tasks: Sequence[Task], settings: Settings, generator: torch.Generator) -> Batch:
    """Draw the batch of a step: a domain in proportion to its slices, then slices and a mask of it."""
    sizes = torch.tensor([float(task.n_slices) for task in tasks])
    number = int(torch.multinomial(sizes, 1, generator=generator))
    index = torch.randint(tasks[number].n_slices, (settings.batch_size,), generator=generator)
    mask = int(torch.randint(max(1, len(tasks[number].masks)), (1,), generator=generator))
    is_mean = bool(torch.rand(1, generator=generator) < settings.mean_adapter)
    seed = int(torch.randint(_SEEDS, (1,), generator=generator))
    return Batch(number, tuple(index.tolist()), mask, is_mean=is_mean, warp=settings.warp, seed=seed)


def check_tasks(tasks: Sequence[Task]) -> None:
    """Refuse a domain with nothing to train on."""
    for task in tasks:
        if task.n_slices == 0 or not (task.masks or task.acquisition.masks):
            raise UldaError(f"the domain {task.domain} has no slices or no masks to train on")


def fingerprint_of(tasks: Sequence[Task], parameters: Sequence[tuple[str, Tensor]]) -> str:
    """Name what a run starts from, so that it is not continued with anything else."""
    tensors = list(parameters)
    for task in tasks:
        judged_with = [task.validation_mask] if task.validation_mask else list(task.masks[:1])
        measured = json.dumps(task.acquisition.as_dict())
        tensors += [(f"{task.domain} {task.axis} {measured} {name}", data) for name, data in task.tensors()]
        tensors += [("mask", mask.lines) for mask in (*judged_with, *task.masks)]
    return fingerprint(tensors)
