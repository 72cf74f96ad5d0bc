"""LDA: a learned regulariser per domain, minimised by the solver of this package (Chen et al. 2021)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor, nn

from ulda.errors import UldaError
from ulda.methods.trainable import TrainableMethod
from ulda.methods.ulda import ULDA
from ulda.physics import Physics
from ulda.training.history import chooses
from ulda.training.settings import Network, Settings, checked
from ulda.training.tasks import Batch, Task
from ulda.training.validation import validate

_COMPARED_SLICES = 8
"""On so many training slices of a new domain the nets of the sources are compared, at most."""


def net_sizes(sizes: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes of U-LDA for a net without adapters: its last convolution, which is linear, has their part.

    Examples
    --------
    >>> net_sizes({"depth": 4})["depth"]
    3
    """
    network = checked(Network, sizes)
    if network.depth < 2:
        message = "LDA needs at least 2 convolutions, the last one without activation, but its depth is"
        raise UldaError(f"{message} {network.depth}")
    return network.model_dump() | {"depth": network.depth - 1, "rank": 0, "initialise": 0.0}


class LDA(TrainableMethod):
    """A regulariser and step sizes of its own for every domain; nothing is shared between them.

    The features are ``depth`` complex convolutions with the smoothed ReLU between them. That is the network of
    `ulda.training.ULDA` with one layer less and a single adapter as the last convolution, solved by the same algorithm
    with the true gradient. A training divides its steps among the nets: a step sees one domain and moves its net only.

    A new domain starts from a copy of the net of one source, the one that reconstructs the domain's training slices
    best, and all of that copy is trained at a lower rate.

    The publication takes the better one of two candidates in every phase and learns few step sizes; here the solver is
    the one of this package (acceptance test, momentum, step sizes per phase), and a net starts as a filter bank.

    Parameters
    ----------
    sources
        The source domains; each has a net.
    seed
        Seed of the noise on the start, which is the same for all nets.
    sizes
        Those of `ulda.training.settings.Network`; `depth` counts the last convolution, and `rank` and `initialise`
        have no meaning here.

    Attributes
    ----------
    nets
        The net of each domain.
    nearest
        The source whose net a new domain starts from: the first one, until an adaptation has compared them.

    Examples
    --------
    >>> model = LDA(sources=["brain", "prostate"])
    >>> model.n_parameters, model.n_trainable(adapt=True)
    (28284, 14142)
    """

    name: ClassVar[str] = "lda"
    title: ClassVar[str] = "LDA"
    citation: ClassVar[str] = (
        "Chen, Liu, Ye and Zhang 2021, Learnable descent algorithm for nonsmooth nonconvex image reconstruction, "
        "SIAM J. Imaging Sci. 14(4)"
    )
    adapts: ClassVar[str] = "a copy of the nearest source's net, at a lower rate"

    def __init__(self, *, sources: Sequence[str] = (), seed: int = 0, **sizes: Any) -> None:
        self.net_sizes = net_sizes(sizes)
        super().__init__(sources, checked(Network, sizes).model_dump(exclude={"rank", "initialise"}))
        self.seed = seed
        self.nearest = self.sources[0] if self.sources else None
        self.nets = nn.ModuleDict({source: self._untrained(source) for source in self.sources})

    def net(self, domain: str | None = None) -> ULDA:
        """Return the net of a domain; that of `self.domain` if None."""
        chosen, known = domain or self.domain, ", ".join(self.nets) or "none"
        if chosen is None:
            raise UldaError(f"name a domain; this LDA has nets for: {known}")
        if chosen not in self.nets:
            raise UldaError(f"this LDA has no net for the domain {chosen!r}; it has nets for: {known}")
        net = self.nets[chosen]
        assert isinstance(net, ULDA)
        return net

    def forward(self, y: Tensor, physics: Physics, domain: str | None = None) -> Tensor:
        """Reconstruct measurements ``(n, H, W)`` or ``(n, coils, H, W)`` of any size and scale."""
        return self.net(domain)(y, physics)

    def add_domain(self, name: str) -> None:
        """Add a net: a copy of the nearest source's, or an untrained one without sources; a source keeps its own."""
        if self.nearest is None:
            self.nets[name] = self._untrained(name)
        elif name not in self.sources:
            net = copy.deepcopy(self.net(self.nearest))
            net.add_domain(name)  # it starts from the mean of the sources of this net, which has one
            del net.prior.adapters[self.nearest], net.proposals[self.nearest]
            net.sources, net.domain = (name,), name
            self.nets[name] = net

    def is_adapted(self, parameter: str, domain: str) -> bool:
        """All parameters of the domain's own net learn."""
        return parameter.startswith(f"nets.{domain}.")

    def loss(self, task: Task, batch: Batch, settings: Settings, step: int) -> tuple[Tensor, Tensor]:
        """Return the loss of one batch, and the images without gradient."""
        return self.net(task.domain).loss(task, batch, settings, step)

    def look_at(self, task: Task) -> None:
        """Find the nearest source of a new domain."""
        self.nearest = self.nearest_source(task)

    def nearest_source(self, task: Task) -> str | None:
        """Return the source whose net reconstructs the training slices best, by their mean PSNR; None without one.

        With many slices, up to 8 that are spread over them decide, measured with the mask that the task is judged with.
        """
        few = task.compared(_COMPARED_SLICES)
        scores = validate(self, [replace(few, domain=source) for source in self.sources])
        return max(scores, key=lambda source: chooses(scores[source]), default=None)

    def _untrained(self, domain: str) -> ULDA:
        net = ULDA(sources=[domain], seed=self.seed, **self.net_sizes)
        net.domain = domain
        return net
