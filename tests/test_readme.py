"""The table of a demo run goes between the marks of the README."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from scripts import update_readme


def test_a_run_is_written_between_the_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"method": "TV", "psnr": 30.954, "psnr_std": 0.767, "ssim": 0.8964, "ssim_std": 0.0276}
    run = {
        "summary": [row],
        "verdict": "it helped",
        "wins": True,
        "mask": {"n_sampled": 26, "n_lines": 128},
        "certificate": {},
        "seconds": 99.4,
        "differences": {},
        "subjects": ["a", "a", "b"],
        "adaptation": {"n_slices": 5, "seconds": 60.0, "validation": {}, "settings": {}},
    }
    (tmp_path / "run.json").write_text(json.dumps(run), encoding="utf-8")
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "README.md").write_text("before\n<!-- demo -->\nold\n<!-- end -->\nafter\n", encoding="utf-8")
    monkeypatch.setattr(update_readme, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["update_readme", str(tmp_path / "run.json")])
    update_readme.main()
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "| TV | 30.95 ± 0.77 | 0.896 ± 0.028 |" in text
    assert "3 held-out knee slices, 26 of 128 lines" in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    kept = json.loads((tmp_path / "benchmarks" / "results" / "demo.json").read_text(encoding="utf-8"))
    assert kept["summary"] == [row]
    assert "subjects" not in kept
