"""The stages of the method: initialisation (step 0), all sources together (step 1), one new domain (step 2)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ulda.models import Adapter
from ulda.models.extractor import set_identity
from ulda.training.augmentation import artificial_masks
from ulda.training.loop import Progress, Report, Task, fit
from ulda.training.network import ULDA, average_into
from ulda.training.settings import Settings


def initialise(
    model: ULDA, tasks: Sequence[Task], settings: Settings, *, folder: Path | None = None, report: Report | None = None
) -> None:
    """Step 0: train the feature extractor on each source alone, from one start, and average the results.

    The adapters take no part: they are a fixed multiple of the identity, the weight of the regulariser. Averaging makes
    sense only because all copies start from the same weights.
    """
    copies = []
    for task in tasks:
        alone = copy.deepcopy(model)
        adapter = alone.adapters[task.domain]
        assert isinstance(adapter, Adapter)
        set_identity(adapter.layer)
        adapter.layer.real.data.mul_(model.architecture.adapter_weight)
        place = None if folder is None else folder / task.domain
        fit(alone, [task], settings, trainable=_extractor_and_steps, folder=place, report=report)
        copies.append(alone.extractor)
    average_into(model.extractor, copies)


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
    folder: Path | None = None,
    report: Report | None = None,
) -> list[Progress]:
    """Step 2: train an adapter and the step sizes of a new domain; the feature extractor is frozen.

    The adapter starts from the mean of those there are. With `augment`, a third of the steps goes to each of two
    further-undersampled versions of the first mask and the last third to the masks themselves. It ends with the
    parameters of the best validation, where there is one.
    """
    if task.domain not in model.domains:
        model.add_domain(task.domain)

    def is_of_domain(name: str) -> bool:
        return name.startswith((f"adapters.{task.domain}.", f"steps.{task.domain}."))

    if not augment:
        return fit(model, [task], settings, trainable=is_of_domain, folder=folder, report=report, keep_best=True)
    third = max(1, settings.steps // 3)
    history: list[Progress] = []
    stages = [*artificial_masks(task.masks[0], settings.seed), None]
    for number, mask in enumerate(stages):
        stage_task = task if mask is None else replace(task, masks=[mask])
        steps = third if mask is not None else max(1, settings.steps - 2 * third)
        stage = settings.model_copy(update={"steps": steps, "seed": settings.seed + number})
        place = None if folder is None else folder / f"stage-{number}"
        is_last = mask is None
        history = fit(
            model, [stage_task], stage, trainable=is_of_domain, folder=place, report=report, keep_best=is_last
        )
    return history


def _extractor_and_steps(name: str) -> bool:
    return not name.startswith("adapters.")
