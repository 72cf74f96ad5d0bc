"""A kill, or a full disk, at each file operation of each writer: which version is read afterwards.

Run: ``python -m benchmarks.fault_injection``. Of the writes into an HDF5 file, which are alike, every tenth is an
operation. It exits with 1 where anything but the old or the new version was read (where there was nothing, nothing
counts as the old one), where a full disk ended in more than one sentence, or where the next run left something over.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, get_args

from tests.fault_injection import Fault, Writer, inject
from tests.fault_writers import writers

RESULT = Path(__file__).parent / "results" / "fault-injection.json"
EVERY = 10
UNREPLACED = ("pair of keys",)
"""What is never replaced."""


def rows_of(writer: Writer) -> list[dict[str, Any]]:
    """Inject both faults into a writer, without and with an old version where there may be one."""
    starts = [is_new for is_new in (True, False) if not (is_new and writer.needs_old)]
    found = []
    for is_new in starts:
        if writer.name in UNREPLACED and not is_new:
            continue
        for fault in get_args(Fault):
            with tempfile.TemporaryDirectory() as folder:
                outcome = inject(writer, Path(folder), fault, is_new=is_new, every=EVERY)
            counts = outcome.as_dict()
            counts["old"] = counts.pop("none", 0) if is_new else counts.get("old", 0)
            found.append(
                {
                    "writer": writer.name,
                    "before": "nothing" if is_new else "an old version",
                    "fault": {"kill": "kill", "full": "full disk"}[fault],
                    "operations": outcome.operations,
                    "old": counts["old"],
                    "new": counts.get("new", 0),
                    "neither": outcome.operations - counts["old"] - counts.get("new", 0),
                    "crashes": outcome.crashes,
                    "left over": outcome.leftovers,
                }
            )
    return found


def main() -> None:
    """Print the table and write the result file."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for writer in writers(Path(folder), subjects="aabbc"):
            rows += rows_of(writer)
            for row in (row for row in rows if row["writer"] == writer.name):
                print(" | ".join(map(str, row.values())), flush=True)
    content = {"command": "python -m benchmarks.fault_injection", "every": EVERY, "rows": rows}
    RESULT.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if any(row["neither"] or row["crashes"] or row["left over"] for row in rows):
        sys.exit("a fault left something else than the old or the new version")


if __name__ == "__main__":
    main()
