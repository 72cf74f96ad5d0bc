"""`ulda train`: train a base, or a model of another method, from a configuration."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ulda.cli.output import print_text, progress_bar, say
from ulda.errors import UldaError

if TYPE_CHECKING:
    from ulda.training.history import Progress, Report

ThreadsOption = Annotated[
    int | None, typer.Option("--threads", min=1, help="Threads to compute with; results depend on their number.")
]


def train(
    config: Annotated[Path | None, typer.Argument(metavar="CONFIG.yaml", help="What to train.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The folder of the run; by default runs/NAME.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="What to train, in place of the method in the file; see `ulda methods`.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="paper or default, in place of the preset in the file.")] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Train for this time, in place of the number of steps in the file.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the folder.")] = False,
    threads: ThreadsOption = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write events for TensorBoard, too.")] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print a complete commented configuration and exit.")
    ] = False,
) -> None:
    """Train a base, or a model of another method, on several source domains.

    Ctrl-C saves; --resume continues as if nothing had happened.
    """
    if print_config:
        from ulda.training.config_text import default_config

        print_text(default_config(preset or "default").rstrip("\n"))
        return
    if config is None:
        raise UldaError("name a configuration; `ulda train --print-config` prints one to start from")
    if seconds is not None and not seconds > 0:
        raise UldaError(f"--seconds must be positive, but it is {seconds:g}")
    set_threads(threads)
    from ulda.methods import runs
    from ulda.training.config import load_config

    settings = runs.resolve(load_config(config), method, preset, seconds)
    folder = out or Path("runs") / settings.name
    planned = runs.stage_steps(settings)
    with ExitStack() as stack:
        advance = stack.enter_context(progress_bar(f"training {settings.name}"))
        write = stack.enter_context(_events(folder)) if tensorboard else None

        def report(progress: Progress) -> None:
            planned[progress.stage] = progress.steps  # a time decides on those of step 1 when it begins
            done = sum(steps for _, steps in takewhile(lambda entry: entry[0] != progress.stage, planned.items()))
            advance(done + progress.step, sum(planned.values()))
            if write is not None:
                write(progress)

        options = _options(method, preset, seconds)
        command = f"ulda train {config if not config.is_absolute() else config.name}{options}"
        try:
            model = runs.train(settings, folder, resume=resume, command=command, report=report)
        except KeyboardInterrupt:
            stop(folder, f"with: ulda train {config}{options} --out {folder} --resume")
    what = f"{settings.name} ({settings.method}, preset {settings.preset})"
    say(f"trained {what} on {', '.join(model.sources)}: {model.n_parameters} parameters, in {folder}")


def _events(folder: Path) -> AbstractContextManager[Report]:
    from ulda.training.tensorboard import tensorboard_report

    return tensorboard_report(folder / "tensorboard")


def _options(method: str | None, preset: str | None, seconds: float | None) -> str:
    """Return the options that decide what is trained, as they are typed."""
    given = {"--method": method, "--preset": preset, "--seconds": None if seconds is None else f"{seconds:g}"}
    return "".join(f" {option} {value}" for option, value in given.items() if value is not None)


def set_threads(threads: int | None) -> None:
    """Set the number of threads PyTorch computes with."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def stop(folder: Path, how: str) -> NoReturn:
    """Say how to continue a run after Ctrl-C, and exit as interrupted programs do."""
    from ulda.methods.runs import has_checkpoint

    saved = "the run is saved" if has_checkpoint(folder) else "there was nothing to save yet"
    say(f"stopped; {saved}, continue {how}", err=True)
    raise typer.Exit(130)
