"""How strong the regulariser of a base is to be for data that it has not seen: what predicts held-out lines best."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import torch

from ulda.training.losses import relative_error
from ulda.training.self_supervised import lines_with_signal, split_lines
from ulda.training.unrolled import Unrolled

if TYPE_CHECKING:
    from torch import Tensor

    from ulda.physics import Physics

STRENGTHS = (1.0, 0.5, 0.25, 0.125)
"""Of the regulariser, relative to that of the training."""

HELD_OUT = 0.15
"""The part of the sampled lines outside the calibration lines that is held out."""

SPLITS = 2
"""So many times other lines are held out."""

SLICES = 3
"""So many slices are enough to choose with."""

Example = tuple["Tensor", "Physics"]
"""Measurements ``(n, ...)`` and their operator."""


class Scalable(Unrolled, Protocol):
    """What a strength can be chosen for."""

    def scale(self, domain: str, strength: float) -> None:
        """Make the regulariser of a domain so many times as strong, in place."""


@torch.no_grad()
def chosen_strength(model: Scalable, domain: str, examples: Iterable[Example]) -> float:
    """Choose how strong the regulariser of a domain is to be, without references.

    Some sampled lines are held out, and the strength is lowered as long as a reconstruction from the others predicts
    them clearly better: the mean difference of the errors in dB, over slices and splits, exceeds its standard error.

    Parameters
    ----------
    model, domain
        The model and whose adapter it uses.
    examples
        Measurements of the kind that is to be reconstructed, a few slices.
    """
    splits = [part for y, physics in examples for part in _splits(y, physics)]
    strength, errors = STRENGTHS[0], _errors(model, domain, splits)
    weaker = copy.deepcopy(model)
    for before, lower in pairwise(STRENGTHS):
        weaker.scale(domain, lower / before)
        found = _errors(weaker, domain, splits)
        if not _is_clear(errors - found):
            break
        strength, errors = lower, found
    return strength


def _is_clear(gain: Tensor) -> bool:
    """Tell whether the mean of gains in dB is above 0 and above its standard error."""
    if len(gain) < 2:
        return False
    return bool(gain.mean() > gain.std() / math.sqrt(len(gain)))


def _errors(model: Scalable, domain: str, splits: list[tuple[Example, Example]]) -> Tensor:
    """Return the error of the held-out lines in dB, for each slice of each split."""
    found = []
    for (y, physics), (held_out, judging) in splits:
        scaled, prepared, peak = model.prepared(y, physics)
        x, _ = model.solve(scaled, prepared, domain)
        found.append(10 * relative_error(prepared.phased(x) * peak, held_out, judging).log10())
    return torch.cat(found) if found else torch.zeros(0)


def _splits(y: Tensor, physics: Physics) -> Iterator[tuple[Example, Example]]:
    """Yield the lines that are seen and those that are held out; nothing where there are too few."""
    lines = lines_with_signal(y, physics)
    if round(HELD_OUT * len(lines)) > 0:
        for seed in range(SPLITS):
            seen, held_out = split_lines(physics.mask, lines, HELD_OUT, seed)
            yield physics.restricted(y, seen), physics.restricted(y, held_out)
