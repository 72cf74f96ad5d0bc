"""A whole training or adaptation of any learned method, from a configuration or data to a folder with a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ulda.data import Domain
from ulda.errors import UldaError
from ulda.methods.budget import Budget
from ulda.methods.listing import check_sizes, default_sizes
from ulda.methods.registry import load_method, method_class
from ulda.methods.trainable import TrainableMethod
from ulda.methods.universal import UniversalLDA
from ulda.physics import Mask
from ulda.training.adaptation import Outcome, default_settings, load_target
from ulda.training.config import OF_ULDA, TIME_OR_ROUNDS, ULDA_METHOD, Config, check_phases
from ulda.training.files import METHOD_FORMAT, read_facts
from ulda.training.history import Report
from ulda.training.loop import Task
from ulda.training.network import ULDA
from ulda.training.runs import StageReport, load_tasks, named, prepare, train_base, training_card
from ulda.training.settings import SourceSettings

_OF_THE_BUDGET = {"steps", "batch_size", "seed"}


def for_method(config: Config, name: str | None = None, seconds: float | None = None) -> tuple[Config, list[str]]:
    """Return a configuration as a method is trained with it, checked, and notes on what of the file is ignored.

    A file for one method trains every other on the same data and masks for as many steps: what belongs to its own
    method is left out. Settings that it does not give have the defaults of the method.

    Parameters
    ----------
    config
        A configuration from a file.
    name
        The method; that of the file if None.
    seconds
        A time instead of the number of steps; that of the file if None.
    """
    name = name or config.method
    kind = method_class(name)
    notes = []
    sizes = config.sizes
    changes: dict[str, Any] = {"method": name, "seconds": seconds or config.seconds}
    if name != config.method:
        if sizes:
            notes.append(f"the sizes in the file are those of {config.method} and are ignored for {name}")
        sizes = {}
    if name == ULDA_METHOD and config.rounds and seconds is not None:
        raise UldaError(TIME_OR_ROUNDS)
    if name != ULDA_METHOD:
        ignored = sorted(OF_ULDA & config.model_fields_set) if config.method == ULDA_METHOD else []
        given = {key: getattr(config.train, key) for key in config.train.model_fields_set}
        if name != config.method and given.pop("phases", None) is not None:
            ignored.append("train.phases")
        for key, value in {"lower_level": "unrolled", "common": kind.training_defaults.get("common")}.items():
            if value is not None and given.get(key, value) != value:
                ignored.append(f"train.{key}")
                given[key] = value
        if ignored:
            notes.append(f"{', '.join(ignored)} in the file belong to {config.method} and are ignored for {name}")
        check_sizes(name, sizes)
        check_phases(given.get("phases"), (default_sizes(name) | sizes).get("phases"))
        train = SourceSettings.model_validate({**kind.training_defaults, **given})
        # every setting is given from here on, as a run that is continued must be the one that was started
        changes |= {"initialise": None, "rounds": (), "train": SourceSettings.model_validate(train.model_dump())}
    return config.model_copy(update=changes | {"sizes": sizes}), notes


def train(
    config: Config,
    folder: str | Path,
    *,
    resume: bool = False,
    command: str = "",
    report: StageReport | None = None,
) -> ULDA | TrainableMethod:
    """Train the method of a configuration and write it, with checkpoints and logs on the way.

    Parameters
    ----------
    config
        What to train, from `for_method`, with absolute paths.
    folder
        Gets ``config.yaml``, the checkpoint, ``log.csv``, and at the end ``model.safetensors`` and ``model.json``. With
        the method ulda this is a base, which has adapters and certificates; see `ulda.training.runs.train_base`.
    resume
        Continue what the folder holds; the result has the same bits as that of a run without a pause.
    command
        How the training was started, for the model card.
    report
        Called after each step.
    """
    folder = Path(folder)
    if config.method == ULDA_METHOD:

        def steps_in_time(tasks: Sequence[Task]) -> int:
            return _steps_in_time(config, tasks, folder)

        timed = None if config.seconds is None else steps_in_time
        return train_base(config, folder, resume=resume, command=command, report=report, steps_in_time=timed)
    prepare(folder, config, resume)
    tasks, data_facts = load_tasks(config)
    kind: Callable[..., TrainableMethod] = method_class(config.method)
    model = kind(sources=[task.domain for task in tasks], seed=config.seed, **config.sizes)
    changes = config.train.model_dump(exclude=_OF_THE_BUDGET)
    training = model.fit(
        tasks, _budget(config), seed=config.train.seed, changes=changes, folder=folder, report=named(report, "train")
    )
    card = training_card(config, command, data_facts, training.history)
    model.save(folder, card | {"spent": training.spent.as_dict()}, overwrite=resume)
    return model.eval()


def _budget(config: Config) -> Budget:
    if config.seconds is not None:
        return Budget.of_seconds(config.seconds, config.train.batch_size)
    return Budget.of_batches(config.train.steps, config.train.batch_size)


def _steps_in_time(config: Config, tasks: Sequence[Task], folder: Path) -> int:
    model = UniversalLDA(sources=[task.domain for task in tasks], seed=config.seed, **vars(config.architecture))
    changes = config.train.model_dump(exclude=_OF_THE_BUDGET)
    budget = model.settle(tasks, _budget(config), seed=config.train.seed, changes=changes, folder=folder)
    assert budget.steps is not None
    return budget.steps


@dataclass(frozen=True)
class MethodAdaptation(Outcome):
    """A method adapted to a new domain, and what is known about it.

    Attributes
    ----------
    model
        The model, with the new domain as its own.
    card
        What is known about its training on the sources.
    """

    model: TrainableMethod
    card: dict[str, Any]

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the model, with the facts of its training and, as ``adaptation``, those of its adaptation."""
        self.model.save(folder, self.card | {"adaptation": self.facts}, overwrite=overwrite)


def adapt_method(
    base: str | Path,
    domain: Domain | str | Path,
    *,
    slices: int | None = None,
    mask: Mask | None = None,
    ratio: float = 0.2,
    seed: int = 0,
    steps: int | None = None,
    name: str | None = None,
    folder: str | Path | None = None,
    report: Report | None = None,
) -> MethodAdaptation:
    """Adapt a trained method to a domain, on the terms of `ulda.training.adaptation.adapt`.

    The slices, the mask, the number of steps and of slices in each, the validations and when to stop are those that an
    adapter of a base gets; the learning rate and what learns are the method's own.

    Parameters
    ----------
    base
        The folder that `ulda train --method` wrote.
    domain, slices, mask, ratio, seed, steps, name, folder, report
        As for `ulda.training.adaptation.adapt`.
    """
    base = Path(base)
    model = load_method(base)
    if model.domain is not None:
        raise UldaError(
            f"the {model.title} in {base} is adapted to {model.domain} already; adapt the one that it was made from"
        )
    header = read_facts(base / "model.json", METHOD_FORMAT)
    target = load_target(domain, model.sources, slices=slices, mask=mask, ratio=ratio, seed=seed, name=name)
    task = target.task
    shared = default_settings(seed, task.images[0].numel(), len(task.images), steps)
    n_steps = shared.steps
    settings = {
        **{key: getattr(shared, key) for key in ("validate_every", "checkpoint_every")},
        **model.adaptation_settings(n_steps, shared.batch_size),
    }
    training = model.adapt(
        task,
        Budget.of_batches(n_steps, shared.batch_size),
        seed=seed,
        changes=settings,
        folder=None if folder is None else Path(folder),
        report=report,
    )
    facts = target.facts() | {
        "base": header["weights"],
        "settings": {**settings, "steps": n_steps, "batch_size": shared.batch_size, "seed": seed},
        **target.outcome_facts(training.history),
        "spent": training.spent.as_dict(),
    }
    return MethodAdaptation(task.domain, facts, model.eval(), header["facts"])
