"""`ulda experiment`: the paper's experiments."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ulda.cli.output import JsonOption, print_json, print_table, print_text, progress_bar, say
from ulda.errors import UldaError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ulda.experiments.running import Runner
    from ulda.experiments.runs import Packed, Run
    from ulda.experiments.scheduling import Progress

app = typer.Typer(help="Run the paper's experiments.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="An experiment, or a file that describes one.")]
ScaleOption = Annotated[Literal["bench", "paper"], typer.Option("--scale", help="How large.")]
FolderOption = Annotated[Path | None, typer.Option("--folder", "-f", help="Where everything goes; by default in runs.")]
DataOption = Annotated[Path, typer.Option("--data", "-d", help="The folder with a file or folder per domain.")]
ResultsOption = Annotated[Path | None, typer.Option(help="A file that `pack` wrote, instead of the folder.")]
FormatOption = Annotated[Literal["md", "tex", "csv"], typer.Option("--format", help="The format.")]
DEFAULT_DATA = Path("../shared/data")


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the experiments."""
    from ulda.experiments import experiment_names, load_experiment
    from ulda.experiments.runs import runs_of

    found = [load_experiment(name) for name in experiment_names()]
    counts = [{name: len(runs_of(one.at(name), scale)) for name, scale in one.scales.items()} for one in found]
    if as_json:
        listed = zip(found, counts, strict=True)
        print_json(
            [one.model_dump(mode="json", exclude={"paper", "paper_sources"}) | {"runs": count} for one, count in listed]
        )
        return
    rows = [
        [one.name, one.title, ", ".join(f"{n} ({scale})" for scale, n in count.items())]
        for one, count in zip(found, counts, strict=True)
    ]
    print_table("", ["name", "what", "runs"], rows)


@app.command()
def run(
    name: NameArgument,
    scale: ScaleOption = "bench",
    folder: FolderOption = None,
    data: DataOption = DEFAULT_DATA,
    jobs: Annotated[int, typer.Option(min=1, help="How many runs at once, each with one thread.")] = 1,
    budget: Annotated[str, typer.Option(help="Start nothing that would end later, e.g. 2h or 90m.")] = "",
    method: Annotated[list[str] | None, typer.Option(help="Only this method; may be given several times.")] = None,
    renew: Annotated[bool, typer.Option("--renew", help="Do runs of other settings again.")] = False,
    device: Annotated[str, typer.Option(help="Where networks are trained and tested: cpu or cuda.")] = "cpu",
    check: Annotated[bool, typer.Option("--dry-run", help="Check data and methods, estimate, run nothing.")] = False,
    run: Annotated[str, typer.Option(hidden=True, help="Do this one run here.")] = "",
) -> None:
    """Run what is left of an experiment.

    Every run writes one JSON; one that was killed continues, in the middle of a training if need be. Runs of other
    settings than today's stay, and are counted; --renew does them again, and trainings whose model is gone while
    something is to be adapted from it. A dry run exits with 1 when something is missing.
    """
    from ulda.experiments.runs import runs_of
    from ulda.experiments.scheduling import python_command, run_all, waiting_for

    runner = _runner(name, scale, folder, data, device)
    if check:
        _dry_run(runner)
        return
    if run:
        import torch

        torch.set_num_threads(1)
        found = [other for other in runs_of(runner.experiment, runner.data.scale) if other.key == run]
        if not found:
            raise UldaError(f"{name} has no run {run!r}")
        runner.run(found[0])
        return

    if renew:
        runs = runs_of(runner.experiment, runner.data.scale)
        wanted = {one.key for one in runs if not method or one.method in method}
        for old in runner.outdated():
            if old.key in wanted:
                runner.forget(old)
        runner.forget_lost(wanted)

    def command(one: Run) -> list[str]:
        place = ["--folder", str(runner.folder), "--data", str(data), "--device", device]
        return python_command("experiment", "run", name, "--scale", scale, *place, "--run", one.key)

    with progress_bar(f"{name}, {scale}") as advance:

        def report(progress: Progress) -> None:
            advance(progress.done, progress.total)

        progress = run_all(
            runner, jobs=jobs, seconds=parse_time(budget), methods=method or (), command=command, report=report
        )
    _say(progress, runner.folder)
    missing = waiting_for(runner, method or ())
    if missing:
        say(f"what is left waits for the training of {', '.join(missing)}; say also --method {missing[0]}")


@app.command()
def status(
    name: NameArgument,
    scale: ScaleOption = "bench",
    folder: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say how far an experiment is, and how long the rest will take.

    The rest is judged by the runs that are done; where there are none like it, a training step is timed.
    """
    from ulda.experiments.scheduling import progress_of

    runner = _runner(name, scale, folder, DEFAULT_DATA)
    progress = progress_of(runner, step_seconds={})
    if as_json:
        print_json(vars(progress))
        return
    _say(progress, runner.folder)


@app.command()
def table(
    name: NameArgument,
    scale: ScaleOption = "bench",
    folder: FolderOption = None,
    results: ResultsOption = None,
    domain: Annotated[list[str] | None, typer.Option(help="Only this domain; may be given several times.")] = None,
    style: FormatOption = "md",
) -> None:
    """Print the table of an experiment, read from its runs.

    As CSV it has a row per method, domain and number of slices; as TeX, where it would be wider than a page, it is a
    table for the sources and one for each target.
    """
    from ulda.experiments.tables import formatted, records_of, rows_of

    with _results(name, scale, folder, results) as found:
        experiment = found.experiment
        if style == "csv":
            print_text(formatted(records_of(experiment, found.runs, domain or ()), style))
            return
        sources, targets = ([entry.name for entry in part] for part in (experiment.sources, experiment.targets))
        parts = [sources, *([target] for target in targets)] if style == "tex" and not domain else [domain or ()]
        tables = (rows_of(experiment, found.runs, found.sizes, part) for part in parts)
        print_text("\n\n".join(formatted(rows, style) for rows in tables))


@app.command()
def verdict(
    name: NameArgument,
    scale: ScaleOption = "bench",
    folder: FolderOption = None,
    results: ResultsOption = None,
) -> None:
    """Say where the method that the others are compared with leads, and where it is behind."""
    from ulda.experiments.verdict import sentences

    with _results(name, scale, folder, results) as found:
        for sentence in sentences(found.experiment, found.runs, found.sizes):
            say(sentence)


@app.command()
def measures(
    name: NameArgument,
    scale: ScaleOption = "bench",
    folder: FolderOption = None,
    results: ResultsOption = None,
    style: FormatOption = "md",
) -> None:
    """Print what was measured beside the scores: quality beyond T, descending phases, similarity of features."""
    from ulda.experiments.measures import rows_of_measures
    from ulda.experiments.tables import formatted

    with _results(name, scale, folder, results) as found:
        print_text(formatted(rows_of_measures(found.experiment, found.runs), style))


@app.command()
def efficiency(
    name: NameArgument,
    scale: ScaleOption = "bench",
    folder: FolderOption = None,
    results: ResultsOption = None,
    style: FormatOption = "md",
) -> None:
    """Print parameters, times and memory of the methods, read from the runs."""
    from ulda.experiments.efficiency import rows_of_efficiency
    from ulda.experiments.tables import formatted

    with _results(name, scale, folder, results) as found:
        print_text(formatted(rows_of_efficiency(found.experiment, found.runs, found.sizes), style))


@app.command()
def figure(
    name: NameArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder that gets them.")],
    scale: ScaleOption = "bench",
    folder: FolderOption = None,
    results: ResultsOption = None,
    only: Annotated[list[str] | None, typer.Option(help="Only this kind; may be given several times.")] = None,
    style: Annotated[Literal["svg", "pdf", "both"], typer.Option("--format", help="The format.")] = "svg",
) -> None:
    """Draw the figures of an experiment, from its runs, logs and example reconstructions.

    The kinds are reconstructions, bars, learning, convergence, beyond, efficiency and similarity; those that the
    results have nothing for are left out, and it is said why.
    """
    from ulda.experiments.figures import Results, draw_figures

    with _results(name, scale, folder, results) as found:
        place = _runner(name, scale, folder, DEFAULT_DATA).folder
        shown = Results(found.experiment, found.sizes, place, found.runs)
        drawn = draw_figures(shown, out, only or (), ("svg", "pdf") if style == "both" else (style,))
        for kind, reason in drawn.skipped.items():
            say(f"no figure of the kind {kind}: {reason}")
        for path in drawn.files:
            say(path)


@app.command()
def pack(
    name: NameArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")],
    scale: ScaleOption = "bench",
    folder: FolderOption = None,
) -> None:
    """Write all results of an experiment into one compact file."""
    from ulda.experiments.runs import pack as write

    with _results(name, scale, folder, None) as found:
        write(found, out)
        say(f"{len(found.runs)} runs in {out}")


@app.command()
def unpack(
    name: NameArgument,
    results: Annotated[Path, typer.Option(help="A file that `pack` wrote.")],
    scale: ScaleOption = "bench",
    folder: FolderOption = None,
) -> None:
    """Write the results of a packed file into the folder of an experiment, which continues from them.

    Results that are there already stay. Models are not packed: `ulda experiment run --renew` trains those again that
    something is still to be adapted from.
    """
    from ulda.experiments.runs import runs_of, write_run

    runner = _runner(name, scale, folder, DEFAULT_DATA)
    packed = _read_results(name, scale, folder, results).runs
    wanted = [run for run in runs_of(runner.experiment, runner.data.scale) if run.key in packed]
    new = [run for run in wanted if not runner.is_done(run)]
    for run in new:
        write_run(runner.runs_folder, run, packed[run.key])
    say(f"{len(new)} runs in {runner.runs_folder}, {len(packed) - len(new)} were there")


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


def _runner(name: str, scale: str, folder: Path | None, data: Path, device: str = "cpu") -> Runner:
    from ulda.experiments import load_experiment
    from ulda.experiments.running import Runner

    experiment = load_experiment(name)
    experiment.scale(scale)
    if device != "cpu":
        _check_device(device)
    place = folder or Path("runs") / f"{experiment.family or experiment.name}-{scale}"
    return Runner(experiment, scale, place, data, device)


def _check_device(device: str) -> None:
    import torch

    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UldaError(f"nothing can be computed on the device {device!r} here ({reason})") from error


@contextmanager
def _results(name: str, scale: str, folder: Path | None, file: Path | None) -> Iterator[Packed]:
    """Give the results of an experiment to the block, where what they lack becomes one sentence."""
    from ulda.io.untrusted import reading

    found = _read_results(name, scale, folder, file)
    with reading(file or found.experiment.name, "the results of an experiment", "run the experiment again"):
        yield found


def _read_results(name: str, scale: str, folder: Path | None, file: Path | None) -> Packed:
    """Read the results of an experiment, without those of others of its family; a packed file has its definition."""
    from ulda.experiments.recipes import outdated
    from ulda.experiments.runs import Packed, read_packed, read_runs, runs_of

    runner = _runner(name, scale, folder, DEFAULT_DATA)
    if file is not None:
        packed = read_packed(file)
        if (packed.experiment.name, packed.scale_name) != (runner.experiment.name, scale):
            held = f"{packed.experiment.name} at the scale {packed.scale_name}"
            raise UldaError(f"{file.name} holds the results of {held}, not of {runner.experiment.name} at {scale}")
        return packed
    keys = {run.key for run in runs_of(runner.experiment, runner.data.scale)}
    runs = {key: result for key, result in read_runs(runner.runs_folder).items() if key in keys}
    if not runs:
        place = runner.runs_folder
        raise UldaError(f"there are no results of {runner.experiment.name} in {place}; run the experiment first")
    old = len(outdated(runner.experiment, runner.data.scale, runs))
    if old:
        say(f"{old} of the {len(runs)} runs are of other settings than today's", err=True)
    return Packed(runner.experiment, scale, runs)


def _dry_run(runner: Runner) -> None:
    import torch

    from ulda.experiments.dry_run import dry_run

    torch.set_num_threads(1)  # as in every run
    found = dry_run(runner)
    header, *rows = found.rows()
    print_table(f"{runner.experiment.name}, {runner.scale_name}", header, rows)
    for note in found.notes:
        say(note)
    for problem in found.problems:
        say(f"problem: {problem}")
    if found.problems:
        raise typer.Exit(1)


def _say(progress: Progress, folder: Path) -> None:
    left = "" if progress.seconds_left is None else f", about {_duration(progress.seconds_left)} of work left"
    say(f"{progress.done} of {progress.total} runs done{left}; in {folder}")
    if progress.outdated:
        say(
            f"{progress.outdated} of them are of other settings than today's; "
            "`ulda experiment run --renew` does them again"
        )


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"
