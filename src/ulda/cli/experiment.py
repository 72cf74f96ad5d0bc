"""`ulda experiment`: the paper's experiments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ulda.cli.output import JsonOption, print_json, print_table, progress_bar
from ulda.errors import UldaError

if TYPE_CHECKING:
    from ulda.experiments.cells import Cell
    from ulda.experiments.running import Runner
    from ulda.experiments.scheduling import Progress

app = typer.Typer(help="Run the paper's experiments, cell by cell.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="An experiment, or a file that describes one.")]
ScaleOption = Annotated[Literal["bench", "paper"], typer.Option("--scale", help="How large.")]
FolderOption = Annotated[
    Path | None, typer.Option("--folder", "-f", help="Where everything goes; by default runs/NAME-SCALE.")
]
DataOption = Annotated[Path, typer.Option("--data", "-d", help="The folder with a file or folder per domain.")]
DEFAULT_DATA = Path("../shared/data")


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the experiments."""
    from ulda.experiments import experiment_names, load_experiment
    from ulda.experiments.cells import cells_of

    found = [load_experiment(name) for name in experiment_names()]
    counts = [{name: len(cells_of(one, scale)) for name, scale in one.scales.items()} for one in found]
    if as_json:
        listed = zip(found, counts, strict=True)
        print_json([one.model_dump(mode="json", exclude={"paper"}) | {"cells": count} for one, count in listed])
        return
    rows = [
        [one.name, one.title, ", ".join(f"{n} ({scale})" for scale, n in count.items())]
        for one, count in zip(found, counts, strict=True)
    ]
    print_table("", ["name", "what", "cells"], rows)


@app.command()
def run(
    name: NameArgument,
    scale: ScaleOption = "bench",
    folder: FolderOption = None,
    data: DataOption = DEFAULT_DATA,
    jobs: Annotated[int, typer.Option(min=1, help="How many cells at once, each with one thread.")] = 1,
    budget: Annotated[str, typer.Option(help="Start nothing that would end later, e.g. 2h or 90m.")] = "",
    method: Annotated[list[str] | None, typer.Option(help="Only this method; may be given several times.")] = None,
    cell: Annotated[str, typer.Option(hidden=True, help="Run this one cell here.")] = "",
) -> None:
    """Run what is left of an experiment.

    Every cell writes one JSON; a run that was killed continues, in the middle of a training if need be.
    """
    from ulda.experiments.cells import cells_of
    from ulda.experiments.scheduling import python_command, run_all

    runner = _runner(name, scale, folder, data)
    if cell:
        import torch

        torch.set_num_threads(1)
        found = [other for other in cells_of(runner.experiment, runner.data.scale) if other.key == cell]
        if not found:
            raise UldaError(f"{name} has no cell {cell!r}")
        runner.run(found[0])
        return

    def command(one: Cell) -> list[str]:
        place = ["--folder", str(runner.folder), "--data", str(data)]
        return python_command("experiment", "run", name, "--scale", scale, *place, "--cell", one.key)

    with progress_bar(f"{name}, {scale}") as advance:

        def report(progress: Progress) -> None:
            advance(progress.done, progress.total)

        progress = run_all(
            runner, jobs=jobs, seconds=parse_time(budget), methods=method or (), command=command, report=report
        )
    _say(progress, runner.folder)


@app.command()
def status(
    name: NameArgument,
    scale: ScaleOption = "bench",
    folder: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say how far an experiment is, and how long the rest will take."""
    from ulda.experiments.scheduling import progress_of

    runner = _runner(name, scale, folder, DEFAULT_DATA)
    progress = progress_of(runner)
    if as_json:
        print_json(vars(progress))
        return
    _say(progress, runner.folder)


@app.command()
def table(
    name: NameArgument,
    scale: ScaleOption = "bench",
    folder: FolderOption = None,
    results: Annotated[Path | None, typer.Option(help="A file that `pack` wrote, instead of the folder.")] = None,
    style: Annotated[Literal["md", "tex", "csv"], typer.Option("--format", help="The format.")] = "md",
) -> None:
    """Print the table of an experiment, read from its cells."""
    from ulda.experiments.cells import read_cells
    from ulda.experiments.tables import formatted, rows_of

    runner = _runner(name, scale, folder, DEFAULT_DATA)
    cells = read_cells(results or runner.cells_folder)
    if not cells:
        raise UldaError(f"there are no results of {name} in {results or runner.cells_folder}; run the experiment first")
    typer.echo(formatted(rows_of(runner.experiment, cells, runner.data.scale.sizes), style))


@app.command()
def pack(
    name: NameArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")],
    scale: ScaleOption = "bench",
    folder: FolderOption = None,
) -> None:
    """Write all results of an experiment into one compact file."""
    from ulda.experiments.cells import pack as write
    from ulda.experiments.cells import read_cells

    runner = _runner(name, scale, folder, DEFAULT_DATA)
    cells = read_cells(runner.cells_folder)
    write(cells, out, experiment=runner.experiment.name, scale=scale)
    typer.echo(f"{len(cells)} cells in {out}")


def parse_time(text: str) -> float | None:
    """Return a time such as 2h, 90m or 30s in seconds; None for none.

    Examples
    --------
    >>> parse_time("1.5h"), parse_time("90m"), parse_time("")
    (5400.0, 5400.0, None)
    """
    if not text:
        return None
    units = {"s": 1, "m": 60, "h": 3600}
    try:
        seconds = float(text[:-1]) * units[text[-1]]
    except (ValueError, KeyError) as error:
        raise UldaError(f"{text!r} is not a time; write e.g. 2h, 90m or 30s") from error
    if not seconds > 0:
        raise UldaError(f"{text!r} is not a time to run for")
    return seconds


def _runner(name: str, scale: str, folder: Path | None, data: Path) -> Runner:
    from ulda.experiments import load_experiment
    from ulda.experiments.running import Runner

    experiment = load_experiment(name)
    experiment.scale(scale)
    return Runner(experiment, scale, folder or Path("runs") / f"{experiment.name}-{scale}", data)


def _say(progress: Progress, folder: Path) -> None:
    left = "" if progress.seconds_left is None else f", about {_duration(progress.seconds_left)} of work left"
    typer.echo(f"{progress.done} of {progress.total} cells done{left}; in {folder}")


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"
