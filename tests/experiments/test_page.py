"""The page of an experiment says what its result file says."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from scripts.update_results import write_pages
from tests.experiments.test_verdict import EXPERIMENT, RUNS, adapted
from ulda.experiments.page import line_of, page_of
from ulda.experiments.runs import Packed, pack, read_packed
from ulda.experiments.tables import formatted
from ulda.experiments.verdict import overview, sentences

SUMMARY = "U-LDA is at least as good as the best other method in 3 of 6 comparisons, clearly better in 2 and clearly"


def packed(found: dict[str, dict[str, Any]], **changes: Any) -> Packed:
    """Return runs that have scores, and half an hour each."""
    extra = {"wall_clock": 1800.0, "spent": {"seconds": 60.0}, "peak_memory_mb": 500, "n_domain": 70, "n_adapted": 30}
    runs = copy.deepcopy({key: run | extra for key, run in found.items()})
    for run in runs.values():
        run["results"]["hip"]["seconds_per_slice"] = 0.5
    return Packed(EXPERIMENT.model_copy(update=changes), "bench", runs)


def test_a_page_has_the_setting_the_verdict_and_the_tables() -> None:
    text = page_of(packed(RUNS))
    assert text.startswith("# tiny\n\nKnees to larger crops of knees; 32 x 32 pixels. Every learned method: ")
    assert "4 gradient steps with 2 slices each on the sources, then 3 with 2 slices, 3 with 100 slices" in text
    assert "Test slices: hip 4 of 2 subjects. 5 of 20 runs are done (nothing of zero-filling yet), 2.5 h of" in text
    assert f"\n\n**{SUMMARY} worse in 3.**\n\n" in text
    assert formatted(overview(EXPERIMENT, RUNS, (2, 100)), "md").partition("\n")[0] in text
    assert "| DnCn |  | 30.50 / 0.800 (-1.50 [-2.00, -1.00]) | 33.00 / 0.910" in text
    assert "| U-LDA | 70 | 30 |  | 60.0 | 60.0 | 0.5000 | 500 |" in text
    assert "Beside the scores" not in text


def test_what_was_measured_beside_the_scores_has_a_table() -> None:
    found = packed(RUNS)
    found.runs["adapt-ulda-hip-2-0"]["extra"] = {"hip": {"descent": {"descending": 1.0, "accepted": 0.25}}}
    assert "| ulda | hip | 2, draw 1 | 100.0 % | 25.0 % |" in page_of(found)


def test_a_page_of_variants_has_sentences_in_place_of_the_overview() -> None:
    variants = packed(RUNS, family="ablations")
    text = page_of(variants)
    _, *single = sentences(variants.experiment, RUNS, (2, 100))
    assert "\n".join(f"- {sentence}." for sentence in single) in text
    assert "best other in PSNR" not in text


def test_a_page_says_how_many_draws_were_run() -> None:
    assert "; 1 draw of the target slices. " in page_of(packed(RUNS))
    again = dict([adapted("ulda", 2, [30.0, 30.0, 30.0, 30.0], 0.9, draw=1)])
    assert "; 1 to 2 draws of 2 target slices, 1 draw of 100 target slices. " in page_of(packed(RUNS | again))
    assert "; no draw of the target slices. " in page_of(packed({}))


def test_every_packed_file_gets_its_page(tmp_path: Path) -> None:
    pack(packed(RUNS), tmp_path / "one.json")
    pack(packed({}), tmp_path / "two.json")
    first, second = write_pages(tmp_path).splitlines()
    assert first == f"- [one](../benchmarks/results/experiments/one.md): {line_of(packed(RUNS))}."
    assert line_of(packed(RUNS)).startswith(SUMMARY)
    assert second.endswith("two.md): there is nothing to compare yet.")
    for stem in ("one", "two"):
        assert (tmp_path / f"{stem}.md").read_text() == page_of(read_packed(tmp_path / f"{stem}.json"))
