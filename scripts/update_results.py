"""Write what the packed results of the experiments say into docs/results.md, and nothing else into it.

Run: ``python -m scripts.update_results``.
"""

from __future__ import annotations

from pathlib import Path

from scripts.marked import replaced
from ulda.experiments import load_experiment
from ulda.experiments.cells import read_cells
from ulda.experiments.page import section

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "results.md"
RESULTS = ROOT / "benchmarks" / "results" / "experiments"


def with_results(text: str, folder: Path) -> str:
    """Return a page whose marked sections say what the packed results in a folder say."""
    for path in sorted(folder.glob("*.json")):
        body = section(load_experiment(path.stem), "bench", read_cells(path))
        text = replaced(text, f"<!-- {path.stem} -->", f"<!-- end of {path.stem} -->", f"\n{body}\n")
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(with_results(DOCUMENT.read_text(encoding="utf-8"), RESULTS), encoding="utf-8")
