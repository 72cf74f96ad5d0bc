from __future__ import annotations

import os
from pathlib import Path

import pytest

from ulda.errors import UldaError
from ulda.io.file_set import file_set, finish


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write(folder: Path, text: str, *, overwrite: bool = False) -> None:
    with file_set(folder / "pair", overwrite=overwrite) as temporary:
        for name in ("a", "b"):
            (temporary / name).write_text(text)
        if not overwrite:
            assert [name for name in names(folder) if name[0] != "."] == []


def test_all_files_appear_at_once_and_are_replaced_together(tmp_path: Path) -> None:
    write(tmp_path, "old")
    assert names(tmp_path) == ["a", "b"]
    with pytest.raises(UldaError, match="--force"), file_set(tmp_path / "pair") as temporary:
        (temporary / "a").write_text("new")
    write(tmp_path, "new", overwrite=True)
    assert {(tmp_path / name).read_text() for name in names(tmp_path)} == {"new"}


def test_a_failure_leaves_the_old_files_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path, "old")

    def interrupted() -> None:
        with file_set(tmp_path / "pair", overwrite=True) as temporary:
            (temporary / "a").write_text("new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(tmp_path) == ["a", "b"]
    assert {(tmp_path / name).read_text() for name in names(tmp_path)} == {"old"}


def test_what_was_decided_is_finished(tmp_path: Path) -> None:
    write(tmp_path, "old")
    (tmp_path / ".pair.new").mkdir()
    (tmp_path / ".pair.new" / "b").write_text("new")  # a was moved before the kill
    (tmp_path / "a").write_text("new")
    finish(tmp_path / "pair")
    assert names(tmp_path) == ["a", "b"]
    assert {(tmp_path / name).read_text() for name in names(tmp_path)} == {"new"}


def test_links_are_not_moved(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "c").write_text("c")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / ".pair.new").symlink_to(tmp_path / "elsewhere")
    finish(tmp_path / "set" / "pair")
    assert names(tmp_path / "elsewhere") == ["c"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / ".pair.new").mkdir()
    (tmp_path / ".pair.new" / "a").write_text("new")
    tmp_path.chmod(0o500)
    with pytest.raises(UldaError, match="was interrupted, but they cannot be moved"):
        finish(tmp_path / "pair")
    tmp_path.chmod(0o700)
