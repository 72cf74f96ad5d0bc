from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.cli.conftest import Command
from tests.small_models import scale_sources, small_model
from ulda.data import Domain, DomainWriter, Header, Record, demo
from ulda.physics import cartesian_mask

SPLITS = {"a": "train", "b": "val", "c": "test", "d": "test"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a base, an adapter trained on subject a, and crops of the knee with four subjects."""
    folder = tmp_path_factory.mktemp("evaluate")
    base, model = small_model("brain", "prostate"), small_model("brain", "prostate", domain="knee")
    scale_sources(base, 30)
    base.save(folder / "base")
    model.save_adapter("knee", folder / "knee", {"subjects": ["a"], "data": "0", "validation": {"subjects": ["b"]}})
    subjects = "aabbccdd"
    with DomainWriter(folder / "crops.h5", Header("crops", "complex", note="a crop")) as writer:
        for image, subject in zip(demo("knee").take(range(8)).images(), subjects, strict=True):
            writer.append(Record(image[40:88, 40:88].numpy(), subject, split=SPLITS[subject]))
    return folder


def evaluated(command: Command, *arguments: object) -> dict[str, Any]:
    code, text, error = command("evaluate", *arguments, "--json")
    assert code == 0, error
    result: dict[str, Any] = json.loads(text)
    return result


def test_the_acquisition_of_magnitudes(place: Path, command: Command, tmp_path: Path) -> None:
    magnitude = next(iter(demo("knee").images()))[40:72, 40:72].abs().numpy()
    np.save(tmp_path / "slice.npy", magnitude)
    arguments = tmp_path / "slice.npy", "--model", place / "base", "--ratio", 0.4, "--iterations", 1
    asked = {"scanner": (), "single-coil": ("--acquisition", "single-coil"), "ideal": ("--acquisition", "ideal")}
    results = {name: evaluated(command, *arguments, *more) for name, more in asked.items()}
    assert {name: result["acquisition"] for name, result in results.items()} == {name: name for name in asked}
    scores = {name: result["summary"][0]["psnr"] for name, result in results.items()}
    assert scores["ideal"] > scores["single-coil"]


def test_an_adapter(place: Path, command: Command, tmp_path: Path) -> None:
    out = tmp_path / "out"
    models = "--model", place / "base", "--adapter", place / "knee"
    code, text, error = command("evaluate", place / "crops.h5", *models, "--ratio", 0.4, "--seed", 3, "--out", out)
    assert code == 0, error
    assert "4 slices of 2 subjects, 19 of 48 lines" in " ".join(text.split())
    assert "note: a crop" in text
    assert text.splitlines()[-1].startswith("adaptation helped by ")
    assert "on 2 subjects (4 slices); so few subjects" in text.splitlines()[-1]
    result = json.loads((out / "evaluation.json").read_text())
    assert result["verdict"] == text.splitlines()[-1]
    assert result["mask"]["hash"] == cartesian_mask(48, 0.4, seed=3).hash
    assert result["data"] == Domain.open(place / "crops.h5").select(split="test").fingerprint()
    assert result["subjects"] == ["c", "c", "d", "d"]
    assert result["scores"]["adapted"]["convention"]["name"] == "per slice, peak 1"
    assert set(result["software"]) == {"ulda", "torch", "numpy", "python"}
    assert (result["adapter"], result["split"], result["iterations"]) == ("knee", "test", 3)
    assert list(result["weights"]) == ["TV", "wavelet"]
    means = {row["method"]: row["psnr"] for row in result["summary"]}
    assert list(means) == ["zero-filling", "TV", "wavelet", "un-adapted", "adapted"]
    with (out / "scores.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    per_slice = [float(row["psnr"]) for row in rows if row["method"] == "adapted"]
    assert means["adapted"] == pytest.approx(np.mean(per_slice), abs=1e-4)
    gain = result["differences"]["un-adapted"]["psnr"]
    assert gain["mean"] == pytest.approx(means["adapted"] - means["un-adapted"], abs=1e-4)
    assert gain["low"] <= gain["mean"] <= gain["high"]
    assert sorted(path.name for path in out.glob("*.png")) == [f"slice-{i:03}.png" for i in range(4)]
    with Image.open(out / "slice-000.png") as picture:
        assert picture.width > 6 * 48
    code, _, error = command("evaluate", place / "crops.h5", *models, "--out", out)
    assert code == 1
    assert "is not empty" in error
    code, _, error = command("evaluate", place / "crops.h5", *models, "--out", out / "slice-000.png")
    assert code == 1
    assert "slice-000.png is a file" in error
    code, _, _ = command("evaluate", place / "crops.h5", "--adapter", place / "none", "--out", place / "nothing")
    assert code == 1
    assert not (place / "nothing").exists()
    again = evaluated(command, place / "crops.h5", *models, "--ratio", 0.4, "--seed", 3, "--out", out, "--force")
    assert again["scores"] == result["scores"]


def test_a_base_alone_with_a_mask_from_a_file(place: Path, command: Command, tmp_path: Path) -> None:
    mask = cartesian_mask(48, 0.5, seed=9)
    mask.save(tmp_path / "mask.json")
    result = evaluated(
        command, place / "crops.h5", "--model", place / "base", "--mask", tmp_path / "mask.json", "--iterations", 5
    )
    assert result["mask"]["hash"] == mask.hash
    assert result["iterations"] == 5
    assert result["judged"] == "un-adapted"
    assert result["verdict"].startswith("the learned prior ")
    assert result["base"] == small_model("brain", "prostate").fingerprint


def test_data_that_is_imported_for_the_while(place: Path, command: Command, tmp_path: Path) -> None:
    images = np.stack([demo("knee").image(i).abs().numpy() for i in (8, 12)])
    np.savez(tmp_path / "scan.npz", images=images, subject=np.array(["p", "q"]))
    result = evaluated(command, tmp_path / "scan.npz", "--model", place / "base", "--size", "40x32")
    assert (result["domain"], result["split"], result["n_subjects"]) == ("scan", None, 2)
    assert result["mask"]["n_lines"] == 40
    assert result["mask"]["n_sampled"] == 8
    assert result["notes"][0] == "the data has no splits, so all 2 slices are evaluated"
    assert "not fit for complex data" in result["notes"][1]
    assert "default weights" in result["notes"][2]
    assert result["weights"] == {}


def test_measured_kspace_of_several_coils(place: Path, command: Command) -> None:
    result = evaluated(command, "demo:brain-multicoil", "--model", place / "base", "--size", 64, "--ratio", 0.5)
    assert (result["n_coils"], result["kspace"]) == (4, "measured")
    means = {row["method"]: row["psnr"] for row in result["summary"]}
    assert means["TV"] > means["zero-filling"] + 1
    assert "a single slice has no interval" in result["verdict"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--split", "train", "--adapter", "knee"], "trained on the subject a, so this would be no result"),
        (["--split", "tests"], "no slices in the split 'tests'; it has: test, train, val"),
        (["--ratio", "0.2", "--mask", "mask.json"], "either a sampling ratio or a mask file"),
        (["--ratio", "0"], "must lie in (0, 1]"),
        (["--size", "big"], "--size must be a number"),
        (["--adapter", "nowhere"], "no bundled adapter"),
        (["--model", "knee"], "but a base was asked for"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], message: str, place: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    cartesian_mask(48, 0.5).save("mask.json")
    code, text, error = command("evaluate", "crops.h5", "--model", place / "base", *arguments)
    assert (code, text) == (1, "")
    assert message in error
    assert "Traceback" not in error


def test_subjects_an_adapter_was_chosen_by_are_noted(place: Path, command: Command) -> None:
    result = evaluated(
        command, place / "crops.h5", "--model", place / "base", "--adapter", place / "knee", "--split", "val"
    )
    assert any("chosen by its scores on 1 of these subjects (b is one)" in note for note in result["notes"])
    assert result["verdict"].endswith("says nothing about other subjects")
