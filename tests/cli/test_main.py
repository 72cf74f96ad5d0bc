from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

import ulda


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True, env=environment)


def seconds(*arguments: str) -> float:
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        run(*arguments)
        best = min(best, time.perf_counter() - start)
    return best


@pytest.mark.serial
def test_help_is_fast() -> None:
    """Importing PyTorch alone takes more than fifty times as long as starting Python."""
    bare, helping = seconds("-c", "pass"), seconds("-m", "ulda", "--help")
    assert helping / bare < 25
    assert helping < 0.5


def test_no_command_group_imports_torch_for_its_help() -> None:
    code = "import sys, ulda.cli; print('torch' in sys.modules or 'h5py' in sys.modules)"
    assert run("-c", code).stdout.strip() == "False"


def test_version() -> None:
    assert run("-m", "ulda", "--version").stdout.strip() == f"ulda {ulda.__version__}"


def test_completion_completes() -> None:
    """What the shell function that `ulda --install-completion` writes asks for when TAB is pressed."""
    asked = {"_ULDA_COMPLETE": "complete_bash", "COMP_WORDS": "ulda data in", "COMP_CWORD": "2"}
    command = Path(sys.executable).with_name("ulda")
    done = subprocess.run([command], capture_output=True, text=True, check=False, env=os.environ | asked)
    assert done.stdout.split() == ["inspect"]


def test_demo_writes_pictures_and_numbers(tmp_path: Path) -> None:
    done = run("-m", "ulda", "demo", "--out", str(tmp_path / "out"), "--json")
    result = json.loads(done.stdout)
    means = {row["method"]: row["psnr"] for row in result["summary"]}
    assert means["TV"] > means["zero-filling"] + 2
    assert means["wavelet"] > means["zero-filling"] + 2
    assert result["scores"]["TV"]["convention"]["name"] == "per slice, peak 1"
    assert result["mask"]["n_sampled"] == 26
    assert json.loads((tmp_path / "out" / "demo.json").read_text())["summary"] == result["summary"]
    pictures = sorted((tmp_path / "out").glob("*.png"))
    assert len(pictures) == 4
    with Image.open(pictures[0]) as picture:
        assert picture.width > 4 * 128
