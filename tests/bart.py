"""Runs BART, the Berkeley toolbox for MRI reconstruction, as an independent reference."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pathlib import Path

ComplexArray = NDArray[np.complex64]


def write_cfl(path: Path, array: ComplexArray) -> None:
    """Write an array as `path`.hdr and `path`.cfl; BART's first axis is the fastest."""
    path.with_suffix(".hdr").write_text("# Dimensions\n" + " ".join(map(str, array.shape)) + "\n")
    array.astype(np.complex64).ravel(order="F").tofile(path.with_suffix(".cfl"))


def read_cfl(path: Path) -> ComplexArray:
    """Read the array in `path`.hdr and `path`.cfl, without its trailing axes of length 1."""
    shape = [int(n) for n in path.with_suffix(".hdr").read_text().splitlines()[1].split()]
    while shape and shape[-1] == 1:
        shape.pop()
    return np.fromfile(path.with_suffix(".cfl"), dtype=np.complex64).reshape(shape, order="F")


def run_bart(command: str, folder: Path, *inputs: ComplexArray) -> ComplexArray:
    """Run ``bart command input... output`` in `folder` and return the output; skip where BART is absent."""
    bart = shutil.which("bart")
    if bart is None:
        pytest.skip("BART is not installed on this machine")
    names = []
    for number, array in enumerate(inputs):
        names.append(f"in{number}")
        write_cfl(folder / names[-1], array)
    subprocess.run(
        [bart, *command.split(), *names, "out"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
    )
    return read_cfl(folder / "out")
