"""Learning without references: sampled lines that the solver does not see judge what it makes of the others.

Of each slice a tenth of the sampled lines outside the calibration lines is held out for good and validates. Of the
others a step draws some anew: the solver sees the rest, and the loss is the error of the lines that it did not see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ulda.data import Domain
from ulda.errors import UldaError
from ulda.physics import Acquisition, CartesianMRI, Mask, Physics, coil_physics
from ulda.training.history import copied, put
from ulda.training.losses import JudgingLines, relative_error
from ulda.training.tasks import Batch, Gain, Task

JUDGING = 0.35
"""The part of the lines that judges in a step: with it low-field data gained all that references bring."""

HELD_OUT = 0.1
"""The part of the lines that only validates: few, as they are lost to the training."""

SCORE = "held_out_db"
"""The name of the score of the held-out lines."""

FEWEST_SLICES = 2
"""Without a second slice nothing says how certain a gain is."""

_FEWEST_LINES = 3
"""Outside the calibration lines: one that is seen, one that judges, one that is held out."""

_TINY = 1e-30

_NO_IMAGES = torch.zeros(0, 1, 1, dtype=torch.complex64)


@dataclass(frozen=True)
class UndersampledSlice:
    """One slice as it was measured.

    Attributes
    ----------
    y
        All sampled lines, ``(1, H, W)`` or ``(1, coils, H, W)``, in any scale.
    physics
        Their operator; the maps come from the calibration lines, which are always seen.
    visible, held_out
        The lines that the training uses, and those that validate.
    judges
        The numbers of the visible lines that may judge.
    """

    y: Tensor
    physics: Physics
    visible: Mask
    held_out: Mask
    judges: tuple[int, ...]

    def input(self, mask: Mask) -> tuple[Tensor, Physics]:
        """Return some of the lines, and their operator."""
        return self.physics.restricted(self.y, mask)

    def to(self, device: str | torch.device) -> UndersampledSlice:
        """Return the slice on a device."""
        return replace(self, y=self.y.to(device), physics=self.physics.to(device))


@dataclass(frozen=True)
class UndersampledTask(Task):
    """Slices to learn from without references, each with its own lines; see `undersampled_task`.

    Attributes
    ----------
    slices
        The slices; `masks` has their lines.
    """

    slices: tuple[UndersampledSlice, ...] = ()

    @property
    def n_slices(self) -> int:
        """How many slices there are to train on."""
        return len(self.slices)

    @property
    def n_validated(self) -> int:
        """How many slices the validation has: all, with their held-out lines."""
        return len(self.slices)

    def to(self, device: str | torch.device) -> UndersampledTask:
        """Return the task with its slices on a device."""
        return replace(self, slices=tuple(one.to(device) for one in self.slices))

    def parts(self, batch: Batch) -> list[Batch]:
        """Split a batch into its slices, each with a seed of its own."""
        starts = [None] * len(batch.index) if batch.start is None else batch.start.split(1)
        numbered = enumerate(zip(batch.index, starts, strict=True))
        return [replace(batch, index=(i,), start=start, seed=batch.seed + k) for k, (i, start) in numbered]

    def measure(self, batch: Batch) -> tuple[Tensor, Physics, JudgingLines]:
        """Return the lines that the solver sees in a step, their operator, and the lines that judge.

        The same batch, of one slice, gives the same lines.
        """
        (number,) = batch.index
        one = self.slices[number]
        seen, judging = split_lines(one.visible, one.judges, JUDGING, batch.seed)
        return (*one.input(seen), JudgingLines(*one.input(judging)))

    @torch.no_grad()
    def slice_scores(self, model: Callable[..., Tensor]) -> Tensor:
        """Return ``10 log10(energy / error)`` of the held-out lines of every slice, in dB."""
        errors = []
        for one in self.slices:
            x = model(*one.input(one.visible), self.domain)
            errors.append(relative_error(x, *one.input(one.held_out)))
        return -10 * torch.cat(errors).double().clamp_min(_TINY).log10()

    def scores(self, model: Callable[..., Tensor]) -> dict[str, float]:
        """Return the mean of `slice_scores`."""
        return {SCORE: float(self.slice_scores(model).mean())}

    def compared(self, most: int) -> UndersampledTask:
        """Return a task with up to so many slices, spread over all, that validates with visible lines alone."""
        few = self.slices[:: max(1, -(-len(self.slices) // most))]
        return replace(self, slices=tuple(prepared(*one.input(one.visible), seed=0) for one in few))

    def keep_clear_gain(self, model: nn.Module, start: Mapping[str, Tensor]) -> Gain:
        """Take a model back to its start unless its mean gain per slice is above 0 and above its standard error."""
        parameters = dict(model.named_parameters())
        end = copied(parameters)
        after = self.slice_scores(model)
        put(start, parameters)
        before = self.slice_scores(model)
        differences = after - before
        error = differences.std() / len(differences) ** 0.5
        gain = Gain(float(before.mean()), float(after.mean()), float(differences.mean()), float(error))
        if gain.is_clear:
            put(end, parameters)
        return gain

    def facts(self) -> dict[str, Any]:
        """Return what is told about the lines: how many there are in the mean over the slices."""
        judging = [split_lines(one.visible, one.judges, JUDGING, 0)[1] for one in self.slices]
        groups = {
            "sampled": [one.physics.mask for one in self.slices],
            "held_out": [one.held_out for one in self.slices],
            "judging_in_a_step": judging,
        }
        means = {name: round(sum(m.n_sampled for m in masks) / len(masks), 2) for name, masks in groups.items()}
        return {"lines_per_slice": {"all": self.slices[0].physics.mask.n_lines} | means}

    def tensors(self) -> list[tuple[str, Tensor]]:
        """Return the data, by name."""
        found = [("k-space", one.y) for one in self.slices]
        found += [("held out", one.held_out.lines) for one in self.slices]
        maps = [getattr(one.physics, "maps", None) for one in self.slices]
        return found + [("maps", one) for one in maps if one is not None]


def split_lines(mask: Mask, lines: Sequence[int], fraction: float, seed: int) -> tuple[Mask, Mask]:
    """Take a random part of some lines away from a mask, at least one line; return the rest and the part.

    Examples
    --------
    >>> from ulda.physics import cartesian_mask
    >>> mask = cartesian_mask(64, 0.3)
    >>> outer = outer_lines(mask)
    >>> rest, part = split_lines(mask, outer, 0.35, seed=1)
    >>> mask.n_sampled, mask.n_center, len(outer), rest.n_sampled, part.n_sampled, rest.n_center
    (19, 3, 16, 13, 6, 3)
    """
    n_taken = max(1, round(fraction * len(lines)))
    taken = np.random.default_rng(seed).permutation(lines)[:n_taken]
    part = np.zeros(mask.n_lines, dtype=bool)
    part[taken] = True
    rest = np.array(mask.sampled) & ~part
    kind = f"split, of {mask.hash}"
    return Mask(tuple(rest.tolist()), kind, seed), Mask(tuple(part.tolist()), kind, seed)


def outer_lines(mask: Mask) -> list[int]:
    """Return the numbers of the sampled lines outside the calibration lines."""
    start = mask.n_lines // 2 - mask.n_center // 2
    return [i for i in np.flatnonzero(mask.sampled).tolist() if not start <= i < start + mask.n_center]


def lines_with_signal(y: Tensor, physics: Physics) -> list[int]:
    """Return the numbers of the sampled lines outside the calibration lines that are not zero everywhere.

    Scanners pad k-space with zeros, and what was never measured cannot judge.
    """
    per_line = y.abs().movedim(physics.axis, 0).flatten(1).amax(1)
    return [i for i in outer_lines(physics.mask) if per_line[i] > 0]


def prepared(y: Tensor, physics: Physics, seed: int) -> UndersampledSlice:
    """Hold lines of a slice out."""
    lines = lines_with_signal(y, physics)
    visible, held_out = split_lines(physics.mask, lines, HELD_OUT, seed)
    judges = tuple(i for i in lines if visible.sampled[i])
    return UndersampledSlice(y, physics, visible, held_out, judges)


def undersampled_task(
    name: str, domain: Domain, mask: Mask, acquisition: Acquisition, seed: int = 0
) -> UndersampledTask:
    """Read slices to learn from without references.

    Parameters
    ----------
    name
        The new domain.
    domain
        The slices: k-space that arrived undersampled keeps its lines.
    mask
        The lines of slices that are fully sampled; the others are not looked at.
    acquisition
        How k-space is simulated from magnitude images.
    seed
        Seed of that, and of the lines that are held out.
    """
    if len(domain) < FEWEST_SLICES:
        raise UldaError(
            f"self-supervised adaptation needs {FEWEST_SLICES} slices to tell a gain from chance; give more"
        )
    slices = tuple(_slice(domain, number, mask, acquisition, seed) for number in range(len(domain)))
    masks: Sequence[Mask] = [one.physics.mask for one in slices]
    return UndersampledTask(name, _NO_IMAGES, masks, axis=domain.header.phase_axis, slices=slices)


def _slice(domain: Domain, number: int, mask: Mask, acquisition: Acquisition, seed: int) -> UndersampledSlice:
    axis, where = domain.header.phase_axis, f"slice {number} of the domain {domain.name}"
    if domain.header.kind == "kspace":
        mask = domain.mask(number) or mask
        y = domain.kspace(number)[None] * mask.along(axis)
        physics: Physics = CartesianMRI(mask, axis) if y.ndim == 3 else coil_physics(y, mask, axis)
    else:
        generator = torch.Generator().manual_seed(seed + number)
        # with the noise of a scan, of which nothing tells the operator
        y, physics, _ = acquisition.measure(domain.image(number)[None], generator, mask, axis, keep_noise=True)
    if not (torch.isfinite(torch.view_as_real(y)).all() and y.abs().max() > 0):
        raise UldaError(f"{where} is empty or not finite; import the data again")
    if len(outer := lines_with_signal(y, physics)) < _FEWEST_LINES:
        raise UldaError(
            f"{where} has {len(outer)} sampled lines beside its {physics.mask.n_center} calibration lines, but "
            f"self-supervised adaptation needs {_FEWEST_LINES}; sample more of them"
        )
    return prepared(y, physics, seed + number)
