"""The commands of `ulda experiment` on a tiny experiment."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from tests.experiments.tiny import BENCH, TINY, TINY_DNCN, runner
from ulda.cli import app
from ulda.cli.experiment import parse_time
from ulda.errors import UldaError
from ulda.experiments import Experiment, scheduling
from ulda.experiments.running import Runner
from ulda.experiments.runs import Packed, Run, pack, read_runs


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "_POLL", 0.02)


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["experiment", *map(str, arguments)])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the file of the tiny experiment."""
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return path


def test_what_there_is(file: Path, done: Runner, tmp_path: Path) -> None:
    listed = command("list")
    assert listed.exit_code == 0
    assert "cross-anatomy" in listed.output
    told = command("status", file, "--folder", done.folder)
    assert "14 of 14 runs done, about 0 min of work left" in told.output
    assert "other settings" not in told.output
    printed = command("table", file, "--folder", done.folder, "--format", "csv")
    assert printed.output.splitlines()[0].startswith("method,domain,role,slices,learned_from,draws")
    printed = command("table", file, "--folder", done.folder, "--format", "tex")
    assert "method & knee (source)" in printed.output
    missing = command("table", file, "--folder", tmp_path / "nowhere")
    assert isinstance(missing.exception, UldaError)
    assert "run the experiment first" in str(missing.exception)


def test_what_was_packed_is_unpacked_elsewhere(file: Path, done: Runner, data: Path, tmp_path: Path) -> None:
    out, again = tmp_path / "tiny.json", tmp_path / "again"
    packed = command("pack", file, "--folder", done.folder, "--out", out)
    assert "14 runs" in packed.output
    # the tables of a packed file are those of the folder
    for kind in ("table", "measures", "efficiency", "verdict"):
        from_folder, from_file = (
            command(kind, file, *options) for options in (("--folder", done.folder), ("--results", out))
        )
        assert from_file.exit_code == 0
        assert from_file.output == from_folder.output
    kept = read_runs(done.runs_folder)
    first = next(iter(kept))
    (again / "runs").mkdir(parents=True)
    kept[first] |= {"title": "done here"}
    (again / "runs" / f"{first}.json").write_text(json.dumps(kept[first]))
    assert "13 runs in" in command("unpack", file, "--results", out, "--folder", again).output
    assert read_runs(again / "runs") == kept
    # and there is nothing left to run
    nothing = command("run", file, "--folder", again, "--data", data)
    assert nothing.exit_code == 0
    assert read_runs(again / "runs") == kept


@pytest.mark.parametrize("changes", [{"name": "other"}, {"scales": {"paper": BENCH}}])
def test_results_of_something_else_are_refused(changes: dict[str, Any], file: Path, tmp_path: Path) -> None:
    experiment = Experiment.model_validate(TINY | changes)
    scale = next(iter(experiment.scales))
    pack(Packed(experiment, scale, {}), tmp_path / "wrong.json")
    refused = command("unpack", file, "--results", tmp_path / "wrong.json", "--folder", tmp_path / "run")
    held = f"wrong.json holds the results of {experiment.name} at the scale {scale}, not of tiny at bench"
    assert held in str(refused.exception)
    assert not (tmp_path / "run" / "runs").exists()


def test_runs_of_other_settings_are_noticed_and_renewed(file: Path, data: Path, tmp_path: Path) -> None:
    scales = {"bench": BENCH | {"adapt_steps": {2: 3}, "draws": 1}}
    place = tmp_path / "run"
    run = "run", file, "--folder", place, "--data", data, "--method", "dncn", "--jobs", 2
    one = runner(place, data, scales=scales)
    for done in (Run("train", "dncn"), Run("adapt", "dncn", "hip", 0), Run("adapt", "dncn", "hip", 2)):
        one.run(done)

    def change(**settings: Any) -> None:
        variants = [*TINY["variants"][:2], TINY_DNCN | settings]
        file.write_text(yaml.safe_dump(TINY | {"scales": scales, "variants": variants}))

    change()
    assert "other settings" not in command("status", file, "--folder", place).output
    before = read_runs(place / "runs")
    # another rate of adaptation: the training and what was not adapted stay as they are
    change(adapt={"learning_rate": 0.1})
    assert "1 of them are of other settings" in command("status", file, "--folder", place).output
    assert command(*run).exit_code == 0
    assert read_runs(place / "runs") == before  # nothing is thrown away unasked
    assert command(*run, "--renew").exit_code == 0
    after = read_runs(place / "runs")
    assert {key for key in after if after[key] != before[key]} == {"adapt-dncn-hip-2-0"}
    assert after["adapt-dncn-hip-2-0"]["recipe"]["settings"]["learning_rate"] == 0.1
    assert "other settings" not in command("status", file, "--folder", place).output
    # another training makes its adaptations others, too
    change(train={"clip": 0.5}, adapt={"learning_rate": 0.1})
    assert "3 of them are of other settings" in command("status", file, "--folder", place).output


def test_a_model_that_nothing_waits_for_is_not_trained_again(file: Path, done: Runner, tmp_path: Path) -> None:
    shutil.copytree(done.runs_folder, tmp_path / "run" / "runs")
    place = "--folder", tmp_path / "run", "--data", done.data_folder
    ended = command("run", file, *place, "--renew")
    assert ended.exit_code == 0
    assert read_runs(tmp_path / "run" / "runs") == read_runs(done.runs_folder)
    assert not (tmp_path / "run" / "models").exists()
    lost = command("run", file, *place, "--run", "adapt-dncn-hip-0-0")
    assert "the model of train-dncn is gone; `ulda experiment run --renew` trains it again" in str(lost.exception)


def test_a_family_shares_its_folder_but_not_its_tables(done: Runner, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "all-bench").symlink_to(done.folder)
    one = TINY | {"name": "one", "family": "all", "reference": "dncn", "variants": [TINY_DNCN], "paper": {}}
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(one))
    packed = command("pack", "one.yaml", "--out", "one.json")
    assert packed.output.startswith("6 runs")


@pytest.mark.parametrize("text", ["2", "h", "2d", "-1h", "0m"])
def test_a_wrong_time(text: str) -> None:
    with pytest.raises(UldaError, match=f"'{text}' is not a time"):
        parse_time(text)
