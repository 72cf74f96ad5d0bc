"""Write what the packed results of the experiments say into docs/results.md, and nothing else into it.

Run: ``python -m scripts.update_results``.
"""

from __future__ import annotations

from pathlib import Path

from scripts.marked import replaced
from ulda.experiments import load_experiment
from ulda.experiments.cells import read_cells
from ulda.experiments.page import overview_of, section

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "results.md"
RESULTS = ROOT / "benchmarks" / "results" / "experiments"


def with_results(text: str, folder: Path) -> str:
    """Return a page whose marked sections say what the packed results in a folder say."""
    results = {path.stem: read_cells(path) for path in sorted(folder.glob("*.json"))}
    for name, cells in results.items():
        body = section(load_experiment(name), "bench", cells)
        text = replaced(text, f"<!-- {name} -->", f"<!-- end of {name} -->", f"\n{body}\n")
    compared = {name: cells for name, cells in results.items() if not load_experiment(name).family}
    return replaced(text, "<!-- overview -->", "<!-- end of overview -->", f"\n{overview_of(compared, 'bench')}\n")


if __name__ == "__main__":
    DOCUMENT.write_text(with_results(DOCUMENT.read_text(encoding="utf-8"), RESULTS), encoding="utf-8")
