"""The unrolled network: one phase is one iteration of the solver.

There is no second implementation: `ULDA` builds the objective and the options of `ulda.solvers.elda` from its
parameters and calls it.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, overload

import torch
from torch import Tensor, nn

from ulda.errors import UldaError
from ulda.models import Adapter, FeatureExtractor, Regularizer
from ulda.models.extractor import OWN_KERNELS, ChannelMixing, DerivedAdapter
from ulda.models.layers import ComplexConv2d
from ulda.physics import Physics, normalise_measurement
from ulda.physics.spectrum import KNOTS, LINE_KNOTS
from ulda.solvers import Options, Reconstruction, Trace, elda
from ulda.solvers.trace import Callback
from ulda.training.settings import FEW_STEPS

OWN_RATES = ("adapters", "steps", "task_weights")
"""What parameters are called that learn at a rate of their own; see `ulda.training.loop.rate_factor`."""

ADDED_WEIGHTS = re.compile(r"mixings\.[^.]+\.weights\..+")
"""The weights of the kernels that a domain adds are called like this; they have a rate of their own, too."""

OF_A_DOMAIN = ("adapters", "steps", "mixings", "own_layers")
"""What parts of the network are called that each domain has for itself."""

ONE_STEP_PER_PHASE: dict[str, Any] = {"steps_per_phase": 1}
"""What the size is in files of before there was one."""

WITHOUT_GAINS: dict[str, Any] = {"line_steps": False, "channel_steps": False}
"""The same for gains by line and by channel."""

OWN_KERNELS_OF_MANY = 12
"""In an adaptation of more than `FEW_STEPS` a domain adds so many kernels to each layer of the feature extractor."""

_SHORTENED = 1e-3
"""By what part of its norm a kernel may change where it is rounded."""

_LOGARITHMS_OF_GAINS = ("log_lines", "log_channels")
"""The parameters of step sizes that are many."""

UNADAPTED = "unadapted"
"""The domain of a base that is used as it is: the mean of its source adapters."""

COMMON = ".common"
"""No domain, but the mean of the adapters and step sizes of the sources: what a new domain starts from."""

FIRST_GAINS = tuple(0.4 * ((knot**2 + 0.01) / 1.01) ** -0.5 for knot in KNOTS)
"""One over the frequency, roughly: what undoes the curvature of a total variation, which the network starts as."""


@dataclass(frozen=True)
class Architecture:
    """The sizes of the network, as they stand in its file.

    Attributes
    ----------
    width, depth, kernel_size, delta
        Of the feature extractor; see `ulda.models.FeatureExtractor`.
    phases
        T, the number of iterations.
    steps_per_phase
        How many learned steps a phase takes before it is tested; see `ulda.solvers.Options`.
    shared_steps
        One set of step sizes for all steps, as a solver that runs on beyond T needs; else one per step.
    adapter_weight
        The weight of the regulariser an adapter starts with.
    eps_ratio
        The smoothing, relative to the weight of the adapter: ``eps`` only means something relative to the features.
    tied_steps
        ``beta = alpha``: without gains of channels, proposals then come to rest close to the stationary points of the
        objective.
    spectral_steps
        Learn gains of the extra step by spatial frequency; see `ulda.solvers.Options`.
    line_steps
        Learn gains of the extra step by line of k-space, too.
    channel_steps
        Learn for each step how much the channels of every layer weigh in it.
    """

    width: int = 16
    depth: int = 4
    kernel_size: int = 3
    delta: float = 0.1
    phases: int = 3
    steps_per_phase: int = 5
    shared_steps: bool = False
    adapter_weight: float = 0.003
    eps_ratio: float = 0.1
    tied_steps: bool = False
    spectral_steps: bool = True
    line_steps: bool = True
    channel_steps: bool = True


class StepSizes(nn.Module):
    """The learned step sizes of one domain, kept in a form in which every real number is a valid one.

    Parameters
    ----------
    n_steps
        How many sets of step sizes.
    tied
        Let beta be alpha.
    spectral
        Have gains by spatial frequency; they start as `FIRST_GAINS`.
    lines
        Have gains by line of k-space; they start as 1.
    channels
        How many layers and channels have gains, which start as 1; None for none.
    alpha, kappa, momentum
        Where they start; beta starts as alpha. See `ulda.solvers.Options`.
    """

    def __init__(
        self,
        n_steps: int,
        tied: bool = False,
        spectral: bool = True,
        lines: bool = False,
        channels: tuple[int, int] | None = None,
        alpha: float = 1.0,
        kappa: float = 1.0,
        momentum: float = 0.9,
    ) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.full((n_steps,), math.log(alpha)))
        self.log_beta = None if tied else nn.Parameter(torch.full((n_steps,), math.log(alpha)))
        self.log_kappa = nn.Parameter(torch.full((n_steps,), math.log(kappa)))
        gains = torch.tensor(FIRST_GAINS).log().expand(n_steps, -1)
        self.log_spectrum = nn.Parameter(gains.clone()) if spectral else None
        self.log_lines = nn.Parameter(torch.zeros(n_steps, len(LINE_KNOTS))) if lines else None
        self.log_channels = None if channels is None else nn.Parameter(torch.zeros(n_steps, *channels))
        self.logit_momentum = nn.Parameter(torch.full((n_steps,), math.log(momentum / (1 - momentum))))

    def forward(self) -> dict[str, Tensor]:
        """Return the sizes of each step."""
        log_beta = self.log_alpha if self.log_beta is None else self.log_beta
        steps = {
            "alpha": self.log_alpha.exp(),
            "beta": log_beta.exp(),
            "kappa": self.log_kappa.exp(),
            "momentum": self.logit_momentum.sigmoid(),
        }
        gains = {"spectrum": self.log_spectrum, "lines": self.log_lines, "channels": self.log_channels}
        return steps | {name: logarithm.exp() for name, logarithm in gains.items() if logarithm is not None}


class ULDA(nn.Module):
    """A universal feature extractor with one adapter and one set of step sizes per domain.

    Parameters
    ----------
    architecture
        The sizes.
    sources
        The source domains; a new domain starts from the mean of their adapters and step sizes.
    seed
        Seed of the noise on the start.

    Attributes
    ----------
    sources
        The source domains.
    domain
        The domain whose adapter is used where none is named; None without one.

    Examples
    --------
    >>> import torch
    >>> from ulda.physics import CartesianMRI, cartesian_mask
    >>> model = ULDA(Architecture(width=4, depth=2, phases=3), ["knee"])
    >>> physics = CartesianMRI(cartesian_mask(32, 0.4))
    >>> y = physics.A(torch.ones(2, 32, 32, dtype=torch.complex64))
    >>> model(y, physics, domain="knee").shape
    torch.Size([2, 32, 32])
    """

    has_common_start: ClassVar[bool] = True
    """Whether a new domain starts from the mean of what the sources have for themselves."""

    def __init__(self, architecture: Architecture | None = None, sources: Sequence[str] = (), *, seed: int = 0) -> None:
        super().__init__()
        self.architecture = sizes = architecture or Architecture()
        self.extractor = FeatureExtractor(sizes.width, sizes.depth, sizes.kernel_size, sizes.delta, seed=seed)
        self.adapters = nn.ModuleDict()
        self.steps = nn.ModuleDict()
        self.mixings = nn.ModuleDict()
        self.own_layers = nn.ModuleDict()  # instead of a mixing: in earlier adapter files, and where it is asked for
        self.sources: tuple[str, ...] = ()
        self.domain: str | None = None
        for number, name in enumerate(sources):
            self.add_domain(name, seed=seed + 1 + number)
        self.sources = tuple(sources)

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains the model has adapters for."""
        return tuple(self.adapters)

    def add_domain(self, name: str, *, seed: int = 0) -> None:
        """Add an adapter and step sizes: the mean of those of the sources, or the untrained start."""
        check_domain_name(name)
        sizes = self.architecture
        adapter = Adapter(sizes.width, sizes.kernel_size, weight=sizes.adapter_weight, seed=seed)
        n_steps = 1 if sizes.shared_steps else sizes.phases * sizes.steps_per_phase
        channels = (sizes.depth + 1, sizes.width) if sizes.channel_steps else None
        steps = StepSizes(n_steps, sizes.tied_steps, sizes.spectral_steps, sizes.line_steps, channels)
        if self.sources:
            average_into(adapter, [self.adapters[source] for source in self.sources])
            average_into(steps, [self.steps[source] for source in self.sources])
        self.adapters[name], self.steps[name] = adapter, steps
        for own in (self.mixings, self.own_layers):
            if name in own:
                del own[name]

    def give_mixing(self, domain: str, rank: int = OWN_KERNELS) -> None:
        """Let a domain mix the channels of every layer of the feature extractor, and add kernels of its own.

        Until it learns, that changes nothing; see `ulda.models.extractor.ChannelMixing`.
        """
        sizes = self.architecture
        mixing = ChannelMixing(sizes.width, sizes.depth, rank, sizes.kernel_size)
        self.mixings[domain] = mixing.to(next(self.extractor.parameters()))  # where the model is, and as precise

    @torch.no_grad()
    def shorten(self, domain: str) -> None:
        """Round what a domain with many numbers has learned to half precision, in which its file is half as large.

        These are its kernels and the gains of its steps. What this would change by more than a thousandth of its norm
        stays as it is, and so do step sizes. A domain that has learned nothing is not rounded: kernels that add nothing
        are not worth their place, and are few again.
        """
        mixing = self.mixing(domain)
        gains = [parameter for name, parameter in self.steps[domain].named_parameters() if name in _LOGARITHMS_OF_GAINS]
        if mixing is None or mixing.rank == 0 or not (mixing.rank > OWN_KERNELS or gains):
            return
        if not any(bool(parameter.any()) for parameter in mixing.weights.parameters()):
            self.give_mixing(domain, min(mixing.rank, OWN_KERNELS))
            return
        for parameter in (*mixing.parameters(), *self.adapters[domain].parameters(), *gains):
            short = parameter.half().to(parameter.dtype)
            if (short - parameter).norm() <= _SHORTENED * parameter.norm():
                parameter.copy_(short)

    def give_own_layer(self, domain: str) -> None:
        """Make the adapter of a domain one of two layers.

        The domain gets a copy of the last layer of the feature extractor and uses it instead; until the copy learns,
        that changes nothing.
        """
        self.own_layers[domain] = copy.deepcopy(self.extractor.layers[-1])

    def active_domain(self, domain: str | None = None) -> str:
        """Return the domain to use: the one named, or the model's own."""
        chosen = domain or self.domain
        if chosen is None:
            raise UldaError(f"name a domain; the model has adapters for: {', '.join(self.domains) or 'none'}")
        return chosen

    def adapter(self, domain: str) -> Adapter:
        """Return the adapter of a domain, or the mean of those of the sources for `COMMON`."""
        if domain == COMMON:
            return mean_adapter([self.adapter(source) for source in self.sources])
        if domain not in self.adapters:
            known = ", ".join(self.domains) or "none"
            raise UldaError(f"the model has no adapter for the domain {domain!r}; it has: {known}")
        adapter = self.adapters[domain]
        assert isinstance(adapter, Adapter)
        return adapter

    def mixing(self, domain: str) -> ChannelMixing | None:
        """Return what a domain changes in the feature extractor; None if nothing."""
        if domain not in self.mixings:
            return None
        mixing = self.mixings[domain]
        assert isinstance(mixing, ChannelMixing)
        return mixing

    def extractor_of(self, domain: str) -> FeatureExtractor:
        """Return the feature extractor as a domain uses it, mixed or with a last layer of its own where it has that."""
        if (mixing := self.mixing(domain)) is not None:
            return self.extractor.mixed(mixing)
        if domain in self.own_layers:
            layer = self.own_layers[domain]
            assert isinstance(layer, ComplexConv2d)
            return self.extractor.with_last_layer(layer)
        return self.extractor

    def step_sizes(self, domain: str) -> dict[str, Tensor]:
        """Return the step sizes of a domain, per step, or the mean of those of the sources for `COMMON`."""
        if domain == COMMON:
            each = [dict(self.steps[source].named_parameters()) for source in self.sources]
            means = {name: torch.stack([one[name] for one in each]).mean(0) for name in each[0]}
            common: dict[str, Tensor] = torch.func.functional_call(self.steps[self.sources[0]], means)
            return common
        sizes: dict[str, Tensor] = self.steps[domain]()
        return sizes

    def regularizer(self, domain: str, *, recompute: bool = False) -> Regularizer:
        """Return the regulariser of a domain; it shares the parameters of the model."""
        return Regularizer(self.extractor_of(domain), self.adapter(domain), recompute=recompute)

    def options(self, domain: str, *, beyond: bool = False, **changes: Any) -> Options:
        """Return the options of the solver for a domain, for a run from the start or one that goes on beyond T."""
        kernel = self.adapter(domain).layer.kernel().detach()
        weight = float(kernel.norm()) / math.sqrt(kernel.shape[0])
        eps = self.architecture.eps_ratio * weight
        found = self.step_sizes(domain)
        phases, steps_per_phase = self.architecture.phases, self.architecture.steps_per_phase
        steps: dict[str, Any] = {name: sizes[-steps_per_phase:] if beyond else sizes for name, sizes in found.items()}
        options = Options(eps_0=eps, eps_tol=0.01 * eps, iterations=phases, steps_per_phase=steps_per_phase, **steps)
        return replace(options, **changes)

    @overload
    def forward(
        self, y: Tensor, physics: Physics, domain: str | None = ..., *, return_trace: Literal[False] = ...
    ) -> Tensor: ...

    @overload
    def forward(
        self, y: Tensor, physics: Physics, domain: str | None = ..., *, return_trace: Literal[True]
    ) -> tuple[Tensor, Trace]: ...

    def forward(
        self, y: Tensor, physics: Physics, domain: str | None = None, *, return_trace: bool = False
    ) -> Tensor | tuple[Tensor, Trace]:
        """Reconstruct measurements ``(n, H, W)`` or ``(n, coils, H, W)`` of any size and scale.

        Parameters
        ----------
        y, physics
            The measurements and their operator.
        domain
            Whose adapter and step sizes to use; the model's own `domain` if None.
        return_trace
            Return the record of the run, too; its numbers belong to the measurements scaled by
            `ulda.physics.normalise_measurement`.
        """
        if y.ndim != physics.signal_dims + 1:
            raise UldaError(f"the network needs a batch of measurements (n, ...), but got shape {tuple(y.shape)}")
        scaled, _, peak = normalise_measurement(y, physics)
        x, trace = self.solve(scaled, physics, self.active_domain(domain))
        return (x * peak, trace) if return_trace else x * peak

    def solve(
        self,
        y: Tensor,
        physics: Physics,
        domain: str,
        options: Options | None = None,
        *,
        x0: Tensor | None = None,
        callback: Callback | None = None,
        recompute: bool = False,
    ) -> tuple[Tensor, Trace]:
        """Run the solver on measurements that are scaled already, and return the images and the record.

        Parameters
        ----------
        y, physics
            Measurements whose zero-filled images peak at 1, and their operator.
        domain
            Whose adapter and step sizes to use.
        options
            The solver's options, in place of `options(domain)`.
        x0
            Where to start, instead of zero-filling.
        callback
            Called after every phase.
        recompute
            For training with less memory; see `ulda.models.Regularizer`.
        """
        regularizer = self.regularizer(domain, recompute=recompute)
        problem = Reconstruction(physics, y, regularizer)
        start = physics.A_adjoint(y) if x0 is None else x0
        return elda(problem, start, options or self.options(domain), callback)


def own_kernels(steps: int) -> int:
    """Return how many kernels a new domain adds to each layer: more where there are steps to teach them.

    Examples
    --------
    >>> own_kernels(80), own_kernels(100), own_kernels(160)
    (4, 4, 12)
    """
    return OWN_KERNELS if steps <= FEW_STEPS else OWN_KERNELS_OF_MANY


def belongs_to(parameter: str, domain: str, parts: Sequence[str] = OF_A_DOMAIN) -> bool:
    """Tell by its name whether a parameter is in one of the parts that a domain has for itself."""
    return parameter.startswith(tuple(f"{part}.{domain}." for part in parts))


def check_domain_name(name: str) -> None:
    """Refuse a name that cannot be a key of an `nn.ModuleDict`, or that parameters with a rate of their own have."""
    if not name or "." in name:
        raise UldaError(f"a domain needs a name without dots, but it is {name!r}")
    if hasattr(nn.ModuleDict(), name) or name in OWN_RATES:
        raise UldaError(f"a domain cannot be called {name!r}, which has a meaning of its own; give it another name")


def mean_adapter(adapters: Sequence[Adapter]) -> DerivedAdapter:
    """Return the mean of adapters, which learns as they do."""
    return DerivedAdapter(adapters[0], lambda: torch.stack([one.layer.kernel() for one in adapters]).mean(0))


@torch.no_grad()
def average_into(target: nn.Module, sources: Sequence[nn.Module]) -> None:
    """Set the parameters of a module to the mean of those of others of the same shape."""
    for name, parameter in target.named_parameters():
        parameter.copy_(torch.stack([source.get_parameter(name) for source in sources]).mean(0))
