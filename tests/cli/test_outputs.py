"""What all commands that write promise of their outputs: one process at a time, and one sentence on a full disk."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import Command
from tests.training.small_domains import write_domain
from ulda.data import Domain, import_domain
from ulda.io.locks import locked_file, locked_folder
from ulda.methods import ULDA

CONFIG = """
name: tiny
data: [{name: knee, file: knee.npz}]
masks: {ratios: [0.3]}
network: {width: WIDTH, depth: 3, phases: 2, initialise: 0}
train: {steps: 4, batch_size: 1, validate_every: 2, checkpoint_every: 2, phases: [2]}
"""


LIMIT = 500_000
"""Bytes; more than the data in the tests take, less than a checkpoint of the wide network."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs")
    write_domain(folder / "knee.npz")
    (folder / "tiny.yaml").write_text(CONFIG.replace("WIDTH", "2"))
    (folder / "wide.yaml").write_text(CONFIG.replace("WIDTH", "64"))
    ULDA(sources=["brain"], width=2, depth=2, phases=2).save(folder / "base")
    return folder


def arguments(name: str, folder: Path, out: Path) -> list[Any]:
    data, base = folder / "knee.npz", folder / "base"
    return {
        "train": ["train", folder / "tiny.yaml", "--out", out],
        "adapt": ["adapt", "--base", base, "--data", data, "--steps", 3, "--acquisition", "ideal", "--out", out],
        "reconstruct": ["reconstruct", data, "--model", base, "--ratio", 0.4, "--out", out.with_suffix(".npy")],
        "evaluate": ["evaluate", data, "--model", base, "--acquisition", "ideal", "--out", out],
    }[name]


@pytest.mark.parametrize("name", ["train", "adapt", "reconstruct", "evaluate"])
def test_a_second_run_in_one_output_is_told_the_first(
    folder: Path, tmp_path: Path, command: Command, name: str
) -> None:
    out = tmp_path / "out"
    lock = locked_file(out.with_suffix(".npy")) if name == "reconstruct" else locked_folder(out)
    with lock:
        code, _, errors = command(*arguments(name, folder, out))
    assert code == 1
    assert f"another process ({os.getpid()}) is writing {out}" in errors
    assert list(tmp_path.iterdir()) == []
    assert command(*arguments(name, folder, out))[0] == 0
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("train", "config.yaml"),
        ("train", "checkpoint.safetensors"),
        ("train", "log.csv"),
        ("train", "model.safetensors"),
        ("adapt", "checkpoint.safetensors"),
        ("adapt", "log.csv"),
        ("adapt", "adapter.safetensors"),
        ("adapt", "adapter.json"),
    ],
)
def test_a_full_disk_is_one_sentence(
    folder: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, name: str, full: str
) -> None:
    """The disk is full when a file is written, or the temporary file that becomes it."""

    def fail_for(method: Any) -> Any:
        def write(path: Path, *rest: Any, **options: Any) -> Any:
            if path.name == full or path.name.startswith(f".{full}."):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return method(path, *rest, **options)

        return write

    for method in ("write_bytes", "write_text", "open"):
        monkeypatch.setattr(Path, method, fail_for(getattr(Path, method)))
    code, _, errors = command(*arguments(name, folder, tmp_path / "out"))
    assert code == 1
    assert "error: the disk is full" in errors
    assert "Traceback" not in errors
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".") or path.name == full]
    assert not list((tmp_path / "out").glob("adapter.*"))


def _limit_file_size() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


def limited(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command while the kernel refuses to let any file grow, as on a full disk."""
    command = [sys.executable, "-m", "ulda", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, preexec_fn=_limit_file_size, check=False)


def test_a_checkpoint_that_does_not_fit_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    done = limited("train", folder / "wide.yaml", "--out", tmp_path / "out", "--threads", 1)
    assert done.returncode == 1
    assert "error: the disk is full (or a quota is reached) while writing checkpoint.safetensors" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.yaml", "log.csv"]


@pytest.mark.parametrize("is_elsewhere", [True, False])
def test_splits_that_do_not_fit_are_one_sentence(tmp_path: Path, is_elsewhere: bool) -> None:
    source, path = tmp_path / "a.npz", tmp_path / "domain.h5"
    np.savez(source, images=np.random.default_rng(0).random((200, 32, 32)), subject=[f"s{i}" for i in range(200)])
    import_domain([source], path)
    before = path.read_bytes()
    done = limited("data", "split", path, *(["--out", tmp_path / "new.h5"] if is_elsewhere else []))
    assert done.returncode == 1
    name = "new.h5" if is_elsewhere else "domain.h5"
    assert f"error: the disk is full (or a quota is reached) while writing {name}" in done.stderr
    assert path.read_bytes() == before
    assert set(Domain.open(path).label("split")) == {""}
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.npz", "domain.h5"]
