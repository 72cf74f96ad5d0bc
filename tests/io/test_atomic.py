from __future__ import annotations

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
