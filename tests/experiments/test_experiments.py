"""A tiny experiment from its file to its table, in parts and with interruptions."""

from __future__ import annotations

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from pydantic import ValidationError
from typer.testing import CliRunner

from tests.training.small_domains import write_domain
from ulda.cli import app
from ulda.cli.experiment import parse_time
from ulda.errors import UldaError
from ulda.experiments import Experiment, dry_run, load_experiment
from ulda.experiments.recipes import digest_of, outdated
from ulda.experiments.running import Runner
from ulda.experiments.runs import Run, pack, read_runs, runs_of, write_run
from ulda.experiments.scheduling import estimate, guess, pending, progress_of, run_all
from ulda.experiments.tables import collect, difference, formatted, records_of, rows_of
from ulda.methods import ZeroFilled, method_class
from ulda.metrics import psnr
from ulda.physics import CartesianMRI
from ulda.training.slices import normalised_images

TINY: dict[str, Any] = {
    "name": "tiny",
    "title": "knees to larger crops of knees",
    "sources": [{"name": "knee", "ratio": 0.3}],
    "targets": [{"name": "hip", "ratio": 0.3}],
    "variants": [
        {"method": "zero-filling"},
        {"method": "ulda", "sizes": {"width": 2, "depth": 1, "phases": 2}},
        {"method": "dncn", "sizes": {"filters": 2, "layers": 2, "cascades": 1}},
    ],
    "scales": {"bench": {"side": 32, "steps": 4, "batch_size": 2, "adapt_steps": {2: 3, 100: 3}, "draws": 2}},
    "paper": {"ulda": {"hip": [37.26, 95.59]}},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_domain(folder / "knee.npz", every=3)
    write_domain(folder / "hip.npz", size=48, every=4)
    return folder


def runner(folder: Path, data: Path, **changes: Any) -> Runner:
    return Runner(Experiment.model_validate(TINY | changes), "bench", folder, data)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Runner:
    """Return an experiment all of whose runs have been run."""
    whole = runner(tmp_path_factory.mktemp("run"), data)
    for run in runs_of(whole.experiment, whole.data.scale):
        whole.run(run)
    return whole


@pytest.mark.parametrize("name", ["cross-anatomy", "cross-modality", "cross-sampling-ratio"])
def test_every_experiment_can_be_read_and_covers_the_field(name: str) -> None:
    experiment = load_experiment(name)
    assert experiment.name == name
    assert set(experiment.scales) == {"bench", "paper"}
    methods = {variant.method for variant in experiment.variants}
    assert methods >= {"ulda", "lda", "dncn", "unet", "umri", "meta", "humus", "zero-filling", "TV", "wavelet"}
    for scale in experiment.scales.values():
        keys = [run.key for run in runs_of(experiment, scale)]
        assert len(keys) == len(set(keys))


def test_the_larger_comparison_is_the_smaller_one_at_another_size() -> None:
    small, large = load_experiment("cross-anatomy"), load_experiment("cross-anatomy-128")
    assert (large.sources, large.targets) == (small.sources, small.targets)
    assert all(variant == small.variant(variant.name) for variant in large.variants)
    assert all(small.paper[method] == printed for method, printed in large.paper.items())
    (few, many) = small.scale("bench"), large.scale("bench")
    assert (many.side, many.steps) == (2 * few.side, few.steps)
    assert many.adapt_steps.items() <= few.adapt_steps.items()


def test_the_runs(done: Runner) -> None:
    keys = [run.key for run in runs_of(done.experiment, done.data.scale)]
    assert keys[:4] == ["classical-zero-filling-knee", "classical-zero-filling-hip", "train-ulda", "train-dncn"]
    assert keys[4:6] == ["adapt-ulda-hip-0-0", "adapt-dncn-hip-0-0"]
    assert len(keys) == 2 + 2 + 2 * (1 + 2 * 2)


def test_few_slices_may_be_drawn_more_often_than_many(data: Path, tmp_path: Path) -> None:
    scale = TINY["scales"]["bench"]
    some = runner(tmp_path, data, scales={"bench": scale | {"draws": {2: 3}}})
    keys = [run.key for run in runs_of(some.experiment, some.data.scale) if run.kind == "adapt"]
    assert [key for key in keys if "dncn" in key] == [
        "adapt-dncn-hip-0-0",
        "adapt-dncn-hip-2-0",
        "adapt-dncn-hip-100-0",
        "adapt-dncn-hip-2-1",
        "adapt-dncn-hip-2-2",
    ]


def test_a_run_tells_all(done: Runner) -> None:
    result = json.loads((done.runs_folder / "adapt-dncn-hip-100-1.json").read_text())
    test = done.data.test(done.experiment.targets[0])
    scores = result["results"]["hip"]
    assert result["spent"]["equal"] == "steps"
    assert (result["spent"]["steps"], result["spent"]["slices"]) == (3, 6)
    assert 0 < result["spent"]["processor_seconds"] < 60
    assert scores["data"] == test.fingerprint()
    assert scores["subjects"] == list(test.subjects)
    assert len(scores["mask"]) == 64
    recipe = result["recipe"]
    assert (recipe["slices"], recipe["draw"], recipe["settings"]["seed"]) == (100, 1, 1)
    assert recipe["settings"]["learning_rate"] == method_class("dncn").adaptation_defaults["learning_rate"]
    assert recipe["sizes"]["filters"] == 2
    assert len(result["software"]["code"]) == 16
    # there are fewer than 100
    assert scores["n"] == len(done.data.domain(done.experiment.targets[0]).select(split="train"))
    assert result["wall_clock"] > 0
    assert result["peak_memory_mb"] > 50
    assert result["variant"]["method"] == "dncn"
    assert (result["scale"]["name"], result["scale"]["side"]) == ("bench", done.data.scale.side)
    assert result["software"]["torch"] == torch.__version__
    assert result["n_adapted"] == result["n_parameters"]


def test_the_scores_are_those_of_the_test_slices(done: Runner) -> None:
    entry = done.experiment.targets[0]
    images = normalised_images(done.data.test(entry))
    physics = CartesianMRI(done.data.mask(entry))
    expected = psnr(ZeroFilled()(physics.A(images), physics).abs(), images.abs(), data_range=1.0)
    found = read_runs(done.runs_folder)["classical-zero-filling-hip"]["results"]["hip"]["psnr"]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-3)


def test_draws_differ_and_nothing_of_the_test_is_trained_on(done: Runner) -> None:
    entry = done.experiment.targets[0]
    drawn = [done.data.task(entry, 2, draw)[1] for draw in range(4)]
    assert len({slices.fingerprint() for slices in drawn}) > 1
    assert {label for slices in drawn for label in slices.label("split")} == {"train"}


def test_the_table_has_every_number(done: Runner) -> None:
    runs = read_runs(done.runs_folder)
    rows = rows_of(done.experiment, runs, done.data.scale.sizes)
    assert rows[0] == [
        "method",
        "knee (source)",
        "hip, as trained",
        "hip, 2 slices",
        "hip, all 4 slices",
        "hip, the paper",
    ]
    assert [row[0] for row in rows[1:]] == ["zero-filling", "U-LDA", "DnCn"]
    draws = [np.mean(runs[f"adapt-dncn-hip-2-{d}"]["results"]["hip"]["psnr"]) for d in (0, 1)]
    assert rows[3][3].startswith(f"{np.mean(draws):.2f} ± {np.std(draws, ddof=1):.2f} / ")
    entries = collect(runs)
    against = difference(entries, ("dncn", "hip", 2), ("ulda", "hip", 2))
    assert against is not None
    assert rows[3][3].endswith(f"({against.mean:+.2f} [{against.low:.2f}, {against.high:.2f}])")
    assert [row[5] for row in rows[1:]] == ["", "37.26 / 0.956", ""]
    narrow = rows_of(done.experiment, runs, done.data.scale.sizes, ["knee"])
    assert narrow == [row[:2] for row in rows]
    assert difference(entries, ("dncn", "hip", 7), ("ulda", "hip", 7)) is None


def test_formats() -> None:
    rows = [["method", "a_b"], ["U-LDA", "1 ± 2"]]
    assert formatted(rows, "csv") == "method,a_b\nU-LDA,1 ± 2"
    assert r"a\_b" in formatted(rows, "tex")
    assert r"1 $\pm$ 2" in formatted(rows, "tex")


def test_packed_results_give_the_same_table(done: Runner, tmp_path: Path) -> None:
    pack(read_runs(done.runs_folder), tmp_path / "tiny.json", experiment="tiny")
    first, again = (
        rows_of(done.experiment, read_runs(place), done.data.scale.sizes)
        for place in (done.runs_folder, tmp_path / "tiny.json")
    )
    assert first == again


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path, data: Path) -> None:
    changes = {"variants": [v | ({"train": {"checkpoint_every": 1}} if "sizes" in v else {}) for v in TINY["variants"]]}
    broken, whole = (runner(tmp_path / name, data, **changes) for name in ("broken", "whole"))
    run = Run("train", "dncn")

    def stop(progress: Any) -> None:
        if progress.step == 1:
            time.sleep(1.0)  # the checkpoint of the second step knows of it
        if progress.step == 2:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        broken.run(run, stop)
    assert not broken.is_done(run)
    steps: list[int] = []
    continued = broken.run(run, lambda progress: steps.append(progress.step))
    assert steps == [3, 4]
    expected = whole.run(run)["results"]["knee"]["psnr"]
    assert continued["results"]["knee"]["psnr"] == expected
    # the time before the interruption counts
    assert continued["wall_clock"] > continued["spent"]["seconds_before"] >= 1.0
    assert "processor_seconds" not in continued["spent"]


def writer(one: Runner, log: Path) -> Any:
    """Return a command that writes an empty result instead of running a run."""

    def command(run: Run) -> list[str]:
        code = (
            "import json, pathlib, sys, time; time.sleep(0.2);"
            "run = json.loads(sys.argv[2]); path = pathlib.Path(sys.argv[1]);"
            "open(sys.argv[3], 'a').write(path.stem + '\\n');"
            "path.parent.mkdir(parents=True, exist_ok=True);"
            "path.write_text(json.dumps({'run': run, 'wall_clock': 10.0, 'results': {}}))"
        )
        path = one.runs_folder / f"{run.key}.json"
        return [sys.executable, "-c", code, str(path), json.dumps(vars(run)), str(log)]

    return command


def test_jobs_run_in_order_of_their_needs(tmp_path: Path, data: Path) -> None:
    one = runner(tmp_path, data)
    runs = runs_of(one.experiment, one.data.scale)
    assert progress_of(one).seconds_left is None
    progress = run_all(one, jobs=2, command=writer(one, tmp_path / "log"))
    assert (progress.done, progress.total, progress.seconds_left) == (len(runs), len(runs), 0.0)
    order = (tmp_path / "log").read_text().splitlines()
    assert sorted(order) == sorted(run.key for run in runs)
    for run in runs:
        if run.needs is not None:
            assert order.index(run.needs) < order.index(run.key)


def test_a_budget_starts_nothing_that_would_end_later(tmp_path: Path, data: Path) -> None:
    one = runner(tmp_path, data)
    write_run(one.runs_folder, Run("train", "ulda"), {"wall_clock": 100.0, "results": {}})
    start = time.monotonic()
    run_all(one, seconds=50.0, methods=["dncn"], command=writer(one, tmp_path / "log"))
    # trainings take 100 s, as far as is known, so that none is begun; and without it there is nothing to adapt
    assert not (tmp_path / "log").exists()
    assert time.monotonic() - start < 5
    assert estimate(Run("train", "dncn"), read_runs(one.runs_folder), {}) == 100.0
    assert next(run.key for run in pending(one, ["dncn"])) == "train-dncn"


def test_a_budget_counts_on_what_was_never_measured(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = runner(tmp_path, data)
    monkeypatch.setattr(dry_run, "timed_step", lambda *_: (15.0, 1000))
    timed: dict[str, float] = {}
    assert guess(one, Run("train", "dncn"), timed) == 4 * 15.0
    assert timed == {"dncn": 15.0}
    monkeypatch.setattr(dry_run, "timed_step", lambda *_: (99.0, 1000))  # a method is timed once
    assert guess(one, Run("adapt", "dncn", "hip", 2), timed) == 3 * 15.0
    assert guess(one, Run("classical", "zero-filling", "hip"), timed) == 0.0
    monkeypatch.setattr(dry_run, "timed_step", lambda *_: (15.0, 1000))
    # two methods, each with 4 steps on the sources and 3 for each of 2 draws of 2 and of 100 slices
    assert progress_of(one, step_seconds={}).seconds_left == pytest.approx(15.0 * 2 * (4 + 2 * 2 * 3))
    run_all(one, seconds=50.0, methods=["dncn"], command=writer(one, tmp_path / "log"))
    assert not (tmp_path / "log").exists()
    run_all(one, seconds=70.0, methods=["dncn"], command=writer(one, tmp_path / "log"))
    assert "train-dncn" in (tmp_path / "log").read_text()


def test_an_adaptation_is_not_estimated_by_a_test(tmp_path: Path, data: Path) -> None:
    """With no slices nothing is trained; other numbers of slices count by their steps."""
    one = runner(tmp_path, data)
    write_run(one.runs_folder, Run("adapt", "ulda", "hip", 0), {"wall_clock": 1.0, "results": {}})
    few, many, steps = Run("adapt", "ulda", "hip", 2), Run("adapt", "ulda", "hip", 100), {2: 3, 100: 30}
    assert estimate(many, read_runs(one.runs_folder), steps) is None
    write_run(one.runs_folder, few, {"wall_clock": 7.0, "results": {}})
    assert estimate(many, read_runs(one.runs_folder), steps) == 70.0
    assert estimate(Run("adapt", "dncn", "hip", 2), read_runs(one.runs_folder), steps) == 7.0
    assert estimate(Run("adapt", "dncn", "hip", 0), read_runs(one.runs_folder), steps) == 1.0


def test_a_run_that_another_process_runs_is_left_to_it(tmp_path: Path, data: Path) -> None:
    one, run = runner(tmp_path / "run", data), Run("classical", "zero-filling", "hip")
    code = (
        "import fcntl, pathlib, sys, time; path = pathlib.Path(sys.argv[1]); path.parent.mkdir(parents=True);"
        "file = path.open('a'); fcntl.flock(file, fcntl.LOCK_EX); print('held', flush=True); time.sleep(60)"
    )
    place = one.folder / "locks" / run.key
    with subprocess.Popen([sys.executable, "-c", code, str(place)], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            holder.stdout.readline()
            assert one.is_claimed(run)
            with pytest.raises(UldaError, match="another process runs the run classical-zero-filling-hip"):
                one.run(run)
            run_all(one, methods=["zero-filling"], command=writer(one, tmp_path / "log"))
            assert (tmp_path / "log").read_text().split() == ["classical-zero-filling-knee"]
        finally:
            holder.kill()
    assert not one.is_claimed(run)
    run_all(one, methods=["zero-filling"], command=writer(one, tmp_path / "log"))
    assert one.is_done(run)


def test_a_termination_ends_the_runs_too(tmp_path: Path, data: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.experiments.test_experiments import runner;"
        "from ulda.experiments.scheduling import run_all;"
        "sleep = 'import os, sys, time; open(sys.argv[1], \"w\").write(str(os.getpid())); time.sleep(60)';"
        "run_all(runner(Path(sys.argv[1]), Path(sys.argv[2])),"
        " command=lambda run: [sys.executable, '-c', sleep, sys.argv[1] + '/pid'])"
    )
    tmp_path.joinpath("run").mkdir()
    root = Path(__file__).parents[2]
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "run"), str(data)], cwd=root)
    pid = tmp_path / "run" / "pid"
    end = time.monotonic() + 60
    while not (pid.exists() and pid.read_text()) and time.monotonic() < end:
        time.sleep(0.1)
    parent.terminate()
    assert parent.wait(30) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_an_adaptation_tells_the_training_that_it_is_from(tmp_path: Path, data: Path) -> None:
    one = runner(tmp_path, data)
    one.run(Run("train", "dncn"))
    longer = TINY["scales"]["bench"] | {"steps": 5}
    other = runner(tmp_path, data, scales={"bench": longer})
    other.run(Run("adapt", "dncn", "hip", 0))
    # a new training, and the adaptation is still one of the old
    other.forget(Run("train", "dncn"))
    assert not other.is_done(Run("adapt", "dncn", "hip", 0))
    one.run(Run("train", "dncn"))
    other.run(Run("adapt", "dncn", "hip", 0))
    kept = read_runs(other.runs_folder)["adapt-dncn-hip-0-0"]
    other.forget(Run("train", "dncn"))
    other.run(Run("train", "dncn"))
    write_run(other.runs_folder, Run("adapt", "dncn", "hip", 0), {k: v for k, v in kept.items() if k != "run"})
    assert [run.key for run in other.outdated()] == ["adapt-dncn-hip-0-0"]


def test_data_that_is_imported_otherwise_is_kept_apart(tmp_path: Path, data: Path) -> None:
    scale = TINY["scales"]["bench"]
    plain, combined = (
        runner(tmp_path, data, scales={"bench": scale | {"single_coil": single}}).data for single in (False, True)
    )
    entry = runner(tmp_path, data).experiment.domain("knee")
    assert plain.domain(entry).path.name == "knee-32.h5"
    assert combined.domain(entry).path.name == "knee-32-combined.h5"


def test_names_must_do_as_names_of_files() -> None:
    for changes in (
        {"variants": [{"method": "ulda", "label": "w/o warp"}]},
        {"variants": [{"method": "ulda", "label": "../../victim"}]},
        {"targets": [{"name": "../hip"}]},
        {"targets": [{"name": "knee, 3T"}]},
    ):
        with pytest.raises(ValidationError, match="should match pattern"):
            Experiment.model_validate(TINY | changes)
    alike = {
        "targets": [{"name": "brain-knee"}, {"name": "hip"}],
        "variants": [{"method": "ulda"}, {"method": "ulda", "label": "ulda-brain"}],
        "sources": [{"name": "knee"}],
    }
    experiment = Experiment.model_validate(TINY | alike | {"targets": [{"name": "brain-hip"}, {"name": "hip"}]})
    with pytest.raises(UldaError, match="two runs of tiny would be called adapt-ulda-brain-hip-0-0"):
        runs_of(experiment, experiment.scale("bench"))


def test_an_interrupted_run_counts_with_all_its_time(tmp_path: Path, data: Path) -> None:
    one = runner(tmp_path, data)
    write_run(one.runs_folder, Run("train", "ulda"), {"wall_clock": 5.0, "spent": {"seconds": 80.0}, "results": {}})
    assert estimate(Run("train", "dncn"), read_runs(one.runs_folder), {}) == 80.0


def test_runs_of_other_settings_are_noticed_and_renewed(tmp_path: Path, data: Path) -> None:
    file, place = tmp_path / "tiny.yaml", tmp_path / "run"
    run = ["experiment", "run", str(file), "--folder", str(place), "--data", str(data), "--method", "dncn"]
    status = ["experiment", "status", str(file), "--folder", str(place)]
    cli = CliRunner()
    scale = TINY["scales"]["bench"] | {"adapt_steps": {2: 3}, "draws": 1}
    dncn = TINY["variants"][2]
    file.write_text(yaml.safe_dump(TINY | {"scales": {"bench": scale}}))
    assert cli.invoke(app, run).exit_code == 0
    before = read_runs(place / "runs")
    assert list(before) == ["adapt-dncn-hip-0-0", "adapt-dncn-hip-2-0", "train-dncn"]
    assert "other settings" not in cli.invoke(app, status).output
    # another rate of adaptation: the training and what was not adapted stay as they are
    variants = [*TINY["variants"][:2], dncn | {"adapt": {"learning_rate": 0.1}}]
    file.write_text(yaml.safe_dump(TINY | {"scales": {"bench": scale}, "variants": variants}))
    assert "1 of them were run with other settings" in cli.invoke(app, status).output
    assert cli.invoke(app, run).exit_code == 0
    assert read_runs(place / "runs") == before  # nothing is thrown away unasked
    assert cli.invoke(app, [*run, "--renew"]).exit_code == 0
    after = read_runs(place / "runs")
    assert {key for key in after if after[key] != before[key]} == {"adapt-dncn-hip-2-0"}
    assert after["adapt-dncn-hip-2-0"]["recipe"]["settings"]["learning_rate"] == 0.1
    assert "other settings" not in cli.invoke(app, status).output
    # a training without its model is repeated for what is to be adapted from it, and for nothing else
    shutil.rmtree(place / "models" / "dncn")
    assert cli.invoke(app, [*run, "--renew"]).exit_code == 0
    assert not (place / "models").joinpath("dncn").exists()
    (place / "runs" / "adapt-dncn-hip-2-0.json").unlink()
    lost = subprocess.run([sys.executable, "-m", "ulda", *run], capture_output=True, text=True, check=False)
    assert lost.returncode == 1
    assert "the model of train-dncn is gone; `ulda experiment run --renew` trains it again" in lost.stderr
    assert cli.invoke(app, [*run, "--renew"]).exit_code == 0
    again = read_runs(place / "runs")
    assert {key: again[key]["results"]["hip"]["psnr"] for key in again if "adapt" in key} == {
        key: after[key]["results"]["hip"]["psnr"] for key in after if "adapt" in key
    }
    # another training makes its adaptations others, too
    variants[2] = dncn | {"train": {"clip": 0.5}}
    file.write_text(yaml.safe_dump(TINY | {"scales": {"bench": scale}, "variants": variants}))
    assert "3 of them were run with other settings" in cli.invoke(app, status).output


def test_sizes_without_gains_are_those_of_before_there_were_any(done: Runner) -> None:
    recipe = read_runs(done.runs_folder)["train-ulda"]["recipe"]
    assert recipe["sizes"]["line_steps"] is recipe["sizes"]["channel_steps"] is True
    gains = {"line_steps", "channel_steps"}
    before = recipe | {"sizes": {key: value for key, value in recipe["sizes"].items() if key not in gains}}
    without = recipe | {"sizes": recipe["sizes"] | dict.fromkeys(gains, False)}
    assert digest_of(before) == digest_of(without)
    assert digest_of(recipe) != digest_of(without)


def test_a_newer_setting_does_not_make_an_older_run_another_one(done: Runner) -> None:
    runs = read_runs(done.runs_folder)
    scale = done.data.scale
    assert outdated(done.experiment, scale, runs) == []
    # a result of before many slices had a rate of their own; two are few, and so is what there was of 100
    older = copy.deepcopy(runs)
    for key in ("adapt-ulda-hip-2-0", "adapt-ulda-hip-100-0"):
        del older[key]["recipe"]["settings"]["adapter_rate_of_many"]
    assert outdated(done.experiment, scale, older) == []
    older["adapt-ulda-hip-100-0"]["results"]["hip"]["n"] = 100
    assert [run.key for run in outdated(done.experiment, scale, older)] == ["adapt-ulda-hip-100-0"]
    # a rate for few slices, which means nothing to many
    faster = copy.deepcopy(runs)
    for key in ("adapt-ulda-hip-2-0", "adapt-ulda-hip-100-0"):
        faster[key]["recipe"]["settings"]["added_rate"] = 4.0
    faster["adapt-ulda-hip-100-0"]["results"]["hip"]["n"] = 100
    assert [run.key for run in outdated(done.experiment, scale, faster)] == ["adapt-ulda-hip-2-0"]
    # a result of when these few steps taught more kernels
    more = copy.deepcopy(runs)
    more["adapt-ulda-hip-2-0"]["recipe"]["kernels"] = 12
    assert [run.key for run in outdated(done.experiment, scale, more)] == ["adapt-ulda-hip-2-0"]
    # a result of before there were warps, of a training that has none, and of an adaptation that has some today
    for key in ("train-dncn", "adapt-ulda-hip-2-0"):
        del runs[key]["recipe"]["settings"]["warp"]
    assert [run.key for run in outdated(done.experiment, scale, runs)] == ["adapt-ulda-hip-2-0"]
    # a default that is another one today
    runs["adapt-dncn-hip-2-0"]["recipe"]["settings"]["clip"] = 2.0
    # a default for kept iterates, which these do not have
    runs["train-dncn"]["recipe"]["settings"]["continued_phases"] = 3
    # a result that does not tell how it was made, and what was adapted from it
    del runs["train-ulda"]["recipe"]
    found = {run.key for run in outdated(done.experiment, scale, runs)}
    assert found == {"train-ulda", "adapt-dncn-hip-2-0"} | {key for key in runs if key.startswith("adapt-ulda")}


def test_draws_are_compared_with_the_same_draws(done: Runner) -> None:
    runs = read_runs(done.runs_folder)
    both = collect(runs)
    fewer = collect({key: run for key, run in runs.items() if key != "adapt-ulda-hip-2-1"})
    ours, other = ("ulda", "hip", 2), ("dncn", "hip", 2)
    assert (both[ours].drawn, fewer[ours].drawn) == ((0, 1), (0,))
    found = difference(fewer, ours, other)
    assert found is not None
    assert found.mean == pytest.approx((both[ours].psnr[0] - both[other].psnr[0]).mean())
    # with other numbers of slices there are no draws in common
    found = difference(fewer, ours, ("dncn", "hip", 100))
    assert found is not None
    assert found.mean == pytest.approx((both[ours].psnr[0] - both["dncn", "hip", 100].psnr.mean(0)).mean())


def test_the_table_as_data(done: Runner) -> None:
    head, *rows = records_of(done.experiment, read_runs(done.runs_folder))
    records = [dict(zip(head, row, strict=True)) for row in rows]
    one = next(row for row in records if (row["method"], row["domain"], row["slices"]) == ("DnCn", "hip", "100"))
    entry = collect(read_runs(done.runs_folder))["dncn", "hip", 100]
    assert float(one["psnr"]) == pytest.approx(entry.psnr.mean(), abs=1e-4)
    assert float(one["ssim_std"]) == pytest.approx(entry.ssim.mean(1).std(ddof=1), abs=1e-4)
    assert (one["role"], one["draws"], int(one["learned_from"])) == ("target", "2", entry.n)
    for score in ("psnr", "ssim"):
        assert float(one[f"{score}_low"]) <= float(one[f"{score}_difference"]) <= float(one[f"{score}_high"])
    # a method without training has the same scores for every number of slices, each time beside those of ours
    floor = [row for row in records if (row["method"], row["domain"]) == ("zero-filling", "hip")]
    ours = [row for row in records if (row["method"], row["domain"]) == ("U-LDA", "hip")]
    assert [row["slices"] for row in floor] == [row["slices"] for row in ours] == ["0", "2", "100"]
    assert len({row["psnr"] for row in floor}) == 1
    for row, other in zip(floor, ours, strict=True):
        assert float(row["psnr_difference"]) == pytest.approx(float(row["psnr"]) - float(other["psnr"]), abs=2e-4)
        assert float(row["ssim_difference"]) == pytest.approx(float(row["ssim"]) - float(other["ssim"]), abs=2e-4)
    assert len(records) == (1 + 3) + 2 * (1 + 3)
    assert {row["domain"] for row in records} == {"knee", "hip"}
    # fewer slices than asked for are called all
    assert f"hip, all {entry.n} slices" in rows_of(done.experiment, read_runs(done.runs_folder), (2, 100))[0]


def test_a_failing_run_is_named(tmp_path: Path, data: Path) -> None:
    one = runner(tmp_path, data)
    with pytest.raises(UldaError, match="the run classical-zero-filling-knee failed"):
        run_all(one, methods=["zero-filling"], command=lambda _: [sys.executable, "-c", "raise SystemExit(1)"])


def test_the_commands(tmp_path: Path, data: Path, done: Runner) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(TINY))
    cli = CliRunner()
    listed = cli.invoke(app, ["experiment", "list"])
    assert listed.exit_code == 0
    assert "cross-anatomy" in listed.output
    place = ["--folder", str(done.folder)]
    told = cli.invoke(app, ["experiment", "status", str(file), *place])
    assert "14 of 14 runs done, about 0 min of work left" in told.output
    assert "other settings" not in told.output
    printed = cli.invoke(app, ["experiment", "table", str(file), *place, "--format", "csv"])
    assert printed.output.splitlines()[0].startswith("method,domain,role,slices,learned_from,draws")
    printed = cli.invoke(app, ["experiment", "table", str(file), *place, "--format", "tex"])
    assert "method & knee (source)" in printed.output
    packed = cli.invoke(app, ["experiment", "pack", str(file), *place, "--out", str(tmp_path / "tiny.json")])
    assert "14 runs" in packed.output
    unpack = ["experiment", "unpack", str(file), "--results", str(tmp_path / "tiny.json")]
    again = tmp_path / "again"
    kept = read_runs(done.runs_folder)
    first = next(iter(kept))
    (again / "runs").mkdir(parents=True)
    (again / "runs" / f"{first}.json").write_text("{}")
    assert "13 runs in" in cli.invoke(app, [*unpack, "--folder", str(again)]).output
    assert read_runs(again / "runs") == kept | {first: {}}
    wrong = tmp_path / "paper.json"
    pack(kept, wrong, experiment="tiny", scale="paper")
    refused = cli.invoke(app, [*unpack[:-1], str(wrong), "--folder", str(again)])
    assert "holds results at the scale paper, not bench; say --scale paper" in str(refused.exception)
    nothing = cli.invoke(app, ["experiment", "run", str(file), "--folder", str(again), "--data", str(data)])
    assert nothing.exit_code == 0
    assert read_runs(again / "runs") == kept | {first: {}}
    run = ["experiment", "run", str(file), "--folder", str(tmp_path / "run"), "--data", str(data)]
    assert cli.invoke(app, [*run, "--method", "zero-filling"]).exit_code == 0
    assert len(read_runs(tmp_path / "run" / "runs")) == 2
    missing = cli.invoke(app, ["experiment", "table", str(file), "--folder", str(tmp_path / "nowhere")])
    assert isinstance(missing.exception, UldaError)
    assert "run the experiment first" in str(missing.exception)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": "lda"}, "the reference lda is not among the methods"),
        ({"targets": [{"name": "knee"}]}, "two domains have the name knee"),
        ({"titel": "x"}, "did you mean 'title'"),
        ({"scales": {"bench": {"side": 0, "steps": 1, "batch_size": 1, "adapt_steps": {}}}}, "scales.bench.side"),
        ({"scales": {"bench": TINY["scales"]["bench"] | {"draws": {5: 2}}}}, "draws of 5 target slices, but no steps"),
        ({"scales": {"bench": TINY["scales"]["bench"] | {"draws": {2: 0}}}}, "scales.bench.draws"),
    ],
)
def test_a_wrong_file_is_explained(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(yaml.safe_dump(TINY | changes))
    with pytest.raises(UldaError, match=f"wrong.yaml: .*{message}"):
        load_experiment(file)


def test_what_does_not_exist_is_named(tmp_path: Path, data: Path) -> None:
    with pytest.raises(UldaError, match=r"there are: .*cross-anatomy, .*, cross-modality, cross-sampling-ratio"):
        load_experiment("cross-country")
    one = runner(tmp_path, data)
    with pytest.raises(UldaError, match="tiny has no method 'unet'; it has: zero-filling, ulda, dncn"):
        pending(one, ["unet"])
    with pytest.raises(UldaError, match="tiny has no scale 'paper'; it has: bench"):
        one.experiment.scale("paper")
    absent = Runner(one.experiment, "bench", tmp_path / "other", tmp_path)
    with pytest.raises(UldaError, match="there is no data for knee"):
        absent.data.domain(one.experiment.sources[0])


@pytest.mark.parametrize("text", ["2", "h", "2d", "-1h", "0m"])
def test_a_wrong_time(text: str) -> None:
    with pytest.raises(UldaError, match=f"'{text}' is not a time"):
        parse_time(text)


def test_a_training_is_taken_over(tmp_path: Path, data: Path) -> None:
    sizes = TINY["variants"][1]["sizes"]
    narrow = {"label": "narrow", "method": "ulda", "sizes": sizes | {"adapt_only": "steps"}, "trained_as": "ulda"}
    one = runner(tmp_path, data, variants=[*TINY["variants"], narrow])
    runs = {run.key: run for run in runs_of(one.experiment, one.data.scale)}
    assert "train-narrow" not in runs
    assert runs["adapt-narrow-hip-2-0"].needs == "train-ulda"
    one.run(runs["train-ulda"])
    found = {key: one.run(runs[key]) for key in ("adapt-ulda-hip-0-0", "adapt-narrow-hip-0-0", "adapt-narrow-hip-2-0")}
    unadapted = [found[f"adapt-{name}-hip-0-0"]["results"]["hip"]["psnr"] for name in ("ulda", "narrow")]
    assert unadapted[0] == unadapted[1]
    assert found["adapt-narrow-hip-2-0"]["n_adapted"] < found["adapt-ulda-hip-0-0"]["n_adapted"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trained_as": "dncn"}, "which has none of that method"),
        ({"trained_as": "nobody"}, "which has none of that method"),
        ({"trained_as": "ulda", "train": {"clip": 2.0}}, "no settings or measures of its own"),
    ],
)
def test_a_training_that_cannot_be_taken_over(changes: dict[str, Any], message: str) -> None:
    variants = [*TINY["variants"], {"label": "narrow", "method": "ulda"} | changes]
    with pytest.raises(ValueError, match=message):
        Experiment.model_validate(TINY | {"variants": variants})
