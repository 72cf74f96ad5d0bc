"""Adapt a base to a domain of one's own, from its data to an adapter with its facts."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from ulda.data import Domain
from ulda.errors import UldaError
from ulda.models.bundled import model_folder
from ulda.physics import Mask, cartesian_mask
from ulda.training.files import load_base, save_adapter
from ulda.training.history import Progress, Report, last_validation, total_seconds
from ulda.training.loop import Task
from ulda.training.network import ULDA, UNADAPTED, own_kernels
from ulda.training.settings import FEW_STEPS, IN_ADAPTATIONS, OF_NEW_DOMAINS, Settings, of_new_domains
from ulda.training.slices import TrainingSplit, choose_slices, normalised_images, opened, split_for_training
from ulda.training.stages import adapt as train_adapter


@dataclass(frozen=True)
class Outcome(ABC):
    """What is known about an adaptation, of any method.

    Attributes
    ----------
    domain
        The new domain.
    facts
        Mask, normalisation, slices and subjects, fingerprint of the data, settings, validation before and after.
    """

    made: ClassVar[str] = "model"
    """What an adaptation makes, in a word."""

    domain: str
    facts: dict[str, Any]

    @property
    def gain(self) -> float | None:
        """The mean PSNR on the validation slices above that of the un-adapted start, in dB; None without any."""
        validation = self.facts["validation"]
        return validation["adapted"]["psnr"] - validation["unadapted"]["psnr"] if validation["n_slices"] else None

    def sentence(self) -> str:
        """Say whether adaptation helped."""
        validation, gain = self.facts["validation"], self.gain
        if gain is None:
            return f"whether adaptation helped is not known; validation is {validation['origin']}"
        n_slices, n_subjects = validation["n_slices"], len(validation["subjects"])
        before, after = validation["unadapted"]["psnr"], validation["adapted"]["psnr"]
        where = f"on validation ({n_slices} slices of {n_subjects} subjects)"
        if 0 < gain < 0.005:
            return f"adaptation changed next to nothing {where}: PSNR {before:.2f} -> {after:.2f}"
        if gain > 0:
            return f"adaptation helped {where} by {gain:.2f} dB: PSNR {before:.2f} -> {after:.2f}"
        kept = f"PSNR stays {before:.2f}, and the {self.made} is the un-adapted start"
        return f"adaptation did not clearly help {where}: {kept}"

    @abstractmethod
    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write what the adaptation made, with its facts."""


@dataclass(frozen=True)
class Adaptation(Outcome):
    """An adapted model and what is known about it.

    Attributes
    ----------
    model
        The model, with the new adapter as its active one.
    """

    made: ClassVar[str] = "adapter"

    model: ULDA

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the adapter, for `ulda.load` with the base it belongs to."""
        save_adapter(self.model, self.domain, folder, self.facts, overwrite=overwrite)


def default_settings(seed: int = 0, n_pixels: int = 64 * 64, n_slices: int = 5, steps: int | None = None) -> Settings:
    """Return how a base is adapted: few steps, validated often.

    A step sees about as many pixels whatever the size of the slices, but no fewer than one slice; more slices deserve
    more steps, unless their number is given. They are all taken: the end, where the rate has fallen, is what competes
    with the start.
    """
    steps = steps or min(max(160, 30 + 10 * n_slices), 430)
    batch_size = max(1, round(2 * 64 * 64 / n_pixels))
    return Settings(
        steps=steps,
        batch_size=batch_size,
        **IN_ADAPTATIONS,
        **of_new_domains(OF_NEW_DOMAINS, batch_size, many_kernels=steps > FEW_STEPS),
        validate_every=max(10, steps // 15),
        checkpoint_every=10,
        seed=seed,
    )


def adapt(
    base: ULDA | str | Path,
    domain: Domain | str | Path,
    *,
    slices: int | None = None,
    mask: Mask | None = None,
    ratio: float = 0.2,
    seed: int = 0,
    augment: bool = False,
    settings: Settings | None = None,
    steps: int | None = None,
    name: str | None = None,
    folder: str | Path | None = None,
    report: Report | None = None,
) -> Adaptation:
    """Train an adapter for a domain; the base stays as it is.

    It learns from slices of the train split and is judged on the val split, or on subjects held out where there is
    none. The un-adapted start is judged, too, and stays where nothing is clearly better: on validation the result is
    never worse.

    Parameters
    ----------
    base
        A model, the name of a bundled one, or its folder.
    domain
        Fully sampled slices: a domain, or a file of any readable format. K-space of several coils is combined to
        images and sampled as if by one coil.
    slices
        How many slices to train on, spread over the subjects; all if None.
    mask
        The sampled lines; if None, `ratio` of the lines drawn with `seed`.
    ratio
        The sampling ratio where no mask is given.
    seed
        Seed of the mask, of the choice of slices and of the training.
    augment
        Begin with further-undersampled versions of the mask.
    settings
        How to train; if None, `default_settings`.
    steps
        The most gradient steps, in place of those of the settings.
    name
        The adapter's domain; the name of `domain` if None.
    folder
        Where checkpoints and logs go. Checkpoints found there are continued.
    report
        Called after each step of each stage.

    Examples
    --------
    >>> from ulda.data import demo
    >>> from ulda.training import Architecture
    >>> from ulda.training.settings import Settings
    >>> base = ULDA(Architecture(width=2, depth=1, phases=2), ["brain"])
    >>> result = adapt(base, demo("knee"), slices=2, settings=Settings(steps=3))
    >>> result.model.domain, result.facts["n_slices"], base.domains, result.gain >= 0
    ('knee', 2, ('brain',), True)
    """
    model = copy.deepcopy(base) if isinstance(base, ULDA) else load_base(model_folder(base))
    target = load_target(domain, model.sources, slices=slices, mask=mask, ratio=ratio, seed=seed, name=name)
    name, task = target.task.domain, target.task
    if settings is None:
        settings = default_settings(seed, task.images[0].numel(), len(task.images), steps)
    elif steps is not None:
        settings = settings.model_copy(update={"steps": steps})
    model.add_domain(name)
    model.give_mixing(name, own_kernels(settings.steps))
    if len(task.validation):
        settings = settings.model_copy(update={"validate_every": settings.validate_every or settings.steps})
    place = None if folder is None else Path(folder)
    history = train_adapter(model, task, settings, augment=augment, folder=place, report=report)
    model.domain = name
    facts = target.facts() | {
        "augment": augment,
        "settings": settings.model_dump(mode="json"),
        **target.outcome_facts(history),
    }
    return Adaptation(name, facts, model.eval())


@dataclass(frozen=True)
class Target:
    """What a model is adapted to.

    Attributes
    ----------
    task
        The slices and the mask; its domain is the new one.
    split
        The slices to train on and those to validate with, as data.
    data_facts
        What is told about the data.
    """

    task: Task
    split: TrainingSplit
    data_facts: dict[str, Any]

    def facts(self) -> dict[str, Any]:
        """Return what is known before the adaptation: the mask and the data."""
        return {
            "mask": self.task.masks[0].as_dict(),
            "phase_axis": self.task.axis,
            "normalisation": "peak of the zero-filled image",
            **self.data_facts,
        }

    def outcome_facts(self, history: list[Progress]) -> dict[str, Any]:
        """Return what is known after it: the validations before and after, and the time."""
        return {
            "validation": _validation_facts(self.split, history, self.task.domain),
            "seconds": round(total_seconds(history), 1),
        }


def load_target(
    domain: Domain | str | Path,
    sources: Sequence[str],
    *,
    slices: int | None = None,
    mask: Mask | None = None,
    ratio: float = 0.2,
    seed: int = 0,
    name: str | None = None,
) -> Target:
    """Read the slices of a new domain; the parameters are those of `adapt`, and the names of the sources are taken."""
    with nullcontext(domain) if isinstance(domain, Domain) else opened(domain) as data:
        name = name or data.name.replace(".", "-")
        if name == UNADAPTED:
            raise UldaError(f"an adapter cannot be called {UNADAPTED!r}; give it another name")
        if name in sources:
            raise UldaError(f"the base was trained on a domain {name} itself; give the adapter another name")
        split = split_for_training(data, seed)
        if slices is not None:
            split = replace(split, train=split.train.take(choose_slices(split.train.subjects, slices, seed)))
        return Target(_task(name, split, mask, ratio, seed), split, _data_facts(data, split))


def _task(name: str, split: TrainingSplit, mask: Mask | None, ratio: float, seed: int) -> Task:
    images, axis = normalised_images(split.train), split.train.header.phase_axis
    n_lines = images.shape[axis]
    if mask is None:
        mask = cartesian_mask(n_lines, ratio, seed=seed)
    if mask.n_lines != n_lines:
        raise UldaError(f"the mask has {mask.n_lines} lines, but the slices of {split.train.name} have {n_lines}")
    validation = normalised_images(split.validation) if len(split.validation) else images[:0]
    return Task(name, images, [mask], validation, axis)


def _data_facts(domain: Domain, split: TrainingSplit) -> dict[str, Any]:
    subjects = sorted(set(split.train.subjects))
    return {
        "kspace": _kspace(domain),
        "n_slices": len(split.train),
        "n_subjects": len(subjects),
        "subjects": subjects,
        "data": split.train.fingerprint(),
        "licence": domain.header.licence,
    }


def _kspace(domain: Domain) -> str:
    if domain.n_coils > 1:
        return f"simulated, single-coil, from images combined of {domain.n_coils} coils"
    return "measured, single-coil" if domain.header.kind == "kspace" else "simulated from images"


def _validation_facts(split: TrainingSplit, history: list[Progress], name: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"origin": split.origin, "n_slices": len(split.validation)}
    if len(split.validation) == 0:
        return facts
    # the first row is the validation of the start; the best one is what the adaptation ended with
    best = last_validation(history, is_best=True)
    assert history[0].validation is not None
    assert best is not None
    assert best.validation is not None
    return facts | {
        "subjects": sorted(set(split.validation.subjects)),
        "unadapted": history[0].validation[name],
        "adapted": best.validation[name],
        "share": best.share,
    }
