"""Write what the packed results of the experiments say into docs/results.md, and nothing else into it."""

from __future__ import annotations

from pathlib import Path

from ulda.experiments import load_experiment
from ulda.experiments.cells import read_cells
from ulda.experiments.page import section

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "results.md"
RESULTS = ROOT / "benchmarks" / "results" / "experiments"


def with_results(text: str, folder: Path) -> str:
    """Return a page whose marked sections say what the packed results in a folder say."""
    for path in sorted(folder.glob("*.json")):
        begin, end = f"<!-- {path.stem} -->\n", f"<!-- end of {path.stem} -->"
        before, after = text[: text.index(begin) + len(begin)], text[text.index(end) :]
        text = f"{before}\n{section(load_experiment(path.stem), 'bench', read_cells(path))}\n\n{after}"
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(with_results(DOCUMENT.read_text(encoding="utf-8"), RESULTS), encoding="utf-8")
