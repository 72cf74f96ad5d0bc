from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Command
from tests.small_models import small_model
from ulda.cli.output import print_json, print_table, print_text, say, to_json

HOSTILE = "knee\x1b]0;owned\x07\x9b31m\u202egnp.exe"


def test_nothing_of_a_file_reaches_the_terminal_unescaped(capsys: pytest.CaptureFixture[str]) -> None:
    say(HOSTILE)
    print_text(f"{HOSTILE}\n{HOSTILE}")
    print_table(HOSTILE, ["name"], [[HOSTILE], ["two\nlines"]])
    print_json({HOSTILE: [HOSTILE, "\ud800"]})
    text = capsys.readouterr().out
    assert all(char.isprintable() or char == "\n" for char in text)
    assert r"knee\x1b]0;owned\x07\x9b31m\u202egnp.exe" in text
    assert r"two\x0alines" in text


def test_json_stays_the_same_value() -> None:
    value = {HOSTILE: ['\ud800 a \\ " \n', 1.5, None]}
    assert json.loads(to_json(value)) == value


def test_a_hostile_card_attribute_and_file_name(tmp_path: Path, command: Command) -> None:
    small_model("brain").save(tmp_path / "base", {"note": HOSTILE})
    _, text, _ = command("models", "inspect", tmp_path / "base")
    assert "\x1b]" not in text
    np.save(tmp_path / "a\x1b[2Jb.npy", np.ones((2, 8, 8), np.float32))
    name = tmp_path / "a\x1b[2Jb.npy"
    for arguments in (("data", "inspect", tmp_path), ("reconstruct", name, "--out", tmp_path / "x.h5")):
        _, text, error = command(*arguments)
        assert "\x1b[2J" not in text + error
        assert r"a\x1b[2Jb.npy" in text + error


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_terminals_without_all_characters(tmp_path: Path, encoding: str) -> None:
    np.save(tmp_path / "größe – 3 T 脑.npy", np.random.default_rng(0).random((2, 16, 16)).astype(np.float32))
    environment = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [sys.executable, "-m", "ulda", "data", "inspect", str(tmp_path)],
        capture_output=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert rb"\u8111.npy" in done.stdout
    done = subprocess.run(
        [sys.executable, "-m", "ulda", "verify", str(tmp_path / "脑.h5")],
        capture_output=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 1
    # where there is only ASCII, click writes UTF-8
    assert (rb"\u8111.h5" if encoding == "latin-1" else "脑.h5".encode()) in done.stderr
    assert b"Traceback" not in done.stderr
