"""What the committed result of `benchmarks/transfer.py` must show; the notes show the same numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.transfer import (
    CONFIG,
    DNCN,
    MODELS,
    ROOT,
    SHARED,
    SOURCES,
    TARGETS,
    domain,
    solve,
    tables,
)
from scripts.marked import between
from ulda.evaluation import PairedDifference, paired_difference
from ulda.training import load_adapter, load_base
from ulda.training.settings import read_settings
from ulda.training.slices import normalised_images


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / "transfer.json").read_text())
    return found


def psnr(entry: dict[str, Any], mark: str = "1T") -> float:
    """Return the mean over the slices, computed again."""
    scores = entry["scores"][mark] if "scores" in entry else entry
    values: list[float] = scores["psnr_per_slice"]
    mean = sum(values) / len(values)
    assert scores["psnr"] == pytest.approx(mean, abs=2e-4)
    return mean


def difference(result: dict[str, Any], name: str, more: str, fewer: str) -> PairedDifference:
    """Return by what one model is better than another on a target, computed again."""
    row = result["targets"][name]
    a, b = (row[key]["scores"]["1T"]["psnr_per_slice"] for key in (more, fewer))
    found = paired_difference(a, b, row["subjects"])
    assert row[f"{more} - {fewer}"] == pytest.approx(found.as_dict())
    return found


def test_the_notes_show_the_result(result: dict[str, Any]) -> None:
    notes = (ROOT / "docs" / "training-notes.md").read_text()
    assert between(notes, "<!-- transfer -->", "<!-- end -->") == tables(result)


def test_it_is_of_the_committed_configuration(result: dict[str, Any]) -> None:
    used, today = [read_settings(stage) for stage in result["settings"]["ulda"]], CONFIG.all_rounds
    many = used[0].warped_slices + 1  # that is what the sources have, so nothing was warped
    assert [stage.for_slices(many).model_dump() for stage in used] == [
        stage.for_slices(many).model_dump() for stage in today
    ]
    assert read_settings(result["settings"]["dncn"]) == DNCN
    assert DNCN.steps == sum(stage["steps"] for stage in result["settings"]["ulda"])
    assert (result["side"], CONFIG.architecture.phases) == (64, 15)
    assert result["mask"]["ratio"] == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("name", SOURCES)
def test_every_phase_descends_and_most_are_proposals(result: dict[str, Any], name: str) -> None:
    row = result["sources"][name]
    assert row["equilibrium"]["descending"] == row["unrolled"]["descending"] == 1
    assert row["equilibrium"]["u_steps"] >= 0.95


@pytest.mark.parametrize("name", TARGETS)
def test_every_phase_descends_on_the_targets(result: dict[str, Any], name: str) -> None:
    row = result["targets"][name]
    assert all(row[key]["descending"] == 1 for key in ("un-adapted", "adapted-5", "adapted-40"))


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("mark", ["2T", "8T", "30T"])
def test_the_solution_is_good_and_not_only_the_last_iterate(result: dict[str, Any], name: str, mark: str) -> None:
    row = result["sources"][name]
    assert len(row["equilibrium"]["scores"][mark]["psnr_per_slice"]) == len(row["subjects"])
    assert psnr(row["equilibrium"], mark) >= psnr(row["equilibrium"]) - 0.1


@pytest.mark.parametrize("name", SOURCES)
def test_at_T_it_is_close_to_the_model_trained_for_T(result: dict[str, Any], name: str) -> None:
    row = result["sources"][name]
    assert psnr(row["equilibrium"]) >= psnr(row["unrolled"]) - 0.3


@pytest.mark.parametrize("name", SOURCES)
def test_it_is_at_least_equal_to_a_net_of_six_times_its_size(result: dict[str, Any], name: str) -> None:
    row, counts = result["sources"][name], result["n_parameters"]
    assert counts["equilibrium"] <= counts["dncn"] / 6
    assert psnr(row["equilibrium"]) >= psnr(row["dncn"])
    assert psnr(row["unrolled"]) >= psnr(row["dncn"])
    assert psnr(row["dncn"]) > psnr(row["TV"]) > psnr(row["zero-filling"])


FAR = pytest.mark.xfail(reason="far positions of the one knee lose by more slices; see the notes", strict=True)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(("more", "fewer"), [("adapted-5", "un-adapted"), ("adapted-40", "adapted-5")])
def test_adaptation_helps_and_more_slices_help_more(result: dict[str, Any], name: str, more: str, fewer: str) -> None:
    assert difference(result, name, more, fewer).mean > 0


@pytest.mark.parametrize(
    ("name", "more", "fewer"),
    [
        ("cardiac", "adapted-5", "un-adapted"),
        ("knee", "adapted-5", "un-adapted"),
        ("cardiac", "adapted-40", "adapted-5"),
        pytest.param("knee", "adapted-40", "adapted-5", marks=FAR),
    ],
)
def test_the_intervals_are_above_zero(result: dict[str, Any], name: str, more: str, fewer: str) -> None:
    assert difference(result, name, more, fewer).low > 0


@pytest.mark.skipif(not SHARED.exists(), reason="the data beside the project, ../shared/data, are not here")
@pytest.mark.parametrize("name", [*SOURCES, *TARGETS])
def test_the_kept_model_gives_these_scores(result: dict[str, Any], name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    model = load_base(MODELS)
    if name in TARGETS:
        row, used = result["targets"][name]["adapted-5"], load_adapter(model, MODELS / f"{name}-5")
    else:
        row, used = result["sources"][name]["equilibrium"], name
    images = normalised_images(domain(name, tmp_path).select(split="test").take(range(3)))
    found = solve(model, used, images, (CONFIG.architecture.phases,))
    expected = row["scores"]["1T"]["psnr_per_slice"][:3]
    # another processor rounds otherwise, and 15 phases magnify that
    assert found["scores"]["1T"]["psnr_per_slice"] == pytest.approx(expected, abs=0.02)
    assert found["descending"] == 1


def test_time_and_memory_are_told(result: dict[str, Any]) -> None:
    stages = result["cost"]["ulda"]["stages"]
    assert len(stages) == len(CONFIG.all_rounds)
    assert all(cost["seconds_per_epoch"] > 0 and cost["peak_megabytes"] > 100 for cost in stages.values())
    for name in TARGETS:
        assert all(result["targets"][name][f"adaptation-{n}"]["seconds"] > 0 for n in (5, 40))
