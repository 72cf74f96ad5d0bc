"""What all commands share in printing: tables, JSON and progress bars."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import contextmanager
from io import TextIOWrapper
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ulda.errors import escaped, escaped_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace an existing output.")]


def to_json(value: Any) -> str:
    """Write a value as indented JSON; numbers that JSON has no word for become null."""
    return escaped_json(json.dumps(_finite(value), indent=2, ensure_ascii=False))


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    typer.echo(to_json(value))


def say(sentence: object, *, err: bool = False) -> None:
    """Print one line; what files say in it is escaped."""
    typer.echo(escaped(str(sentence)), err=err)


def print_text(text: str) -> None:
    """Print lines; what files say in them is escaped."""
    for line in text.split("\n"):
        say(line)


def accept_all_characters() -> None:
    """Let terminals that lack a character show its number, rather than fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; columns that hold only numbers are aligned to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(escaped(title)))
    for i, column in enumerate(columns):
        numeric = all(_is_number(row[i]) for row in rows)
        table.add_column(column, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(Text(escaped(cell)) for cell in row))
    Console().print(table)


def command_line() -> str:
    """Return the command that runs, as it can be given again."""
    return shlex.join(["ulda", *sys.argv[1:]])


@contextmanager
def progress_bar(description: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show a progress bar on standard error if it is a terminal; the block reports (done, total)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _is_number(cell: str) -> bool:
    return cell.strip("-+ ±%.0123456789") == "" or cell in ("inf", "nan")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
