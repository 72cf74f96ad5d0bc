"""Write what the packed results of the experiments say into docs/results.md and, in short, into the README.

Run: ``python -m scripts.update_results``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripts.marked import replaced
from ulda.experiments import load_experiment
from ulda.experiments.page import overview_of, scores_on_targets, section, summaries_of
from ulda.experiments.runs import read_runs

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "results.md"
FRONT = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results" / "experiments"


def with_results(text: str, folder: Path) -> str:
    """Return a page whose marked sections say what the packed results in a folder say."""
    results = _results_in(folder)
    for name, runs in results.items():
        body = section(load_experiment(name), "bench", runs)
        text = replaced(text, f"<!-- {name} -->", f"<!-- end of {name} -->", f"\n{body}\n")
    compared = _compared(results)
    body = f"{summaries_of(compared, 'bench')}\n\n{overview_of(compared, 'bench')}"
    return replaced(text, "<!-- overview -->", "<!-- end of overview -->", f"\n{body}\n")


def with_summary(text: str, folder: Path, shown: str = "cross-anatomy-128") -> str:
    """Return the README with the scores of one comparison, and with how U-LDA stands in all of them."""
    results = _compared(_results_in(folder))
    table = scores_on_targets(load_experiment(shown), "bench", results[shown])
    body = f"{table}\n\n{summaries_of(results, 'bench')}"
    return replaced(text, "<!-- results -->", "<!-- end of results -->", f"\n{body}\n")


def _results_in(folder: Path) -> dict[str, dict[str, dict[str, Any]]]:
    return {path.stem: read_runs(path) for path in sorted(folder.glob("*.json"))}


def _compared(results: dict[str, dict[str, dict[str, Any]]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the results of the comparisons with other methods: those that are not ablations."""
    return {name: runs for name, runs in results.items() if not load_experiment(name).family}


if __name__ == "__main__":
    for path, written in ((DOCUMENT, with_results), (FRONT, with_summary)):
        path.write_text(written(path.read_text(encoding="utf-8"), RESULTS), encoding="utf-8")
