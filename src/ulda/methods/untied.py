"""U-LDA with learned transposed kernels of their own, as in public research code: a step along the gradient of nothing.

It is here to measure what the true gradient is worth; it is not one of the methods that are compared.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ulda.errors import UldaError
from ulda.methods.ulda import ULDA
from ulda.models import Adapter, FeatureExtractor, Regularizer
from ulda.models.layers import ComplexConv2d, convolve, convolve_adjoint
from ulda.models.regularizer import stacked, unstacked
from ulda.models.ulda import MEAN, average_into, mean_adapter
from ulda.solvers import Options
from ulda.training.settings import Settings
from ulda.training.tasks import Batch, Task

NO_CERTIFICATE = (
    "Untied has no objective that its steps could descend, so there is no acceptance test and no certificate; "
    "use U-LDA for them"
)


class UntiedRegularizer(Regularizer):
    """The value of `ulda.models.Regularizer`, and in place of its gradient one with other transposed kernels.

    Parameters
    ----------
    extractor, adapter
        g and h.
    transposed_extractor, transposed_adapter
        Their shapes again; the way back uses the adjoints of these convolutions.

    Examples
    --------
    >>> g, h = FeatureExtractor(), Adapter()
    >>> x = torch.ones(2, 16, 16, dtype=torch.complex64)
    >>> torch.allclose(UntiedRegularizer(g, h, g, h).grad(x, 0.01), Regularizer(g, h).grad(x, 0.01), atol=1e-6)
    True
    >>> other = FeatureExtractor(seed=1)
    >>> torch.allclose(UntiedRegularizer(g, h, other, h).grad(x, 0.01), Regularizer(g, h).grad(x, 0.01), atol=1e-6)
    False
    """

    has_true_gradient: ClassVar[bool] = False

    def __init__(
        self,
        extractor: FeatureExtractor,
        adapter: Adapter,
        transposed_extractor: FeatureExtractor,
        transposed_adapter: Adapter,
    ) -> None:
        super().__init__(extractor, adapter)
        self.transposed_extractor, self.transposed_adapter = transposed_extractor, transposed_adapter

    def value_and_grad(self, x: Tensor, eps: float | Tensor) -> tuple[Tensor, Tensor]:
        """Return the value, and what stands for its gradient, both as plain differentiable operations."""
        images, eps = self._batch(x, eps)
        activation = self.extractor.activation
        assert self.adapter is not None
        s, shifted = stacked(images), list[Tensor]()
        *kernels, last = _kernels(self.extractor, self.adapter)
        for kernel in kernels:
            shifted.append(torch.relu(convolve(s, kernel) + activation.delta))
            s = activation.from_shifted(shifted[-1])
        q = convolve(s, last)
        squares = q.square().sum(1)
        length = squares.clamp_min(torch.finfo(squares.dtype).tiny).sqrt()
        value = torch.where(length <= eps, squares / (2 * eps), length - eps / 2).sum((-2, -1), dtype=torch.float64)
        *kernels, last = _kernels(self.transposed_extractor, self.transposed_adapter)
        back = convolve_adjoint(q / torch.maximum(length, eps)[:, None], last)
        for z, kernel in zip(reversed(shifted), reversed(kernels), strict=True):
            back = convolve_adjoint(activation.derivative_from_shifted(z) * back, kernel)
        return value.reshape(x.shape[:-2]), unstacked(back).reshape(x.shape)


def _kernels(extractor: FeatureExtractor, adapter: Adapter) -> list[Tensor]:
    layers = (layer for layer in (*extractor.layers, adapter.layer) if isinstance(layer, ComplexConv2d))
    return [layer.kernel() for layer in layers]


class Untied(ULDA):
    """U-LDA whose regulariser has learned kernels for the way back, beside those for the way there.

    The vector that its steps follow has twice the parameters and is, in general, the gradient of no function. So there
    is no objective that could descend, no acceptance test, and no certificate: asking for one is an error. Every step
    is taken, in training and later. At the start both sets of kernels are equal, so it starts where U-LDA does.

    Parameters
    ----------
    sources
        The source domains.
    seed
        Seed of the noise on the start.
    sizes
        Those of `ULDA`; `safeguard`, `rank` and `initialise` have no meaning here.

    Examples
    --------
    >>> model = Untied(sources=["brain", "prostate"])
    >>> sum(p.numel() for name, p in model.named_parameters() if not name.startswith("proposals."))
    46656
    """

    name: ClassVar[str] = "untied"
    title: ClassVar[str] = "U-LDA, untied"
    citation: ClassVar[str] = "the method of this package with learned transposed kernels; it has no certificate"
    adapts: ClassVar[str] = "the adapter, its transposed kernels and the step sizes of the domain"

    def __init__(self, *, sources: Sequence[str] = (), seed: int = 0, **sizes: Any) -> None:
        # an update of g would need transposed kernels, too
        super().__init__(seed=seed, **sizes | {"rank": 0, "initialise": 0.0, "safeguard": False})
        self.transposed = nn.ModuleDict({"extractor": copy.deepcopy(self.prior.extractor), "adapters": nn.ModuleDict()})
        for number, name in enumerate(sources):
            self._add(name, rank=0, seed=seed + 1 + number)
        self.sources = tuple(sources)

    def _add(self, name: str, rank: int, seed: int = 0) -> None:
        super()._add(name, rank, seed)
        transposed = copy.deepcopy(self.prior.adapter(name))
        if self.sources:
            average_into(transposed, [self._transposed_adapter(source) for source in self.sources])
        self._transposed_adapters[name] = transposed

    def is_adapted(self, parameter: str, domain: str) -> bool:
        """Tell whether a parameter learns: those of U-LDA, and the transposed kernels of the adapter with it."""
        return super().is_adapted(parameter.replace("transposed.", "prior.", 1), domain)

    def regularizer(self, domain: str, *, recompute: bool = False) -> Regularizer:  # noqa: ARG002
        """Return the regulariser of a domain; it shares the parameters of the model, and always keeps its features."""
        extractor = self.transposed["extractor"]
        assert isinstance(extractor, FeatureExtractor)
        return UntiedRegularizer(
            self.prior.extractor, self.adapter(domain), extractor, self._transposed_adapter(domain)
        )

    def options(self, domain: str, **changes: Any) -> Options:
        """Return the options of the solver, which takes every step; an acceptance test is refused."""
        if changes.get("safeguard"):
            raise UldaError(NO_CERTIFICATE)
        return super().options(domain, **changes)

    def loss(self, task: Task, batch: Batch, settings: Settings, step: int) -> tuple[Tensor, Tensor]:
        """Return the loss of one batch, and the images without gradient; it cannot ask for a descent."""
        if settings.penalty_weight > 0:
            raise UldaError(f"{NO_CERTIFICATE}, or set penalty_weight to 0")
        return super().loss(task, batch, settings, step)

    @property
    def _transposed_adapters(self) -> nn.ModuleDict:
        adapters = self.transposed["adapters"]
        assert isinstance(adapters, nn.ModuleDict)
        return adapters

    def _transposed_adapter(self, domain: str) -> Adapter:
        if domain == MEAN:
            return mean_adapter([self._transposed_adapter(source) for source in self.sources])
        adapter = self._transposed_adapters[domain]
        assert isinstance(adapter, Adapter)
        return adapter
