"""Peak memory of importing and iterating, for N and for 10 N slices.

Run: ``python benchmarks/streaming.py``. Each measurement is a fresh process; the ratio of the two peaks is what
counts. It must stay below 1.2.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

SIDE = 256


def write_npz(path: Path, n_slices: int) -> None:
    """Write uint16 noise, as an MRI archive would be: compressed, slice after slice."""
    import zipfile

    generator = np.random.default_rng(0)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("images.npy", "w", force_zip64=True) as stream:
            header = {"descr": "<u2", "fortran_order": False, "shape": (n_slices, SIDE, SIDE)}
            np.lib.format.write_array_header_1_0(stream, header)
            for _ in range(n_slices):
                stream.write(generator.integers(0, 4096, (SIDE, SIDE), dtype=np.uint16).tobytes())
        with archive.open("subject.npy", "w") as stream:
            np.save(stream, np.array([f"subject-{i // 10}" for i in range(n_slices)]))


def measure(source: Path, out: Path) -> None:
    """Import `source`, iterate over the result, and print the peak memory in MiB."""
    import torch

    from ulda.data import Domain, ImportOptions, import_domain

    torch.set_num_threads(1)
    import_domain([source], out, ImportOptions(size=(128, 128), normalisation="volume"))
    for image in Domain.open(out).images():
        assert image.shape == (128, 128)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def peak_memory(n_slices: int, folder: Path) -> float:
    """Return the peak memory in MiB of a fresh process that imports `n_slices` slices."""
    source, out = folder / f"{n_slices}.npz", folder / f"{n_slices}.h5"
    write_npz(source, n_slices)
    command = [sys.executable, __file__, str(source), str(out)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


def ratio(n_slices: int) -> tuple[float, float]:
    """Return the peaks for `n_slices` and ten times as many."""
    with tempfile.TemporaryDirectory() as name:
        return peak_memory(n_slices, Path(name)), peak_memory(10 * n_slices, Path(name))


def main() -> None:
    """Print the table."""
    n_slices = 200
    small, large = ratio(n_slices)
    print(f"{'slices':>8} {'raw data (MiB)':>15} {'peak memory (MiB)':>18}")
    for n, peak in ((n_slices, small), (10 * n_slices, large)):
        print(f"{n:8} {n * SIDE * SIDE * 2 / 2**20:15.0f} {peak:18.0f}")
    print(f"ratio {large / small:.3f} (must be below 1.2)")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        main()
