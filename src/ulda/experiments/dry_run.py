"""Check an experiment before days are spent on it: its files, shapes and splits, its methods, time and memory.

Every slice is read once and nothing is written. Times are those of this machine's CPU; see `MethodCheck`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ulda.baselines import TrainableMethod, method_class
from ulda.data import check_leakage, split_by_subject
from ulda.data.readers import Slice, expand
from ulda.errors import UldaError
from ulda.experiments.data import Data
from ulda.experiments.definition import DomainEntry, Experiment, Scale, Variant
from ulda.experiments.measures import check_measurable
from ulda.experiments.running import Runner, variant_titles
from ulda.physics import cartesian_mask
from ulda.training.loop import Batch, Task
from ulda.training.settings import Settings
from ulda.training.slices import VALIDATED_FRACTION

TIMED_SIDE = 64
"""Side of the slice on which a step is timed."""

BYTES_PER_PARAMETER = 16
"""Four bytes each for the weight, its gradient and the two means of Adam."""

ASSUMPTIONS = (
    "Times assume this machine's CPU with nothing else to do, not a GPU: the processor time of one training step at "
    "{timed} x {timed} was multiplied by the pixels, and by the steps of trainings and adaptations; tests, validations "
    "and the steps of helping networks come on top. Memory is what a step keeps for its gradient, multiplied by the "
    "pixels, with weights and optimiser; the programme itself comes on top."
)
_MB, _HOUR = 1e6, 3600.0
_SPLITS = {"train": 0.7, "val": 0.1, "test": 0.2}


@dataclass
class Scan:
    """What was found in the file or folder of a domain.

    Attributes
    ----------
    n_slices, n_empty
        Slices, and those among them that an import leaves out.
    smallest
        The smallest height and width.
    subjects, splits
        Of each slice that is not empty.
    n_nonfinite
        Slices that hold NaN or infinite values.
    undersampled
        Whether k-space arrived undersampled.
    """

    n_slices: int = 0
    n_empty: int = 0
    smallest: tuple[int, int] | None = None
    subjects: list[str] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    n_nonfinite: int = 0
    undersampled: bool = False

    def add(self, item: Slice) -> None:
        """Count a slice."""
        self.n_slices += 1
        if not np.isfinite(item.array).all():
            self.n_nonfinite += 1
        if not item.array.any():
            self.n_empty += 1
            return
        shapes = [item.array.shape[-2:], *([] if item.target is None else [item.target.shape])]
        sides = [self.smallest] if self.smallest else []
        height, width = (min(column) for column in zip(*sides, *shapes, strict=True))
        self.smallest = height, width
        self.subjects.append(item.subject or Path(item.source).stem or "unknown")
        self.splits.append(item.split)
        self.undersampled |= item.lines is not None

    @property
    def counts(self) -> dict[str, int]:
        """Slices by split; all that may be trained on are ``train`` where nothing has a split."""
        return dict(Counter(self.splits))


@dataclass(frozen=True)
class DomainCheck:
    """A domain: what was found, what keeps the experiment from running, and what a user may want to know."""

    name: str
    found: str
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


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

    @property
    def problems(self) -> list[str]:
        """What keeps the experiment from running."""
        checks: list[DomainCheck | MethodCheck] = [*self.domains, *self.methods]
        return [problem for check in checks for problem in check.problems]

    @property
    def notes(self) -> list[str]:
        """What is not wrong but worth to know, and what the estimates assume."""
        assumed = ASSUMPTIONS.format(timed=self.timed_side)
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
    experiment, data = runner.experiment, runner.data
    scans: dict[str, Scan | UldaError] = {}
    domains = []
    for entry in (*experiment.sources, *experiment.targets):
        if progress:
            progress(entry.name)
        if entry.source not in scans:
            scans[entry.source] = _scanned(data, entry)
        domains.append(check_domain(entry, entry in experiment.sources, scans[entry.source], data.scale))
    side = min(TIMED_SIDE, data.scale.side)
    titles, methods = variant_titles(experiment), []
    for variant in experiment.variants:
        if variant.is_learned:
            if progress:
                progress(variant.name)
            methods.append(check_method(experiment, variant, data.scale, titles[variant.name], side))
    return DryRun(tuple(domains), tuple(methods), side)


def _scanned(data: Data, entry: DomainEntry) -> Scan | UldaError:
    try:
        found = Scan()
        for path, reader in expand([data.source_of(entry)]):
            for item in reader.slices(path):
                found.add(item)
    except UldaError as error:
        return error
    return found


def check_domain(entry: DomainEntry, is_source: bool, scan: Scan | UldaError, scale: Scale) -> DomainCheck:
    """Compare what was found in the file of a domain with what an experiment needs of it."""
    name = f"{entry.name} ({'source' if is_source else 'target'})"
    if isinstance(scan, UldaError):
        return DomainCheck(name, "", (f"{entry.name}: {scan}",))
    problems = [*_slice_problems(scan, scale), *_split_problems(entry, scan)]
    shortage, note = _shortage(n_train(scan), is_source, scale) if not problems else ("", "")
    problems += [shortage] if shortage else []
    size = " x ".join(map(str, scan.smallest or (0, 0)))
    splits = ", ".join(f"{split or 'no split'} {n}" for split, n in sorted(scan.counts.items()))
    found = f"{len(scan.splits)} slices of {len(set(scan.subjects))} subjects, {size} or larger; {splits}"
    notes = (f"{entry.name}: {note}",) if note else ()
    return DomainCheck(name, found, tuple(f"{entry.name}: {problem}" for problem in problems), notes)


def _slice_problems(scan: Scan, scale: Scale) -> Iterator[str]:
    if scan.smallest is None:
        yield "there is no slice that is not empty"
        return
    if min(scan.smallest) < scale.side:
        size = " x ".join(map(str, scan.smallest))
        yield f"the smallest slice is {size}, but {scale.side} x {scale.side} is needed"
    if scan.n_nonfinite:
        yield f"{scan.n_nonfinite} slices hold NaN or infinite values; `ulda data inspect` shows where"
    if scan.undersampled:
        yield "the k-space arrived undersampled, so there is no reference to train on or to compare with"


def _split_problems(entry: DomainEntry, scan: Scan) -> Iterator[str]:
    if not any(scan.splits):
        try:
            split_by_subject(scan.subjects, _SPLITS)
        except UldaError as error:
            yield f"it has no splits, and they cannot be made: {error}"
            return
        yield (
            f"it has no splits, but its {len(set(scan.subjects))} subjects are enough to make them: import it with "
            f"`ulda data import`, then `ulda data split {entry.source}.h5`"
        )
        return
    for split in ("train", "test"):
        if not scan.counts.get(split):
            yield f"it has no slices in the split {split}; see `ulda data split`"
    try:
        check_leakage(scan.subjects, scan.splits)
    except UldaError as error:
        yield str(error)


def n_train(scan: Scan) -> int:
    """Return how many slices are left to train on, about, once subjects are held out where there is no val split."""
    n = scan.counts.get("train", 0)
    training = {subject for subject, split in zip(scan.subjects, scan.splits, strict=True) if split == "train"}
    is_held_out = not scan.counts.get("val") and len(training) > 1
    return round(n * (1 - VALIDATED_FRACTION)) if is_held_out else n


def _shortage(n: int, is_source: bool, scale: Scale) -> tuple[str, str]:
    """Return a problem and a note, one of them empty or both.

    For a target, all slices may stand for the largest size, but not for two sizes: they would be the same.
    """
    if is_source:
        wanted = scale.source_slices or 1
        return (f"there are {n} slices to train on, but {wanted} are asked for", "") if n < wanted else ("", "")
    sizes = sorted(scale.sizes)
    too_large = [size for size in sizes if size > n]
    if not too_large:
        return "", ""
    if len(too_large) > 1 or len(sizes) == 1 or n == sizes[-2]:
        return f"there are {n} slices to train on, but {', '.join(map(str, too_large))} are asked for", ""
    return "", f"there are {n} slices to train on; they stand for {sizes[-1]}"


def check_method(experiment: Experiment, variant: Variant, scale: Scale, title: str, side: int) -> MethodCheck:
    """Build a method, take a training step with it at a smaller side, and estimate what the experiment costs."""
    sources = [entry.name for entry in experiment.sources]
    try:
        kind = method_class(variant.method)
        check_measurable(variant, kind)
        model = kind(sources=sources, **variant.sizes)
        training, _ = (
            Settings.model_validate({**defaults, **changes, "batch_size": scale.batch_size})
            for defaults, changes in (
                (model.training_defaults, variant.train),
                (model.adaptation_settings(scale.batch_size), variant.adapt),
            )
        )
    except (UldaError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        return MethodCheck(title, problems=(f"{title} cannot be built with these sizes and settings ({reason})",))
    # a warm-up of phases makes the first steps cheaper; the later ones decide
    settings = training.model_copy(update={"phases": (), "lower_level": "unrolled"})
    seconds, kept = timed_step(model, sources[0], settings, side)
    larger = (scale.side / side) ** 2
    adapting = sum(scale.draws_of(size) * steps for size, steps in scale.adapt_steps.items())
    n_steps = scale.steps + len(experiment.targets) * adapting
    if not variant.transfer:
        n_steps = scale.steps
    return MethodCheck(
        title,
        model.n_parameters,
        model.n_trainable(adapt=True),
        seconds * larger,
        n_steps * seconds * larger / _HOUR,
        (kept * larger + BYTES_PER_PARAMETER * model.n_parameters) / _MB,
    )


def timed_step(model: TrainableMethod, domain: str, settings: Settings, side: int) -> tuple[float, int]:
    """Take two training steps on smooth noise; return the processor time of the quicker one, and the bytes it kept."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn((settings.batch_size, side, side), dtype=torch.complex64, generator=generator)
    smooth = noise.cumsum(-1).cumsum(-2)
    task = Task(domain, smooth / smooth.abs().amax((-2, -1), keepdim=True), [cartesian_mask(side, 0.3)])
    batch = Batch(0, tuple(range(settings.batch_size)), 0)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-6)
    times, kept = [], 0
    for _ in range(2):
        start = time.process_time()
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
        times.append(time.process_time() - start)
        kept = sum(storages.values())
    return min(times), kept


def _state(problems: Sequence[str]) -> str:
    return "problem" if problems else "ok"
