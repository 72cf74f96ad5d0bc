"""The speed table in the docs is the one that its result file gives."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.methods import BEGIN, END, markdown
from scripts.marked import between
from ulda.methods import METHODS

ROOT = Path(__file__).resolve().parents[2]


def test_the_documented_numbers_are_those_of_the_result_file() -> None:
    result = json.loads((ROOT / "benchmarks" / "results" / "methods.json").read_text())
    page = (ROOT / "docs" / "methods.md").read_text()
    assert between(page, BEGIN, END) == markdown(result)
    assert set(result["methods"]) == set(METHODS)
    seconds = (
        result["methods"]["ulda"]["training"]["64"]["seconds"] / result["methods"]["unet"]["training"]["64"]["seconds"]
    )
    assert f"| U-LDA | {seconds:.2f} |" in page
