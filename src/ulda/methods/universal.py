"""U-LDA, our own method, behind the interface of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

from torch import Tensor

from ulda.errors import UldaError
from ulda.methods.trainable import TrainableMethod
from ulda.models.extractor import OWN_KERNELS
from ulda.solvers import Options
from ulda.training import stages
from ulda.training.files import checked_rank
from ulda.training.history import Progress, Report, total_steps
from ulda.training.loop import Batch, Task, step_loss
from ulda.training.network import (
    OF_A_DOMAIN,
    ONE_STEP_PER_PHASE,
    OWN_KERNELS_OF_MANY,
    ULDA,
    WITHOUT_GAINS,
    Architecture,
    belongs_to,
    own_kernels,
)
from ulda.training.settings import FEW_STEPS, OF_NEW_DOMAINS, Settings, of_new_domains

Adapted = Literal[
    "kernels, mixing, adapter and steps",
    "mixing, adapter and steps",
    "layer, adapter and steps",
    "adapter and steps",
    "steps",
]

_UNSAID = {"initialise": 0.0, "augment": False, "adapt_only": "adapter and steps", "safeguard": True}
"""What the options of a model are whose file does not say them."""


class UniversalLDA(ULDA, TrainableMethod):
    """A universal feature extractor, with an adapter and step sizes per domain; see `ulda.training.ULDA`.

    Parameters
    ----------
    sources
        The source domains.
    seed
        Seed of the noise on the start.
    initialise
        Step 0: before the training, train the feature extractor on each source alone and start from the mean of the
        results. Each gets this fraction of the steps of the training, which count as extra steps; 0 for no step 0.
    augment
        In an adaptation, spend two thirds of the steps on further-undersampled versions of the mask.
    adapt_only
        What learns in an adaptation: ``kernels, mixing, adapter and steps``, where the domain mixes the channels of
        every layer of the feature extractor and adds a few kernels of its own to each; ``mixing, adapter and steps``,
        where it adds none; ``layer, adapter and steps``, where it has the last layer for its own; ``adapter and
        steps``, where it uses the common one; or ``steps``, the step sizes alone, with the mean of the source adapters
        as the adapter.
    safeguard
        Reconstruct with the acceptance test. Without it every proposal is taken and nothing is promised.
    sizes
        Those of `ulda.training.Architecture`.

    Examples
    --------
    >>> model = UniversalLDA(sources=["brain", "prostate"])
    >>> model.n_parameters, model.n_trainable(adapt=True)
    (26478, 20351)
    """

    name: ClassVar[str] = "ulda"
    title: ClassVar[str] = "U-LDA"
    citation: ClassVar[str] = "the method of this package; see docs/theory.md"
    adapts: ClassVar[str] = "the adapter, the mixing of channels, the added kernels and the step sizes of the domain"
    training_defaults: ClassVar[Mapping[str, Any]] = {"learning_rate": 5e-3}
    adaptation_defaults: ClassVar[Mapping[str, Any]] = OF_NEW_DOMAINS
    earlier_sizes: ClassVar[Mapping[str, Any]] = {
        "adapt_only": _UNSAID["adapt_only"],
        **ONE_STEP_PER_PHASE,
        **WITHOUT_GAINS,
    }

    def __init__(
        self,
        *,
        sources: Sequence[str] = (),
        seed: int = 0,
        initialise: float = 0.0,
        augment: bool = False,
        adapt_only: Adapted = "kernels, mixing, adapter and steps",
        safeguard: bool = True,
        **sizes: Any,
    ) -> None:
        if not 0 <= initialise <= 1:
            raise UldaError(f"initialise is a fraction of the steps, from 0 to 1, but it is {initialise:g}")
        if adapt_only not in get_args(Adapted):
            raise UldaError(f"adapt_only must be one of: {', '.join(get_args(Adapted))}; but it is {adapt_only!r}")
        architecture = Architecture(**sizes)
        super().__init__(architecture, sources, seed=seed)
        self.initialise, self.augment = initialise, augment
        self.adapt_only, self.safeguard = adapt_only, safeguard
        options = {
            "initialise": initialise,
            "augment": augment,
            "adapt_only": adapt_only,
            "safeguard": safeguard,
        }
        given = {name: value for name, value in options.items() if value != _UNSAID[name]}
        self.sizes = asdict(architecture) | given

    def add_domain(self, name: str, *, seed: int = 0) -> None:
        """Add what a domain has of its own; one that is no source gets the mixing or layer that is to learn, too."""
        super().add_domain(name, seed=seed)
        if self.sources and "mixing" in self.adapt_only:
            self.give_mixing(name, OWN_KERNELS_OF_MANY if self.adds_kernels else 0)
        if self.sources and self.adapt_only.startswith("layer"):
            self.give_own_layer(name)

    @property
    def adds_kernels(self) -> bool:
        """Whether a new domain adds kernels of its own to each layer."""
        return self.adapt_only.startswith("kernels")

    def _adds_many_kernels(self, steps: int) -> bool:
        return self.adds_kernels and steps > FEW_STEPS

    def adapted_sizes(self, steps: int) -> Mapping[str, Any]:
        """Return how many kernels a domain adds to each layer in so many steps, where it adds more than usual."""
        return {"kernels": own_kernels(steps)} if self._adds_many_kernels(steps) else {}

    def own_facts(self) -> Mapping[str, Any]:
        """Return how many kernels each new domain adds to each layer."""
        mixings = {name: self.mixing(name) for name in self.mixings}
        return {"kernels": {name: mixing.rank for name, mixing in mixings.items() if mixing is not None}}

    @classmethod
    def _described(cls, facts: dict[str, Any]) -> Self:
        model = super()._described(facts)
        # in files of before all new domains add the same
        earlier = {name: OWN_KERNELS for name in model.adapted_to if model.adds_kernels}
        kernels = facts.get("kernels", earlier)
        if not isinstance(kernels, dict):
            raise TypeError("its numbers of kernels are not told by domain")
        for name, rank in kernels.items():
            model.give_mixing(name, checked_rank(rank))
        return model

    def is_adapted(self, parameter: str, domain: str) -> bool:
        """Tell whether a parameter learns: those of the domain, or its step sizes alone."""
        return belongs_to(parameter, domain, ("steps",) if self.adapt_only == "steps" else OF_A_DOMAIN)

    def adaptation_settings(self, steps: int, batch_size: int) -> Mapping[str, Any]:
        """Return the settings of an adaptation with so many steps, and so many slices in each."""
        return of_new_domains(self.adaptation_defaults, batch_size, many_kernels=self._adds_many_kernels(steps))

    def options(self, domain: str, *, beyond: bool = False, **changes: Any) -> Options:
        """Return the options of the solver for a domain, for a run from the start or one that goes on beyond T."""
        return super().options(domain, beyond=beyond, **({"safeguard": self.safeguard} | changes))

    def loss(self, task: Task, batch: Batch, settings: Settings, step: int) -> tuple[Tensor, Tensor]:
        """Return the loss of one batch, and the images without gradient."""
        return step_loss(self, task, batch, settings, step)

    def train_stages(
        self, tasks: Sequence[Task], settings: Settings, folder: Path | None, report: Report | None
    ) -> tuple[list[Progress], dict[str, int]]:
        """Train with settings, after step 0 where it is wanted; see `TrainableMethod.train_stages`."""
        if self.initialise == 0:
            return super().train_stages(tasks, settings, folder, report)
        # nothing is chosen by validations there
        steps = max(1, round(self.initialise * settings.steps))
        alone = settings.model_copy(update={"steps": steps, "keep_best": False, "validate_every": 0})
        place = None if folder is None else folder / "initialise"
        before = stages.initialise(self, tasks, alone, folder=place, report=report)
        after, extra_steps = super().train_stages(tasks, settings, folder, report)
        return before + after, extra_steps | {"initialise": total_steps(before)}

    def adapt_stages(
        self, task: Task, settings: Settings, folder: Path | None, report: Report | None
    ) -> list[Progress]:
        """Adapt with settings, on further-undersampled data first where that is wanted."""
        if self.adds_kernels:
            self.give_mixing(task.domain, own_kernels(settings.steps))
        if not self.augment:
            history = super().adapt_stages(task, settings, folder, report)
            self.shorten(task.domain)
            return history
        return stages.adapt(
            self,
            task,
            settings,
            trainable=lambda name: self.is_adapted(name, task.domain),
            folder=folder,
            report=report,
        )
