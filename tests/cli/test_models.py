from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from ulda.methods import ULDA


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a bundled model called base, and a folder with an adapter of it."""
    model = ULDA(sources=["brain", "prostate"])
    monkeypatch.setattr("ulda.models.bundled.FOLDER", tmp_path / "bundled")
    monkeypatch.setattr("ulda.methods.catalogue.FOLDER", tmp_path / "bundled")
    model.save(tmp_path / "bundled" / "base", {"data": {"brain": "CC0"}, "limits": ["research", "no device"]})
    model.add_domain("knee")
    facts = {"mask": {"ratio": 0.2}, "normalisation": "peak", "n_slices": 5, "n_subjects": 2, "psnr": 30.5}
    model.save_adapter("knee", tmp_path / "mine" / "knee-5", facts)
    return tmp_path


def test_list(models: Path, command: Command) -> None:
    code, text, _ = command("models", "list", "--path", models / "mine", "--json")
    assert code == 0
    base, adapter = json.loads(text)
    assert (base["kind"], base["name"], base["sources"]) == ("base", "base", ["brain", "prostate"])
    assert (adapter["kind"], adapter["name"], adapter["domain"]) == ("adapter", "knee-5", "knee")
    assert adapter["base"] == base["fingerprint"] == ULDA(sources=["brain", "prostate"]).fingerprint
    code, text, _ = command("models", "list")
    assert code == 0
    assert "base" in text
    assert "knee" not in text
    code, _, error = command("models", "list", "--path", models / "nowhere")
    assert code == 1
    assert "there is no folder" in error


def test_damaged_models_do_not_keep_the_others_from_the_list(models: Path, command: Command) -> None:
    for name, content in (("deep", "[" * 10**5), ("short", "{"), ("other", '{"format": "ulda-model", "version": 1}')):
        (models / "mine" / name).mkdir()
        (models / "mine" / name / "model.json").write_text(content)
    code, text, error = command("models", "list", "--path", models / "mine")
    assert code == 0
    assert "knee-5" in text
    assert all(f"mine/{name} is left out: " in error for name in ("deep", "short", "other"))
    code, text, _ = command("models", "list", "--path", models / "mine", "--json")
    assert [entry["name"] for entry in json.loads(text) if "problem" in entry] == ["deep", "other", "short"]


def test_inspect_a_base(models: Path, command: Command) -> None:
    code, text, _ = command("models", "inspect", "base", "--json")
    facts = json.loads(text)
    assert code == 0
    # 2 * 9 * (16 + 3 * 16 * 16) and 2 * 9 * 16 * 16 real numbers, by hand
    assert facts["parameters"]["extractor g"] == 14_112
    assert facts["parameters"]["adapter h, per domain"] == 4_608
    steps = facts["parameters"]["step sizes, per domain"]
    assert facts["parameters"]["file"] == 14_112 + 2 * (4_608 + steps)
    assert steps % 15 == 0
    assert facts["sizes"]["phases"] == 15
    code, text, _ = command("models", "inspect", models / "bundled" / "base")
    assert code == 0
    assert "card: data: brain" in text
    assert "research, no device" in text


def test_inspect_an_adapter(models: Path, command: Command) -> None:
    code, text, _ = command("models", "inspect", models / "mine" / "knee-5", "--json")
    facts = json.loads(text)
    assert code == 0
    assert facts["parameters"]["adapter h"] == 4_608
    assert (facts["domain"], facts["n_slices"], facts["n_subjects"], facts["psnr"]) == ("knee", 5, 2, 30.5)
    code, text, _ = command("models", "inspect", models / "mine" / "knee-5")
    assert code == 0
    assert "mask: ratio" in text
    code, _, error = command("models", "inspect", "best")
    assert code == 1
    assert error.strip().endswith("bundled are: base")


def test_a_damaged_model_is_one_sentence(models: Path, command: Command) -> None:
    ULDA(sources=["brain"], width=3, depth=2).save(models / "small")
    (models / "small" / "model.safetensors").write_bytes(b"nothing")
    (models / "mine" / "knee-5" / "adapter.safetensors").write_bytes(b"nothing")
    for folder in (models / "small", models / "mine" / "knee-5"):
        code, _, error = command("models", "inspect", folder)
        assert code == 1
        assert "cannot be read as safetensors" in error


def test_a_model_whose_writing_was_interrupted_is_whole(models: Path, command: Command) -> None:
    """What was decided is finished, and what was not is no model."""
    decided, begun = models / "mine" / "decided", models / "mine" / "begun"
    decided.mkdir()
    (models / "mine" / "knee-5").rename(decided / ".adapter.new")
    begun.mkdir()
    (begun / ".adapter.1-0123abcd-x.tmp").mkdir()
    (begun / ".adapter.1-0123abcd-x.tmp" / "adapter.json").write_text("{")
    code, text, _ = command("models", "list", "--path", models / "mine", "--json")
    assert code == 0
    assert [entry["name"] for entry in json.loads(text)] == ["base", "decided"]
    assert sorted(path.name for path in decided.iterdir()) == ["adapter.json", "adapter.safetensors"]
