"""The page with the results says what the result files say."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from scripts.update_results import DOCUMENT, FRONT, RESULTS, with_results, with_summary
from tests.experiments.test_verdict import EXPERIMENT, RUNS, adapted
from ulda.experiments.page import section


def test_the_page_is_current() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert with_results(text, RESULTS) == text


def test_the_front_page_is_current() -> None:
    text = FRONT.read_text(encoding="utf-8")
    assert with_summary(text, RESULTS) == text


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_result_file_is_whole_and_honest(path: Path) -> None:
    packed = json.loads(path.read_text(encoding="utf-8"))
    assert packed["experiment"] == path.stem
    masks: dict[str, str] = {}
    data: dict[str, str] = {}
    for key, run in packed["runs"].items():
        assert run["software"]["torch"], key
        for domain, result in run["results"].items():
            assert len(result["psnr"]) == len(result["ssim"]) == len(result["subjects"])
            # all methods were tested on the same slices under the same mask
            assert masks.setdefault(domain, result["mask"]) == result["mask"], key
            assert data.setdefault(domain, result["data"]) == result["data"], key
            assert result.get("trained_on") != result["data"], key


def told(found: dict[str, dict[str, Any]]) -> str:
    """Return the section of runs that have only scores."""
    extra = {"wall_clock": 1800.0, "spent": {"seconds": 60.0}, "peak_memory_mb": 500}
    runs = copy.deepcopy({key: run | extra for key, run in found.items()})
    for run in runs.values():
        run["results"]["hip"]["seconds_per_slice"] = 0.5
    return section(EXPERIMENT, "bench", runs)


def test_a_section_has_the_setting_the_verdict_and_the_scores() -> None:
    text = told(RUNS)
    assert "Knees to larger crops of knees; 32 x 32 pixels." in text
    assert "4 gradient steps with 2 slices each on the sources, then 3 with 2 slices, 3 with 100 slices" in text
    assert "Test slices: hip 4 of 2 subjects. 5 of 20 runs were run (nothing of zero-filling yet), 2.5 h of" in text
    assert (
        "**U-LDA is at least as good as the best other method in 3 of 6 "
        "comparisons, clearly better in 2 and clearly worse in 3.**"
    ) in text
    assert "| DnCn |  | 30.50 / 0.800 (-1.50 [-2.00, -1.00]) | 33.00 / 0.910" in text


def test_a_section_says_how_many_draws_were_run() -> None:
    assert "; 1 draw of the target slices. " in told(RUNS)
    again = dict([adapted("ulda", 2, [30.0, 30.0, 30.0, 30.0], 0.9, draw=1)])
    assert "; 1 to 2 draws of 2 target slices, 1 draw of 100 target slices. " in told(RUNS | again)
    assert "; no draw of the target slices. " in told({})
