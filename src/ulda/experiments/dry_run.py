"""Check an experiment before days are spent on it: its files, shapes and splits, its methods, time and memory.

Every slice is read once and nothing is written. Times are those of this machine's CPU; see `MethodCheck`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ulda.errors import UldaError
from ulda.experiments.definition import Experiment, Scale, Variant
from ulda.experiments.domain_check import DomainCheck, Scan, check_domain, scanned
from ulda.experiments.measures import check_measurable, network_of
from ulda.experiments.recipes import settings_of
from ulda.experiments.running import Runner
from ulda.experiments.runs import Run
from ulda.methods import TrainableMethod, method_class, new_method
from ulda.methods.runs import check_phases
from ulda.physics import cartesian_mask
from ulda.training.equilibrium import persists
from ulda.training.settings import Settings
from ulda.training.tasks import Batch, Task

TIMED_SIDE = 64
"""Side of the slice on which a step is timed."""

SHARE_WITHOUT_GRADIENT = 1 / 3
"""What a phase without gradient takes of the time of one with it, about: the way back is twice the way there."""

BYTES_PER_PARAMETER = 16
"""Four bytes each for the weight, its gradient and the two means of Adam."""

ASSUMPTIONS = (
    "Times assume {where}: the time of one training step at "
    "{timed} x {timed} was multiplied by the pixels, and by the steps of trainings and adaptations; tests, validations "
    "and the steps of helping networks come on top. Steps that continue persisting iterates count by their phases, one "
    "without gradient as a third. Memory is what a step keeps for its gradient, multiplied by the pixels, with weights "
    "and optimiser; the programme itself comes on top."
)
_MB, _HOUR = 1e6, 3600.0


@dataclass(frozen=True)
class MethodCheck:
    """A method: its parameters, and an estimate of what it costs; see `ASSUMPTIONS`.

    Attributes
    ----------
    name
        Its name for people.
    n_parameters, n_adapted
        Real parameters, and how many learn for a target.
    step_seconds
        A training step at the size of the experiment, estimated.
    hours
        All its trainings and adaptations, one after the other.
    memory_mb
        A training step.
    problems
        Why it cannot be built or trained.
    """

    name: str
    n_parameters: int = 0
    n_adapted: int = 0
    step_seconds: float = 0.0
    hours: float = 0.0
    memory_mb: float = 0.0
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class DryRun:
    """The checks of all domains and methods of an experiment."""

    domains: tuple[DomainCheck, ...]
    methods: tuple[MethodCheck, ...]
    timed_side: int
    device: str = "cpu"

    @property
    def problems(self) -> list[str]:
        """What keeps the experiment from running."""
        checks: list[DomainCheck | MethodCheck] = [*self.domains, *self.methods]
        return [problem for check in checks for problem in check.problems]

    @property
    def notes(self) -> list[str]:
        """What is not wrong but worth to know, and what the estimates assume."""
        cpu = "this machine's CPU with nothing else to do, not a GPU (`--device cuda` measures one)"
        where = cpu if self.device == "cpu" else f"the device {self.device} with nothing else to do"
        assumed = ASSUMPTIONS.format(timed=self.timed_side, where=where)
        return [*(note for check in self.domains for note in check.notes), assumed]

    def rows(self) -> list[list[str]]:
        """Return the table: a row per domain, per learned method, and for all methods together."""
        rows = [["what", "found", "step", "time", "memory", "state"]]
        rows += [[domain.name, domain.found, "", "", "", _state(domain.problems)] for domain in self.domains]
        for method in self.methods:
            costs = [f"{method.step_seconds:.2f} s", f"{method.hours:.1f} h", f"{method.memory_mb:.0f} MB"]
            found = f"{method.n_parameters:,} parameters, {method.n_adapted:,} adapt"
            if method.problems:
                found, costs = "", ["", "", ""]
            rows.append([method.name, found, *costs, _state(method.problems)])
        hours = sum(method.hours for method in self.methods)
        most = max((method.memory_mb for method in self.methods), default=0.0)
        rows.append(["all methods", "", "", f"{hours:.1f} h", f"{most:.0f} MB", _state(self.problems)])
        return rows


def dry_run(runner: Runner, progress: Callable[[str], None] | None = None) -> DryRun:
    """Check all domains and all learned methods of an experiment.

    Parameters
    ----------
    runner
        What would be run.
    progress
        Called with the name of what is checked next.
    """
    experiment, data = runner.experiment.at(runner.scale_name), runner.data
    scans: dict[tuple[str, bool], Scan | UldaError] = {}
    domains = []
    for entry in (*experiment.sources, *experiment.targets):
        if progress:
            progress(entry.name)
        read_as = entry.source, entry.picture_subjects
        if read_as not in scans:
            scans[read_as] = scanned(data, entry)
        domains.append(check_domain(entry, entry in experiment.sources, scans[read_as], data.scale))
    side = min(TIMED_SIDE, data.scale.side)
    titles, methods = experiment.titles, []
    for variant in experiment.variants:
        if variant.is_learned:
            if progress:
                progress(variant.name)
            methods.append(check_method(experiment, variant, data.scale, titles[variant.name], side, runner.device))
    return DryRun(tuple(domains), tuple(methods), side, runner.device)


def check_method(
    experiment: Experiment, variant: Variant, scale: Scale, title: str, side: int, device: str = "cpu"
) -> MethodCheck:
    """Build a method, take a training step with it at a smaller side, and estimate what the experiment costs."""
    sources = [entry.name for entry in experiment.sources]
    try:
        check_measurable(variant, method_class(variant.method))
        model = new_method(variant.method, sources, preset=variant.preset, **variant.sizes)
        training = settings_of(variant, scale, Run("train", variant.name))
        adaptation = settings_of(variant, scale, Run("adapt", variant.name, size=scale.sizes[0]))
        check_phases(training, model.sizes)
        # what an average step takes of the time of one with all phases from zero-filling
        in_training, in_adaptation = (relative_time(model, sources[0], s) for s in (training, adaptation))
    except (UldaError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        return MethodCheck(title, problems=(f"{title} cannot be built with these sizes and settings ({reason})",))
    # a warm-up of phases makes the first steps cheaper; the later ones decide
    settings = training.changed(phases=(), equilibrium=None)
    seconds, kept = timed_step(model, sources[0], settings, side, device)
    larger = (scale.side / side) ** 2
    adapting = sum(scale.draws_of(size) * steps for size, steps in scale.adapt_steps.items())
    in_step_0 = model.sizes.get("initialise", 0.0) * len(sources)
    n_steps = 0.0 if variant.trained_as else scale.steps * (in_training + in_step_0)
    if variant.transfer:
        n_steps += len(experiment.targets) * adapting * in_adaptation
    return MethodCheck(
        title,
        model.n_parameters,
        model.n_trainable(adapt=True),
        seconds * larger * in_training,
        n_steps * seconds * larger / _HOUR,
        (kept * larger + BYTES_PER_PARAMETER * model.n_parameters) / _MB,
    )


def relative_time(model: TrainableMethod, domain: str, settings: Settings) -> float:
    """Estimate the time of an average step as a share of that of a step with all phases from zero-filling.

    Where iterates persist, most later steps are roll-outs without gradient and a few differentiated phases.
    """
    equilibrium = settings.equilibrium
    if equilibrium is None:
        return 1.0
    continued = equilibrium.phases + SHARE_WITHOUT_GRADIENT * equilibrium.rollout / 2
    n_persisting = sum(persists(settings, step) for step in range(settings.steps))
    share = n_persisting / settings.steps * (1 - equilibrium.restart)
    return 1 + share * (continued / network_of(model, domain).n_phases - 1)


def timed_step(
    model: TrainableMethod, domain: str, settings: Settings, side: int, device: str = "cpu"
) -> tuple[float, int]:
    """Take two training steps on smooth noise; return the time of the quicker one, and the bytes it kept.

    On a CPU it is processor time, which other work does not change.
    """
    model.to(device)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn((settings.batch_size, side, side), dtype=torch.complex64, generator=generator)
    smooth = noise.cumsum(-1).cumsum(-2)
    task = Task(domain, smooth / smooth.abs().amax((-2, -1), keepdim=True), [cartesian_mask(side, 0.3)]).to(device)
    batch = Batch(0, tuple(range(settings.batch_size)), 0)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-6)
    times, kept = [], 0
    for _ in range(2):
        start = _clock(device)
        optimiser.zero_grad(set_to_none=True)
        storages: dict[int, int] = {}

        def keep(tensor: Tensor, storages: dict[int, int] = storages) -> Tensor:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss, _ = model.loss(task, batch, settings, 0)
        loss.backward()
        optimiser.step()
        times.append(_clock(device) - start)
        kept = sum(storages.values())
    return min(times), kept


def _clock(device: str) -> float:
    if device == "cpu":
        return time.process_time()
    torch.ones(1, device=device).item()  # waits for all that was asked of the device before
    return time.perf_counter()


def _state(problems: Sequence[str]) -> str:
    return "problem" if problems else "ok"
