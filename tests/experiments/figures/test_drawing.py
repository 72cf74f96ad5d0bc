"""The files of figures, and what is said where there is nothing to draw."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.experiments.figures.drawn import results_of
from tests.experiments.tiny import TINY
from ulda.cli import app
from ulda.errors import MissingExtraError
from ulda.experiments.examples import example_indices
from ulda.experiments.figures import KINDS, Results, draw_figures
from ulda.experiments.figures.results import NothingToDrawError
from ulda.experiments.figures.style import styled
from ulda.experiments.running import Runner


@pytest.mark.parametrize("kind", KINDS)
def test_without_data_it_is_said_why(kind: str, made_up: Runner) -> None:
    with styled(), pytest.raises(NothingToDrawError):
        KINDS[kind](results_of(made_up))


def test_the_command(done: Runner, tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(TINY | {"title": "1 $ and 2 $ <b>"}))
    command = ["experiment", "figure", str(file), "--folder", str(done.folder)]
    only = ["--only", "bars", "--only", "beyond", "--format", "both"]
    for out in ("first", "second"):
        told = CliRunner().invoke(app, [*command, "--out", str(tmp_path / out), *only])
        assert told.exit_code == 0, told.output
    assert "no figure of the kind beyond: no run has measured the quality beyond T iterations" in told.output
    for name in ("bars-hip.svg", "bars-hip.pdf"):
        first, second = ((tmp_path / out / name).read_bytes() for out in ("first", "second"))
        assert first == second
        # no date, and letters as outlines or embedded
        assert b"CreationDate" not in first
        assert b"<dc:date>" not in first
        assert b"<text" not in first
    assert b"/FontFile2" in (tmp_path / "first" / "bars-hip.pdf").read_bytes()
    assert "1 $ and 2 $ &lt;b&gt;" in (tmp_path / "first" / "bars-hip.svg").read_text(encoding="utf-8")
    wrong = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "third"), "--only", "pies"])
    assert "there is no kind of figure 'pies'; there are: reconstructions, bars" in str(wrong.exception)


def test_pictures_have_the_same_bytes(results: Results, tmp_path: Path) -> None:
    first, second = (draw_figures(results, tmp_path / name, ["reconstructions"]).files for name in ("a", "b"))
    assert [path.name for path in first] == ["reconstructions-hip-2.svg"]
    assert first[0].read_bytes() == second[0].read_bytes()
    assert len(re.findall(rb"data:image/png;base64", first[0].read_bytes())) > 3 * len(example_indices(["a"] * 3))


def test_without_matplotlib(results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"ulda\[plot\]"):
        draw_figures(results, tmp_path / "out")
    assert not (tmp_path / "out").exists()
