"""A dry run finds what would stop an experiment, and what it would cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from tests.experiments.tiny import BENCH, SIZES, TINY, TINY_DNCN, TINY_ULDA
from tests.training.small_domains import write_domain
from ulda.cli import app
from ulda.data.importing import read_slices
from ulda.experiments import Experiment, domain_check, dry_run, load_experiment
from ulda.experiments.definition import Scale, Variant
from ulda.experiments.dry_run import BYTES_PER_PARAMETER, MethodCheck, check_method, relative_time, timed_step
from ulda.experiments.running import Runner
from ulda.methods import DnCn, new_method
from ulda.training.settings import Equilibrium, Settings

PAPER_SCALE: dict[str, Any] = BENCH | {"side": 40, "adapt_steps": {2: 3, 4: 5}, "source_slices": 4}
PAPER: dict[str, Any] = TINY | {"scales": {"paper": PAPER_SCALE}, "paper": {}}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with data of two sizes."""
    folder = tmp_path_factory.mktemp("data")
    write_domain(folder / "knee.npz", size=48, every=3)
    write_domain(folder / "hip.npz", size=40, every=4)
    return folder


def runner(files: Path, folder: Path, **changes: Any) -> Runner:
    return Runner(Experiment.model_validate(PAPER | changes), "paper", folder, files)


def checked(variant: dict[str, Any]) -> MethodCheck:
    """Check a method at half the side of the experiment."""
    experiment, scale = Experiment.model_validate(PAPER), Scale.model_validate(PAPER_SCALE)
    return check_method(experiment, Variant.model_validate(variant), scale, "DnCn", 20)


def test_all_is_well(files: Path, tmp_path: Path) -> None:
    found = dry_run.dry_run(runner(files, tmp_path / "run"))
    assert found.problems == []
    assert not (tmp_path / "run").exists()  # nothing is written
    with np.load(files / "knee.npz") as arrays:
        n, n_test, n_subjects = len(arrays["split"]), (arrays["split"] == "test").sum(), len({*arrays["subject"]})
    rows = {row[0]: row for row in found.rows()}
    assert rows["knee (source)"][1].startswith(f"{n} slices of {n_subjects} subjects, 48 x 48 or larger; test {n_test}")
    assert list(rows)[3:] == ["U-LDA", "DnCn", "all methods"]  # classical methods are not trained
    model = new_method("ulda", ["knee"], **SIZES)
    assert rows["U-LDA"][1] == f"{model.n_parameters:,} parameters, {model.n_trainable(adapt=True):,} adapt"
    assert {row[-1] for row in found.rows()[1:]} == {"ok"}
    assert any("not a GPU" in note for note in found.notes)


def test_the_estimate_grows_with_steps_and_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "timed_step", lambda *_: (0.5, 1000))
    found = checked(TINY_DNCN)
    assert found.step_seconds == 0.5 * 4
    # 4 training steps, and for one target 3 + 5 steps in each of 2 draws
    assert found.hours * 3600 == pytest.approx((4 + 2 * (3 + 5)) * 2.0)
    assert found.memory_mb * 1e6 == 1000 * 4 + BYTES_PER_PARAMETER * found.n_parameters
    assert checked(TINY_DNCN | {"transfer": False}).hours * 3600 == pytest.approx(4 * 2.0)


def test_a_training_that_is_taken_over_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "timed_step", lambda *_: (0.5, 1000))
    experiment = load_experiment("ablation-components").at("paper")
    paper = experiment.scale("paper")
    found = {
        variant.name: check_method(experiment, variant, paper, variant.name, paper.side).hours * 3600 / 0.5
        for variant in experiment.variants
    }
    steps = dict.fromkeys(found, 1000 + 4000 + 10_000)
    for name in ("lda", "adapters", "ulda-paper", "ulda"):
        steps[name] += 20_000
    steps["ulda-paper"] += 2 * 4_000  # step 0: a fifth of the steps on each of two sources
    assert found == pytest.approx(steps)


def test_steps_that_continue_iterates_are_shorter() -> None:
    model = new_method("ulda-paper", ["knee"])
    settings = Settings(steps=100, phases=(5, 15))
    assert relative_time(model, "knee", settings) == 1
    # in half of the steps, and of these in 0.8, there are 6 phases and on average 9 more, which have no gradient
    expected = 0.5 + 0.5 * 0.2 + 0.5 * 0.8 * (6 + 9 / 3) / 15
    persisting = settings.changed(equilibrium=Equilibrium(restart=0.2, phases=6, rollout=18))
    assert relative_time(model, "knee", persisting) == pytest.approx(expected)


def test_an_equilibrium_of_a_network_without_phases_is_a_problem() -> None:
    found = checked(TINY_DNCN | {"train": {"equilibrium": {}}})
    assert "DnCn has no phases" in found.problems[0]


def test_what_a_step_keeps_grows_with_the_pixels() -> None:
    kept = {}
    for side in (24, 48):
        model = DnCn(4, 3, 2, sources=["knee"])
        seconds, kept[side] = timed_step(model, "knee", Settings(batch_size=1, ssim_weight=0), side)
        assert seconds > 0
    # four channels of four bytes, at least, for each of 2 x 2 inner layers
    assert kept[48] > 4 * 4 * 4 * 48**2
    assert kept[48] / kept[24] == pytest.approx(4, rel=0.15)


def test_a_method_that_cannot_be_built_is_a_problem(files: Path, tmp_path: Path) -> None:
    variants = [
        TINY_ULDA,
        {"label": "wide", "method": "dncn", "sizes": {"filter": 3}},
        {"label": "fast", "method": "dncn", "sizes": TINY_DNCN["sizes"], "adapt": {"learning_rate": -1}},
    ]
    found = dry_run.dry_run(runner(files, tmp_path, variants=variants))
    assert [method.name for method in found.methods if method.problems] == ["wide", "fast"]
    assert "filter" in found.problems[0]
    assert "learning_rate" in found.problems[1]


def test_the_command_lists_all_problems_and_fails(files: Path, tmp_path: Path) -> None:
    changes = {
        "sources": [{"name": "knee", "ratio": 0.3}, {"name": "brain"}],
        "targets": [{"name": "hip"}, {"name": "text"}],
        "scales": {"paper": PAPER_SCALE | {"side": 64}},
    }
    (files / "text.npz").write_text("not an archive")
    file = tmp_path / "tiny.yaml"
    cli = CliRunner()
    arguments = ["experiment", "run", str(file), "--scale", "paper", "--data", str(files), "--dry-run"]
    file.write_text(yaml.safe_dump(PAPER))
    fine = cli.invoke(app, [*arguments, "--folder", str(tmp_path / "run")])
    assert (fine.exit_code, "problem" in fine.output) == (0, False)
    file.write_text(yaml.safe_dump(PAPER | changes))
    wrong = cli.invoke(app, [*arguments, "--folder", str(tmp_path / "run")])
    assert wrong.exit_code == 1
    lines = [line for line in wrong.output.splitlines() if line.startswith("problem: ")]
    assert [line.split(":")[1].strip() for line in lines] == ["knee", "brain", "hip", "text"]
    assert "there is no data for brain" in lines[1]
    assert "but 64 x 64 is needed" in lines[2]
    assert not (tmp_path / "run").exists()


def test_a_file_is_read_once_for_all_its_domains(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []

    def spy(paths: list[Path], options: Any) -> Any:
        seen.extend(paths)
        return read_slices(paths, options)

    monkeypatch.setattr(domain_check, "read_slices", spy)
    changes = {"targets": [{"name": "other", "data": "knee"}], "variants": [TINY_ULDA]}
    found = dry_run.dry_run(runner(files, tmp_path, **changes))
    assert [path.name for path in seen] == ["knee.npz"]
    assert len(found.domains) == 2
