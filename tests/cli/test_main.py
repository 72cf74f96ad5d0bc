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
from ulda.methods.ulda import ULDA


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


def test_demo_leaves_other_files_alone(tmp_path: Path) -> None:
    (tmp_path / "knee.h5").write_text("mine")
    done = subprocess.run(
        [sys.executable, "-m", "ulda", "demo", "--out", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "holds other files than those of a demonstration" in done.stderr) == (1, True)
    assert (tmp_path / "knee.h5").read_text() == "mine"


def test_demo_adapts_compares_and_certifies(tmp_path: Path) -> None:
    """With a tiny untrained base: what it says about winning must be what its own numbers say."""
    ULDA(sources=["brain"], width=4, depth=1, phases=2).save(tmp_path / "tiny")
    out = tmp_path / "out"
    tiny = ["--base", str(tmp_path / "tiny"), "--slices", "2", "--steps", "3"]
    done = run("-m", "ulda", "demo", "--out", str(out), *tiny, "--json")
    result = json.loads(done.stdout)
    means = {row["method"]: row for row in result["summary"]}
    assert list(means) == ["zero-filling", "TV", "wavelet", "un-adapted", "adapted"]
    assert means["TV"]["psnr"] > means["zero-filling"]["psnr"] + 2
    best = {metric: max(means, key=lambda name: means[name][metric]) for metric in ("psnr", "ssim")}
    assert result["wins"] == (set(best.values()) == {"adapted"})
    assert result["scores"]["TV"]["convention"]["name"] == "per slice, peak 1"
    assert result["mask"]["n_sampled"] == 26
    assert len(result["subjects"]) == 9
    assert not set(result["subjects"]) & set(result["adaptation"]["subjects"])
    assert json.loads((out / "demo.json").read_text())["summary"] == result["summary"]
    with Image.open(min(out.glob("*.png"))) as picture:
        assert picture.width > 5 * 128
    assert {path.name for path in out.glob("*.svg")} == {"psnr.svg", "objective.svg", "gradient.svg"}
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "un-adapted" in page
    assert result["certificate"]["verified"]
    assert run("-m", "ulda", "verify", str(out / "knee.h5")).returncode == 0
    assert ULDA.load(tmp_path / "tiny").load_adapter(out / "knee-adapter") == "knee"
