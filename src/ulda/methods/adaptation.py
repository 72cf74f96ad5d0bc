"""Adapt a trained model to a domain of one's own, from its data to what was learned, with its facts."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ulda.data import Domain
from ulda.errors import UldaError
from ulda.methods.registry import load_method, method_settings
from ulda.methods.trainable import TrainableMethod, Training
from ulda.methods.ulda import ULDA, UNADAPTED
from ulda.models.bundled import model_folder
from ulda.models.files import BASE_FORMAT, read_facts
from ulda.models.ulda import is_same_name
from ulda.physics import Acquisition, Mask, acquisition_named, cartesian_mask
from ulda.physics.acquisition import with_given_masks
from ulda.training.history import Progress, Report, chooses, last_validation, total_seconds
from ulda.training.presets import load_preset
from ulda.training.self_supervised import SCORE, undersampled_task
from ulda.training.settings import Settings
from ulda.training.slices import TrainingSplit, acquisition_of, choose_slices, opened, references, split_for_training
from ulda.training.tasks import Gain, Task

_RATIO = 0.2
"""Of the lines that are kept, where nothing else is said."""


@dataclass(frozen=True)
class Adaptation:
    """An adapted model and what is known about it.

    Attributes
    ----------
    model
        The model, with the new domain as the one it uses.
    domain
        The new domain.
    facts
        Mask, normalisation, slices and subjects, fingerprint of the data, settings, validation before and after.
    card
        What is known about the training of the base.
    """

    model: TrainableMethod
    domain: str
    facts: dict[str, Any]
    card: dict[str, Any]

    @property
    def gain(self) -> float | None:
        """The mean score on the validation above that of the un-adapted start, in dB; None without any.

        The score is the PSNR; of a self-supervised adaptation it is that of the held-out lines, which is no PSNR.
        """
        validation = self.facts["validation"]
        if not validation["n_slices"]:
            return None
        return chooses(validation["adapted"]) - chooses(validation["unadapted"])

    def sentence(self) -> str:
        """Say whether adaptation helped."""
        validation, gain = self.facts["validation"], self.gain
        if "self_supervised" in self.facts:
            return _sentence_about_lines(validation, self.model.made)
        if gain is None:
            return f"whether adaptation helped is not known; validation is {validation['origin']}"
        n_slices, n_subjects = validation["n_slices"], len(validation["subjects"])
        before, after = validation["unadapted"]["psnr"], validation["adapted"]["psnr"]
        where = f"on validation ({n_slices} slices of {n_subjects} subjects)"
        if 0 < gain < 0.005:
            return f"adaptation changed next to nothing {where}: PSNR {before:.2f} -> {after:.2f}"
        if gain > 0:
            return f"adaptation helped {where} by {gain:.2f} dB: PSNR {before:.2f} -> {after:.2f}"
        kept = f"PSNR stays {before:.2f}, and the {self.model.made} is the un-adapted start"
        return f"adaptation did not help {where}: {kept}"

    def parameters(self) -> str:
        """Say how many parameters were trained."""
        trained, used = self.model.n_adapted(self.domain), self.model.n_used(self.domain)
        return f"trains {trained:,} of {used:,} parameters ({100 * trained / used:.1f} %)"

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write what was made, with its facts: an adapter of U-LDA, for `ulda.load`, or the model of another method."""
        self.model.save_adapted(folder, self.card, self.facts, overwrite=overwrite)


def adapt(
    base: TrainableMethod | str | Path,
    domain: Domain | str | Path,
    *,
    slices: int | None = None,
    mask: Mask | None = None,
    ratio: float | None = None,
    seed: int = 0,
    preset: str | None = None,
    settings: Settings | None = None,
    changes: dict[str, Any] | None = None,
    rank: int | None = None,
    name: str | None = None,
    acquisition: str = "scanner",
    self_supervised: bool = False,
    folder: str | Path | None = None,
    report: Report | None = None,
) -> Adaptation:
    """Adapt a model to a domain; the base stays as it is.

    It learns from slices of the train split and is judged on the val split, or on subjects held out where there is
    none. The un-adapted start is judged, too: on validation the result is never worse.

    Self-supervised, it learns from undersampled k-space without references; see `ulda.training.self_supervised`.

    Parameters
    ----------
    base
        A model of any method, the name of a bundled one, or its folder.
    domain
        Slices: a domain, or a file of any readable format. They are fully sampled unless it is self-supervised.
    slices
        How many slices to train on, spread over the subjects; all if None.
    mask, ratio
        The sampled lines of fully sampled slices; without a mask, this ratio of the lines, 0.2 if None, drawn with
        `seed`.
    seed
        Seed of the mask, of the choice of slices and of the training.
    preset, settings, changes
        How to adapt, by default as the preset of the base says; all settings instead, or some of them changed.
    rank
        Rank of the low-rank update of g, of U-LDA; by default that of the preset.
    name
        The adapter's domain; the name of `domain` if None.
    acquisition
        How k-space is simulated from magnitude images, see `ulda.physics.acquisition`. Complex images keep their phase,
        measured k-space its phase, noise and coils; the maps of the coils are estimated from the calibration lines.
    self_supervised
        Learn from the sampled lines alone. Of fully sampled slices the other lines are not looked at, as a test.
    folder, report
        Where checkpoints and logs go (those found there are continued), and what is called after each step.

    Examples
    --------
    >>> from ulda.data import demo
    >>> from ulda.methods import ULDA
    >>> base = ULDA(sources=["brain"], width=2, depth=1, phases=2)
    >>> result = adapt(base, demo("knee"), slices=2, changes={"steps": 3})
    >>> result.model.domain, result.facts["n_slices"], base.domains, result.gain >= 0
    ('knee', 2, ('brain',), True)
    """
    model, header = _base(base)
    chosen = preset or header.get("card", {}).get("preset")
    settings = (settings or method_settings(model.name, "adapt", chosen)).changed(seed=seed, **changes or {})
    if self_supervised:
        if (changes or {}).get("augment"):
            raise UldaError("a self-supervised adaptation undersamples further in each step anyway; leave out augment")
        # both need references
        settings = settings.changed(augment=False, warp=0.0)
    _set_rank(model, rank, chosen)
    selection = Selection(slices, mask, ratio, seed, acquisition)
    with nullcontext(domain) if isinstance(domain, Domain) else opened(domain) as data:
        read = _undersampled_target if self_supervised else _target
        target = read(data, _new_name(name, data, model.sources), selection)
    training = model.adapt(target.task, settings, folder=None if folder is None else Path(folder), report=report)
    how = {"preset": chosen, "settings": settings.model_dump(mode="json")}
    facts = _facts_of_base(header) | target.facts() | how | target.outcome_facts(training)
    return Adaptation(model.eval(), target.task.domain, facts, header.get("card", {}))


def _facts_of_base(header: dict[str, Any]) -> dict[str, Any]:
    return {"base_weights": header["weights"]} if header else {}


def _set_rank(model: TrainableMethod, rank: int | None, preset: str | None) -> None:
    """Give the adapters that are added from now on a rank, or that of a preset."""
    if isinstance(model, ULDA):
        rank = load_preset(preset).network.rank if rank is None and preset else rank
        model.network = model.network.model_copy(update={} if rank is None else {"rank": rank})
    elif rank is not None:
        raise UldaError(f"{model.title} has no low-rank update; leave out the rank")


def _base(base: TrainableMethod | str | Path) -> tuple[TrainableMethod, dict[str, Any]]:
    """Return a copy of a model, and what its file says about it."""
    if isinstance(base, TrainableMethod):
        return copy.deepcopy(base), {}
    folder = model_folder(base)
    model = load_method(folder)
    if model.domain is not None:
        raise UldaError(
            f"the {model.title} in {folder} is adapted to {model.domain} already; adapt the one that it was made from"
        )
    return model, read_facts(folder, BASE_FORMAT)


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
        alike = len({mask.sampled for mask in self.task.masks}) == 1
        return {
            **({"mask": self.task.masks[0].as_dict()} if alike else {}),
            "phase_axis": self.task.axis,
            "normalisation": "peak of the zero-filled image",
            **self.data_facts,
        }

    def outcome_facts(self, training: Training) -> dict[str, Any]:
        """Return what is known after it: the validations before and after, and the time."""
        if training.gain is not None:
            validation = _held_out_facts(self.split, training.gain)
        else:
            validation = _validation_facts(self.split, training.history, self.task.domain)
        return {
            "validation": validation,
            "seconds": round(total_seconds(training.history), 1),
            "spent": training.spent.as_dict(),
        }


@dataclass(frozen=True)
class Selection:
    """What an adaptation learns from; the attributes are the parameters of `adapt`."""

    slices: int | None
    mask: Mask | None
    ratio: float | None
    seed: int
    acquisition: str

    def chosen(self, train: Domain) -> Domain:
        """Return the slices to learn from."""
        return train if self.slices is None else train.take(choose_slices(train.subjects, self.slices, self.seed))

    def mask_for(self, train: Domain) -> Mask:
        """Return the lines to keep of fully sampled slices."""
        n_lines = train.shape[train.header.phase_axis]
        if self.mask is None:
            return cartesian_mask(n_lines, _RATIO if self.ratio is None else self.ratio, seed=self.seed)
        if self.mask.n_lines != n_lines:
            raise UldaError(f"the mask has {self.mask.n_lines} lines, but the slices of {train.name} have {n_lines}")
        return self.mask

    def simulated(self, data: Domain) -> Acquisition:
        """Return how k-space is simulated from the slices."""
        return with_given_masks(acquisition_of(data, acquisition_named(self.acquisition)))


def _target(data: Domain, name: str, selection: Selection) -> Target:
    """Read the slices of a new domain, and the lines that are measured of them."""
    split = split_for_training(data, selection.seed)
    for slices in (split.train, split.validation):
        slices.check_references(
            "there is no reference to learn from; learn from its sampled lines alone with --self-supervised (in "
            "Python: self_supervised=True)"
        )
    split = replace(split, train=selection.chosen(split.train))
    simulated = selection.simulated(data)
    task = _task(name, split, selection.mask_for(split.train), simulated)
    return Target(task, split, _data_facts(data, split) | {"acquisition": simulated.name})


def _undersampled_target(data: Domain, name: str, selection: Selection) -> Target:
    """Read the slices of a new domain to learn from without references.

    Slices that arrived undersampled keep their lines. Those labelled val or test are not used.
    """
    train = data.select(split="train" if any(data.label("split")) else "")
    if len(train) == 0:
        raise UldaError(f"the domain {data.name} has no slices in the split train, so there is nothing to learn from")
    if train.undersampled and (selection.mask is not None or selection.ratio is not None):
        raise UldaError(f"the domain {data.name} is undersampled already; leave out the mask and the ratio")
    train, simulated = selection.chosen(train), selection.simulated(data)
    task = undersampled_task(name, train, selection.mask_for(train), simulated, selection.seed)
    split = TrainingSplit(train, train, "lines of the same slices, held out from the training")
    facts = {"acquisition": simulated.name, "self_supervised": task.facts()}
    return Target(task, split, _data_facts(data, split) | facts)


def _new_name(name: str | None, data: Domain, sources: Sequence[str]) -> str:
    name = name or data.name.replace(".", "-")
    if is_same_name(name, UNADAPTED):
        raise UldaError(f"an adapter cannot be called {UNADAPTED!r}; give it another name")
    if any(is_same_name(name, source) for source in sources):
        raise UldaError(f"the base was trained on a domain {name} itself; give the adapter another name")
    return name


def _task(name: str, split: TrainingSplit, mask: Mask, acquisition: Acquisition) -> Task:
    axis = split.train.header.phase_axis
    images, coils = references(split.train, mask)
    validation, validation_coils = references(split.validation, mask) if len(split.validation) else (images[:0], None)
    return Task(name, images, [mask], validation, axis, None, acquisition, coils, validation_coils)


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
    if domain.header.kind != "kspace":
        return f"simulated from {domain.header.kind} images"
    return f"measured, {domain.n_coils} coils" if domain.n_coils > 1 else "measured, single-coil"


def _held_out_facts(split: TrainingSplit, gain: Gain) -> dict[str, Any]:
    return {
        "origin": split.origin,
        "n_slices": len(split.train),
        "subjects": sorted(set(split.train.subjects)),
        "score": "10 log10(energy / error) of the held-out lines, in dB; not a PSNR",
        "unadapted": {SCORE: gain.before},
        "adapted": {SCORE: gain.after if gain.is_clear else gain.before},
        "best": {SCORE: gain.after},
        "difference": gain.difference,
        "standard_error": gain.standard_error,
        "is_kept": gain.is_clear,
    }


def _sentence_about_lines(validation: dict[str, Any], made: str) -> str:
    before, after = chooses(validation["unadapted"]), chooses(validation["best"])
    difference, error = validation["difference"], validation["standard_error"]
    where = f"the sampled lines that were held out ({validation['n_slices']} slices)"
    what = "this compares lines of k-space and is not a PSNR, which only references can tell"
    if validation["is_kept"]:
        gained = f"{difference:.2f} dB (standard error {error:.2f} dB), from {before:.2f} to {after:.2f} dB"
        return f"adaptation predicts {where} better by {gained}; {what}"
    clear = f"{difference:+.2f} dB at the best step, with a standard error of {error:.2f} dB"
    return f"adaptation did not clearly help on {where}: {clear}, so the {made} is the un-adapted start; {what}"


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
    }
