"""Put the table of a demo run into the README.

Run after ``make demo``: ``python -m scripts.update_readme demo-output/demo.json``. The run is kept, without what is
per slice, in ``benchmarks/results/demo.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from scripts.marked import write_between

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Keep the run and rewrite the part of the README between the marks."""
    run = json.loads(Path(sys.argv[1]).read_text())
    kept = {key: run[key] for key in ("summary", "verdict", "wins", "mask", "certificate", "seconds", "differences")}
    kept["adaptation"] = {key: run["adaptation"][key] for key in ("n_slices", "seconds", "validation", "settings")}
    (ROOT / "benchmarks" / "results" / "demo.json").write_text(json.dumps(kept, indent=1) + "\n")
    mask, rows = run["mask"], ["| method | PSNR (dB) | SSIM |", "|---|---|---|"]
    for row in run["summary"]:
        runs = [f"{row[name]:.{n}f} ± {row[f'{name}_std']:.{n}f}" for name, n in (("psnr", 2), ("ssim", 3))]
        rows.append(f"| {row['method']} | {' | '.join(runs)} |")
    text = (
        f"{len(run['subjects'])} held-out knee slices, {mask['n_sampled']} of {mask['n_lines']} lines, "
        f"simulated k-space, per slice with peak 1, in {run['seconds']:.0f} s:\n\n"
        + "\n".join(rows)
        + f"\n\n{run['verdict']}."
    )
    write_between(ROOT / "README.md", "<!-- demo -->", "<!-- end -->", text)


if __name__ == "__main__":
    main()
