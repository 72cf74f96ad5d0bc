"""The interface of all learned methods, ours among them: fit, adapt, save, load, on equal terms."""

from __future__ import annotations

import copy
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor, nn

import ulda
from ulda.errors import UldaError
from ulda.io.atomic import atomic_output
from ulda.methods.base import Method
from ulda.methods.budget import Budget, Spent
from ulda.physics import Physics
from ulda.training.files import METHOD_FORMAT, VERSION, check_size, read_facts, restore_tensors, write_tensors
from ulda.training.history import Progress, Report, total_seconds
from ulda.training.loop import Batch, Task, fit
from ulda.training.runs import BUDGET_NAME
from ulda.training.settings import IN_ADAPTATIONS, Settings
from ulda.training.supervised import supervised_loss

_TIMED_STEPS = 6
"""Per source, so that networks which help with one source each are timed in their proportion."""


@dataclass(frozen=True)
class Training:
    """What a training leaves beside the parameters.

    Attributes
    ----------
    history
        The rows of its log.
    spent
        Steps, slices and time.
    """

    history: list[Progress]
    spent: Spent


class TrainableMethod(nn.Module, Method):
    """A reconstruction network: ``x_hat = method(y, physics)``.

    A subclass implements `forward`. It says in `is_adapted` which parameters learn in an adaptation, and makes those of
    a new domain in `add_domain`, where it has any; it changes `loss` or `train_stages` where its training differs from
    the supervised one. The constructor takes ``sources`` and ``seed`` and its sizes, all by keyword, and hands `sizes`
    on, from which `load` builds it again.

    Parameters
    ----------
    sources
        The source domains.
    sizes
        The arguments of the constructor, other than the sources and the seed.

    Attributes
    ----------
    sources
        The source domains.
    adapted_to
        The domains it was adapted to, in their order.
    domain
        The domain that is used where none is named; None without one.
    sizes
        As above.
    """

    title: ClassVar[str]
    """The name that stands in tables for people."""
    citation: ClassVar[str]
    """Authors, year and where it was published."""
    adapts: ClassVar[str] = "all parameters, at a lower rate"
    """What learns in an adaptation, in words."""
    training_defaults: ClassVar[Mapping[str, Any]] = {"learning_rate": 1e-3, "common": 0.0}
    """Settings of the training, where they differ from those of `ulda.training.settings.Settings`."""
    adaptation_defaults: ClassVar[Mapping[str, Any]] = {"learning_rate": 1e-3}
    """Settings of an adaptation, where they differ from `ulda.training.settings.IN_ADAPTATIONS`."""
    earlier_sizes: ClassVar[Mapping[str, Any]] = {}
    """What sizes are in files of earlier versions, which do not say them."""

    def __init__(self, sources: Sequence[str] = (), sizes: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.sources: tuple[str, ...] = tuple(sources)
        self.adapted_to: tuple[str, ...] = ()
        self.domain: str | None = None
        self.sizes = dict(sizes or {})

    @abstractmethod
    def forward(self, y: Tensor, physics: Physics, domain: str | None = None) -> Tensor:
        """Reconstruct measurements ``(n, H, W)`` or ``(n, coils, H, W)`` of any size and scale.

        Parameters
        ----------
        y, physics
            The measurements and their operator.
        domain
            Whose parameters to use, where a method has some per domain; `self.domain` if None.
        """

    @property
    def n_parameters(self) -> int:
        """The number of real parameters."""
        return sum(parameter.numel() for parameter in self.parameters())

    def n_trainable(self, adapt: bool = False) -> int:
        """Return how many parameters learn in a training, or in an adaptation to one new domain."""
        if not adapt:
            return self.n_parameters
        probe, domain = copy.deepcopy(self), "a new domain"
        probe.add_domain(domain)
        return probe.n_adapted(domain)

    def n_adapted(self, domain: str) -> int:
        """Return how many parameters learn in an adaptation to a domain that was added."""
        return sum(p.numel() for name, p in self.named_parameters() if self.is_adapted(name, domain))

    def add_domain(self, name: str) -> None:
        """Make the parameters of a new domain, where the method has some per domain."""

    def adaptation_settings(self, steps: int, batch_size: int) -> Mapping[str, Any]:  # noqa: ARG002
        """Return the settings of an adaptation with so many steps, and so many slices in each."""
        return self.adaptation_defaults

    def adapted_sizes(self, steps: int) -> Mapping[str, Any]:  # noqa: ARG002
        """Return what is larger for a new domain with so many steps, where its size depends on their number."""
        return {}

    def own_facts(self) -> Mapping[str, Any]:
        """Return what the file of a model says beside what all methods say."""
        return {}

    def look_at(self, task: Task) -> None:
        """Learn what `add_domain` needs to know of a new domain, where its start depends on the data."""

    def is_adapted(self, parameter: str, domain: str) -> bool:  # noqa: ARG002
        """Tell whether a parameter learns in an adaptation to a domain; the others stay bit-identical."""
        return True

    def loss(self, task: Task, batch: Batch, settings: Settings, step: int) -> tuple[Tensor, Tensor]:
        """Return the loss of one batch, and the images without gradient."""
        return supervised_loss(self, task, batch, settings, step)

    def train_stages(
        self, tasks: Sequence[Task], settings: Settings, folder: Path | None, report: Report | None
    ) -> tuple[list[Progress], dict[str, int]]:
        """Train with settings; return the log, and the steps of networks that only help, by their name."""
        return fit(self, tasks, settings, loss=_loss, folder=folder, report=report), {}

    def adapt_stages(
        self, task: Task, settings: Settings, folder: Path | None, report: Report | None
    ) -> list[Progress]:
        """Adapt with settings to a domain that was added; return the log. Stages before the last one are whole."""
        return fit(
            self,
            [task],
            settings,
            loss=_loss,
            trainable=lambda name: self.is_adapted(name, task.domain),
            folder=folder,
            report=report,
            keep_best=len(task.validation) > 0,
        )

    def fit(
        self,
        tasks: Sequence[Task],
        budget: Budget,
        *,
        seed: int = 0,
        changes: Mapping[str, Any] | None = None,
        folder: Path | None = None,
        report: Report | None = None,
    ) -> Training:
        """Train on the sources.

        Parameters
        ----------
        tasks
            The slices and masks of the source domains.
        budget
            What the training may spend.
        seed
            Seed of the batches.
        changes
            Settings in place of `training_defaults`.
        folder
            Where the checkpoint and the log go; a training found there is continued.
        report
            Called after each step.
        """
        for task in tasks:
            if task.domain not in self.sources:
                known = ", ".join(self.sources) or "none"
                raise UldaError(f"{task.domain} is not a source of this {self.title}; its sources are: {known}")
        budget = self.settle(tasks, budget, seed=seed, changes=changes, folder=folder)
        settings = self.training_settings(budget, seed=seed, changes=changes)
        history, extra_steps = self.train_stages(tasks, settings, folder, report)
        return Training(history, _spent(budget, history, extra_steps))

    def adapt(
        self,
        task: Task,
        budget: Budget,
        *,
        seed: int = 0,
        changes: Mapping[str, Any] | None = None,
        folder: Path | None = None,
        report: Report | None = None,
    ) -> Training:
        """Adapt to a new domain, in place, and make it the one that is used.

        It ends with the parameters of the best validation, where the task has validation slices; the start takes part.
        The parameters are as for `fit`.
        """
        if task.domain in self.sources:
            raise UldaError(f"{task.domain} is a source of this {self.title}; give the new domain another name")
        device = next(self.parameters()).device
        self.look_at(task)
        self.add_domain(task.domain)
        self.to(device)
        settings = self.settings_of_adaptation(budget, seed=seed, changes=changes)
        history = self.adapt_stages(task, settings, folder, report)
        self.adapted_to = (*(name for name in self.adapted_to if name != task.domain), task.domain)
        self.domain = task.domain
        before_last = settings.steps - history[-1].steps
        return Training(history, _spent(budget, history, {}, before_last))

    def training_settings(self, budget: Budget, *, seed: int = 0, changes: Mapping[str, Any] | None = None) -> Settings:
        """Return all settings of a training with so many steps; the parameters are those of `fit`."""
        return _settings({**self.training_defaults, **(changes or {}), "seed": seed}, budget)

    def settings_of_adaptation(
        self, budget: Budget, *, seed: int = 0, changes: Mapping[str, Any] | None = None
    ) -> Settings:
        """Return all settings of an adaptation with so many steps; the parameters are those of `adapt`."""
        if budget.steps is None:
            raise UldaError("an adaptation is given its number of steps")
        own = self.adaptation_settings(budget.steps, budget.batch_size)
        given = {**IN_ADAPTATIONS, **own, **(changes or {}), "seed": seed}
        given.setdefault("validate_every", max(1, budget.steps // 8))
        return _settings(given, budget)

    def save(self, folder: str | Path, facts: Mapping[str, Any] | None = None, *, overwrite: bool = False) -> None:
        """Write ``model.safetensors`` and ``model.json``, with what is known about the training."""
        header = {
            "format": METHOD_FORMAT,
            "version": VERSION,
            "ulda": ulda.__version__,
            "method": self.name,
            "sizes": self.sizes,
            "sources": list(self.sources),
            "adapted_to": list(self.adapted_to),
            "domain": self.domain,
            "n_parameters": self.n_parameters,
            "facts": dict(facts or {}),
            **self.own_facts(),
        }
        write_tensors(Path(folder), "model", dict(self.named_parameters()), header, overwrite)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a model that `save` wrote."""
        folder = Path(folder)
        facts = read_facts(folder / "model.json", METHOD_FORMAT)
        if facts.get("method") != cls.name:
            raise UldaError(f"the model in {folder.name} is a {facts.get('method')}, not a {cls.name}")
        path = folder / "model.safetensors"
        try:
            check_size(path, lambda: cls._described(facts))
            model = cls._described(facts)
        except (TypeError, KeyError, ValueError, LookupError, ArithmeticError, RuntimeError) as error:
            raise UldaError(f"model.json in {folder.name} does not describe a {cls.name} ({error})") from error
        restore_tensors(model, path, facts)
        return model.eval()

    @classmethod
    def _described(cls, facts: dict[str, Any]) -> Self:
        """Build the untrained model that the facts of a file describe."""
        sources, adapted_to, domain = facts["sources"], facts["adapted_to"], facts["domain"]
        if not all(isinstance(name, str) for name in (*sources, *adapted_to)) or not isinstance(facts["facts"], dict):
            raise TypeError("its domains are not names, or its facts are missing")
        if domain not in (None, *sources, *adapted_to):
            raise ValueError(f"it is to use the domain {domain!r}, which it does not have")
        model = cls(sources=sources, **{**cls.earlier_sizes, **facts["sizes"]})
        for name in adapted_to:
            model.add_domain(name)
        model.adapted_to, model.domain = tuple(adapted_to), domain
        return model

    def settle(
        self,
        tasks: Sequence[Task],
        budget: Budget,
        *,
        seed: int = 0,
        changes: Mapping[str, Any] | None = None,
        folder: Path | None = None,
    ) -> Budget:
        """Turn a time into steps by trying a few; a training that is continued keeps the number it began with.

        Parameters
        ----------
        tasks
            What is trained on.
        budget
            The time, or a number of steps, which stays.
        seed, changes
            As for `fit`.
        folder
            Where the training has its files, and its number of steps.
        """
        if budget.steps is not None:
            return budget
        place = None if folder is None else folder / BUDGET_NAME
        if place is not None and place.exists():
            return _read_budget(place)
        n_steps = _TIMED_STEPS * len(tasks)
        short = Budget.of_batches(n_steps, budget.batch_size)
        trial = self.training_settings(short, seed=seed, changes={**(changes or {}), "validate_every": 0})
        for _ in range(2):  # the first time, libraries are loaded and memory is found
            history, _ = copy.deepcopy(self).train_stages(tasks, trial, None, None)
        budget = budget.settled(total_seconds(history) / n_steps)
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
            with atomic_output(place, overwrite=True) as temporary:
                temporary.write_text(json.dumps(vars(budget)) + "\n", encoding="utf-8")
        return budget


def _read_budget(path: Path) -> Budget:
    try:
        return Budget(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise UldaError(f"{path.name} does not hold a budget ({error}); remove it to measure anew") from error


def _loss(model: TrainableMethod, task: Task, batch: Batch, settings: Settings, step: int) -> tuple[Tensor, Tensor]:
    return model.loss(task, batch, settings, step)


def _settings(given: Mapping[str, Any], budget: Budget) -> Settings:
    return Settings.model_validate({**given, "steps": budget.steps, "batch_size": budget.batch_size})


def _spent(budget: Budget, history: Sequence[Progress], extra_steps: dict[str, int], steps_before: int = 0) -> Spent:
    steps = steps_before + history[-1].step
    return Spent(budget.equal, steps, steps * budget.batch_size, round(total_seconds(history), 2), extra_steps)
