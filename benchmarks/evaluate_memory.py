"""Peak memory of `ulda evaluate` for 250 and for 1,000 slices of 128 x 128 pixels; it must not grow with their number.

Run: ``python -m benchmarks.evaluate_memory``. The model is small and has few phases, which changes the time and not
what is held of every slice: its images by six methods, its scores and its record. Each measurement is a fresh process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.streaming import ROOT, own_peak

RESULT = Path(__file__).parent / "results" / "evaluate-memory.json"
SIDE = 128
SLICES = (250, 1000)
SLICES_PER_SUBJECT = 10
LIMIT = 1.1


def write_data(path: Path, n_slices: int) -> None:
    """Write a domain file of magnitude images: boxes of random brightness, one test subject per ten slices."""
    from ulda.data.domain import Header, Record
    from ulda.data.domain_writer import DomainWriter

    generator = np.random.default_rng(0)
    with DomainWriter(path, Header(name="boxes", kind="magnitude")) as writer:
        for number in range(n_slices + 4):
            split = "test" if number < n_slices else "train"
            blocks = generator.random((SIDE // 8, SIDE // 8)).astype(np.float32)
            image = np.kron(blocks, np.ones((8, 8), np.float32)) / blocks.max()
            writer.append(Record(image, subject=f"{split}-{number // SLICES_PER_SUBJECT}", split=split))


def write_model(folder: Path) -> None:
    """Write an untrained model of three phases, with an adapter to a second domain."""
    from ulda.methods import ULDA

    model = ULDA(sources=["knee"], width=2, depth=1, phases=3)
    model.save(folder / "model")
    model.add_domain("boxes")
    model.save_adapter("boxes", folder / "adapter")


def evaluate(folder: Path) -> None:
    """Evaluate in this process, and print its peak memory in MiB."""
    import torch

    from ulda.cli import app

    torch.set_num_threads(1)
    place = ["--model", str(folder / "model"), "--adapter", str(folder / "adapter"), "--out", str(folder / "out")]
    app(["evaluate", str(folder / "data.h5"), "--acquisition", "ideal", *place], standalone_mode=False)
    print(own_peak())


def peak_memory(n_slices: int) -> dict[str, float]:
    """Return the peak memory in MiB, and the time, of a process that evaluates so many slices."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder / "data.h5", n_slices)
        write_model(folder)
        start = time.perf_counter()
        command = [sys.executable, "-m", "benchmarks.evaluate_memory", str(folder)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
        peak = float(done.stdout.splitlines()[-1])
        return {"peak_mib": round(peak), "seconds": round(time.perf_counter() - start)}


def main() -> None:
    """Print the table, write the result file, and exit with 1 where the memory grows."""
    found = {n_slices: peak_memory(n_slices) for n_slices in SLICES}
    for n_slices, row in found.items():
        print(f"{n_slices:5} slices: {row['peak_mib']:4} MiB, {row['seconds']} s")
    small, large = (row["peak_mib"] for row in found.values())
    content: dict[str, Any] = {"side": SIDE, "slices": found, "ratio": round(large / small, 3), "limit": LIMIT}
    RESULT.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if large / small > LIMIT:
        sys.exit(f"the memory grows with the number of slices: {large / small:.2f} times, at most {LIMIT} is allowed")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        evaluate(Path(sys.argv[1]))
    else:
        main()
