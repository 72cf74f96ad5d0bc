"""Run the cells of an experiment one after the other or several at once, within a budget of time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ulda.errors import UldaError
from ulda.experiments.cells import UNADAPTED_SIZE, Cell, cells_of, read_cells, seconds_of
from ulda.experiments.dry_run import TIMED_SIDE, check_method
from ulda.experiments.recipes import outdated
from ulda.experiments.running import Runner

_POLL = 0.5


@dataclass(frozen=True)
class Progress:
    """How far an experiment is.

    Attributes
    ----------
    done, total
        Cells.
    seconds_left
        Time of the cells to do, one after the other; None where nothing was measured yet.
    running
        The cells that are being run.
    outdated
        How many of those done have other settings than today's.
    """

    done: int
    total: int
    seconds_left: float | None
    running: tuple[str, ...] = ()
    outdated: int = 0


def pending(runner: Runner, methods: Sequence[str] = ()) -> list[Cell]:
    """Return the cells without a result, of some methods or of all."""
    for name in methods:
        runner.experiment.variant(name)
    cells = cells_of(runner.experiment, runner.data.scale)
    return [cell for cell in cells if not runner.is_done(cell) and (not methods or cell.method in methods)]


def progress_of(
    runner: Runner, running: tuple[str, ...] = (), *, step_seconds: dict[str, float] | None = None
) -> Progress:
    """Return how far an experiment is, and what the measured cells say about those to do.

    With a dictionary for `step_seconds`, also an empty one, those that nothing is known about are guessed; see `guess`.
    """
    cells = cells_of(runner.experiment, runner.data.scale)
    results = read_cells(runner.cells_folder)
    left = [cell for cell in cells if not runner.is_done(cell)]
    estimates = [estimate(cell, results, runner.data.scale.adapt_steps) for cell in left]
    if step_seconds is not None:
        pairs = zip(left, estimates, strict=True)
        estimates = [guess(runner, cell, step_seconds) if known is None else known for cell, known in pairs]
    known = [seconds for seconds in estimates if seconds is not None]
    total = sum(known) / len(known) * len(left) if known else None
    seconds = 0.0 if not left else total
    old = outdated(runner.experiment, runner.data.scale, results)
    return Progress(len(cells) - len(left), len(cells), seconds, running, len(old))


def estimate(cell: Cell, results: dict[str, dict[str, Any]], steps: Mapping[int, int]) -> float | None:
    """Guess the time of a cell from those done: the same method and size, else the same method or kind.

    Other numbers of target slices count in proportion to their `steps`; none at all is only a test.
    """
    done = [
        (entry["cell"], seconds_of(entry) * steps.get(cell.size, 1) / steps.get(entry["cell"]["size"], 1))
        for entry in results.values()
        if (entry["cell"]["size"] == UNADAPTED_SIZE) == (cell.size == UNADAPTED_SIZE)
    ]
    for alike in (("kind", "method", "size"), ("kind", "method"), ("kind", "size"), ("kind",)):
        times = [seconds for other, seconds in done if all(other[key] == getattr(cell, key) for key in alike)]
        if times:
            return sum(times) / len(times)
    return None


def guess(runner: Runner, cell: Cell, step_seconds: dict[str, float]) -> float:
    """Guess the time of a cell when nothing like it was measured: that of one training step, times their number.

    Methods without training count as instant. A step is timed once for each method, and kept in `step_seconds`.
    """
    scale, variant = runner.data.scale, runner.experiment.variant(cell.method)
    if not variant.is_learned:
        return 0.0
    if cell.method not in step_seconds:
        side = min(TIMED_SIDE, scale.side)
        check = check_method(runner.experiment, variant, scale, cell.method, side, runner.device)
        step_seconds[cell.method] = check.step_seconds
    n_steps = scale.steps if cell.kind == "train" else scale.adapt_steps.get(cell.size, 0)
    return step_seconds[cell.method] * n_steps


class _TimeBudget:
    """Which cells are expected to end in time; all of them without a limit in seconds."""

    def __init__(self, runner: Runner, seconds: float | None) -> None:
        self.runner, self.seconds = runner, seconds
        self.start = time.monotonic()
        self.step_seconds: dict[str, float] = {}

    def fitting(self, cells: list[Cell]) -> list[Cell]:
        """Return the cells that would end in time if they were started now."""
        if self.seconds is None:
            return list(cells)
        left = self.seconds - (time.monotonic() - self.start)
        results = read_cells(self.runner.cells_folder)
        return [cell for cell in cells if left > 0 and self._expected(cell, results) <= left]

    def _expected(self, cell: Cell, results: dict[str, dict[str, Any]]) -> float:
        measured = estimate(cell, results, self.runner.data.scale.adapt_steps)
        return guess(self.runner, cell, self.step_seconds) if measured is None else measured


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let a termination end the cells, too, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():  # which alone may say what a signal does
        yield
        return

    def stop(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@_interruptible()
def run_all(
    runner: Runner,
    *,
    jobs: int = 1,
    seconds: float | None = None,
    methods: Sequence[str] = (),
    command: Callable[[Cell], list[str]],
    report: Callable[[Progress], None] | None = None,
) -> Progress:
    """Run what is left, each cell in a process of its own; cells that another process runs are left to it.

    Parameters
    ----------
    runner
        What to run.
    jobs
        How many cells at once, each with one thread.
    seconds
        Start no cell that is expected to end after this time; None for no limit.
    methods
        Only the cells of these methods; all if empty.
    command
        Returns the command line that runs a cell.
    report
        Called when a cell begins or ends.
    """
    budget = _TimeBudget(runner, seconds)
    running: dict[str, tuple[Cell, subprocess.Popen[bytes]]] = {}
    failed: dict[str, Cell] = {}

    def tell() -> None:
        if report is not None:
            report(progress_of(runner, tuple(running)))

    try:
        while True:
            for key, (cell, process) in list(running.items()):
                if process.poll() is not None:
                    del running[key]
                    if not runner.is_done(cell) and not runner.is_claimed(cell):
                        failed[key] = cell
                    tell()
            waiting = [one for one in pending(runner, methods) if one.key not in running and one.key not in failed]
            ready = [one for one in waiting if _is_ready(runner, one) and not runner.is_claimed(one)]
            fitting = budget.fitting(ready)
            while fitting and len(running) < jobs:
                cell = fitting.pop(0)
                process = subprocess.Popen(
                    command(cell), env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL
                )
                running[cell.key] = cell, process
                tell()
            if not running:
                break
            time.sleep(_POLL)
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.wait()
    if failed:
        raise UldaError(f"the cell {next(iter(failed))} failed, and {len(failed) - 1} more; its error is above")
    return progress_of(runner)


def waiting_for(runner: Runner, methods: Sequence[str] = ()) -> list[str]:
    """Return the trainings, by variant, that cells of some methods wait for and that are not among them."""
    waiting = [cell.needs for cell in pending(runner, methods) if cell.needs and not _is_ready(runner, cell)]
    names = [needed.removeprefix("train-") for needed in dict.fromkeys(waiting)]
    return [name for name in names if methods and name not in methods]


def _is_ready(runner: Runner, cell: Cell) -> bool:
    return cell.needs is None or (runner.cells_folder / f"{cell.needs}.json").exists()


def python_command(*arguments: str) -> list[str]:
    """Return the command line of a command of `ulda`."""
    return [sys.executable, "-m", "ulda", *arguments]
