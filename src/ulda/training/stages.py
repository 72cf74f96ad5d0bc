"""The stages of the method: initialisation (step 0), all sources together (step 1), one new domain (step 2)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ulda.models import Adapter
from ulda.models.extractor import set_pair_difference
from ulda.physics import Mask
from ulda.training.augmentation import artificial_masks
from ulda.training.history import Best, Progress, Report
from ulda.training.loop import Task, fit
from ulda.training.network import ULDA, average_into, belongs_to, own_kernels
from ulda.training.settings import Settings


def initialise(
    model: ULDA, tasks: Sequence[Task], settings: Settings, *, folder: Path | None = None, report: Report | None = None
) -> list[Progress]:
    """Step 0: train the feature extractor on each source alone, from one start, and average the results.

    The adapters take no part: they are what they start as, the weight of the regulariser. Averaging makes
    sense only because all copies start from the same weights. The report counts the steps of all copies.
    """
    copies = []
    history: list[Progress] = []
    settings = settings.model_copy(update={"common": 0.0})  # the step sizes of the others are untrained
    for number, task in enumerate(tasks):
        alone = copy.deepcopy(model)
        adapter = alone.adapters[task.domain]
        assert isinstance(adapter, Adapter)
        set_pair_difference(adapter.layer, model.architecture.adapter_weight)
        place = None if folder is None else folder / task.domain
        counted = counted_on(report, number * settings.steps, len(tasks) * settings.steps)
        history += fit(alone, [task], settings, trainable=_extractor_and_steps, folder=place, report=counted)
        copies.append(alone.extractor)
    average_into(model.extractor, copies)
    return history


def counted_on(report: Report | None, before: int, total: int) -> Report | None:
    """Make the report of one of several runs count the steps of all."""
    return report and (lambda progress: report(replace(progress, step=before + progress.step, steps=total)))


def train_sources(
    model: ULDA, tasks: Sequence[Task], settings: Settings, *, folder: Path | None = None, report: Report | None = None
) -> list[Progress]:
    """Step 1: train the feature extractor with the adapters and step sizes of all sources together."""
    return fit(model, tasks, settings, folder=folder, report=report)


def adapt(
    model: ULDA,
    task: Task,
    settings: Settings,
    *,
    augment: bool = True,
    trainable: Callable[[str], bool] | None = None,
    folder: Path | None = None,
    report: Report | None = None,
) -> list[Progress]:
    """Step 2: train an adapter and the step sizes of a new domain; the feature extractor is frozen.

    The adapter is a layer, which starts as the mean of the adapters of the sources, and a mixture of the channels of
    every layer of the feature extractor, which starts as none. With `augment`, a third of the steps goes to each of two
    further-undersampled versions of the first mask and the last third to the masks themselves; the validations all use
    the mask that the task is judged with. It ends with the parameters of the best validation, where there is one: the
    start is among them, so it never ends with a worse one. `trainable` says which parameters learn instead of those.
    """
    if task.domain not in model.domains:
        model.add_domain(task.domain)
        model.give_mixing(task.domain, own_kernels(settings.steps))

    def is_of_domain(name: str) -> bool:
        return belongs_to(name, task.domain)

    task = replace(task, validation_mask=task.validation_mask or task.masks[0])
    history: list[Progress] = []
    best = Best()
    done = 0
    for number, (masks, steps) in enumerate(_curriculum(task, settings, augment)):
        stage = settings.model_copy(update={"steps": steps, "seed": settings.seed + number})
        history += fit(
            model,
            [replace(task, masks=masks)],
            stage,
            trainable=trainable or is_of_domain,
            folder=None if folder is None else folder / f"stage-{number}",
            report=counted_on(report, done, settings.steps),
            best=best,
            is_last=done + steps == settings.steps,
        )
        done += steps
    best.restore(dict(model.named_parameters()))
    model.shorten(task.domain)
    return history


def _curriculum(task: Task, settings: Settings, augment: bool) -> list[tuple[Sequence[Mask], int]]:
    """Return the masks of each stage of an adaptation and its number of steps."""
    third = settings.steps // 3
    if not augment or third == 0:
        return [(task.masks, settings.steps)]
    first, second = artificial_masks(task.masks[0], settings.seed)
    return [([first], third), ([second], third), (task.masks, settings.steps - 2 * third)]


def _extractor_and_steps(name: str) -> bool:
    return not name.startswith("adapters.")
