"""U-MRI: one DnCn for all domains, with a normalisation per domain, taught by a DnCn per domain (Liu et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ulda.errors import UldaError
from ulda.methods.dncn import SLOPE, DnCn
from ulda.models.ulda import average_into, check_domain_name
from ulda.physics import Physics
from ulda.training.history import Progress, Report, counted_on, total_seconds
from ulda.training.loop import fit
from ulda.training.settings import Settings
from ulda.training.supervised import supervised_loss
from ulda.training.tasks import Batch, Task


class UMRI(DnCn):
    """A `DnCn` whose convolutions all domains share, with an `ASPIN` of each domain after every inner convolution.

    The first half of a training is supervised. In the second half the network is to look where the teachers look, too:
    a `DnCn` per source, trained before on its own domain, all of them together for as many steps as the network itself
    (see `distillation_loss`). An adaptation trains the normalisations of the new domain alone, without a teacher; they
    start as the mean of those of the sources. Its rate is 1e-2 by default: scales of about 1 hardly move at a rate for
    convolutions in the hundreds of steps that are usual here.

    The inner convolutions have no bias, which the normalisation would take away again.

    Parameters
    ----------
    filters, layers, cascades
        As for `DnCn`, the teachers' as well.
    distill_weight
        Weight of `distillation_loss` in the second half.
    sources
        The source domains.
    seed
        Seed of the start, which is that of `DnCn`; the normalisations start with scale 1 and shift 0.

    Examples
    --------
    >>> import torch
    >>> from ulda.methods.umri import UMRI
    >>> from ulda.physics import CartesianMRI, cartesian_mask
    >>> model = UMRI(sources=["brain", "knee"])
    >>> model.n_parameters, model.n_trainable(adapt=True)
    (146570, 1280)
    >>> physics = CartesianMRI(cartesian_mask(32, 0.4))
    >>> model(physics.A(torch.ones(2, 32, 32, dtype=torch.complex64)), physics, "knee").shape
    torch.Size([2, 32, 32])
    """

    name: ClassVar[str] = "umri"
    title: ClassVar[str] = "U-MRI"
    citation: ClassVar[str] = "Liu et al. 2021, Universal undersampled MRI reconstruction, MICCAI 2021"
    adapts: ClassVar[str] = "the normalisations (ASPIN) of the domain"

    def __init__(
        self,
        *,
        filters: int = 32,
        layers: int = 5,
        cascades: int = 5,
        distill_weight: float = 1e-3,
        sources: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        super().__init__(filters, layers, cascades, sources=sources, seed=seed)
        if not distill_weight >= 0:
            raise UldaError(f"the weight of the distillation must be at least 0, but it is {distill_weight:g}")
        self.sizes["distill_weight"] = distill_weight
        for cascade in range(cascades):
            for layer in self._convolutions(cascade)[:-1]:
                layer.register_parameter("bias", None)
        self.aspin = nn.ModuleDict()
        for source in sources:
            self._add_aspin(source)

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains the model has normalisations for."""
        return tuple(self.aspin)

    def add_domain(self, name: str) -> None:
        """Add the normalisations of a domain: the mean of those of the sources; a source keeps its own."""
        if name in self.sources:
            return
        sources = [self.aspin[source] for source in self.sources]
        self._add_aspin(name)
        if sources:
            average_into(self.aspin[name], sources)

    def is_adapted(self, parameter: str, domain: str) -> bool:
        """Only the normalisations of the domain learn."""
        return parameter.startswith(f"aspin.{domain}.")

    def forward(
        self, y: Tensor, physics: Physics, domain: str | None = None, *, features: list[Tensor] | None = None
    ) -> Tensor:
        """Reconstruct measurements ``(n, H, W)`` or ``(n, coils, H, W)`` with the normalisations of a domain.

        The feature maps of all inner layers, ``(n, filters, H, W)``, are appended to `features`, where it is given.
        """
        chosen = domain or self.domain
        known = ", ".join(self.domains) or "none"
        if chosen is None:
            raise UldaError(f"name a domain; this U-MRI has normalisations for: {known}")
        if chosen not in self.aspin:
            raise UldaError(f"this U-MRI has no normalisations for the domain {chosen!r}; it has: {known}")
        return super().forward(y, physics, chosen, features=features)

    def denoise(self, x: Tensor, cascade: int, domain: str | None, features: list[Tensor] | None) -> Tensor:
        """Return what the network of one cascade adds to ``(n, 2, H, W)``."""
        assert domain is not None
        *inner, last = self._convolutions(cascade)
        for number, convolution in enumerate(inner):
            x = self.aspin[domain](convolution(x), cascade * len(inner) + number)
            x = F.leaky_relu(x, SLOPE, inplace=True)
            if features is not None:
                features.append(x)
        return last(x)

    def train_stages(
        self, tasks: Sequence[Task], settings: Settings, folder: Path | None, report: Report | None
    ) -> tuple[list[Progress], dict[str, int]]:
        """Train the teachers, then the network; the clock of the log began with the teachers.

        The report counts the steps of all. The checkpoints of the teachers are in ``teachers/DOMAIN``.
        """
        by_domain: dict[str, list[Task]] = {}
        for task in tasks:
            by_domain.setdefault(task.domain, []).append(task)
        steps = max(1, settings.steps // len(by_domain))
        to_do = len(by_domain) * steps
        alone = settings.changed(steps=steps, validate_every=0)
        teachers, seconds = {}, 0.0
        for number, (domain, own_tasks) in enumerate(by_domain.items()):
            teacher = teachers[domain] = self.teacher(domain, settings.seed)
            place = None if folder is None else folder / "teachers" / domain
            counted = counted_on(report, number * steps, to_do + settings.steps)
            history = fit(teacher, own_tasks, alone, supervised_loss, folder=place, report=counted)
            seconds += total_seconds(history)
            teacher.eval().requires_grad_(False)
        loss = partial(distilled_loss, teachers=teachers)
        counted = counted_on(report, to_do, to_do + settings.steps)
        history = fit(self, tasks, settings, loss, folder=folder, report=counted)
        return [replace(row, seconds=seconds + row.seconds) for row in history], {"teachers": to_do}

    def teacher(self, domain: str, seed: int = 0) -> DnCn:
        """Return an untrained teacher of a domain, with the sizes of this network."""
        sizes = {key: self.sizes[key] for key in ("filters", "layers", "cascades")}
        return DnCn(**sizes, sources=[domain], seed=seed)

    def _add_aspin(self, name: str) -> None:
        check_domain_name(name)
        n_layers = self.sizes["cascades"] * (self.sizes["layers"] - 1)
        self.aspin[name] = ASPIN(n_layers, self.sizes["filters"])

    def _convolutions(self, cascade: int) -> list[nn.Conv2d]:
        return [module for module in self.cascades[cascade].modules() if isinstance(module, nn.Conv2d)]


class ASPIN(nn.Module):
    """Anatomy-specific instance normalisation: the scales and shifts of one domain, of all layers.

    Parameters
    ----------
    n_layers
        The number of layers.
    filters
        Channels of each.
    """

    def __init__(self, n_layers: int, filters: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(n_layers, filters))
        self.shift = nn.Parameter(torch.zeros(n_layers, filters))

    def forward(self, x: Tensor, layer: int) -> Tensor:
        """Bring each channel of each slice of ``(n, filters, H, W)`` to mean 0 and variance 1, scale and shift it."""
        # a group per channel is instance normalisation, and faster on a CPU than the function of this name; with scale
        # and shift inside, its derivative for channels-last images crashes where the convolutions before it are frozen
        scale, shift = self.scale[layer, :, None, None], self.shift[layer, :, None, None]
        return torch.addcmul(shift, F.group_norm(x, x.shape[1]), scale)


def attention_map(features: Tensor) -> Tensor:
    """Return where a layer looks, ``(n, H, W)`` for features ``(n, filters, H, W)``.

    It is the sum of the channels' absolute values, with norm 1 per slice.

    Examples
    --------
    >>> attention_map(torch.tensor([[[[1.0, 2.0]], [[-2.0, 2.0]]]]))
    tensor([[[0.6000, 0.8000]]])
    """
    return F.normalize(features.abs().sum(1), dim=(-2, -1))  # type: ignore[arg-type]


def distillation_loss(features: Sequence[Tensor], taught: Sequence[Tensor]) -> Tensor:
    """Return the absolute difference of the attention maps, added up over layers.

    It is a mean over pixels and slices, as the squared error beside it: the weight is as it is between two sums.

    Parameters
    ----------
    features
        Those of each layer of the network.
    taught
        Those of the same layers of the teacher.
    """
    pairs = zip(features, taught, strict=True)
    return torch.stack([(attention_map(own) - attention_map(other)).abs().mean() for own, other in pairs]).sum()


def distilled_loss(
    model: UMRI, task: Task, batch: Batch, settings: Settings, step: int, *, teachers: Mapping[str, DnCn]
) -> tuple[Tensor, Tensor]:
    """Return the supervised loss of a batch, with the distillation from the second half of the steps on."""
    if 2 * step < settings.steps:
        return supervised_loss(model, task, batch, settings, step)
    features: list[Tensor] = []
    taught: list[Tensor] = []
    loss, x = supervised_loss(partial(model, features=features), task, batch, settings, step)
    y, physics, _ = task.measure(batch)
    with torch.no_grad():
        teachers[task.domain](y, physics, features=taught)
    return loss + model.sizes["distill_weight"] * distillation_loss(features, taught), x
