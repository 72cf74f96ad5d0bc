from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from tests.data.readers.small_files import outsource
from tests.solvers.certified_runs import PROPOSALS, certified, parts, solve
from ulda.data import demo
from ulda.errors import UldaError
from ulda.models import FeatureExtractor, Regularizer
from ulda.physics import MultiCoilMRI, cartesian_mask, espirit_maps
from ulda.solvers import (
    Options,
    Reconstruction,
    Run,
    elda,
    load_run,
    save_run,
)
from ulda.solvers.outputs import verify_output


@pytest.fixture(scope="module", params=PROPOSALS)
def run(request: pytest.FixtureRequest) -> Run:
    return certified(PROPOSALS[request.param])


def _set(name: str, value: Any, where: str = "runs/0") -> Callable[[h5py.File], None]:
    def change(whole: h5py.File) -> None:
        file = whole[where]
        if name in file.attrs:
            fields = json.loads(file.attrs[name])
            file.attrs[name] = json.dumps(fields | value) if isinstance(value, dict) else value
        else:
            if name in file:
                del file[name]
            if value is not None:
                file[name] = value

    return change


def _claim_terabytes(file: h5py.File) -> None:
    del file["runs/0/x"]
    file.create_dataset("runs/0/x", shape=(10**6, 10**6), dtype="c8", chunks=(64, 64))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("x", None), "it has no array x"),
        (_set("weights", None, "/"), "weights"),
        (_set("weights/adapter.layer.real", None, "/"), "weights do not have the sizes"),
        (_set("weights/adapter.layer.real", np.zeros((2, 2), "f4"), "/"), "weights do not have the sizes"),
        (_set("regularizer", {"width": 10**9}, "/"), "weights do not have the sizes"),
        (_set("regularizer", {"depth": 10**12}, "/"), "weights do not have the sizes"),
        (_set("regularizer", {"kernel_size": 10**6}, "/"), "weights do not have the sizes"),
        (_set("regularizer", {"delta": -1.0}, "/"), "width delta"),
        (_set("regularizer", "[" * 10**4, "/"), "regularizer is not JSON"),
        (_set("mask", {"n_lines": 10**15}), "mask has 1000000000000000 lines"),
        (_set("mask", {"sampled": [-1, 999]}), "index 999 is out of bounds"),
        (_set("mask", {"sampled": []}), "at least one sampled line"),
        (_set("y", np.zeros(())), "tuple index out of range"),
        (_set("runs", None, "/"), "it holds no runs"),
        (_set("scale", np.ones(2), "/"), "it has no array image"),
        (_claim_terabytes, "claims 8000 GB"),
    ],
)
def test_damaged_files_are_one_clear_sentence(
    tmp_path: Path, run: Run, change: Callable[[h5py.File], None], message: str
) -> None:
    x, trace = solve(run)
    save_run(tmp_path / "run.h5", trace, *parts(run), x)
    with h5py.File(tmp_path / "run.h5", "r+") as file:
        change(file)
    with pytest.raises(UldaError, match=message) as raised:
        load_run(tmp_path / "run.h5")
    assert "run.h5 cannot be read as a run file" in str(raised.value) or "run.h5 is refused" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_files_bring_everything_that_is_needed(tmp_path: Path) -> None:
    brain = demo("brain-multicoil")
    kspace = brain.kspace(0)[None, :, :96, :96].to(torch.complex128)
    physics = MultiCoilMRI(cartesian_mask(96, 0.3, center=0.2), espirit_maps(kspace)[0])
    y = kspace * physics.mask.lines[:, None]
    regularizer = Regularizer(FeatureExtractor(3, 2, kernel_size=5)).double()
    x0 = torch.zeros(1, 96, 96, dtype=torch.complex128)
    with torch.no_grad():
        x, trace = elda(Reconstruction(physics, y, regularizer), x0, options=Options(eps_0=0.01, iterations=2))
    save_run(tmp_path / "multi.h5", trace, y, physics, regularizer, x, x0)
    assert load_run(tmp_path / "multi.h5").verify().ok
    with h5py.File(tmp_path / "multi.h5") as file:
        assert file["runs/0/trace/phi"].shape == (2, 1)
    with pytest.raises(UldaError, match="--force"):
        save_run(tmp_path / "multi.h5", trace, y, physics, regularizer, x, x0)


@pytest.mark.parametrize("run", ["gradient"], indirect=True)
def test_the_command_verifies_and_refuses(tmp_path: Path, run: Run) -> None:
    x, trace = solve(run)
    path = tmp_path / "run.h5"
    save_run(path, trace, run.y, run.physics, run.regularizer, x)
    command = [sys.executable, "-m", "ulda", "verify", str(path)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    with h5py.File(path, "r+") as file:
        file["runs/0/x"][0, 3, 3] += 1e-3
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert json.loads(done.stdout)["problems"][0] == "the result is not the one the certificate was made for"
    path.write_text("nothing")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "run.h5 cannot be read as a run file" in done.stderr


@pytest.mark.parametrize("name", ["runs/0/y", "runs/0/x", "weights/extractor.layers.0.real"])
def test_arrays_in_other_files_are_refused(tmp_path: Path, run: Run, name: str) -> None:
    x, trace = solve(run)
    path = tmp_path / "run.h5"
    save_run(path, trace, *parts(run), x)
    outsource(path, name)
    for read in (load_run, verify_output):
        with pytest.raises(UldaError, match=r"run\.h5 is refused: its entry .* is a link to another file"):
            read(path)
