"""The interface of all learned methods, ours among them: fit, adapt, save, load, on equal terms."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ulda.errors import UldaError
from ulda.io.untrusted import reading
from ulda.methods.base import Method
from ulda.models.files import BASE_FORMAT, check_size, read_facts, restore_tensors, write_model
from ulda.physics import Physics
from ulda.training import stages
from ulda.training.history import Progress, Report, copied, total_seconds, total_steps
from ulda.training.loop import fit
from ulda.training.settings import Settings
from ulda.training.supervised import supervised_loss
from ulda.training.tasks import Batch, Gain, Task


@dataclass(frozen=True)
class Spent:
    """What a training has spent.

    Attributes
    ----------
    steps, slices, seconds
        Gradient steps taken, slices seen in them, and time.
    extra_steps
        Gradient steps of networks that only help in the training, such as teachers, by their name.
    """

    steps: int
    slices: int
    seconds: float
    extra_steps: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Training:
    """What a training leaves beside the parameters.

    Attributes
    ----------
    history
        The rows of its log.
    spent
        Steps, slices and time.
    gain
        Of a self-supervised adaptation; None otherwise.
    """

    history: list[Progress]
    spent: Spent
    gain: Gain | None = None


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
    made: ClassVar[str] = "model"
    """What an adaptation makes, in a word."""

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

    def n_used(self, domain: str) -> int:  # noqa: ARG002
        """Return how many parameters reconstruct a domain: what fine-tuning everything would train."""
        return self.n_parameters

    def add_domain(self, name: str) -> None:
        """Make the parameters of a new domain, where the method has some per domain."""

    def look_at(self, task: Task) -> None:
        """Learn what `add_domain` needs to know of a new domain, where its start depends on the data."""

    def start_on(self, task: Task) -> None:
        """Fit what a new domain starts from to its measurements, without references."""

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
        return fit(self, tasks, settings, method_loss, folder=folder, report=report), {}

    def fit(
        self, tasks: Sequence[Task], settings: Settings, *, folder: Path | None = None, report: Report | None = None
    ) -> Training:
        """Train on the sources.

        Parameters
        ----------
        tasks
            The slices and masks of the source domains.
        settings
            How to train; see `ulda.methods.registry.method_settings`.
        folder
            Where the checkpoint and the log go; a training found there is continued.
        report
            Called after each step.
        """
        for task in tasks:
            if task.domain not in self.sources:
                known = ", ".join(self.sources) or "none"
                raise UldaError(f"{task.domain} is not a source of this {self.title}; its sources are: {known}")
        history, extra_steps = self.train_stages(tasks, settings, folder, report)
        return Training(history, _spent(settings, history, history[-1].step, extra_steps))

    def adapt(
        self, task: Task, settings: Settings, *, folder: Path | None = None, report: Report | None = None
    ) -> Training:
        """Adapt to a new domain, in place, and make it the one that is used.

        It ends with the parameters of the best validation, where the task has validation slices; the start takes part.
        A self-supervised one ends with the start unless the best is clearly better.
        The parameters are as for `fit`.
        """
        if task.domain in self.sources:
            raise UldaError(f"{task.domain} is a source of this {self.title}; give the new domain another name")
        device = next(self.parameters()).device
        self.look_at(task)
        self.add_domain(task.domain)
        self.to(device)
        self.start_on(task)
        start = copied(dict(self.named_parameters()))
        history = stages.adapt(
            self,
            task,
            settings,
            method_loss,
            trainable=lambda name: self.is_adapted(name, task.domain),
            folder=folder,
            report=report,
        )
        gain = task.keep_clear_gain(self, start)
        self.adapted_to = (*(name for name in self.adapted_to if name != task.domain), task.domain)
        self.domain = task.domain
        return Training(history, _spent(settings, history, total_steps(history), {}), gain)

    def save(self, folder: str | Path, facts: Mapping[str, Any] | None = None, *, overwrite: bool = False) -> None:
        """Write ``model.safetensors`` and ``model.json``, with what is known about the training."""
        header = {
            "method": self.name,
            "sizes": self.sizes,
            "sources": list(self.sources),
            "adapted_to": list(self.adapted_to),
            "domain": self.domain,
            "n_parameters": self.n_parameters,
            "card": dict(facts or {}),
        }
        write_model(folder, BASE_FORMAT, dict(self.named_parameters()), header, overwrite=overwrite)

    def save_adapted(self, folder: str | Path, card: dict[str, Any], facts: dict[str, Any], *, overwrite: bool) -> None:
        """Write what an adaptation made: here the whole model, with the card of its training and the facts of both."""
        self.save(folder, card | {"adaptation": facts}, overwrite=overwrite)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a model that `save` wrote."""
        folder = Path(folder)
        facts = read_facts(folder, BASE_FORMAT)
        if facts.get("method") != cls.name:
            raise UldaError(f"the model in {folder.name} is a {facts.get('method')}, not a {cls.name}")
        with reading(folder / "model.json", f"the description of a {cls.name}", "train it again or copy it again"):
            check_size(folder, BASE_FORMAT, facts["sizes"], lambda: cls._described(facts))
            model = cls._described(facts)
        restore_tensors(model, folder, BASE_FORMAT, facts)
        return model.eval()

    @classmethod
    def _described(cls, facts: dict[str, Any]) -> Self:
        """Build the untrained model that the facts of a file describe."""
        sources, adapted_to, domain = facts["sources"], facts["adapted_to"], facts["domain"]
        if not all(isinstance(name, str) for name in (*sources, *adapted_to)) or not isinstance(facts["card"], dict):
            raise TypeError("its domains are not names, or its card is missing")
        if domain not in (None, *sources, *adapted_to):
            raise ValueError(f"it is to use the domain {domain!r}, which it does not have")
        model = cls(sources=sources, **facts["sizes"])
        for name in adapted_to:
            model.add_domain(name)
        model.adapted_to, model.domain = tuple(adapted_to), domain
        return model


def method_loss(
    model: TrainableMethod, task: Task, batch: Batch, settings: Settings, step: int
) -> tuple[Tensor, Tensor]:
    """Return the loss of a method, for the loop: the mean over the parts of a batch that have one operator each."""
    found = [model.loss(task, part, settings, step) for part in task.parts(batch)]
    return torch.stack([loss for loss, _ in found]).mean(), torch.cat([x for _, x in found])


def _spent(settings: Settings, history: Sequence[Progress], steps: int, extra_steps: dict[str, int]) -> Spent:
    return Spent(steps, steps * settings.batch_size, round(total_seconds(history), 2), extra_steps)
