"""Run the cells of an experiment one after the other or several at once, within a budget of time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ulda.errors import UldaError
from ulda.experiments.cells import Cell, cells_of, read_cells
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
    """

    done: int
    total: int
    seconds_left: float | None
    running: tuple[str, ...] = ()


def pending(runner: Runner, methods: Sequence[str] = ()) -> list[Cell]:
    """Return the cells without a result, of some methods or of all."""
    for name in methods:
        runner.experiment.variant(name)
    cells = cells_of(runner.experiment, runner.data.scale)
    return [cell for cell in cells if not runner.is_done(cell) and (not methods or cell.method in methods)]


def progress_of(runner: Runner, running: tuple[str, ...] = ()) -> Progress:
    """Return how far an experiment is, and what the measured cells say about those to do."""
    cells = cells_of(runner.experiment, runner.data.scale)
    results = read_cells(runner.cells_folder)
    left = [cell for cell in cells if not runner.is_done(cell)]
    estimates = [estimate(cell, results) for cell in left]
    known = [seconds for seconds in estimates if seconds is not None]
    total = sum(known) / len(known) * len(left) if known else None
    return Progress(len(cells) - len(left), len(cells), 0.0 if not left else total, running)


def estimate(cell: Cell, results: dict[str, dict[str, Any]]) -> float | None:
    """Guess the time of a cell from those done: the same method and size, else the same method or kind."""
    done = [(entry["cell"], float(entry["wall_clock"])) for entry in results.values()]
    for alike in (("kind", "method", "size"), ("kind", "method"), ("kind", "size"), ("kind",)):
        times = [seconds for other, seconds in done if all(other[key] == getattr(cell, key) for key in alike)]
        if times:
            return sum(times) / len(times)
    return None


def run_all(
    runner: Runner,
    *,
    jobs: int = 1,
    seconds: float | None = None,
    methods: Sequence[str] = (),
    command: Callable[[Cell], list[str]],
    report: Callable[[Progress], None] | None = None,
) -> Progress:
    """Run what is left, each cell in a process of its own.

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
    start = time.monotonic()
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
                    if not runner.is_done(cell):
                        failed[key] = cell
                    tell()
            waiting = [cell for cell in pending(runner, methods) if cell.key not in running and cell.key not in failed]
            ready = [cell for cell in waiting if _is_ready(runner, cell)]
            results = read_cells(runner.cells_folder)
            left = None if seconds is None else seconds - (time.monotonic() - start)
            fitting = [cell for cell in ready if left is None or (left > 0 and (estimate(cell, results) or 0) <= left)]
            while fitting and len(running) < jobs:
                cell = fitting.pop(0)
                environment = os.environ | {"OMP_NUM_THREADS": "1"}
                running[cell.key] = cell, subprocess.Popen(command(cell), env=environment, stdout=subprocess.DEVNULL)
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


def _is_ready(runner: Runner, cell: Cell) -> bool:
    return cell.needs is None or (runner.cells_folder / f"{cell.needs}.json").exists()


def python_command(*arguments: str) -> list[str]:
    """Return the command line of a command of `ulda`."""
    return [sys.executable, "-m", "ulda", *arguments]
