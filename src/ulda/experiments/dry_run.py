"""Check an experiment before days are spent on it: its files, shapes and splits, its methods, time and memory.

Every slice is read once and nothing is written. Times are those of this machine's CPU; see `MethodCheck`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ulda.data import check_leakage
from ulda.data.importing import read_slices
from ulda.data.readers import Slice
from ulda.errors import UldaError
from ulda.experiments.data import Data, made_splits
from ulda.experiments.definition import DomainEntry, Experiment, Scale, Variant
from ulda.experiments.measures import check_measurable, network_of
from ulda.experiments.running import Runner, variant_titles
from ulda.methods import TrainableMethod, method_class
from ulda.physics import cartesian_mask
from ulda.training.loop import Batch, Task
from ulda.training.settings import Settings
from ulda.training.slices import VALIDATED_FRACTION

TIMED_SIDE = 64
"""Side of the slice on which a step is timed."""

SHARE_WITHOUT_GRADIENT = 1 / 3
"""What a phase without gradient takes of the time of one with it, about: the way back is twice the way there."""

BYTES_PER_PARAMETER = 16
"""Four bytes each for the weight, its gradient and the two means of Adam."""

ASSUMPTIONS = (
    "Times assume {where}: the time of one training step at "
    "{timed} x {timed} was multiplied by the pixels, and by the steps of trainings and adaptations; tests, validations "
    "and the steps of helping networks come on top. Steps that go on with kept iterates count by their phases, one "
    "without gradient as a third. Memory is what a step keeps for its gradient, multiplied by the pixels, with weights "
    "and optimiser; the programme itself comes on top."
)
_MB, _HOUR = 1e6, 3600.0


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
    contents
        What the slices hold, in words; an import takes slices of one kind, with as many coils.
    """

    n_slices: int = 0
    n_empty: int = 0
    smallest: tuple[int, int] | None = None
    subjects: list[str] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    n_nonfinite: int = 0
    undersampled: bool = False
    contents: set[str] = field(default_factory=set)

    def add(self, item: Slice, *, combine_coils: bool = False) -> None:
        """Count a slice, whose coils may be combined."""
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
        n_coils = len(item.array) if item.array.ndim == 3 else 1
        is_combined = combine_coils and n_coils > 1
        coils = f" of {n_coils} coils" if n_coils > 1 and not is_combined else ""
        self.contents.add("magnitude" if is_combined else f"{item.kind}{coils}")

    @property
    def counts(self) -> dict[str, int]:
        """Slices by split."""
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
            scans[read_as] = _scanned(data, entry)
        domains.append(check_domain(entry, entry in experiment.sources, scans[read_as], data.scale))
    side = min(TIMED_SIDE, data.scale.side)
    titles, methods = variant_titles(experiment), []
    for variant in experiment.variants:
        if variant.is_learned:
            if progress:
                progress(variant.name)
            methods.append(check_method(experiment, variant, data.scale, titles[variant.name], side, runner.device))
    return DryRun(tuple(domains), tuple(methods), side, runner.device)


def _scanned(data: Data, entry: DomainEntry) -> Scan | UldaError:
    try:
        found = Scan()
        options = data.options(entry)
        for item in read_slices([data.source_of(entry)], options):
            found.add(item, combine_coils=options.combine_coils)
    except UldaError as error:
        return error
    return found


def check_domain(entry: DomainEntry, is_source: bool, scan: Scan | UldaError, scale: Scale) -> DomainCheck:
    """Compare what was found in the file of a domain with what an experiment needs of it."""
    name = f"{entry.name} ({'source' if is_source else 'target'})"
    if isinstance(scan, UldaError):
        return DomainCheck(name, "", (f"{entry.name}: {scan}",))
    split, notes = _with_splits(scan)
    if _is_small(scan, scale) and entry.enlarge:
        notes.append(f"slices, the smallest {_size(scan)}, are enlarged to {scale.side} x {scale.side}")
    n_test = split.counts.get("test", 0)
    if scale.test_slices is not None and 0 < n_test < scale.test_slices:
        notes.append(f"there are {n_test} slices to report on, not {scale.test_slices}")
    problems = [*_slice_problems(entry, scan, scale), *_split_problems(split)]
    shortage, note = _shortage(n_train(split), is_source, scale) if not problems else ("", "")
    problems += [shortage] if shortage else []
    notes += [note] if note else []
    splits = _counted(scan)
    found = f"{len(scan.splits)} slices of {len(set(scan.subjects))} subjects, {_size(scan)} or larger; {splits}"
    problems, notes = ([f"{entry.name}: {sentence}" for sentence in said] for said in (problems, notes))
    return DomainCheck(name, found, tuple(problems), tuple(notes))


def _with_splits(scan: Scan) -> tuple[Scan, list[str]]:
    """Return what was found with the splits that the experiment makes where there are none, and a note about it."""
    if any(scan.splits):
        return scan, []
    try:
        assignment = made_splits(scan.subjects)
    except UldaError:
        return scan, []
    split = replace(scan, splits=[assignment[subject] for subject in scan.subjects])
    return split, [f"it has no splits; the experiment makes them by subject: {_counted(split)}"]


def _counted(scan: Scan) -> str:
    return ", ".join(f"{split or 'no split'} {n}" for split, n in sorted(scan.counts.items()))


def _size(scan: Scan) -> str:
    return " x ".join(map(str, scan.smallest or (0, 0)))


def _is_small(scan: Scan, scale: Scale) -> bool:
    return scan.smallest is not None and min(scan.smallest) < scale.side


def _slice_problems(entry: DomainEntry, scan: Scan, scale: Scale) -> Iterator[str]:
    if scan.smallest is None:
        yield "there is no slice that is not empty"
        return
    if _is_small(scan, scale) and not entry.enlarge:
        yield (
            f"the smallest slice is {_size(scan)}, but {scale.side} x {scale.side} is needed; "
            "`enlarge: true` in the definition would enlarge it"
        )
    if len(scan.contents) > 1:
        yield f"its slices cannot be in one file, they are of different kinds ({', '.join(sorted(scan.contents))})"
    if scan.n_nonfinite:
        yield f"{scan.n_nonfinite} slices hold NaN or infinite values; `ulda data inspect` shows where"
    if scan.undersampled:
        yield "the k-space arrived undersampled, so there is no reference to train on or to compare with"


def _split_problems(scan: Scan) -> Iterator[str]:
    if not any(scan.splits):
        try:
            made_splits(scan.subjects)
        except UldaError as error:
            yield str(error)
        return
    for split in ("train", "test"):
        if not scan.counts.get(split):
            yield f"it has no slices in the split {split}; put some into a folder `{split}`, or see `ulda data split`"
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


def check_method(
    experiment: Experiment, variant: Variant, scale: Scale, title: str, side: int, device: str = "cpu"
) -> MethodCheck:
    """Build a method, take a training step with it at a smaller side, and estimate what the experiment costs."""
    sources = [entry.name for entry in experiment.sources]
    try:
        kind = method_class(variant.method)
        check_measurable(variant, kind)
        model = kind(sources=sources, **variant.sizes)
        budget = scale.budget()
        training = model.training_settings(budget, changes=variant.train)
        adaptation = model.settings_of_adaptation(budget, changes=variant.adapt)
        # what an average step takes of the time of one with all phases from zero-filling
        in_training, in_adaptation = (relative_time(model, sources[0], s) for s in (training, adaptation))
    except (UldaError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        return MethodCheck(title, problems=(f"{title} cannot be built with these sizes and settings ({reason})",))
    # a warm-up of phases makes the first steps cheaper; the later ones decide
    settings = training.model_copy(update={"phases": (), "lower_level": "unrolled"})
    seconds, kept = timed_step(model, sources[0], settings, side, device)
    larger = (scale.side / side) ** 2
    adapting = sum(scale.draws_of(size) * steps for size, steps in scale.adapt_steps.items())
    n_steps = 0.0 if variant.trained_as else scale.steps * in_training
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
    if settings.lower_level == "unrolled":
        return 1.0
    phases = network_of(model, domain).architecture.phases
    continued = settings.continued_phases + SHARE_WITHOUT_GRADIENT * settings.longest_rollout / 2
    share = (1 - settings.chains_after) * (1 - settings.fresh) * (1 - settings.restart)
    return 1 + share * (continued / phases - 1)


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
