"""U-LDA, our own method, behind the interface of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

from torch import Tensor

from ulda.baselines.trainable import TrainableMethod
from ulda.training.loop import Batch, Task, step_loss
from ulda.training.network import ULDA, Architecture
from ulda.training.settings import Settings


class UniversalLDA(ULDA, TrainableMethod):
    """A universal feature extractor, with an adapter and step sizes per domain; see `ulda.training.ULDA`.

    Parameters
    ----------
    sources
        The source domains.
    seed
        Seed of the noise on the start.
    sizes
        Those of `ulda.training.Architecture`.

    Examples
    --------
    >>> model = UniversalLDA(sources=["brain", "prostate"])
    >>> model.n_parameters, model.n_trainable(adapt=True)
    (23448, 4668)
    """

    name: ClassVar[str] = "ulda"
    title: ClassVar[str] = "U-LDA"
    citation: ClassVar[str] = "the method of this package; see docs/theory.md"
    adapts: ClassVar[str] = "the adapter and the step sizes of the domain"
    training_defaults: ClassVar[Mapping[str, Any]] = {"learning_rate": 5e-3}
    adaptation_defaults: ClassVar[Mapping[str, Any]] = {"learning_rate": 6e-3}

    def __init__(self, *, sources: Sequence[str] = (), seed: int = 0, **sizes: Any) -> None:
        architecture = Architecture(**sizes)
        super().__init__(architecture, sources, seed=seed)
        self.sizes = asdict(architecture)

    def is_adapted(self, parameter: str, domain: str) -> bool:
        """Only the adapter and the step sizes of the domain learn."""
        return parameter.startswith((f"adapters.{domain}.", f"steps.{domain}."))

    def loss(self, task: Task, batch: Batch, settings: Settings, step: int) -> tuple[Tensor, Tensor]:
        """Return the loss of one batch, and the images without gradient."""
        return step_loss(self, task, batch, settings, step)
