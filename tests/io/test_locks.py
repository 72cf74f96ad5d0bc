from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ulda.errors import UldaError
from ulda.io.locks import is_locked, locked, locked_file, locked_folder

HOLD = "import sys; from ulda.io.locks import locked_folder; lock = locked_folder(sys.argv[1]); lock.__enter__()\n"


@contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that holds the lock of a folder."""
    code = f"{HOLD}print('held', flush=True)\nimport time; time.sleep(120)"
    with subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_second_process_is_told_the_first(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with holder(out) as first:
        assert is_locked(out / ".lock")
        with pytest.raises(UldaError, match=rf"another process \({first.pid}\) is writing .*run"), locked_folder(out):
            pass
        assert (out / ".lock").read_text() == str(first.pid)


def test_the_lock_of_a_dead_process_is_free_and_swept(tmp_path: Path) -> None:
    with holder(tmp_path) as first:
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert (tmp_path / ".lock").exists()
    assert not is_locked(tmp_path / ".lock")
    with locked_folder(tmp_path):
        assert is_locked(tmp_path / ".lock")
        assert (tmp_path / ".lock").read_text() == str(os.getpid())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_made_for_nothing_is_removed(tmp_path: Path) -> None:
    with locked_folder(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()
    assert list(tmp_path.iterdir()) == []
    with locked_folder(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "result").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "b", "result"]


def test_files_have_locks_of_their_own(tmp_path: Path) -> None:
    def again() -> None:
        with locked_file(tmp_path / "a.h5"):
            pass

    refused = pytest.raises(UldaError, match=rf"another process \({os.getpid()}\)")
    with locked_file(tmp_path / "a.h5"), locked_file(tmp_path / "b.h5"), refused:
        again()
    assert list(tmp_path.iterdir()) == []


def test_no_lock_is_taken_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / ".lock").symlink_to(tmp_path / "victim")
    with pytest.raises(UldaError, match="cannot write to the folder"), locked(tmp_path / ".lock", "it"):
        pass
    assert (tmp_path / "victim").read_text() == "precious"
