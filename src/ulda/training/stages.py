"""The steps of the method: initialisation (step 0), all sources together (step 1), one new domain (step 2)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from torch import nn

from ulda.models.extractor import set_pair_difference
from ulda.models.ulda import UniversalPrior, average_into
from ulda.physics import Mask
from ulda.training.augmentation import artificial_masks
from ulda.training.history import Best, Progress, Report, counted_on
from ulda.training.loop import Loss, fit
from ulda.training.settings import Settings
from ulda.training.tasks import Task


class HasPrior(Protocol):
    """A model with a universal prior."""

    prior: UniversalPrior


def initialise(
    model: HasPrior,
    tasks: Sequence[Task],
    settings: Settings,
    loss: Loss,
    *,
    folder: Path | None = None,
    report: Report | None = None,
) -> list[Progress]:
    """Step 0: train g on each source alone, from one start, and average the results.

    The adapters take no part: they are what they start as, the weight of the regulariser. Averaging makes sense only
    because all copies start from the same weights. The report counts the steps of all copies.
    """
    copies, history = [], list[Progress]()
    # the step sizes of the other domains are untrained, and nothing is chosen by validations
    settings = settings.changed(mean_adapter=0.0, validate_every=0)
    for number, task in enumerate(tasks):
        alone = copy.deepcopy(model)
        set_pair_difference(alone.prior.adapter(task.domain).layer, alone.prior.adapter_weight)
        place = None if folder is None else folder / task.domain
        counted = counted_on(report, number * settings.steps, len(tasks) * settings.steps, "initialise")
        assert isinstance(alone, nn.Module)
        history += fit(alone, [task], settings, loss, trainable=_is_no_adapter, folder=place, report=counted)
        copies.append(alone.prior.extractor)
    average_into(model.prior.extractor, copies)
    return history


def adapt(
    model: nn.Module,
    task: Task,
    settings: Settings,
    loss: Loss,
    *,
    trainable: Callable[[str], bool],
    folder: Path | None = None,
    report: Report | None = None,
) -> list[Progress]:
    """Step 2: train what a new domain has for itself; of all methods.

    With `augment`, a third of the steps goes to each of two further-undersampled versions of the mask and the last
    third to the masks themselves; the validations all use the mask that the task is judged with. It ends with the
    parameters of the best validation, where there is one: the start is among them, so it never ends with a worse one.
    """
    task = replace(task, validation_mask=task.validation_mask or task.masks[0])
    history, best, done = list[Progress](), Best(), 0
    for number, (masks, steps) in enumerate(_curriculum(task, settings)):
        history += fit(
            model,
            [replace(task, masks=masks)],
            settings.changed(steps=steps, seed=settings.seed + number),
            loss,
            trainable=trainable,
            folder=None if folder is None else folder / f"stage-{number}",
            report=counted_on(report, done, settings.steps),
            best=best,
        )
        done += steps
    best.restore(dict(model.named_parameters()))
    return history


def _curriculum(task: Task, settings: Settings) -> list[tuple[Sequence[Mask], int]]:
    """Return the masks of each stage of an adaptation and its number of steps."""
    third = settings.steps // 3
    if not settings.augment or third == 0:
        return [(task.masks, settings.steps)]
    first, second = artificial_masks(task.masks[0], settings.seed)
    return [([first], third), ([second], third), (task.masks, settings.steps - 2 * third)]


def _is_no_adapter(name: str) -> bool:
    return ".adapters." not in name
