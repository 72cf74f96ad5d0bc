"""The command line: thin commands over the library, one file per command group."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from ulda.cli import adapt, data, demo, evaluate, experiment, methods, models, reconstruct, report, sign, train, verify
from ulda.cli.output import accept_all_characters, say
from ulda.errors import UldaError
from ulda.version import __version__

app = typer.Typer(
    name="ulda",
    help="Learn an MRI image prior once, from many domains, and adapt it to a new one with a handful of slices.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("adapt")(adapt.adapt)
app.add_typer(data.app, name="data")
app.command("demo")(demo.demo)
app.command("evaluate")(evaluate.evaluate)
app.command("methods")(methods.methods)
app.add_typer(experiment.app, name="experiment")
app.add_typer(models.app, name="models")
app.command("reconstruct")(reconstruct.reconstruct)
app.command("report")(report.report)
app.command("sign")(sign.sign)
app.command("train")(train.train)
app.command("verify")(verify.verify)


def _print_version(value: bool) -> None:
    if value:
        say(f"ulda {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Reconstruct undersampled MRI with a prior that adapts to your data."""


def main() -> None:
    """Run the command line; a mistake a person can correct is one sentence, not a traceback."""
    accept_all_characters()
    try:
        app()
    except UldaError as error:
        _fail(str(error))
    except BrokenPipeError:
        # the reader of our output went away (`ulda ... | head`): say nothing
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except MemoryError:
        _fail("there is not enough memory for this; choose fewer or smaller slices")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}")


def _fail(message: str) -> None:
    typer.secho("error: ", fg=typer.colors.RED, bold=True, err=True, nl=False)
    say(message, err=True)
    sys.exit(1)
