from __future__ import annotations

import errno
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from ulda.errors import UldaError
from ulda.io.atomic import atomic_output

if TYPE_CHECKING:
    from pathlib import Path


def test_the_output_appears_whole(tmp_path: Path) -> None:
    with atomic_output(tmp_path / "out") as temporary:
        temporary.write_text("half")
        assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_text() == "half"


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("old")

    def interrupted() -> None:
        with atomic_output(tmp_path / "out", overwrite=True) as temporary:
            temporary.write_text("new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_text() == "old"


def test_an_existing_file_is_not_replaced_unasked(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("old")
    with pytest.raises(UldaError, match="--force"), atomic_output(tmp_path / "out"):
        pass
    with atomic_output(tmp_path / "out", overwrite=True) as temporary:
        temporary.write_text("new")
    assert (tmp_path / "out").read_text() == "new"


@pytest.mark.parametrize(("name", "message"), [("no/such/out", "does not exist"), (".", "is a folder")])
def test_impossible_places_are_clear_errors(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(UldaError, match=message), atomic_output(tmp_path / name):
        pass


KILLED = """
import os, sys
from ulda.io.atomic import atomic_output
from ulda.io.file_set import file_set
with atomic_output(sys.argv[1]) as temporary, file_set(sys.argv[1]) as folder:
    (folder / "part").touch()
    os._exit(9)
"""


def test_what_a_dead_process_left_is_swept_by_the_next(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert subprocess.run([sys.executable, "-c", KILLED, str(out)], check=False).returncode == 9
    left = {path.name for path in tmp_path.iterdir()}
    assert len(left) == 2
    assert all(name.startswith(".out.") and name.endswith(".tmp") for name in left)
    with atomic_output(tmp_path / "other"):
        pass
    assert left < {path.name for path in tmp_path.iterdir()}
    with atomic_output(out):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"out", "other"}


def test_what_a_living_process_or_another_machine_writes_stays(tmp_path: Path) -> None:
    with atomic_output(tmp_path / "out") as ours:
        dead = subprocess.Popen([sys.executable, "-c", ""])
        dead.wait()
        foreign = ours.with_name(f".out.{dead.pid}-0123456g-x.tmp")
        foreign.touch()
        with atomic_output(tmp_path / "out"):
            assert ours.exists()
            assert str(os.getpid()) in ours.name
        assert ours.exists()
        assert foreign.exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_one_sentence(tmp_path: Path, number: int) -> None:
    (tmp_path / "out").write_text("old")

    def write() -> None:
        with atomic_output(tmp_path / "out", overwrite=True):
            raise OSError(number, os.strerror(number))

    with pytest.raises(UldaError, match=r"the disk is full .* while writing out"):
        write()
    assert (tmp_path / "out").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
