"""A dry run finds what would stop an experiment, and what it would cost."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from tests.experiments.test_experiments import TINY
from tests.training.small_domains import write_domain
from ulda.baselines import DnCn, method_class
from ulda.cli import app
from ulda.data.readers import Slice, expand
from ulda.experiments import Experiment, dry_run, load_experiment
from ulda.experiments.definition import DomainEntry, Scale, Variant
from ulda.experiments.dry_run import BYTES_PER_PARAMETER, Scan, check_domain, check_method, n_train, timed_step
from ulda.experiments.running import Runner
from ulda.training.settings import Settings

PAPER: dict[str, Any] = TINY | {
    "scales": {
        "paper": {"side": 40, "steps": 4, "batch_size": 2, "adapt_steps": {2: 3, 4: 5}, "draws": 2, "source_slices": 4}
    },
    "paper": {},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_domain(folder / "knee.npz", size=48, every=3)
    write_domain(folder / "hip.npz", size=40, every=4)
    return folder


def runner(data: Path, folder: Path, **changes: Any) -> Runner:
    return Runner(Experiment.model_validate(PAPER | changes), "paper", folder, data)


def scale(**changes: Any) -> Scale:
    return Scale.model_validate(PAPER["scales"]["paper"] | changes)


def scan(splits: dict[str, int], side: int = 64, subjects_per_split: int = 2) -> Scan:
    found = Scan()
    for split, n in splits.items():
        for i in range(n):
            array = np.ones((side, side + 8), np.float32)
            found.add(Slice(array, "magnitude", subject=f"{split}{i % subjects_per_split}", split=split))
    return found


def problems(found: Scan, *, is_source: bool = False, **changes: Any) -> str:
    check = check_domain(DomainEntry(name="hip"), is_source, found, scale(**changes))
    return " | ".join(check.problems)


def test_all_is_well(data: Path, tmp_path: Path) -> None:
    found = dry_run.dry_run(runner(data, tmp_path / "run"))
    assert found.problems == []
    assert not (tmp_path / "run").exists()  # nothing is written
    with np.load(data / "knee.npz") as arrays:
        n, n_test, n_subjects = len(arrays["split"]), (arrays["split"] == "test").sum(), len({*arrays["subject"]})
    rows = {row[0]: row for row in found.rows()}
    assert rows["knee (source)"][1].startswith(f"{n} slices of {n_subjects} subjects, 48 x 48 or larger; test {n_test}")
    assert list(rows)[3:] == ["U-LDA", "DnCn", "all methods"]  # classical methods are not trained
    model = method_class("ulda")(sources=["knee"], **PAPER["variants"][1]["sizes"])
    assert rows["U-LDA"][1] == f"{model.n_parameters:,} parameters, {model.n_trainable(adapt=True):,} adapt"
    assert {row[-1] for row in found.rows()[1:]} == {"ok"}
    assert any("not a GPU" in note for note in found.notes)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (scan({"train": 9, "val": 2, "test": 3}, side=32), "the smallest slice is 32 x 40, but 40 x 40 is needed"),
        (scan({"train": 9, "val": 2}), "it has no slices in the split test"),
        (scan({"val": 2, "test": 2}), "it has no slices in the split train"),
        (scan({"": 9}, subjects_per_split=4), "its 4 subjects are enough to make them: .* `ulda data split hip.h5`"),
        (scan({"": 9}), "they cannot be made: there are 2 subjects for the 3 splits"),
        (scan({"train": 3, "val": 2, "test": 2}), ""),
        (scan({"train": 1, "val": 2, "test": 2}), "there are 1 slices to train on, but 2, 4 are asked for"),
        (scan({"train": 2, "val": 2, "test": 2}), "there are 2 slices to train on, but 4 are asked for"),
        (Scan(), "there is no slice that is not empty"),
    ],
)
def test_each_thing_that_is_missing_is_said(found: Scan, message: str) -> None:
    said = problems(found)
    assert re.search(message, said) if message else said == ""


def test_fewer_slices_than_asked_for() -> None:
    few = scan({"train": 3, "val": 1, "test": 1})
    assert "there are 3 slices to train on, but 4 are asked for" in problems(few, is_source=True)
    assert problems(few, is_source=True, source_slices=None) == ""
    # all that there are may stand for the largest size
    check = check_domain(DomainEntry(name="hip"), False, few, scale())
    assert check.notes == ("hip: there are 3 slices to train on; they stand for 4",)
    # without a val split a fifth is held out
    assert n_train(scan({"train": 10, "test": 2})) == 8
    assert n_train(scan({"train": 10, "test": 2}, subjects_per_split=1)) == 10


def test_bad_slices_are_counted() -> None:
    found = scan({"train": 9, "val": 2, "test": 3})
    found.add(Slice(np.zeros((64, 64), np.float32), "magnitude", split="train"))
    found.add(Slice(np.full((64, 64), np.nan, np.float32), "magnitude", subject="new", split="train"))
    assert (found.n_slices, found.n_empty, len(found.splits)) == (16, 1, 15)
    lines = np.ones(64, bool)
    found.add(Slice(np.ones((64, 64), np.complex64), "kspace", subject="train0", split="test", lines=lines))
    said = problems(found)
    assert "1 slices hold NaN or infinite values" in said
    assert "arrived undersampled" in said
    assert "subject train0 is in the splits test and train" in said


def test_the_target_of_oversampled_kspace_decides_about_its_size() -> None:
    found = Scan()
    kspace, target = np.ones((4, 128, 64), np.complex64), np.ones((50, 60), np.float32)
    found.add(Slice(kspace, "kspace", subject="a", split="train", target=target))
    assert found.smallest == (50, 60)


def test_the_estimate_grows_with_steps_and_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "timed_step", lambda *_: (0.5, 1000))
    experiment, variant = Experiment.model_validate(PAPER), Variant.model_validate(PAPER["variants"][2])
    found = check_method(experiment, variant, scale(), "DnCn", 20)
    assert found.step_seconds == 0.5 * 4
    # 4 training steps, and for one target 3 + 5 steps in each of 2 draws
    assert found.hours * 3600 == pytest.approx((4 + 2 * (3 + 5)) * 2.0)
    assert found.memory_mb * 1e6 == 1000 * 4 + BYTES_PER_PARAMETER * found.n_parameters
    alone = check_method(experiment, variant.model_copy(update={"transfer": False}), scale(), "DnCn", 20)
    assert alone.hours * 3600 == pytest.approx(4 * 2.0)


def test_what_a_step_keeps_grows_with_the_pixels() -> None:
    kept = {}
    for side in (24, 48):
        model = DnCn(4, 3, 2, sources=["knee"])
        seconds, kept[side] = timed_step(model, "knee", Settings(batch_size=1, ssim_weight=0), side)
        assert seconds > 0
    # four channels of four bytes, at least, for each of 2 x 2 inner layers
    assert kept[48] > 4 * 4 * 4 * 48**2
    assert kept[48] / kept[24] == pytest.approx(4, rel=0.15)


def test_a_method_that_cannot_be_built_is_a_problem(data: Path, tmp_path: Path) -> None:
    variants = [
        PAPER["variants"][1],
        {"label": "wide", "method": "dncn", "sizes": {"filter": 3}},
        {"label": "fast", "method": "dncn", "sizes": PAPER["variants"][2]["sizes"], "adapt": {"learning_rate": -1}},
    ]
    found = dry_run.dry_run(runner(data, tmp_path, variants=variants))
    assert [method.name for method in found.methods if method.problems] == ["wide", "fast"]
    assert "filter" in found.problems[0]
    assert "learning_rate" in found.problems[1]


def test_the_command_lists_all_problems_and_fails(data: Path, tmp_path: Path) -> None:
    changes = {
        "sources": [{"name": "knee", "ratio": 0.3}, {"name": "brain"}],
        "targets": [{"name": "hip"}, {"name": "text"}],
        "scales": {"paper": PAPER["scales"]["paper"] | {"side": 64}},
    }
    (data / "text.npz").write_text("not an archive")
    file = tmp_path / "tiny.yaml"
    cli = CliRunner()
    arguments = ["experiment", "run", str(file), "--scale", "paper", "--data", str(data), "--dry-run"]
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


def test_a_file_is_read_once_for_all_its_domains(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []

    def spy(paths: list[Path]) -> Any:
        seen.extend(paths)
        return expand(paths)

    monkeypatch.setattr(dry_run, "expand", spy)
    changes = {"targets": [{"name": "other", "data": "knee"}], "variants": PAPER["variants"][1:2]}
    found = dry_run.dry_run(runner(data, tmp_path, **changes))
    assert [path.name for path in seen] == ["knee.npz"]
    assert len(found.domains) == 2


def test_the_paper_scale_of_every_experiment_asks_for_what_the_paper_had() -> None:
    anatomy = load_experiment("cross-anatomy").scale("paper")
    assert (anatomy.side, anatomy.source_slices, anatomy.sizes, anatomy.draws) == (256, 400, (5, 40, 100), 5)
