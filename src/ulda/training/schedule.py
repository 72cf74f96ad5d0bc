"""What changes with the number of a step: the learning rate and the number of phases."""

from __future__ import annotations

import math
import re

from ulda.training.settings import Settings

_STEP_SIZES = re.compile(r"(.+\.)?(proposals|task_weights)\.|.+\.log_noise$")
_ADAPTERS = re.compile(r"(.+\.)?adapters\.")

WARM_UP = 0.1
"""The part of the steps in which the rate rises."""


def stage_at(settings: Settings, step: int) -> int:
    """Return the stage of a step: the steps are shared equally by the numbers of phases."""
    n_stages = max(1, len(settings.phases))
    return min(step * n_stages // settings.steps, n_stages - 1)


def phases_at(n_phases: int, settings: Settings, step: int) -> int:
    """Return the number of phases of a step, for a network of `n_phases`.

    Examples
    --------
    >>> [phases_at(15, Settings(steps=4, phases=(3, 5)), step) for step in range(4)]
    [3, 3, 5, 5]
    """
    return settings.phases[stage_at(settings, step)] if settings.phases else n_phases


def learning_rate(settings: Settings, step: int) -> float:
    """Return the rate of a step: a cosine up to the peak, then a decay per stage, or a cosine down to a hundredth.

    Examples
    --------
    >>> [learning_rate(Settings(steps=5, phases=(3, 5), stage_decay=0.5), step) for step in (2, 3, 4)]
    [0.005, 0.0025, 0.0025]
    """
    position = step / max(1, settings.steps - 1)
    low, high, part = 1.0, 0.01, (position - WARM_UP) / (1 - WARM_UP)
    if position < WARM_UP:
        low, high, part = 0.04, 1.0, position / WARM_UP
    elif settings.stage_decay is not None:
        return settings.learning_rate * settings.stage_decay ** stage_at(settings, step)
    return settings.learning_rate * (high + (low - high) * 0.5 * (1 + math.cos(math.pi * part)))


def rate_multiplier(parameter: str, settings: Settings) -> float:
    """Return the learning-rate multiplier of a parameter, by its name.

    Examples
    --------
    >>> rate_multiplier("proposals.brain.log_alpha", Settings()), rate_multiplier("prior.extractor.layers", Settings())
    (5.0, 1.0)
    """
    if _STEP_SIZES.match(parameter):
        return settings.step_size_multiplier
    return settings.adapter_multiplier if _ADAPTERS.match(parameter) else 1.0
