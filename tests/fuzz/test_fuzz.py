"""Damaged and hostile files of all kinds end in an accepted result or in one sentence, whatever reads them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fuzz.campaign import run_all, summary, write
from tests.fuzz.sandbox import (
    ACCEPTED,
    BAD,
    ESCAPE,
    GIGABYTE,
    HANG,
    LEFTOVER,
    MEMORY,
    NON_FINITE,
    REFUSED,
    TRACEBACK,
    Ending,
    Limits,
    run,
)
from tests.fuzz.seeds import make_seeds
from ulda.errors import UldaError

CASES = 1500


@pytest.mark.serial
def test_mutated_files_of_all_kinds() -> None:
    cases = run_all(CASES, jobs=os.cpu_count() or 1)
    assert [case.number for case in cases] == list(range(CASES))
    counts = summary(cases)
    assert counts["total"][ACCEPTED] > 50
    assert counts["total"][REFUSED] > 500
    assert [entry["example"] for entry in counts["bad"]] == []


@pytest.mark.serial
def test_the_seeds_themselves_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "seeds").mkdir()
    for seed in make_seeds(tmp_path / "seeds"):
        for command in seed.commands:
            write(seed.files, tmp_path / "case")
            assert run(command, tmp_path / "case", Limits()) == Ending(ACCEPTED), f"{seed.kind}: {command}"


def _refuses() -> None:
    raise UldaError("this is no file")


def _fails() -> None:
    raise KeyError("a")


def _takes_memory() -> None:
    np.ones(GIGABYTE // 4)


def _asks_for_memory() -> None:
    """Catch what a library says, as a reader would."""
    try:
        np.zeros(2**40)
    except MemoryError as error:
        raise UldaError(f"it cannot be read ({error})") from error


def _waits() -> None:
    time.sleep(60)


def _computes() -> None:
    while True:
        pass


def _leaves_a_file() -> None:
    Path("../out/.made.tmp").touch()
    raise UldaError("this is no file")


def _writes_nan() -> None:
    np.save("../out/made.npy", np.array([1, np.nan]))


def _colours() -> None:
    print("\x1b[31mred")  # noqa: T201


def _says_more_than_ascii() -> None:
    print("é")  # noqa: T201


def _dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (lambda: None, ACCEPTED),
        (_refuses, REFUSED),
        (["data", "inspect"], REFUSED),
        (_fails, TRACEBACK),
        (_dies, TRACEBACK),
        (_takes_memory, MEMORY),
        (_asks_for_memory, MEMORY),
        (_waits, HANG),
        (_computes, HANG),
        (_leaves_a_file, LEFTOVER),
        (_writes_nan, NON_FINITE),
        (_colours, ESCAPE),
        (_says_more_than_ascii, ACCEPTED),
    ],
)
def test_the_sandbox_tells_endings_apart(command: Any, kind: str, tmp_path: Path) -> None:
    write({}, tmp_path / "case")
    assert run(command, tmp_path / "case", Limits(memory=GIGABYTE, seconds=1, encoding="ascii")).kind == kind


def test_every_bad_ending_is_tried_above() -> None:
    assert {TRACEBACK, MEMORY, HANG, LEFTOVER, NON_FINITE, ESCAPE} == set(BAD)
