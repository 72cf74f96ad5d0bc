"""Meta: one learned regulariser for all tasks, with a weight per task (Bian et al. 2021)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ulda.errors import UldaError
from ulda.methods.lda import net_sizes
from ulda.methods.ulda import ULDA
from ulda.models import Adapter
from ulda.models.adapter import DerivedAdapter
from ulda.models.ulda import average_into, check_domain_name
from ulda.solvers import Proposal
from ulda.training.settings import Network, Settings, checked
from ulda.training.tasks import Batch, Task

SHARED = "shared"
"""The name of the last convolution and the step sizes that all tasks use."""

HELD_OUT_EVERY = 5
"""Every fifth training slice is for the weights of the tasks."""

_OWN_NUMBERS = 1 << 40
"""Keeps the random numbers of this module apart from those by which the loop draws its batches."""


class Meta(ULDA):
    """The net of `ulda.methods.lda.LDA`, shared by all; domain i multiplies the regulariser by ``sigmoid(w_i)``.

    Training alternates in cycles of ``inner_steps + 1`` steps. The inner steps move the shared weights (kernels and
    step sizes), with ``w_i`` as a constant; the outer step, the last of a cycle, moves only the ``w_i`` of its domain,
    with the shared weights as constants. They never see the same slices: of the training slices of a domain every
    fifth is held out for the outer steps. With fewer than five slices nothing can be held out, and both use them all.
    The validation slices of a task are not touched, so the choice of a model by them stays honest. All steps count in
    the budget. Each draws its own domain: the batches of the publication hold samples of all tasks.

    A new domain starts from the mean of the ``w_i`` of the sources and is trained in the same cycles: a few inner
    steps of the shared weights at a lower rate, then one of its ``w_i``. So all shared weights adapt, and from then on
    the sources are reconstructed by them, too; only the ``w_i`` of the sources stay as they are.

    The publication minimises the loss on the validation samples plus a small multiple of the squared gradient norm of
    the loss on the training samples, by derivatives of second order. Here the two levels are simply minimised in turns:
    the shared weights descend the loss of the training samples, the ``w_i`` that of the held-out ones.

    Parameters
    ----------
    inner_steps
        Steps of the shared weights before each step of a ``w_i``.
    sources
        The source domains.
    seed
        Seed of the noise on the start; the start equals that of `LDA` with the same seed.
    sizes
        Those of `ulda.methods.lda.LDA`.

    Examples
    --------
    >>> model = Meta(sources=["brain", "prostate"])
    >>> model.n_parameters, model.n_trainable(adapt=True)
    (14144, 14143)
    >>> model.weight("brain").item()
    0.5
    """

    name: ClassVar[str] = "meta"
    title: ClassVar[str] = "Meta"
    citation: ClassVar[str] = (
        "Bian, Chen, Ye and Zhang 2021, An optimization-based meta-learning model for MRI reconstruction with diverse "
        "dataset, J. Imaging 7(11)"
    )
    adapts: ClassVar[str] = "in turns, the shared weights at a lower rate and the weight of the domain"
    made: ClassVar[str] = "model"
    trains_mean: bool = False

    def __init__(self, *, inner_steps: int = 5, sources: Sequence[str] = (), seed: int = 0, **sizes: Any) -> None:
        if inner_steps < 1:
            raise UldaError(f"Meta needs at least 1 inner step, but it is asked for {inner_steps}")
        own = net_sizes(sizes)
        # twice the weight, since that of a task starts as one half
        super().__init__(seed=seed, **own | {"adapter_weight": 2 * own["adapter_weight"]})
        self.sizes = checked(Network, sizes).model_dump(exclude={"rank", "initialise"}) | {"inner_steps": inner_steps}
        self.inner_steps = inner_steps
        self._add(SHARED, rank=0, seed=seed + 1)
        self.task_weights = nn.ModuleDict()
        for source in sources:
            self.add_domain(source)
        self.sources = tuple(sources)

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains the model has weights for."""
        return tuple(self.task_weights)

    def weight(self, domain: str) -> Tensor:
        """Return ``sigmoid(w_i)``, by which a domain multiplies the regulariser."""
        if domain not in self.task_weights:
            known = ", ".join(self.domains) or "none"
            raise UldaError(f"this Meta has no weight for the domain {domain!r}; it has some for: {known}")
        weight: Tensor = self.task_weights[domain]()
        return weight

    def adapter(self, domain: str) -> Adapter:
        """Return the shared last convolution with the weight of a domain."""
        # a last kernel that is `weight` times as large makes r as many times as large, and r_eps, too, if eps is alike
        adapter, weight = self.prior.adapter(SHARED), self.weight(domain)
        return DerivedAdapter(adapter, lambda: weight * adapter.layer.kernel(), adapter.noise_scale)

    def proposal(self, domain: str) -> Proposal:  # noqa: ARG002
        """Return what proposes the steps, which is shared."""
        return self._own_proposal(SHARED)

    def add_domain(self, name: str, *, rank: int | None = None) -> None:  # noqa: ARG002
        """Add the weight of a domain: the mean of those of the sources, or the untrained start; a source keeps its own.

        It is the mean of the ``w_i``, before the sigmoid.
        """
        check_domain_name(name)
        if name in self.sources:
            return
        weight = TaskWeight()
        if self.sources:
            average_into(weight, [self.task_weights[source] for source in self.sources])
        self.task_weights[name] = weight

    def n_used(self, domain: str) -> int:  # noqa: ARG002
        """Return how many parameters reconstruct a domain: the shared ones and its weight."""
        return sum(parameter.numel() for parameter in self.shared_parameters()) + 1

    def save_adapted(self, folder: str | Path, card: dict[str, Any], facts: dict[str, Any], *, overwrite: bool) -> None:
        """Write the whole model, as all shared weights have adapted."""
        self.save(folder, card | {"adaptation": facts}, overwrite=overwrite)

    def start_on(self, task: Task) -> None:
        """Leave the start as it is: the weight of a new domain learns how strong the regulariser is to be."""

    def is_adapted(self, parameter: str, domain: str) -> bool:
        """Tell whether a parameter learns: the shared ones and the weight of the domain do, other weights do not."""
        return not parameter.startswith("task_weights.") or parameter.startswith(f"task_weights.{domain}.")

    def shared_parameters(self) -> Iterator[nn.Parameter]:
        """Return the kernels and step sizes that all domains use."""
        for part in (self.prior, self.proposals):
            yield from part.parameters()

    def is_outer(self, step: int) -> bool:
        """Tell whether a step moves the weight of a domain and not the shared ones."""
        return step % (self.inner_steps + 1) == self.inner_steps

    def loss(self, task: Task, batch: Batch, settings: Settings, step: int) -> tuple[Tensor, Tensor]:
        """Return the loss of an inner or an outer step, and the images without gradient.

        Slices of the batch that such a step must not see are replaced by ones that it may.
        """
        if settings.equilibrium is not None:
            raise UldaError("Meta changes its slices between the steps of a cycle; leave out equilibrium")
        inner, held_out = split_slices(task.n_slices)
        seed = _OWN_NUMBERS + settings.seed * 1_000_003 + step
        if self.is_outer(step):
            allowed, constant = held_out, self.shared_parameters()
        else:
            allowed, constant = inner, self.task_weights.parameters()
        with held_constant(constant):
            return super().loss(task, restricted(batch, allowed, seed), settings, step)


class TaskWeight(nn.Module):
    """The weight of one task, ``sigmoid(w)``; it starts as one half."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self) -> Tensor:
        """Return the weight."""
        return self.w.sigmoid()


def split_slices(n: int) -> tuple[list[int], list[int]]:
    """Return which of `n` training slices the inner and the outer steps see.

    Examples
    --------
    >>> split_slices(7)
    ([0, 1, 2, 3, 5, 6], [4])
    >>> split_slices(2)
    ([0, 1], [0, 1])
    """
    if n < HELD_OUT_EVERY:
        return [*range(n)], [*range(n)]
    held_out = range(HELD_OUT_EVERY - 1, n, HELD_OUT_EVERY)
    return [i for i in range(n) if i not in held_out], [*held_out]


def restricted(batch: Batch, allowed: Sequence[int], seed: int) -> Batch:
    """Replace the slices of a batch that are not allowed by ones that are, drawn evenly."""
    drawn = torch.randint(len(allowed), (len(batch.index),), generator=torch.Generator().manual_seed(seed)).tolist()
    index = (i if i in allowed else allowed[k] for i, k in zip(batch.index, drawn, strict=True))
    return replace(batch, index=tuple(index))


@contextmanager
def held_constant(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Compute without tracking these parameters; without a gradient, the optimiser does not move them."""
    tracked = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in tracked:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in tracked:
            parameter.requires_grad_(True)
