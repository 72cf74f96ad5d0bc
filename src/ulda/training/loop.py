"""The training loop, for all stages: visible, deterministic, and able to go on where it stopped.

A step depends only on the settings, the data and its number: its batch, its mask and its roll-out are drawn from a
generator seeded by the step, and its learning rate is a formula. So a run that was killed and resumed equals one that
was not.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ulda.errors import UldaError
from ulda.evaluation.metrics import psnr, ssim
from ulda.physics import CartesianMRI, Mask, normalise_measurement
from ulda.training.checkpoint import load_checkpoint, save_checkpoint
from ulda.training.losses import DescentPenalty, reconstruction_loss
from ulda.training.network import ULDA
from ulda.training.settings import Settings


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
        Slices ``(m, H, W)`` of other subjects, judged with the first mask; may be empty.
    axis
        The phase-encode axis.
    """

    domain: str
    images: Tensor
    masks: Sequence[Mask]
    validation: Tensor = field(default_factory=lambda: torch.zeros(0, 1, 1, dtype=torch.complex64))
    axis: int = -2


@dataclass(frozen=True)
class Progress:
    """What a run reports after each step."""

    step: int
    steps: int
    loss: float
    learning_rate: float
    validation: dict[str, dict[str, float]] | None = None


Report = Callable[[Progress], None]


def fit(
    model: ULDA,
    tasks: Sequence[Task],
    settings: Settings,
    *,
    trainable: Callable[[str], bool] = lambda name: True,  # noqa: ARG005
    folder: Path | None = None,
    report: Report | None = None,
    keep_best: bool = False,
) -> list[Progress]:
    """Train the parameters of a model whose names `trainable` admits, and return the validations.

    Parameters
    ----------
    model
        Trained in place.
    tasks
        The domains; each step takes one, in proportion to its slices.
    settings
        How to train.
    trainable
        Which parameters learn; the others stay bit-identical.
    folder
        Where the checkpoint and ``log.csv`` go. A checkpoint found there is continued.
    report
        Called after each step.
    keep_best
        End with the parameters of the best validation instead of the last ones.
    """
    for task in tasks:
        if len(task.images) == 0 or not task.masks:
            raise UldaError(f"the domain {task.domain} has no slices or no masks to train on")
    run = _Run(model, settings, trainable, folder)
    try:
        for step in range(run.step, settings.steps):
            rate = learning_rate(settings, step)
            run.set_rate(rate)
            batch = draw(tasks, settings, step, run.chains)
            task = tasks[batch.task]
            run.optimiser.zero_grad(set_to_none=True)
            where = f"at step {step} (domain {task.domain}, slices {list(batch.index)}); {run.last_good()}"
            try:
                loss, x = step_loss(model, task, batch, settings, step)
            except UldaError as error:
                raise UldaError(f"{error}, {where}") from error
            loss.backward()
            norm = nn.utils.clip_grad_norm_(run.learning.values(), settings.clip)
            if not (torch.isfinite(loss) and torch.isfinite(norm)):
                raise UldaError(f"the loss is not finite {where}")
            run.optimiser.step()
            run.step = step + 1
            if settings.lower_level == "equilibrium":
                run.chains[step % settings.chains] = replace(batch, start=x)
            progress = Progress(run.step, settings.steps, float(loss.detach()), rate)
            if _is_due(settings.validate_every, run.step, settings.steps):
                progress = replace(progress, validation=validate(model, tasks))
                run.observe(progress)
            if _is_due(settings.checkpoint_every, run.step, settings.steps):
                run.save()
            if report is not None:
                report(progress)
    except KeyboardInterrupt:
        run.save()
        raise
    if keep_best:
        run.restore_best()
    return run.history


class _Run:
    """What changes during a run, and how it goes to disk and back."""

    def __init__(self, model: ULDA, settings: Settings, trainable: Callable[[str], bool], folder: Path | None) -> None:
        self.model, self.settings, self.folder = model, settings, folder
        self.learning = {name: p for name, p in model.named_parameters() if trainable(name)}
        if not self.learning:
            raise UldaError("no parameter of the model is trainable with these settings")
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in self.learning)
        groups = [{"params": [p], "faster": name.startswith("steps.")} for name, p in self.learning.items()]
        self.optimiser = torch.optim.Adam(groups, lr=settings.learning_rate, betas=(0.9, 0.99))
        self.step, self.saved, self.history = 0, 0, list[Progress]()
        self.best: dict[str, Tensor] = {}
        self.chains: dict[int, Batch] = {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            if self.checkpoint.exists():
                self._restore()

    @property
    def checkpoint(self) -> Path:
        assert self.folder is not None
        return self.folder / "checkpoint.safetensors"

    def set_rate(self, rate: float) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = rate * (self.settings.step_size_rate if group["faster"] else 1.0)

    def observe(self, progress: Progress) -> None:
        """Keep a validation, and the parameters if it is the best one."""
        if mean_psnr(progress) > max((mean_psnr(entry) for entry in self.history), default=-math.inf):
            self.best = {name: p.detach().clone() for name, p in self.learning.items()}
        self.history.append(progress)
        if self.folder is not None:
            write_log(self.folder / "log.csv", self.history)

    def save(self) -> None:
        if self.folder is None:
            return
        history = [vars(entry) for entry in self.history]
        chains = {number: [batch.task, batch.index, batch.mask] for number, batch in self.chains.items()}
        facts = {
            "step": self.step,
            "settings": self.settings.model_dump(mode="json"),
            "history": history,
            "chains": chains,
        }
        extra = {f"best/{name}": value for name, value in self.best.items()}
        extra |= {f"chain/{number}": batch.start for number, batch in self.chains.items() if batch.start is not None}
        save_checkpoint(self.checkpoint, self.model, self.optimiser, extra, facts)
        self.saved = self.step

    def last_good(self) -> str:
        if self.folder is None or not self.checkpoint.exists():
            return "there is no checkpoint; lower the learning rate"
        return f"the last good checkpoint is {self.checkpoint.name}, of step {self.saved}; lower the learning rate"

    def restore_best(self) -> None:
        with torch.no_grad():
            for name, value in self.best.items():
                self.learning[name].copy_(value)

    def _restore(self) -> None:
        facts, extra = load_checkpoint(self.checkpoint, self.model, self.optimiser)
        if facts["settings"] != self.settings.model_dump(mode="json"):
            raise UldaError(f"{self.checkpoint.name} was written with other settings; remove it to start anew")
        self.step = self.saved = facts["step"]
        self.history = [Progress(**entry) for entry in facts["history"]]
        self.best = {name.removeprefix("best/"): value for name, value in extra.items() if name.startswith("best/")}
        for number, (task, index, mask) in facts["chains"].items():
            self.chains[int(number)] = Batch(task, tuple(index), mask, extra[f"chain/{number}"])


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
    """

    task: int
    index: tuple[int, ...]
    mask: int
    start: Tensor | None = None
    rollout: int = 0


def draw(tasks: Sequence[Task], settings: Settings, step: int, chains: dict[int, Batch]) -> Batch:
    """Draw the batch of a step, or go on with one of the chains."""
    generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + step)
    sizes = torch.tensor([float(len(task.images)) for task in tasks])
    number = int(torch.multinomial(sizes, 1, generator=generator))
    index = torch.randint(len(tasks[number].images), (settings.batch_size,), generator=generator)
    mask = int(torch.randint(len(tasks[number].masks), (1,), generator=generator))
    restarts = bool(torch.rand(1, generator=generator) < settings.restart)
    rollout = int(torch.randint(settings.longest_rollout + 1, (1,), generator=generator))
    chain = chains.get(step % settings.chains)
    if settings.lower_level == "equilibrium" and chain is not None and not restarts:
        return replace(chain, rollout=rollout)
    return Batch(number, tuple(index.tolist()), mask)


def step_loss(model: ULDA, task: Task, batch: Batch, settings: Settings, step: int) -> tuple[Tensor, Tensor]:
    """Return the loss of one batch and the images its last phase reached, ``(n, H, W)``, without gradient."""
    physics = CartesianMRI(task.masks[batch.mask], task.axis)
    images = task.images[list(batch.index)]
    y, _, peak = normalise_measurement(physics.A(images), physics)
    is_continued = batch.start is not None
    n_phases = settings.continued_phases if is_continued else phases_at(model, settings, step)
    options = model.options(task.domain, iterations=n_phases)
    x0 = batch.start
    if batch.rollout > 0:
        with torch.no_grad():
            x0, _ = model.solve(y, physics, task.domain, replace(options, iterations=batch.rollout), x0=x0)
    penalty = None
    if settings.descent == "penalty":
        penalty = DescentPenalty(options.eta2)
    options = replace(options, safeguard=settings.descent == "acceptance")
    x, _ = model.solve(y, physics, task.domain, options, x0=x0, callback=penalty, track_values=penalty is not None)
    # the loss is measured on slices with peak 1, as the metrics are
    loss = reconstruction_loss(x * peak, images, settings.ssim_weight).mean()
    if penalty is not None:
        loss = loss + settings.penalty_weight * penalty.mean()
    return loss, x.detach()


@torch.no_grad()
def validate(model: ULDA, tasks: Sequence[Task]) -> dict[str, dict[str, float]]:
    """Return PSNR and SSIM on the validation slices, from zero-filling, with the safeguard on."""
    found = {}
    for task in tasks:
        if len(task.validation) == 0:
            continue
        physics = CartesianMRI(task.masks[0], task.axis)
        reference = task.validation.abs()
        x = model(physics.A(task.validation), physics, task.domain).abs()
        found[task.domain] = {
            "psnr": float(psnr(x, reference, data_range=1.0).mean()),
            "ssim": float(ssim(x, reference, data_range=1.0).mean()),
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


def phases_at(model: ULDA, settings: Settings, step: int) -> int:
    """Return the number of phases of a step."""
    if not settings.phases:
        return model.architecture.phases
    return settings.phases[min(step * len(settings.phases) // settings.steps, len(settings.phases) - 1)]


def mean_psnr(progress: Progress) -> float:
    """Return the mean validation PSNR over the domains; minus infinity without a validation."""
    scores = [entry["psnr"] for entry in (progress.validation or {}).values()]
    return sum(scores) / len(scores) if scores else -math.inf


def write_log(path: Path, history: Sequence[Progress]) -> None:
    """Write the validations as CSV."""
    rows: list[dict[str, Any]] = []
    for entry in history:
        row: dict[str, Any] = {"step": entry.step, "loss": entry.loss, "learning_rate": entry.learning_rate}
        for domain, scores in (entry.validation or {}).items():
            row |= {f"{domain}_{name}": value for name, value in scores.items()}
        rows.append(row)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]) if rows else ["step"])
        writer.writeheader()
        writer.writerows(rows)
