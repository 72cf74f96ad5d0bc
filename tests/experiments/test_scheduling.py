"""In which order runs are run, within which time, and in processes that end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.experiments.tiny import runner
from ulda.errors import UldaError
from ulda.experiments import dry_run, scheduling
from ulda.experiments.running import Runner
from ulda.experiments.runs import Run, read_runs, runs_of, write_run
from ulda.experiments.scheduling import estimate, guess, pending, progress_of, run_all


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "_POLL", 0.02)


def writer(one: Runner, log: Path) -> Any:
    """Return a command that writes an empty result instead of running a run."""

    def command(run: Run) -> list[str]:
        code = (
            "import json, pathlib, sys, time; time.sleep(0.05);"
            "run = json.loads(sys.argv[2]); path = pathlib.Path(sys.argv[1]);"
            "open(sys.argv[3], 'a').write(path.stem + '\\n');"
            "path.parent.mkdir(parents=True, exist_ok=True);"
            "path.write_text(json.dumps({'run': run, 'wall_clock': 10.0, 'results': {}, 'recipe': {}}))"
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
    write_run(one.runs_folder, Run("train", "ulda"), {"wall_clock": 100.0, "recipe": {}, "results": {}})
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
        "import pathlib, sys, time; from ulda.io.locks import locked; path = pathlib.Path(sys.argv[1]);"
        "path.parent.mkdir(parents=True); lock = locked(path, ''); lock.__enter__(); print('held', flush=True);"
        "time.sleep(60)"
    )
    place = one.folder / "locks" / run.key
    with subprocess.Popen([sys.executable, "-c", code, str(place)], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            holder.stdout.readline()
            assert one.is_claimed(run)
            with pytest.raises(UldaError, match=rf"another process \({holder.pid}\) is writing the run classical-zero"):
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
        "import sys; from pathlib import Path; from tests.experiments.tiny import runner;"
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


def test_a_failing_run_is_named(tmp_path: Path, data: Path) -> None:
    one = runner(tmp_path, data)
    with pytest.raises(UldaError, match="the run classical-zero-filling-knee failed"):
        run_all(one, methods=["zero-filling"], command=lambda _: [sys.executable, "-c", "raise SystemExit(1)"])
