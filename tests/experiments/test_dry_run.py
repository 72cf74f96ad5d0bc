"""A dry run finds what would stop an experiment, and what it would cost."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner
from ulda.methods.universal import UniversalLDA

from tests.experiments.tiny import TINY
from tests.training.small_domains import write_domain
from ulda.cli import app
from ulda.data.importing import read_slices
from ulda.data.readers import Slice
from ulda.experiments import Experiment, dry_run, load_experiment
from ulda.experiments.definition import DomainEntry, Scale, Variant
from ulda.experiments.dry_run import (
    BYTES_PER_PARAMETER,
    Scan,
    check_domain,
    check_method,
    n_train,
    relative_time,
    timed_step,
)
from ulda.experiments.running import Runner
from ulda.methods import DnCn, method_class
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
        (scan({"": 9}), "it has no splits, and they cannot be made: there are 2 subjects for the 3 splits"),
        (scan({"train": 3, "val": 2, "test": 2}), ""),
        (scan({"train": 1, "val": 2, "test": 2}), "there are 1 slices to train on, but 2, 4 are asked for"),
        (scan({"train": 2, "val": 2, "test": 2}), "there are 2 slices to train on, but 4 are asked for"),
        (Scan(), "there is no slice that is not empty"),
    ],
)
def test_each_thing_that_is_missing_is_said(found: Scan, message: str) -> None:
    said = problems(found)
    assert re.search(message, said) if message else said == ""


def test_splits_are_made_where_there_are_enough_subjects() -> None:
    check = check_domain(DomainEntry(name="hip"), False, scan({"": 20}, subjects_per_split=10), scale())
    assert check.problems == ()
    assert check.found.endswith("no split 20")
    # ten subjects of two slices
    assert check.notes == ("hip: it has no splits; the experiment makes them by subject: test 4, train 14, val 2",)
    # what is left to train on is counted with them
    few = check_domain(DomainEntry(name="hip"), True, scan({"": 3}, subjects_per_split=3), scale())
    assert few.problems == ("hip: there are 1 slices to train on, but 4 are asked for",)


def test_fewer_test_slices_than_the_scale_has_are_told() -> None:
    found = scan({"train": 9, "val": 2, "test": 3})
    for wanted, notes in ((3, ()), (5, ("hip: there are 3 slices to report on, not 5",))):
        assert check_domain(DomainEntry(name="hip"), False, found, scale(test_slices=wanted)).notes == notes


def test_small_slices_are_enlarged_where_that_is_said() -> None:
    small = scan({"train": 9, "val": 2, "test": 3}, side=32)
    assert "`enlarge: true` in the definition" in problems(small)
    check = check_domain(DomainEntry(name="hip", enlarge=True), False, small, scale())
    assert check.problems == ()
    assert check.notes == ("hip: slices, the smallest 32 x 40, are enlarged to 40 x 40",)


@pytest.mark.parametrize("combine_coils", [True, False])
def test_numbers_of_coils_may_differ_where_coils_are_combined(combine_coils: bool) -> None:
    found = Scan()
    for split, n_coils in (("train", 4), ("train", 8), ("train", 4), ("val", 4), ("test", 4)):
        kspace = np.ones((n_coils, 64, 64), np.complex64)
        found.add(Slice(kspace, "kspace", subject=split, split=split), combine_coils=combine_coils)
    said = problems(found, is_source=True, source_slices=2)
    expected = "" if combine_coils else "hip: its slices cannot be in one file, they are of different kinds "
    assert said == (expected and f"{expected}(kspace of 4 coils, kspace of 8 coils)")


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


def test_a_training_that_is_taken_over_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "timed_step", lambda *_: (0.5, 1000))
    experiment = load_experiment("ablation-components").at("paper")
    paper = experiment.scale("paper")
    found = {
        variant.name: check_method(experiment, variant, paper, variant.name, paper.side).hours * 3600 / 0.5
        for variant in experiment.variants
    }
    adaptations = 1000 + 4000 + 10_000
    trained = {"lda", "ulda", "init"}
    assert found == pytest.approx({name: adaptations + 20_000 * (name in trained) for name in found})


def test_steps_that_go_on_with_iterates_are_shorter() -> None:
    model = UniversalLDA(sources=["knee"], phases=15)
    assert relative_time(model, "knee", Settings()) == 1
    changes: dict[str, Any] = {
        "chains_after": 0.5,
        "restart": 0.2,
        "fresh": 0.25,
        "continued_phases": 6,
        "longest_rollout": 18,
    }
    # half of the steps, and of these 0.8 * 0.75, have 6 phases and on average 9 more, which have no gradient
    expected = 0.5 + 0.5 * (1 - 0.8 * 0.75) + 0.5 * 0.8 * 0.75 * (6 + 9 / 3) / 15
    settings = Settings(lower_level="equilibrium", **changes)
    assert relative_time(model, "knee", settings) == pytest.approx(expected)


def test_an_equilibrium_of_a_network_without_phases_is_a_problem() -> None:
    sizes = PAPER["variants"][2]["sizes"]
    variant = Variant(method="dncn", sizes=sizes, train={"lower_level": "equilibrium"})
    found = check_method(Experiment.model_validate(PAPER), variant, scale(), "DnCn", 20)
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

    def spy(paths: list[Path], options: Any) -> Any:
        seen.extend(paths)
        return read_slices(paths, options)

    monkeypatch.setattr(dry_run, "read_slices", spy)
    changes = {"targets": [{"name": "other", "data": "knee"}], "variants": PAPER["variants"][1:2]}
    found = dry_run.dry_run(runner(data, tmp_path, **changes))
    assert [path.name for path in seen] == ["knee.npz"]
    assert len(found.domains) == 2


@pytest.mark.parametrize(
    ("name", "sources", "targets", "source_slices"),
    [
        ("cross-anatomy", {"brain": 0.2, "knee": 0.2}, {"cardiac": 0.2, "prostate": 0.2}, 400),
        (
            "cross-sampling-ratio",
            {"brain-10": 0.1, "brain-20": 0.2, "brain-30": 0.3},
            {"brain-15": 0.15, "brain-25": 0.25},
            300,
        ),
        ("cross-modality", {"ImageNet": 0.2, "CIFAR-10": 0.2}, {"fastMRI": 0.2, "Stanford2D": 0.2}, 400),
    ],
)
def test_the_paper_scale_of_every_experiment_asks_for_what_the_paper_had(
    name: str, sources: dict[str, float], targets: dict[str, float], source_slices: int
) -> None:
    experiment = load_experiment(name).at("paper")
    paper = experiment.scale("paper")
    assert {entry.name: entry.ratio for entry in experiment.sources} == sources
    assert {entry.name: entry.ratio for entry in experiment.targets} == targets
    assert (paper.side, paper.source_slices, paper.sizes, paper.draws) == (256, source_slices, (5, 40, 100), 5)
    assert (paper.test_slices, paper.single_coil) == (200, True)
    methods = {"ulda", "lda", "dncn", "unet", "umri", "meta", "humus"}
    assert methods <= {variant.name for variant in experiment.variants}
    for printed, domains in ((experiment.paper, targets), (experiment.paper_sources, sources)):
        assert set(printed) == methods
        assert all(set(values) == set(domains) for values in printed.values())
    assert all(len({*map(tuple, values.values())}) == len(values) for values in experiment.paper.values())


def test_the_ablations_at_the_paper_scale_have_the_sources_and_the_target_of_the_paper() -> None:
    """Its table of components has the numbers of prostate; phases and weights are judged on brain and knee."""
    experiment = load_experiment("ablation-components").at("paper")
    assert [entry.name for entry in experiment.sources] == ["brain", "knee"]
    assert [entry.name for entry in experiment.targets] == ["prostate"]
