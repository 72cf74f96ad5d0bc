"""Run a command in a forked child with limits of memory and time, and say how it ended.

The library is imported already, so a child costs milliseconds. It may die in any way: the parent only waits.
"""

from __future__ import annotations

import codecs
import contextlib
import faulthandler
import gc
import importlib
import io
import json
import math
import os
import pkgutil
import re
import resource
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import typer
from PIL import Image

import ulda
from ulda import cli
from ulda.cli.output import print_table, progress_bar

ACCEPTED, REFUSED = "accepted", "refused"
TRACEBACK, HANG, MEMORY, LEFTOVER, NON_FINITE = "traceback", "hang", "memory", "leftover", "non-finite accepted"
ESCAPE = "terminal escape"
BAD = (TRACEBACK, HANG, MEMORY, LEFTOVER, NON_FINITE, ESCAPE)

GIGABYTE = 2**30

LIBRARIES = (
    *("nibabel", "pydicom", "ismrmrd", "scipy.io", "jinja2", "yaml", "rich.console", "rich.progress", "rich.table"),
    *("safetensors.torch", "torch.fft", "PIL.ImageFile", "cryptography.hazmat.primitives.serialization"),
    "cryptography.hazmat.primitives.asymmetric.ed25519",
)
"""What commands import when they need it."""

ENCODINGS = ("unicode_escape", "cp437", "utf-8-sig", "latin-1")

_NO_MEMORY = re.compile(
    r"MemoryError|[Uu]nable to allocate|can.t allocate|[Cc]annot allocate|memory allocation failed|not enough memory"
)

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What a terminal takes for commands; line breaks and tabulators are none."""


@dataclass(frozen=True)
class Ending:
    """How a command ended.

    Attributes
    ----------
    kind
        ACCEPTED, REFUSED or one of BAD.
    detail
        The signature of a traceback, or what was found.
    """

    kind: str
    detail: str = ""


@dataclass(frozen=True)
class Limits:
    """How much a case may take: bytes more than the parent has, seconds of computing, and letters of its terminal."""

    memory: int = 2 * GIGABYTE
    seconds: float = 20.0
    encoding: str = "utf-8"


WAITING = 3
"""So many times the seconds of computing may pass on the clock: the machine may be busy."""


def prepare() -> None:
    """Import in the parent what commands import when they run, and build the command line: children need not then."""
    for module in pkgutil.walk_packages(ulda.__path__, "ulda."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in LIBRARIES:
        importlib.import_module(name)
    Image.init()
    for name in ENCODINGS:
        codecs.lookup(name)
    vars(cli)["app"] = command = typer.main.get_command(cli.app)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit), progress_bar("nothing"):
        command(["methods"])
        print_table("title", ["column"], [["é"]])
    # the collector would touch, and so copy, every page that a child shares with the parent
    gc.collect()
    gc.freeze()


def run(command: list[str] | Callable[[], Any], folder: Path, limits: Limits) -> Ending:
    """Run a command line, or a function in its place, in a child.

    Parameters
    ----------
    command
        The words after ``ulda``, or a function that is called as a command would be.
    folder
        Has a folder ``in``, where the child works, and the empty folders ``out`` and ``tmp``, which are to stay empty
        unless the command succeeds.
    limits
        What the child may take.
    """
    before = _listing(folder / "in")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        # nothing of the parent may run in the child: no cleaning up, no handlers, no flushing
        with contextlib.suppress(BaseException):
            os.close(reader)
            os.write(writer, json.dumps(_child(command, folder, limits)).encode())
        os._exit(0)
    os.close(writer)
    ending = _wait(child, reader, limits.seconds)
    if ending.kind in (ACCEPTED, REFUSED):
        more = [name for name in _listing(folder / "in") if name not in before]
        more += _listing(folder / "tmp")
        more += [name for name in _listing(folder / "out") if ending.kind == REFUSED or Path(name).name.startswith(".")]
        if more:
            return Ending(LEFTOVER, f"after it was {ending.kind}: {re.sub(r'[.][a-z0-9_]{8}[.]', '.X.', more[0])}")
    return ending


def _wait(child: int, reader: int, seconds: float) -> Ending:
    with open(reader, "rb") as stream:
        ready, _, _ = select.select([stream], [], [], WAITING * seconds)
        if not ready:
            os.kill(child, signal.SIGKILL)
        said = stream.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not ready or code == -signal.SIGXCPU:
        return Ending(HANG, "it computes" if ready else "it waits")
    if not said:
        return Ending(TRACEBACK, f"the process ended with {code}")
    return Ending(*json.loads(said))


def _child(command: list[str] | Callable[[], Any], folder: Path, limits: Limits) -> tuple[str, str]:
    output = folder / "said"
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    # as Python itself opens them: what the terminal has no letter for is an error on the one, and escaped on the other
    sys.stdout = os.fdopen(1, "w", encoding=limits.encoding, errors="strict", buffering=1)
    sys.stderr = os.fdopen(2, "w", encoding=limits.encoding, errors="backslashreplace", buffering=1)
    os.chdir(folder / "in")
    os.environ["TMPDIR"] = str(folder / "tmp")
    faulthandler.disable()
    _limit(limits)
    if isinstance(command, list):
        sys.argv = ["ulda", *command]
    else:
        vars(cli)["app"] = command
    try:
        cli.main()
        code: Any = 0
    except SystemExit as ended:
        code = ended.code
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        return (MEMORY if _is_of_memory(error) else TRACEBACK), signature(error)
    said = output.read_text(encoding=limits.encoding, errors="replace")
    if (word := _NO_MEMORY.search(said)) is not None:
        return MEMORY, f"{word[0]} in what it said"
    if _CONTROL.search(said):
        return ESCAPE, repr(_CONTROL.search(said))
    if code in (0, None):
        found = next(_non_finite(folder / "out"), "")
        return (NON_FINITE, found) if found else (ACCEPTED, "")
    if code in (1, 2) and said.strip() and "Traceback" not in said:
        return REFUSED, " ".join(said.split())[:300]
    return TRACEBACK, f"exit code {code} with: {said[:200]}"


def _limit(limits: Limits) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + limits.memory
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    # the system ends what computes for longer, the parent what waits
    seconds = math.ceil(limits.seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (GIGABYTE, GIGABYTE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def signature(error: BaseException) -> str:
    """Return type and place of an exception: the innermost function of ours that it passed."""
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "/src/ulda/" in frame.filename]
    place = "?" if not ours else f"{ours[-1].filename.partition('/src/ulda/')[2]}:{ours[-1].name}"
    return f"{type(error).__name__} in {place}"


def _is_of_memory(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def _non_finite(folder: Path) -> Iterator[str]:
    """Name what is not finite, or cannot be read, in the arrays that a command wrote."""
    for path in sorted(folder.rglob("*")):
        try:
            yield from (f"{path.name} {name}".strip() for name, array in _arrays(path) if not np.isfinite(array).all())
        except (OSError, ValueError, MemoryError, RuntimeError):
            yield f"{path.name} cannot be read"


def _arrays(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the arrays of numbers in a file, with their names."""
    if path.suffix == ".npy":
        yield "", np.load(path)
    elif path.suffix == ".h5":
        names: list[str] = []
        with h5py.File(path) as file:
            file.visit(names.append)
            for name in names:
                if isinstance(file[name], h5py.Dataset) and file[name].dtype.kind in "fc":
                    yield name, file[name][()]
