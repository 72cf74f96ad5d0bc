"""The training loop, for all methods and stages: visible, deterministic, and resumable.

A step depends only on the settings, the data and its number: what is random is drawn from a generator seeded by the
step, and its learning rate is a formula. So a run that was killed and resumed equals one that was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ulda.errors import UldaError
from ulda.training.checkpoint import load_checkpoint, save_checkpoint
from ulda.training.equilibrium import Chains
from ulda.training.history import Best, Progress, Report, mean_score, write_log
from ulda.training.interrupt import deferred_interrupt
from ulda.training.schedule import learning_rate, rate_multiplier
from ulda.training.settings import Settings
from ulda.training.tasks import Batch, Task, check_tasks, draw, fingerprint_of, step_generator
from ulda.training.validation import validate

Loss = Callable[[Any, Task, Batch, Settings, int], tuple[Tensor, Tensor]]
"""Of a model, a task, a batch, the settings and the step: the loss, and the images without gradient."""

LOG_EVERY = 10
"""In steps; a row of the log holds the mean loss since the row before."""


def fit(
    model: nn.Module,
    tasks: Sequence[Task],
    settings: Settings,
    loss: Loss,
    *,
    trainable: Callable[[str], bool] = lambda name: True,  # noqa: ARG005
    folder: Path | None = None,
    report: Report | None = None,
    best: Best | None = None,
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
        What a step minimises, e.g. `ulda.training.unrolled.unrolled_loss`.
    trainable
        Which parameters learn; the others stay bit-identical.
    folder
        Where the checkpoint and ``log.csv`` go. A checkpoint found there is continued.
    report
        Called after each step.
    best
        Observes the parameters of every validation, the start among them; the caller restores the best.
    """
    check_tasks(tasks)
    run = _Run(model, tasks, settings, trainable, folder, best)
    is_judged = any(task.n_validated for task in tasks)
    try:
        with deferred_interrupt() as check_interrupt:
            if best is not None and is_judged and not best.parameters and run.step == 0:
                run.observe(Progress(0, settings.steps, math.nan, 0.0, validate(model, tasks)))
            while run.step < settings.steps:
                generator = step_generator(settings, run.step)
                batch = run.chains.visit(draw(tasks, settings, generator), run.step, generator)
                value, x = run.differentiate(loss, tasks[batch.task], batch)
                progress = run.update(batch, value, x)
                # without a validation at the end the start would win
                is_end = best is not None and is_judged and run.step == settings.steps
                if is_end or _is_due(settings.validate_every, run.step, settings.steps):
                    progress = replace(progress, validation=validate(model, tasks))
                run.observe(progress)
                if _is_due(settings.checkpoint_every, run.step, settings.steps):
                    run.save()
                if report is not None:
                    report(progress)
                check_interrupt()
    except KeyboardInterrupt:
        if run.is_whole:
            run.save()
        raise
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
        groups = [{"params": [p], "factor": rate_multiplier(name, settings)} for name, p in self.learning.items()]
        self.optimiser = torch.optim.Adam(groups, lr=settings.learning_rate)
        self.step, self.saved, self.history = 0, 0, list[Progress]()
        self.losses: list[float] = []  # since the last row of the history
        self.chains = Chains(settings)
        self.is_whole = True  # not so between an update of the parameters and the books about it
        self.began = time.perf_counter()
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self.origin = fingerprint_of(tasks, [(name, p.detach()) for name, p in model.named_parameters()])
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
        self.chains.keep(batch, x, self.step)
        self.step += 1
        self.losses.append(loss)
        return Progress(self.step, self.settings.steps, loss, rate, seconds=time.perf_counter() - self.began)

    def observe(self, progress: Progress) -> None:
        """Keep a row of the log where one is due, and the parameters if they are the best."""
        if progress.validation and self.best is not None:
            self.best.observe(mean_score(progress), self.learning)
        if progress.validation or _is_due(LOG_EVERY, progress.step, progress.steps):
            mean = sum(self.losses) / len(self.losses) if self.losses else math.nan
            self.history.append(replace(progress, loss=mean))
            self.losses = []
            self._write_log()
        self.is_whole = True

    def save(self) -> None:
        if self.folder is None:
            return
        facts = {
            "step": self.step,
            "settings": self.settings.model_dump(mode="json"),
            "origin": self.origin,
            "seconds": time.perf_counter() - self.began,
            "history": [vars(row) for row in self.history],
            "losses": self.losses,
            "best": None if self.best is None else self.best.score,
            "chains": self.chains.facts(),
        }
        extra = {} if self.best is None else {f"best/{name}": value for name, value in self.best.parameters.items()}
        extra |= {f"chain/{number}": iterate for number, iterate in self.chains.iterates().items()}
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
        if facts["settings"] != self.settings.model_dump(mode="json"):
            raise UldaError(f"{self.checkpoint} was written with other settings; remove it to start anew")
        if facts["origin"] != self.origin:
            raise UldaError(f"{self.checkpoint.name} was written for another model or data; remove it to start anew")
        self.step = self.saved = facts["step"]
        self.began -= facts["seconds"]
        self.history, self.losses = [Progress(**row) for row in facts["history"]], facts["losses"]
        if self.best is not None and facts["best"] is not None:
            self.best.score, self.best.parameters = facts["best"], _below("best/", extra)
        self.chains.restore(facts["chains"], _below("chain/", extra))
        # the run that was killed may have written rows after its last checkpoint
        self._write_log()


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names have a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _is_due(every: int, step: int, steps: int) -> bool:
    return every > 0 and (step % every == 0 or step == steps)
