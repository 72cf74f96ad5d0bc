"""Write what the packed results of the experiments say: a page beside each, and an overview in docs/results.md.

Run: ``python -m scripts.update_results``.
"""

from __future__ import annotations

from pathlib import Path

from scripts.marked import write_between
from ulda.experiments.page import line_of, page_of
from ulda.experiments.runs import read_packed

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "results.md"
RESULTS = ROOT / "benchmarks" / "results" / "experiments"


def write_pages(folder: Path) -> str:
    """Write a page beside every packed file of a folder; return the overview, a line for each."""
    lines = []
    for path in sorted(folder.glob("*.json")):
        packed = read_packed(path)
        path.with_suffix(".md").write_text(page_of(packed), encoding="utf-8")
        link = f"../benchmarks/results/experiments/{path.stem}.md"
        lines.append(f"- [{path.stem}]({link}): {line_of(packed)}.")
    return "\n".join(lines)


if __name__ == "__main__":
    write_between(DOCUMENT, "<!-- overview -->", "<!-- end of overview -->", f"\n{write_pages(RESULTS)}\n")
