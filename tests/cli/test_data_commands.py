from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from ulda.cli import main
from ulda.data import Domain


class Cli:
    """Runs the command line in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["ulda", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        output = self._capsys.readouterr()
        return int(ended.value.code or 0), output.out, output.err


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(monkeypatch, capsys)


def scan(path: Path, n: int = 6) -> Path:
    images = np.random.default_rng(0).random((n, 16, 16))
    np.savez(path, images=images, subject=np.array([f"s{i // 2}" for i in range(n)]))
    return path


def test_import_inspect_split(tmp_path: Path, cli: Cli) -> None:
    source, out = scan(tmp_path / "scan.npz"), tmp_path / "knee.h5"
    code, text, _ = cli("data", "import", source, "--out", out, "--size", "8", "--licence", "CC0")
    assert code == 0
    assert "8 x 8" in text
    code, text, _ = cli("data", "inspect", out, "--json")
    (report,) = json.loads(text)
    assert code == 0
    assert report["ok"]
    assert report["description"]["attributes"]["licence"] == "CC0"
    code, text, _ = cli("data", "split", out, "--train", 0.34, "--val", 0.33, "--test", 0.33, "--json")
    assert code == 0
    assert json.loads(text)["splits"] == {k: {"slices": 2, "subjects": 1} for k in ("test", "train", "val")}
    assert set(Domain.open(out).label("split")) == {"train", "val", "test"}
    code, text, _ = cli("data", "split", out, "--check")
    assert code == 0
    assert "no subject is in two splits" in text
    code, text, _ = cli("data", "inspect", out, source)
    assert code == 0
    assert "k-space: simulated" in text


def test_import_as_json(tmp_path: Path, cli: Cli) -> None:
    code, text, _ = cli("data", "import", scan(tmp_path / "a.npz"), "--out", tmp_path / "a.h5", "--json")
    assert code == 0
    assert json.loads(text)["n_subjects"] == 3


def test_a_split_table_is_checked(tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "a.h5"
    cli("data", "import", scan(tmp_path / "a.npz"), "--out", out)
    table = tmp_path / "table.csv"
    table.write_text("subject,split\ns0,train\ns0,test\ns1,test\ns2,test\n")
    code, _, error = cli("data", "split", out, "--table", table)
    assert code == 1
    assert "subject s0 is in the splits test and train" in error
    table.write_text("subject,split\ns0,train\ns1,test\n")
    assert "no split is given for subject s2" in cli("data", "split", out, "--table", table)[2]
    table.write_text("who,where\ns0,train\n")
    assert "subject,split" in cli("data", "split", out, "--table", table)[2]
    table.write_text("subject,split\ns0,train\ns1,test\ns2,val\n")
    assert cli("data", "split", out, "--table", table, "--out", tmp_path / "b.h5")[0] == 0
    assert Domain.open(tmp_path / "b.h5").label("split") == ("train", "train", "test", "test", "val", "val")
    assert set(Domain.open(out).label("split")) == {""}
    table.write_text("subject,split\ns0,trian\ns1,test\ns2,val\n")
    assert "the split 'trian' in table.csv is unknown" in cli("data", "split", out, "--table", table)[2]
    table.write_text("\ufeffsubject,split\ns0,train\ns1\ns2,val\n")
    assert cli("data", "split", out, "--table", table)[0] == 0
    assert Domain.open(out).label("split") == ("train", "train", "", "", "val", "val")


def test_leakage_across_files_is_refused(tmp_path: Path, cli: Cli) -> None:
    for split in ("train", "test"):
        cli("data", "import", scan(tmp_path / "a.npz"), "--out", tmp_path / f"{split}.h5", "--split", split)
    code, _, error = cli("data", "split", tmp_path / "train.h5", "--check", "--against", tmp_path / "test.h5")
    assert code == 1
    assert "subject s0 is in the splits test and train (and 2 more subjects)" in error


def test_an_import_never_replaces_unasked(tmp_path: Path, cli: Cli) -> None:
    source, out = scan(tmp_path / "a.npz"), tmp_path / "a.h5"
    out.write_text("precious")
    code, _, error = cli("data", "import", source, "--out", out)
    assert code == 1
    assert "--force" in error
    assert out.read_text() == "precious"
    assert cli("data", "import", source, "--out", out, "--force")[0] == 0


def _truncated(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["kspace"] = np.random.default_rng(0).random((2, 32, 32)).astype(np.complex64)
    path.write_bytes(path.read_bytes()[:4000])


def _wrong_keys(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["voxels"] = np.zeros(3)


def _wrong_rank(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["kspace"] = np.zeros(3, np.complex64)


def _nan(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["kspace"] = np.full((1, 8, 8), np.nan, np.complex64)


def _text(path: Path) -> None:
    path.write_text("these are not the bytes you are looking for")


def _empty_file(path: Path) -> None:
    path.touch()


def _bomb(path: Path) -> None:
    with path.open("wb") as stream:
        np.savez_compressed(stream, images=np.zeros((1200, 256, 256), np.uint8))


def _mixed(path: Path) -> None:
    path.mkdir()
    for i, side in enumerate((8, 9)):
        Image.fromarray(np.full((side, side), 100, np.uint8)).save(path / f"{i}.png")


def _empty_folder(path: Path) -> None:
    path.mkdir()


def _absent(path: Path) -> None:
    assert not path.exists()


BAD = [_truncated, _wrong_keys, _wrong_rank, _nan, _text, _empty_file, _bomb, _mixed, _empty_folder, _absent]


@pytest.mark.parametrize("make", BAD, ids=lambda make: make.__name__.strip("_"))
@pytest.mark.parametrize("command", ["import", "inspect"])
def test_bad_input_is_one_sentence_and_leaves_nothing_behind(tmp_path: Path, cli: Cli, make: Any, command: str) -> None:
    source = tmp_path / "bad.h5"
    make(source)
    before = sorted(path.name for path in tmp_path.iterdir())
    arguments = ("--out", tmp_path / "out.h5") if command == "import" else ("--json",)
    code, output, error = cli("data", command, source, *arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    if command == "import":
        assert code == 1
        assert error.startswith("error: ")
        assert len(error.strip().splitlines()) == 1
    elif make is not _mixed:
        assert code == 1
        assert any(f["severity"] == "error" for result in json.loads(output) for f in result["findings"])
    else:
        assert "different sizes" in output
    assert "Traceback" not in output + error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("data", "import", "x.npy", "--out", "no/such/folder/a.h5"), "x.npy"),
        (("data", "import", "x.npy", "--out", "a.h5", "--size", "big"), "--size must be"),
        (("data", "import", "x.npy", "--out", "a.h5", "--size", "1000000"), "--size must be"),
        (("data", "split", "x.h5"), "no file x.h5"),
        (("demo", "--ratio", "2"), "sampling ratio"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, error = cli(*arguments)
    assert code == 1
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("data", "split", "x.h5", "--seed", "-1"),
        ("demo", "--seed", "-1"),
    ],
)
def test_negative_seeds_are_refused(cli: Cli, arguments: tuple[str, ...]) -> None:
    code, _, error = cli(*arguments)
    assert code == 2
    assert "Invalid value for" in error


AS_SOMEBODY_ELSE = """
import os, sys
import ulda.cli
sys.argv[0] = "ulda"
out = sys.argv[-1]
# whatever this needs is loaded before the rights are gone: the interpreter itself may be closed to others
sys.argv[-1] = sys.argv[3] + ".h5"
try:
    ulda.cli.main()
except SystemExit as ended:
    assert not ended.code
sys.argv[-1] = out
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
ulda.cli.main()
"""


def test_a_folder_without_permission_is_one_sentence() -> None:
    """Root may write anywhere, so the command gives up its rights where this is root."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        source = scan(folder / "a.npz")
        source.chmod(0o644)
        locked = folder / "locked"
        locked.mkdir(mode=0o555)
        arguments = ["data", "import", str(source), "--out", str(locked / "a.h5")]
        command = [sys.executable, "-c", AS_SOMEBODY_ELSE, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "cannot write to the folder" in done.stderr
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert list(locked.iterdir()) == []
