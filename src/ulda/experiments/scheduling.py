"""Run the runs of an experiment one after the other or several at once, within a budget of time."""

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
from ulda.experiments.dry_run import TIMED_SIDE, check_method
from ulda.experiments.recipes import outdated
from ulda.experiments.running import Runner
from ulda.experiments.runs import UNADAPTED_SIZE, Run, read_runs, runs_of

_POLL = 0.5


@dataclass(frozen=True)
class Progress:
    """How far an experiment is.

    Attributes
    ----------
    done, total
        Runs.
    seconds_left
        Time of the runs to do, one after the other; None where nothing was measured yet.
    running
        The runs under way.
    outdated
        How many of those done have other settings than today's.
    """

    done: int
    total: int
    seconds_left: float | None
    running: tuple[str, ...] = ()
    outdated: int = 0


def pending(runner: Runner, methods: Sequence[str] = ()) -> list[Run]:
    """Return the runs without a result, of some methods or of all."""
    for name in methods:
        runner.experiment.variant(name)
    runs = runs_of(runner.experiment, runner.data.scale)
    return [run for run in runs if not runner.is_done(run) and (not methods or run.method in methods)]


def progress_of(
    runner: Runner, running: tuple[str, ...] = (), *, step_seconds: dict[str, float] | None = None
) -> Progress:
    """Return how far an experiment is, and what the measured runs say about those to do.

    With a dictionary for `step_seconds`, also an empty one, those that nothing is known about are guessed; see `guess`.
    """
    runs = runs_of(runner.experiment, runner.data.scale)
    results = read_runs(runner.runs_folder)
    left = [run for run in runs if not runner.is_done(run)]
    estimates = [estimate(run, results, runner.data.scale.adapt_steps) for run in left]
    if step_seconds is not None:
        pairs = zip(left, estimates, strict=True)
        estimates = [guess(runner, run, step_seconds) if known is None else known for run, known in pairs]
    known = [seconds for seconds in estimates if seconds is not None]
    total = sum(known) / len(known) * len(left) if known else None
    seconds = 0.0 if not left else total
    old = outdated(runner.experiment, runner.data.scale, results)
    return Progress(len(runs) - len(left), len(runs), seconds, running, len(old))


def estimate(run: Run, results: dict[str, dict[str, Any]], steps: Mapping[int, int]) -> float | None:
    """Guess the time of a run from those done: the same method and size, else the same method or kind.

    Other numbers of target slices count in proportion to their `steps`; none at all is only a test.
    """
    done = [
        (entry["run"], float(entry["wall_clock"]) * steps.get(run.size, 1) / steps.get(entry["run"]["size"], 1))
        for entry in results.values()
        if (entry["run"]["size"] == UNADAPTED_SIZE) == (run.size == UNADAPTED_SIZE)
    ]
    for alike in (("kind", "method", "size"), ("kind", "method"), ("kind", "size"), ("kind",)):
        times = [seconds for other, seconds in done if all(other[key] == getattr(run, key) for key in alike)]
        if times:
            return sum(times) / len(times)
    return None


def guess(runner: Runner, run: Run, step_seconds: dict[str, float]) -> float:
    """Guess the time of a run when nothing like it was measured: that of one training step, times their number.

    Methods without training count as instant. A step is timed once for each method, and kept in `step_seconds`.
    """
    scale, variant = runner.data.scale, runner.experiment.variant(run.method)
    if not variant.is_learned:
        return 0.0
    if run.method not in step_seconds:
        side = min(TIMED_SIDE, scale.side)
        check = check_method(runner.experiment, variant, scale, run.method, side, runner.device)
        step_seconds[run.method] = check.step_seconds
    n_steps = scale.steps if run.kind == "train" else scale.adapt_steps.get(run.size, 0)
    return step_seconds[run.method] * n_steps


class _TimeBudget:
    """Which runs are expected to end in time; all of them without a limit in seconds."""

    def __init__(self, runner: Runner, seconds: float | None) -> None:
        self.runner, self.seconds = runner, seconds
        self.start = time.monotonic()
        self.step_seconds: dict[str, float] = {}

    def fitting(self, runs: list[Run]) -> list[Run]:
        """Return the runs that would end in time if they were started now."""
        if self.seconds is None:
            return list(runs)
        left = self.seconds - (time.monotonic() - self.start)
        results = read_runs(self.runner.runs_folder)
        return [run for run in runs if left > 0 and self._expected(run, results) <= left]

    def _expected(self, run: Run, results: dict[str, dict[str, Any]]) -> float:
        measured = estimate(run, results, self.runner.data.scale.adapt_steps)
        return guess(self.runner, run, self.step_seconds) if measured is None else measured


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let a termination end the runs, too, as Ctrl-C does."""
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


def _started(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)


@contextmanager
def _ended_at_last(running: Mapping[str, tuple[Run, subprocess.Popen[bytes]]]) -> Iterator[None]:
    """End the processes that still run."""
    try:
        yield
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.wait()


@_interruptible()
def run_all(
    runner: Runner,
    *,
    jobs: int = 1,
    seconds: float | None = None,
    methods: Sequence[str] = (),
    command: Callable[[Run], list[str]],
    report: Callable[[Progress], None] | None = None,
) -> Progress:
    """Run what is left, each run in a process of its own; those of another process are left to it.

    Parameters
    ----------
    runner
        What to run.
    jobs
        How many runs at once, each with one thread.
    seconds
        Start no run that is expected to end after this time; None for no limit.
    methods
        Only the runs of these methods; all if empty.
    command
        Returns the command line that does a run.
    report
        Called when a run begins or ends.
    """
    budget = _TimeBudget(runner, seconds)
    running: dict[str, tuple[Run, subprocess.Popen[bytes]]] = {}
    failed: dict[str, Run] = {}

    def tell() -> None:
        if report is not None:
            report(progress_of(runner, tuple(running)))

    with _ended_at_last(running):
        while True:
            for key, (run, process) in list(running.items()):
                if process.poll() is not None:
                    del running[key]
                    if not runner.is_done(run) and not runner.is_claimed(run):
                        failed[key] = run
                    tell()
            waiting = [one for one in pending(runner, methods) if one.key not in running and one.key not in failed]
            ready = [one for one in waiting if _is_ready(runner, one) and not runner.is_claimed(one)]
            for run in budget.fitting(ready)[: jobs - len(running)]:
                running[run.key] = run, _started(command(run))
                tell()
            if not running:
                break
            time.sleep(_POLL)
    if failed:
        raise UldaError(f"the run {next(iter(failed))} failed, and {len(failed) - 1} more; its error is above")
    return progress_of(runner)


def waiting_for(runner: Runner, methods: Sequence[str] = ()) -> list[str]:
    """Return the trainings, by variant, that runs of some methods wait for and that are not among them."""
    waiting = [run.needs for run in pending(runner, methods) if run.needs and not _is_ready(runner, run)]
    names = [needed.removeprefix("train-") for needed in dict.fromkeys(waiting)]
    return [name for name in names if methods and name not in methods]


def _is_ready(runner: Runner, run: Run) -> bool:
    return run.needs is None or (runner.runs_folder / f"{run.needs}.json").exists()


def python_command(*arguments: str) -> list[str]:
    """Return the command line of a command of `ulda`."""
    return [sys.executable, "-m", "ulda", *arguments]
