"""The training loop, for all stages: visible, deterministic, and able to go on where it stopped.

A step depends only on the settings, the data and its number: its batch, its mask and its roll-out are drawn from a
generator seeded by the step, and its learning rate is a formula. So a run that was killed and resumed equals one that
was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ulda.errors import UldaError
from ulda.io.fingerprints import fingerprint
from ulda.metrics import psnr, ssim
from ulda.physics import CartesianMRI, Mask, normalise_measurement
from ulda.solvers import Reconstruction
from ulda.training.augmentation import warped
from ulda.training.checkpoint import load_checkpoint, save_checkpoint
from ulda.training.history import Best, Progress, Report, copied, has_stalled, mean_psnr, put, write_log
from ulda.training.interrupt import deferred_interrupt
from ulda.training.losses import DescentPenalty, reconstruction_loss
from ulda.training.network import ADDED_WEIGHTS, COMMON, OWN_RATES, ULDA
from ulda.training.settings import Settings, read_settings


@dataclass(frozen=True)
class Task:
    """What a domain is trained on.

    Attributes
    ----------
    domain
        The domain's name in the model.
    images
        Training slices ``(n, H, W)``, complex with peak 1.
    masks
        The family of masks; a step draws one.
    validation
        Slices ``(m, H, W)`` of other subjects; may be empty.
    axis
        The phase-encode axis.
    validation_mask
        The mask the validation uses; the first of the masks if None.
    """

    domain: str
    images: Tensor
    masks: Sequence[Mask]
    validation: Tensor = field(default_factory=lambda: torch.zeros(0, 1, 1, dtype=torch.complex64))
    axis: int = -2
    validation_mask: Mask | None = None

    def to(self, device: str | torch.device) -> Task:
        """Return the task with its slices on a device."""
        return replace(self, images=self.images.to(device), validation=self.validation.to(device))

    def images_of(self, batch: Batch) -> Tensor:
        """Return the slices of a batch, turned, scaled and sheared where it says so."""
        images = self.images[list(batch.index)]
        return warped(images, batch.warp, batch.warp_seed) if batch.warp else images


Loss = Callable[[Any, Task, "Batch", Settings, int], tuple[Tensor, Tensor]]
"""Of a model, a task, a batch, the settings and the step: the loss, and the images without gradient."""

VALIDATION_BATCH = 8

_SEEDS = 1 << 31
"""How many seeds the warp of a batch is drawn from."""


def fit(
    model: nn.Module,
    tasks: Sequence[Task],
    settings: Settings,
    *,
    loss: Loss | None = None,
    trainable: Callable[[str], bool] = lambda name: True,  # noqa: ARG005
    folder: Path | None = None,
    report: Report | None = None,
    keep_best: bool = False,
    best: Best | None = None,
    is_last: bool = True,
) -> list[Progress]:
    """Train the parameters of a model whose names `trainable` admits, and return the rows of the log.

    Parameters
    ----------
    model
        Trained in place; called as ``model(y, physics, domain)`` for the validations.
    tasks
        The domains; each step takes one, in proportion to its slices.
    settings
        How to train.
    loss
        What a step minimises; `step_loss`, that of `ULDA`, if None.
    trainable
        Which parameters learn; the others stay bit-identical.
    folder
        Where the checkpoint and ``log.csv`` go. A checkpoint found there is continued.
    report
        Called after each step.
    keep_best
        End with the parameters of the best validation instead of the last ones, as also the settings may ask for; the
        start is validated, too, and takes part.
    best
        The best parameters of the runs before this one, which compete with those of this one.
    is_last
        Whether no further run competes: then the run looks back at shares of the way, where the settings name some.
    """
    _check(tasks)
    keep_best = keep_best or settings.keep_best
    if keep_best and best is None:
        best = Best()
    run = _Run(model, tasks, settings, trainable, folder, best)
    try:
        with deferred_interrupt() as check_interrupt:
            is_judged = best is not None and any(len(task.validation) for task in tasks)
            competes = is_judged and best is not None and not best.parameters
            if competes and run.step == 0:
                run.observe(Progress(0, settings.steps, math.nan, 0.0, validate(model, tasks)))
            while run.step < settings.steps and not has_stalled(run.history, settings.patience):
                batch = draw(tasks, settings, run.step, run.chains)
                value, x = run.differentiate(loss or step_loss, tasks[batch.task], batch)
                progress = run.update(batch, value, x)
                with run.means():
                    # without any validation after it the start would win
                    is_last_chance = is_judged and run.step == settings.steps
                    if is_last_chance or _is_due(settings.validate_every, run.step, settings.steps):
                        progress = replace(progress, validation=validate(model, tasks))
                    run.observe(progress)
                if _is_due(settings.checkpoint_every, run.step, settings.steps):
                    run.save()
                if report is not None:
                    report(progress)
                check_interrupt()
            if settings.checkpoint_every and run.saved < run.step:
                run.save()
    except KeyboardInterrupt:
        if run.is_whole:
            run.save()
        raise
    put(run.mean, run.learning)
    if best is not None:
        run.look_back(tasks, best, settings.shares if is_last else ())
        if keep_best:
            best.restore(run.learning)
    return run.history


class _Run:
    """What changes during a run, and how it goes to disk and back."""

    def __init__(
        self,
        model: nn.Module,
        tasks: Sequence[Task],
        settings: Settings,
        trainable: Callable[[str], bool],
        folder: Path | None,
        best: Best | None,
    ) -> None:
        self.model, self.settings, self.folder, self.best = model, settings, folder, best
        self.learning = {name: p for name, p in model.named_parameters() if trainable(name)}
        if not self.learning:
            raise UldaError("no parameter of the model is trainable with these settings")
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in self.learning)
        rates = settings.for_slices(min(len(task.images) for task in tasks))
        groups = [{"params": [p], "factor": rate_factor(name, rates)} for name, p in self.learning.items()]
        self.optimiser = torch.optim.Adam(groups, lr=settings.learning_rate, betas=(0.9, 0.99))
        self.step, self.saved, self.history = 0, 0, list[Progress]()
        self.losses: list[float] = []  # since the last row of the history
        self.chains: dict[int, Batch] = {}
        self.mean: dict[str, Tensor] = {}
        self.is_whole = True  # not so between an update of the parameters and the books about it
        self.began = time.perf_counter()
        if best is not None and not best.start:
            best.start = copied(self.learning)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self.origin = _origin(model, tasks)
            if self.checkpoint.exists():
                self._restore()

    @property
    def checkpoint(self) -> Path:
        assert self.folder is not None
        return self.folder / "checkpoint.safetensors"

    def differentiate(self, loss: Loss, task: Task, batch: Batch) -> tuple[float, Tensor]:
        """Compute the gradient of a batch; return its loss and its images."""
        where = f"at step {self.step} (domain {task.domain}, slices {list(batch.index)}); {self._last_good()}"
        self.optimiser.zero_grad(set_to_none=True)
        try:
            value, x = loss(self.model, task, batch, self.settings, self.step)
        except UldaError as error:
            raise UldaError(f"{error}, {where}") from error
        value.backward()
        norm = nn.utils.clip_grad_norm_(self.learning.values(), self.settings.clip)
        if not (torch.isfinite(value) and torch.isfinite(norm)):
            raise UldaError(f"the loss is not finite {where}")
        return float(value.detach()), x.contiguous()

    def update(self, batch: Batch, loss: float, x: Tensor) -> Progress:
        """Take the step of the gradient."""
        rate = learning_rate(self.settings, self.step)
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group["factor"]
        self.is_whole = False
        self.optimiser.step()
        self._average()
        if self.settings.lower_level == "equilibrium" and batch.is_kept:
            self.chains[self.step % self.settings.chains] = replace(batch, start=x, is_common=False)
        self.step += 1
        self.losses.append(loss)
        return Progress(self.step, self.settings.steps, loss, rate, seconds=time.perf_counter() - self.began)

    def _average(self) -> None:
        """Take the parameters into their means."""
        n_before = self.step - math.ceil(self.settings.mean_after * self.settings.steps)
        if n_before < 0:
            return
        for name, parameter in self.learning.items():
            now = parameter.detach()
            self.mean[name] = now.clone() if n_before == 0 else self.mean[name].lerp(now, 1 / (n_before + 1))

    @contextmanager
    def means(self) -> Iterator[None]:
        """Have the means in the place of the parameters, as far as there are some."""
        own = copied({name: self.learning[name] for name in self.mean})
        put(self.mean, self.learning)
        try:
            yield
        finally:
            put(own, self.learning)

    def observe(self, progress: Progress) -> None:
        """Keep a row of the log where one is due, and the parameters if they are the best."""
        # the best of many validations on the way is a lucky one; with shares, the end alone speaks for the way
        progress = replace(progress, competes=progress.step == 0 or not self.settings.shares)
        if progress.validation and progress.competes and self.best is not None:
            self.best.observe(mean_psnr(progress), self.learning)
        is_last = progress.step == progress.steps
        if progress.validation or is_last or _is_due(self.settings.log_every, progress.step, progress.steps):
            mean = sum(self.losses) / len(self.losses) if self.losses else math.nan
            self.history.append(replace(progress, loss=mean))
            self.losses = []
            self._write_log()
        self.is_whole = True

    def look_back(self, tasks: Sequence[Task], best: Best, shares: Sequence[float]) -> None:
        """Let the end and shares of the way to it compete; the last row of the log is that of one that wins.

        Only what is clearly better than the start competes with it: few slices judge, and their mean is noise, too.
        """
        if not shares or not any(len(task.validation) for task in tasks):
            return
        end = copied(self.learning)
        put(best.start, self.learning)
        before = scores_of(self.model, tasks)
        for share in (1.0, *shares):
            put({name: best.start[name].lerp(value, share) for name, value in end.items()}, self.learning)
            after = scores_of(self.model, tasks)
            row = replace(
                self.history[-1],
                validation=means_of(after),
                share=share,
                competes=is_clearly_better(after, before),
            )
            wins = row.competes and mean_psnr(row) > best.score
            if wins:
                best.observe(mean_psnr(row), self.learning)
            if wins or share == 1:
                self.history[-1] = row
        put(end, self.learning)
        self._write_log()

    def save(self) -> None:
        if self.folder is None:
            return
        history = [vars(row) for row in self.history]
        chains = {
            number: [batch.task, batch.index, batch.mask, batch.warp, batch.warp_seed]
            for number, batch in self.chains.items()
        }
        facts = {
            "step": self.step,
            "settings": self.settings.model_dump(mode="json"),
            "origin": self.origin,
            "seconds": time.perf_counter() - self.began,
            "history": history,
            "losses": self.losses,
            "best": None if self.best is None else self.best.score,
            "chains": chains,
        }
        extra = {} if self.best is None else {f"best/{name}": value for name, value in self.best.parameters.items()}
        extra |= {f"mean/{name}": value for name, value in self.mean.items()}
        extra |= {f"chain/{number}": batch.start for number, batch in self.chains.items() if batch.start is not None}
        save_checkpoint(self.checkpoint, self.model, self.optimiser, extra, facts)
        self.saved = self.step

    def _last_good(self) -> str:
        if self.folder is None or not self.checkpoint.exists():
            return "there is no checkpoint; lower the learning rate"
        return f"the last good checkpoint is {self.checkpoint.name}, of step {self.saved}; lower the learning rate"

    def _write_log(self) -> None:
        if self.folder is not None:
            write_log(self.folder / "log.csv", self.history)

    def _restore(self) -> None:
        facts, extra = load_checkpoint(self.checkpoint, self.model, self.optimiser)
        if read_settings(facts["settings"]).model_dump() != self.settings.model_dump():
            raise UldaError(f"{self.checkpoint} was written with other settings; remove it to start anew")
        if facts.get("origin") != self.origin:
            raise UldaError(f"{self.checkpoint.name} was written for another model or data; remove it to start anew")
        self.step = self.saved = facts["step"]
        self.began -= facts["seconds"]
        self.history, self.losses = [Progress(**row) for row in facts["history"]], facts["losses"]
        if self.best is not None and facts["best"] is not None:
            self.best.score = facts["best"]
            self.best.parameters = _below("best/", extra)
        self.mean = _below("mean/", extra)
        for number, (task, index, mask, *warp) in facts["chains"].items():
            start = extra[f"chain/{number}"]
            # checkpoints of before slices could be warped have nothing there
            options = dict(zip(("warp", "warp_seed"), warp, strict=False))
            self.chains[int(number)] = Batch(task, tuple(index), mask, start, **options)
        # the run that was killed may have written rows after its last checkpoint
        self._write_log()


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names have a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _origin(model: nn.Module, tasks: Sequence[Task]) -> str:
    """Name what a run starts from, so that it is not continued with anything else."""
    tensors = [(name, p.detach()) for name, p in model.named_parameters()]
    for task in tasks:
        judged_with = task.validation_mask or task.masks[0]
        tensors += [(f"{task.domain} {task.axis}", task.images), ("validation", task.validation)]
        tensors += [("mask", mask.lines) for mask in (judged_with, *task.masks)]
    return fingerprint(tensors)


def _check(tasks: Sequence[Task]) -> None:
    for task in tasks:
        if len(task.images) == 0 or not task.masks:
            raise UldaError(f"the domain {task.domain} has no slices or no masks to train on")


def _is_due(every: int, step: int, steps: int) -> bool:
    return every > 0 and (step % every == 0 or step == steps)


@dataclass(frozen=True)
class Batch:
    """What a step works on.

    Attributes
    ----------
    task, index, mask
        Numbers of the task, of its slices and of the mask among the task's.
    start
        Where the phases start; None for zero-filling.
    rollout
        Phases without gradient before the differentiated ones.
    is_kept
        Whether a later step may go on where this one ends.
    is_common
        Whether the mean of the adapters and step sizes of the sources is used, instead of those of the domain.
    warp, warp_seed
        The share of its slices that are turned, scaled and sheared, and the seed of that.
    """

    task: int
    index: tuple[int, ...]
    mask: int
    start: Tensor | None = None
    rollout: int = 0
    is_kept: bool = True
    is_common: bool = False
    warp: float = 0.0
    warp_seed: int = 0


def draw(tasks: Sequence[Task], settings: Settings, step: int, chains: dict[int, Batch]) -> Batch:
    """Draw the batch of a step, or go on with one of the chains."""
    generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + step)
    sizes = torch.tensor([float(len(task.images)) for task in tasks])
    number = int(torch.multinomial(sizes, 1, generator=generator))
    index = torch.randint(len(tasks[number].images), (settings.batch_size,), generator=generator)
    mask = int(torch.randint(len(tasks[number].masks), (1,), generator=generator))
    restarts = bool(torch.rand(1, generator=generator) < settings.restart)
    rollout = int(torch.randint(settings.longest_rollout + 1, (1,), generator=generator))
    fresh = settings.fresh_of.get(tasks[number].domain, settings.fresh)
    is_fresh = bool(torch.rand(1, generator=generator) < fresh)
    is_common = bool(torch.rand(1, generator=generator) < settings.common)
    warp_seed = int(torch.randint(_SEEDS, (1,), generator=generator))
    warp = settings.for_slices(len(tasks[number].images)).warp
    batch = Batch(number, tuple(index.tolist()), mask, is_common=is_common, warp=warp, warp_seed=warp_seed)
    chain = chains.get(step % settings.chains)
    persists = settings.lower_level == "equilibrium" and step >= settings.chains_after * settings.steps
    if chain is None or not persists:
        return batch
    if is_fresh:
        return replace(batch, is_kept=False)
    return batch if restarts else replace(chain, rollout=rollout)


def step_loss(model: ULDA, task: Task, batch: Batch, settings: Settings, step: int) -> tuple[Tensor, Tensor]:
    """Return the loss of one batch and the images its last phase reached, ``(n, H, W)``, without gradient."""
    physics = CartesianMRI(task.masks[batch.mask], task.axis)
    images = task.images_of(batch)
    y, _, peak = normalise_measurement(physics.A(images), physics)
    is_continued = batch.start is not None
    is_common = batch.is_common and model.has_common_start and task.domain in model.sources
    domain = COMMON if is_common else task.domain
    n_phases = settings.continued_phases if is_continued else phases_at(model, settings, step)
    options = model.options(domain, beyond=is_continued, iterations=n_phases)
    x0 = batch.start
    if batch.rollout > 0:
        with torch.no_grad():
            x0, _ = model.solve(y, physics, domain, replace(options, iterations=batch.rollout), x0=x0)
    options = replace(options, safeguard=is_tested(settings, step))
    tracked = Reconstruction(physics, y, model.regularizer(domain), track_values=True)
    is_penalised = settings.descent != "none" and (settings.penalise_kept or not is_continued)
    penalty = DescentPenalty(tracked, options.eta2) if is_penalised else None
    x, _ = model.solve(y, physics, domain, options, x0=x0, callback=penalty)
    # the loss is measured on slices with peak 1, as the metrics are
    loss = reconstruction_loss(x * peak, images, settings.ssim_weight).mean()
    if penalty is not None:
        loss = loss + settings.penalty_weight * penalty.mean()
    return loss, x.detach()


def is_tested(settings: Settings, step: int) -> bool:
    """Tell whether a step takes descending proposals alone."""
    begins = settings.accept_after
    if settings.lower_level == "equilibrium":
        begins = min(begins, settings.chains_after)
    return settings.descent == "acceptance" and step >= begins * settings.steps


ScoresOf = dict[str, dict[str, Tensor]]
"""PSNR and SSIM of each validation slice, by domain."""


def validate(model: nn.Module, tasks: Sequence[Task]) -> dict[str, dict[str, float]]:
    """Return PSNR and SSIM on the validation slices, from zero-filling, with the safeguard on."""
    return means_of(scores_of(model, tasks))


def means_of(scores: ScoresOf) -> dict[str, dict[str, float]]:
    """Return the means over the slices of each domain."""
    return {domain: {name: float(values.mean()) for name, values in found.items()} for domain, found in scores.items()}


def is_clearly_better(after: ScoresOf, before: ScoresOf) -> bool:
    """Tell whether the mean gain in PSNR, slice by slice, is larger than its standard error; with one slice than 0.

    Examples
    --------
    >>> before = {"knee": {"psnr": torch.tensor([30.0, 31.0, 32.0])}}
    >>> is_clearly_better({"knee": {"psnr": torch.tensor([30.2, 31.3, 32.1])}}, before)
    True
    >>> is_clearly_better({"knee": {"psnr": torch.tensor([31.0, 30.2, 32.1])}}, before)
    False
    """
    gain = torch.cat([after[domain]["psnr"] - scores["psnr"] for domain, scores in before.items()])
    error = float(gain.std()) / math.sqrt(len(gain)) if len(gain) > 1 else 0.0
    return float(gain.mean()) > error


@torch.no_grad()
def scores_of(model: nn.Module, tasks: Sequence[Task]) -> ScoresOf:
    """Return PSNR and SSIM of each validation slice, from zero-filling, with the safeguard on."""
    found = {}
    for task in tasks:
        if len(task.validation) == 0:
            continue
        physics = CartesianMRI(task.validation_mask or task.masks[0], task.axis)
        reference = task.validation.abs()
        batches = [model(physics.A(part), physics, task.domain) for part in task.validation.split(VALIDATION_BATCH)]
        x = torch.cat(batches).abs()
        found[task.domain] = {
            "psnr": psnr(x, reference, data_range=1.0).cpu(),
            "ssim": ssim(x, reference, data_range=1.0).cpu(),
        }
    return found


def learning_rate(settings: Settings, step: int) -> float:
    """Return the one-cycle rate: a cosine up to the peak, then a cosine down to a hundredth of it."""
    position = step / max(1, settings.steps - 1)
    if position < settings.warm_up:
        low, high, part = 0.04, 1.0, position / settings.warm_up
    else:
        low, high, part = 1.0, 0.01, (position - settings.warm_up) / max(1e-9, 1 - settings.warm_up)
    return settings.learning_rate * (high + (low - high) * 0.5 * (1 + math.cos(math.pi * part)))


def rate_factor(name: str, settings: Settings) -> float:
    """Return by what the learning rate of a parameter is multiplied."""
    fast = settings.step_size_rate
    factors = dict(zip(OWN_RATES, (settings.adapter_rate, fast, fast), strict=True))
    if ADDED_WEIGHTS.fullmatch(name):
        return settings.added_rate
    return next((factors[part] for part in name.split(".") if part in factors), 1.0)


def phases_at(model: ULDA, settings: Settings, step: int) -> int:
    """Return the number of phases of a step."""
    n = model.architecture.phases
    phases = (max(1, n // 2), max(1, 3 * n // 4), n) if settings.phases is None else settings.phases or (n,)
    return phases[min(step * len(phases) // settings.steps, len(phases) - 1)]
