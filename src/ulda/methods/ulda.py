"""U-LDA: a universal prior whose reconstruction network is the solver, unrolled.

There is no second implementation: a phase of the network is an iteration of `ulda.solvers.elda`, called with the
regulariser and the proposal of a domain.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, overload

import torch
from torch import Tensor, nn

from ulda.errors import UldaError
from ulda.io.fingerprints import fingerprint
from ulda.io.untrusted import reading
from ulda.methods.strength import SLICES, Example, chosen_strength
from ulda.methods.trainable import TrainableMethod, method_loss
from ulda.models import Adapter, Regularizer, UniversalPrior
from ulda.models.files import ADAPTER_FORMAT, check_size, read_facts, restore_tensors, write_model
from ulda.models.ulda import MEAN, average_into, is_same_name, mean_adapter
from ulda.physics import Physics, low_resolution_phase, noise_level, normalise_measurement
from ulda.solvers import (
    AcceleratedProposal,
    GradientProposal,
    MeanProposal,
    Options,
    Proposal,
    Reconstruction,
    Trace,
    elda,
)
from ulda.solvers.total_variation import total_variation
from ulda.solvers.trace import Callback
from ulda.training import stages
from ulda.training.history import Progress, Report, total_steps
from ulda.training.settings import Network, Settings, checked
from ulda.training.tasks import Batch, Task
from ulda.training.unrolled import unrolled_loss

UNADAPTED = "unadapted"
"""The domain of a base that is used as it is: the mean of its source adapters."""

_EPS_RANGE = 0.01
"""The last smoothing, relative to the first."""

_START = (0.002, 100)
"""Weight and iterations of a total variation reconstruction as a start, for images whose zero-filled peak is 1."""

_ANY_DOMAIN = ("rank", "initialise", "safeguard", "choose_strength")
"""Sizes that an adapter does not depend on."""


class ULDA(TrainableMethod):
    """The universal prior with a proposal per domain: ``x_hat = model(y, physics, domain)``.

    Parameters
    ----------
    sources
        The source domains; a new domain starts from the mean of their adapters and step sizes.
    seed
        Seed of the noise on the start.
    sizes
        Those of `ulda.training.settings.Network`; a preset has some (`ulda.methods.registry.new_method`).

    Attributes
    ----------
    prior
        g, h and the low-rank updates.
    proposals
        What proposes the steps, with its learned step sizes, by domain.

    Examples
    --------
    >>> import torch
    >>> from ulda.physics import CartesianMRI, cartesian_mask
    >>> model = ULDA(sources=["knee"], width=4, depth=2, phases=3)
    >>> physics = CartesianMRI(cartesian_mask(32, 0.4))
    >>> y = physics.A(torch.ones(2, 32, 32, dtype=torch.complex64))
    >>> model(y, physics, domain="knee").shape
    torch.Size([2, 32, 32])
    """

    name: ClassVar[str] = "ulda"
    title: ClassVar[str] = "U-LDA"
    citation: ClassVar[str] = "the method of this package; see docs/paper.md"
    adapts: ClassVar[str] = "the adapter and the step sizes of the domain"
    made: ClassVar[str] = "adapter"
    trains_mean: bool = True

    def __init__(self, *, sources: Sequence[str] = (), seed: int = 0, **sizes: Any) -> None:
        self.network = checked(Network, sizes)
        super().__init__((), self.network.model_dump())
        net = self.network
        extractor = net.width, net.depth, net.kernel_size, net.delta
        self.prior = UniversalPrior(*extractor, net.adapter_weight, noise_aware=net.noise_aware, seed=seed)
        self.proposals = nn.ModuleDict()
        for number, name in enumerate(sources):
            self._add(name, rank=0, seed=seed + 1 + number)
        self.sources = tuple(sources)
        self.strengths: dict[str, float] = {}

    @property
    def n_phases(self) -> int:
        """T."""
        return self.network.phases

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains the model has adapters for."""
        return tuple(self.proposals)

    def add_domain(self, name: str, *, rank: int | None = None) -> None:
        """Add what a domain has of its own: the means of those of the sources, and an update of g that is zero.

        Parameters
        ----------
        name
            The domain; a source keeps what it has.
        rank
            The rank of the update; that of the network if None.
        """
        if name not in self.sources:
            self._add(name, self.network.rank if rank is None else rank)

    def start_on(self, task: Task) -> None:
        """Choose how strong the regulariser of a new domain is, as `calibrate` does."""
        numbers = sorted({round(i * (task.n_slices - 1) / max(1, SLICES - 1)) for i in range(SLICES)})
        self.calibrate(task.domain, [task.measure(Batch(0, (number,), 0))[:2] for number in numbers])

    def scale(self, domain: str, strength: float) -> None:
        """Make the regulariser of a domain so many times as strong, in place."""
        if not 0 < strength < math.inf:
            raise UldaError(f"the strength must be positive and finite, but it is {strength}")
        with torch.no_grad():
            for parameter in self.prior.adapter(domain).layer.parameters():
                parameter.mul_(strength)

    def calibrate(self, domain: str, examples: Iterable[Example]) -> float:
        """Choose how strong the regulariser of a new domain is to be, where the network does so, and return it.

        The examples are measurements of its kind, with their operators and without references; 1 is as trained.
        """
        strength = chosen_strength(self, domain, examples) if self.network.choose_strength else 1.0
        self.scale(domain, strength)
        self.strengths[domain] = strength
        return strength

    def _add(self, name: str, rank: int, seed: int = 0) -> None:
        self.prior.add_domain(name, rank=rank, mean_of=self.sources, seed=seed)
        proposal = self._new_proposal()
        if self.sources:
            average_into(proposal, [self.proposals[source] for source in self.sources])
        self.proposals[name] = proposal.to(next(self.prior.parameters()))

    def _new_proposal(self) -> Proposal:
        net = self.network
        n_steps = 1 if net.shared_steps else net.phases * net.steps_per_phase
        if net.proposal == "accelerated":
            return AcceleratedProposal(n_steps, net.steps_per_phase)
        return GradientProposal(n_steps)

    def active_domain(self, domain: str | None = None) -> str:
        """Return the domain to use: the one named, or the model's own."""
        chosen = domain or self.domain
        if chosen is None:
            raise UldaError(f"name a domain; the model has adapters for: {', '.join(self.domains) or 'none'}")
        return chosen

    def adapter(self, domain: str) -> Adapter:
        """Return the adapter of a domain, or for `MEAN` the mean of those of the sources, which learns as they do."""
        if domain == MEAN:
            return mean_adapter([self.prior.adapter(source) for source in self.sources])
        return self.prior.adapter(domain)

    def proposal(self, domain: str) -> Proposal:
        """Return what proposes the steps of a domain, or for `MEAN` the mean of those of the sources."""
        if domain == MEAN:
            return MeanProposal([self._own_proposal(source) for source in self.sources])
        return self._own_proposal(domain)

    def _own_proposal(self, domain: str) -> Proposal:
        proposal = self.proposals[domain]
        assert isinstance(proposal, Proposal)
        return proposal

    def regularizer(self, domain: str, *, recompute: bool = False) -> Regularizer:
        """Return the regulariser of a domain; it shares the parameters of the model."""
        return Regularizer(self.prior.extractor_of(domain), self.adapter(domain), recompute=recompute)

    def options(self, domain: str, **changes: Any) -> Options:
        """Return the options of the solver for a domain; eps is relative to the size of the adapter's kernels."""
        kernel = self.adapter(domain).layer.kernel().detach()
        eps = self.network.eps_ratio * float(kernel.norm()) / math.sqrt(kernel.shape[0])
        options = Options(
            eps_0=eps, eps_tol=_EPS_RANGE * eps, iterations=self.n_phases, safeguard=self.network.safeguard
        )
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
        scaled, physics, peak = self.prepared(y, physics)
        x, trace = self.solve(scaled, physics, self.active_domain(domain))
        x = physics.shown(x, scaled) * peak
        return (x, trace) if return_trace else x

    def prepared(self, y: Tensor, physics: Physics) -> tuple[Tensor, Physics, Tensor]:
        """Return what the solver works on: scaled measurements, their operator with phase and noise, and the scale.

        An operator that knows of no noise is of measurements whose noise is to be kept; it is estimated then.
        """
        scaled, zero_filled, peak = normalise_measurement(y, physics)
        phase = low_resolution_phase(zero_filled, self.network.phase_lines) if self.network.phase_lines else None
        if not self.network.noise_aware:
            return scaled, physics.with_knowledge(phase), peak
        if physics.noise is not None:
            return scaled, physics.with_knowledge(phase, physics.noise / peak.flatten()), peak
        noise = noise_level(scaled, physics.mask, physics.axis)
        return scaled, physics.with_knowledge(phase, noise, keeps_noise=True), peak

    @torch.no_grad()
    def start(self, y: Tensor, physics: Physics) -> Tensor:
        """Return where the solver starts, for measurements that are scaled already."""
        zero_filled = physics.A_adjoint(y)
        if self.network.start == "zero-filling":
            return zero_filled
        return total_variation(physics.normal_operator(), zero_filled, *_START, norm=physics.norm())

    def solve(
        self,
        y: Tensor,
        physics: Physics,
        domain: str,
        options: Options | None = None,
        *,
        proposal: Proposal | None = None,
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
        options, proposal
            In place of `options(domain)` and `proposal(domain)`.
        x0
            Where to start, instead of `start`.
        callback
            Called after every phase.
        recompute
            For training with less memory; see `ulda.models.Regularizer`.
        """
        problem = Reconstruction(physics, y, self.regularizer(domain, recompute=recompute))
        start = self.start(y, physics) if x0 is None else x0
        return elda(problem, start, proposal or self.proposal(domain), options or self.options(domain), callback)

    def is_adapted(self, parameter: str, domain: str) -> bool:
        """Tell whether a parameter learns in step 2: those of the domain do, g is frozen."""
        parts = ("prior.adapters", "prior.updates", "proposals")
        return parameter.startswith(tuple(f"{part}.{domain}." for part in parts))

    def n_used(self, domain: str) -> int:
        """Return how many parameters fine-tuning everything would train: g, and h and the step sizes of a domain."""
        parts = (self.prior.extractor, self.prior.adapters[domain], self.proposals[domain])
        return sum(parameter.numel() for part in parts for parameter in part.parameters())

    def loss(self, task: Task, batch: Batch, settings: Settings, step: int) -> tuple[Tensor, Tensor]:
        """Return the loss of one batch, and the images without gradient."""
        return unrolled_loss(self, task, batch, settings, step)

    def train_stages(
        self, tasks: Sequence[Task], settings: Settings, folder: Path | None, report: Report | None
    ) -> tuple[list[Progress], dict[str, int]]:
        """Train with settings, after step 0 where it is wanted; see `TrainableMethod.train_stages`."""
        steps = round(self.network.initialise * settings.steps)
        if steps == 0:
            return super().train_stages(tasks, settings, folder, report)
        place = None if folder is None else folder / "initialise"
        alone = settings.changed(steps=steps)
        before = stages.initialise(self, tasks, alone, method_loss, folder=place, report=report)
        after, extra_steps = super().train_stages(tasks, settings, folder, report)
        return before + after, extra_steps | {"initialise": total_steps(before)}

    @property
    def fingerprint(self) -> str:
        """The SHA-256 that names a base: its g and what of its sizes an adapter depends on.

        Adapters depend on nothing else, so adding one does not change it.
        """
        weights = fingerprint(sorted(self.prior.extractor.named_parameters()))
        sizes = json.dumps(self.network.model_dump(exclude=set(_ANY_DOMAIN)), sort_keys=True)
        return hashlib.sha256(f"{sizes}|{weights}".encode()).hexdigest()

    def domain_fingerprint(self, domain: str) -> str:
        """Return the SHA-256 that names all that reconstructs a domain: its regulariser and its proposal."""
        named = dict(self.regularizer(domain).materialize().named_parameters())
        steps = self.proposals[domain].named_parameters()
        return fingerprint(sorted((named | {f"proposal.{name}": parameter for name, parameter in steps}).items()))

    def save_adapter(
        self, domain: str, folder: str | Path, facts: dict[str, Any] | None = None, *, overwrite: bool = False
    ) -> None:
        """Write ``adapter.safetensors`` and ``adapter.json`` of one domain.

        Parameters
        ----------
        domain
            Whose adapter to write.
        folder
            Where to write; made if it does not exist.
        facts
            What is known about it: mask, normalisation, numbers of slices and subjects, metrics.
        overwrite
            Replace existing files.
        """
        self.prior.adapter(domain)
        n_trained, n_used = self.n_adapted(domain), self.n_used(domain)
        header = {
            "base": self.fingerprint,
            "domain": domain,
            "rank": self.prior.rank(domain),
            "strength": self.strengths.get(domain, 1.0),
            "parameters": {"trained": n_trained, "of": n_used, "percent": round(100 * n_trained / n_used, 1)},
        }
        tensors = dict(self._parts_of(domain).named_parameters())
        write_model(folder, ADAPTER_FORMAT, tensors, header | (facts or {}), overwrite=overwrite)

    def load_adapter(self, folder: str | Path) -> str:
        """Add an adapter from its folder and return its domain; an adapter of another base is refused."""
        folder = Path(folder)
        facts = read_facts(folder, ADAPTER_FORMAT)
        if facts.get("base") != self.fingerprint:
            raise UldaError(
                f"the adapter in {folder.name} belongs to the base {str(facts.get('base'))[:12]}, "
                f"but this base is {self.fingerprint[:12]}; load it on the base it was trained on"
            )
        if not isinstance(domain := facts.get("domain"), str):
            raise UldaError(f"adapter.json in {folder.name} does not say whose adapter it is")
        if any(is_same_name(domain, taken) for taken in (*self.sources, UNADAPTED)):
            raise UldaError(f"the adapter in {folder.name} has the name {domain!r}, which belongs to the base")
        with reading(folder / "adapter.json", "the description of an adapter", "adapt again or copy it again"):
            check_size(folder, ADAPTER_FORMAT, {}, lambda: self._described_adapter(facts))
        self.add_domain(domain, rank=facts.get("rank"))
        restore_tensors(self._parts_of(domain), folder, ADAPTER_FORMAT, facts)
        return domain

    def _described_adapter(self, facts: dict[str, Any]) -> nn.ModuleDict:
        """Build the parts that an adapter file describes, without the parameters of this model."""
        sizes = self.network.model_dump(exclude={"rank"})
        probe = ULDA(**sizes)
        probe._add(facts["domain"], facts.get("rank", 0))
        return probe._parts_of(facts["domain"])

    def save_adapted(self, folder: str | Path, card: dict[str, Any], facts: dict[str, Any], *, overwrite: bool) -> None:  # noqa: ARG002
        """Write what an adaptation made: an adapter, for `load_adapter` on the base it belongs to."""
        assert self.domain is not None
        self.save_adapter(self.domain, folder, facts, overwrite=overwrite)

    def _parts_of(self, domain: str) -> nn.ModuleDict:
        parts = nn.ModuleDict({"adapter": self.prior.adapters[domain], "proposal": self.proposals[domain]})
        if domain in self.prior.updates:
            parts["low_rank"] = self.prior.updates[domain]
        return parts
