from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cli.conftest import Command
from tests.experiments.report_examples import experiment_folder
from tests.small_models import small_model
from ulda.data import Domain, DomainWriter, Header, Record, demo
from ulda.evaluation.report import load_comparison


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a base and crops of the knee."""
    folder = tmp_path_factory.mktemp("report")
    small_model("brain").save(folder / "base")
    with DomainWriter(folder / "crops.h5", Header("crops", "complex", note="a crop")) as writer:
        for image, subject in zip(demo("knee").take([8, 9]).images(), "ab", strict=True):
            writer.append(Record(image[40:72, 40:72].numpy(), subject))
    return folder


def test_from_an_evaluation_to_its_page(place: Path, command: Command, tmp_path: Path) -> None:
    out, page = tmp_path / "out", tmp_path / "page.html"
    code, _, error = command("evaluate", place / "crops.h5", "--model", place / "base", "--ratio", 0.4, "--out", out)
    assert code == 0, error
    result = json.loads((out / "evaluation.json").read_text())
    report = load_comparison(out / "comparison.h5")
    assert report.scores["TV"]["psnr"].tolist() == result["scores"]["TV"]["psnr"]
    assert report.verdict == result["verdict"]
    assert report.notes == tuple(result["notes"])
    assert report.provenance["command"]["command"].startswith("ulda evaluate ")
    assert report.provenance["model"]["SHA-256 of the base"] == result["base"] == small_model("brain").fingerprint
    assert report.provenance["data"]["SHA-256 of the slices"] == Domain.open(place / "crops.h5").fingerprint()
    code, text, error = command("report", out, "--out", page)
    assert code == 0, error
    assert str(page) in text
    assert result["base"] in page.read_text()
    code, _, error = command("report", out, "--out", page)
    assert code == 1
    assert "exists already" in error
    code, text, _ = command("report", out, out / "comparison.h5", "--out", page, "--force", "--json")
    assert code == 0
    assert json.loads(text) == {"out": str(page), "bytes": page.stat().st_size}
    assert page.read_text().count('class="verdict"') == 2


@pytest.mark.parametrize("name", ["slices.h5", "slices.npy"])
def test_from_a_reconstruction_to_its_page(name: str, place: Path, command: Command, tmp_path: Path) -> None:
    images = torch.stack(list(Domain.open(place / "crops.h5").images())).numpy()
    np.save(tmp_path / "input.npy", images)
    output, page = tmp_path / name, tmp_path / "page.html"
    arguments = "--model", place / "base", "--domain", "brain", "--ratio", 0.4
    code, _, error = command("reconstruct", tmp_path / "input.npy", *arguments, "--out", output)
    assert code == 0, error
    code, _, error = command("report", output, "--out", page)
    assert code == 0, error
    assert "every one of 6 phases descended" in page.read_text()
    assert "ulda reconstruct " in page.read_text()
    assert "★" not in page.read_text().partition('id="viewer"')[0]
    code, _, error = command("report", output, "--reference", place / "crops.h5", "--out", page, "--force")
    assert code == 0, error
    assert "★" in page.read_text().partition('id="viewer"')[0]


def test_from_an_experiment_to_its_page(command: Command, tmp_path: Path) -> None:
    folder, page = experiment_folder(tmp_path / "run"), tmp_path / "page.html"
    before = sorted(path for path in folder.rglob("*"))
    code, text, error = command("report", folder, "--out", page)
    assert code == 0, error
    assert str(page) in text
    assert "<h1>one of my own: cardiac, adapted with 5 slices</h1>" in page.read_text()
    some = "--domain", "cardiac", "--slices", 0, "--slices", 40
    code, _, error = command("report", folder, *some, "--out", page, "--force")
    assert code == 0, error
    titles = [f"one of my own: cardiac, {words}" for words in ("as trained", "adapted with 40 slices")]
    assert all(f">{title}</option>" in page.read_text() for title in titles)
    assert sorted(path for path in folder.rglob("*")) == before
    code, _, error = command("report", folder, "--domain", "liver", "--out", tmp_path / "other.html")
    assert code == 1
    assert "no results on 'liver'; it has them on: cardiac, knee, brain" in " ".join(error.split())
    assert not (tmp_path / "other.html").exists()


def test_a_mistake_is_one_sentence(command: Command, tmp_path: Path) -> None:
    code, text, error = command("report", tmp_path, "--out", tmp_path / "page.html")
    assert (code, text) == (1, "")
    assert "holds no comparison.h5" in error
    assert "Traceback" not in error
    assert not (tmp_path / "page.html").exists()
