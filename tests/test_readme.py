"""The table in the README is the one that its result file gives."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from scripts import update_readme

RESULT = Path("benchmarks") / "results" / "demo.json"


def test_the_kept_run_gives_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme, kept = ((update_readme.ROOT / name).read_text(encoding="utf-8") for name in ("README.md", RESULT))
    run = json.loads(kept)
    # of what is per slice, the table shows how many there are
    run["subjects"] = ["knee"] * run["differences"]["un-adapted"]["psnr"]["n_slices"]
    (tmp_path / "run.json").write_text(json.dumps(run), encoding="utf-8")
    (tmp_path / RESULT).parent.mkdir(parents=True)
    (tmp_path / "README.md").write_text(readme.replace("| TV |", "| old |", 1), encoding="utf-8")
    monkeypatch.setattr(update_readme, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["update_readme", str(tmp_path / "run.json")])
    update_readme.main()
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == readme
    assert (tmp_path / RESULT).read_text(encoding="utf-8") == kept
