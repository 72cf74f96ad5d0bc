"""The ablations that come with the package, and what their runs measure beside the scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner
from ulda.methods.universal import UniversalLDA

from tests.training.small_domains import write_domain
from ulda.cli import app
from ulda.errors import UldaError
from ulda.experiments import Experiment, experiment_names, load_experiment, measures
from ulda.experiments.measures import check_measurable, measure, rows_of_measures
from ulda.experiments.running import Runner
from ulda.experiments.runs import Run, runs_of
from ulda.methods import DnCn, load_method, method_class
from ulda.methods.lda import LDA
from ulda.metrics import psnr
from ulda.models.regularizer import stacked
from ulda.physics import CartesianMRI, normalise_measurement
from ulda.training.settings import Settings
from ulda.training.slices import choose_slices, normalised_images

ABLATIONS = [name for name in experiment_names() if name.startswith("ablation-")]
SIZES: dict[str, Any] = {"width": 2, "depth": 1, "phases": 2}
TINY: dict[str, Any] = {
    "name": "tiny",
    "title": "knees to larger crops of knees",
    "sources": [{"name": "knee", "ratio": 0.3}],
    "targets": [{"name": "hip", "ratio": 0.3}],
    "variants": [
        {
            "label": "alone",
            "method": "lda",
            "sizes": SIZES | {"depth": 2},
            "transfer": False,
            "measure": ["similarity"],
            "compare_with": "ulda",
        },
        {"method": "ulda", "sizes": SIZES | {"safeguard": False}, "measure": ["beyond", "descent"]},
    ],
    "scales": {"bench": {"side": 32, "steps": 3, "batch_size": 1, "adapt_steps": {2: 2}}},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_domain(folder / "knee.npz", every=3)
    write_domain(folder / "hip.npz", size=48, every=4)
    return folder


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Runner:
    runner = Runner(Experiment.model_validate(TINY), "bench", tmp_path_factory.mktemp("run"), data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measures, "MULTIPLES", (1, 3))
        for key in ("train-ulda", "train-alone", "adapt-ulda-hip-2-0"):
            runner.run(next(run for run in runs_of(runner.experiment, runner.data.scale) if run.key == key))
    return runner


def result(runner: Runner, key: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((runner.runs_folder / f"{key}.json").read_text())
    return found


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_ablation_can_be_built(name: str) -> None:
    experiment = load_experiment(name)
    assert experiment.name == name
    assert set(experiment.scales) == {"bench", "paper"}
    # trainings are what costs
    assert sum(run.kind == "train" for run in runs_of(experiment, experiment.scale("bench"))) <= 8
    for variant in experiment.variants:
        kind = method_class(variant.method)
        check_measurable(variant, kind)
        model = kind(sources=["brain", "prostate"], **variant.sizes)
        for defaults, changes in (
            (model.training_defaults, variant.train),
            (model.adaptation_defaults, variant.adapt),
        ):
            settings = Settings.model_validate({**defaults, **changes})
            # without an acceptance test in the reconstruction there must be none in the training
            assert (settings.descent == "none") == (variant.name in ("no-safeguard", "untied"))
        if variant.train.get("phases"):
            assert variant.train["phases"][-1] == variant.sizes.get("phases", 15)


def test_what_the_ablations_have_in_common_is_run_once() -> None:
    """They keep their runs in one folder, so whatever has the same name must be the same."""
    found = [load_experiment(name) for name in ABLATIONS]
    assert {one.family for one in found} == {"ablations"}
    for one in found:
        assert (one.sources, one.targets) == (found[0].sources, found[0].targets)
        for name, scale in one.scales.items():
            # only the components are adapted with more slices at the scale of a CPU
            sizes = {5, 40} if (one.name, name) == ("ablation-components", "bench") else {5}
            assert name == "paper" or set(scale.sizes) == sizes
            alike = found[0].scale(name).adapt_steps.items() & scale.adapt_steps.items()
            assert 5 in dict(alike)
            same = scale.model_copy(update={"adapt_steps": found[0].scale(name).adapt_steps})
            assert same == found[0].scale(name)
    variants: dict[str, Any] = {}
    for one in found:
        for variant in one.variants:
            assert variants.setdefault(variant.name, variant) == variant
    assert len(variants) < sum(len(one.variants) for one in found) - 5
    # whatever adds kernels teaches their weights at the common rate, in few steps and in many
    adding = [
        variant for variant in variants.values() if variant.method == "ulda" and "adapt_only" not in variant.sizes
    ]
    assert {variant.adapt["added_rate"] for variant in adding} == {1.0}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("ablation-ssim", {0.1, 0.01, 0.001}),
        ("ablation-delta", {1e-4, 1e-3, 1e-2, 1e-1}),
        ("ablation-phases", {1, 2, 3, 4}),
    ],
)
def test_the_values_that_are_tried(name: str, values: set[float]) -> None:
    variants = [variant for variant in load_experiment(name).variants if variant.method == "ulda"]
    tried: dict[str, list[float]] = {
        "ablation-ssim": [Settings.model_validate(variant.train).ssim_weight for variant in variants],
        "ablation-delta": [UniversalLDA(**variant.sizes).architecture.delta for variant in variants],
        "ablation-phases": [UniversalLDA(**variant.sizes).n_phases for variant in variants],
    }
    assert sorted(tried[name]) == sorted(values)


def test_components_are_added_one_by_one() -> None:
    """The rows of the paper's table: LDA, which is its row without adapters, then adapter, initialisation, AUG."""
    variants = load_experiment("ablation-components").variants
    assert [variant.method for variant in variants] == ["lda", *["ulda"] * 8]
    models = [UniversalLDA(**variant.sizes) for variant in variants[1:]]
    whole = "kernels, mixing, adapter and steps"
    assert [(model.adapt_only, model.initialise > 0, model.augment) for model in models] == [
        ("steps", False, False),
        ("adapter and steps", False, False),
        ("layer, adapter and steps", False, False),
        ("mixing, adapter and steps", False, False),
        (whole, False, False),
        (whole, False, False),
        (whole, True, False),
        (whole, True, True),
    ]
    # what differs in the adaptation alone is trained once
    assert [variant.trained_as for variant in variants] == ["", *["ulda"] * 5, "", "", "init"]
    assert [variant.adapt.get("warp") for variant in variants] == [*[None] * 5, 0.0, *[None] * 3]
    # what adds kernels teaches their weights at the common rate, with 5 slices and with 40
    rates = [variant.adapt.get("added_rate") for variant in variants if "adapt_only" not in variant.sizes]
    assert rates == [None, *[1.0] * 4]


def test_a_comparison_waits_for_both_trainings(done: Runner) -> None:
    keys = {run.key: run.needs for run in runs_of(done.experiment, done.data.scale)}
    assert keys == {
        "train-alone": "train-ulda",
        "train-ulda": None,
        "adapt-ulda-hip-0-0": "train-ulda",
        "adapt-ulda-hip-2-0": "train-ulda",
    }
    assert Run("train", "a").needs is None


def solved(done: Runner, model: UniversalLDA, iterations: int) -> list[float]:
    """Reconstruct the measured slices of the source; return their PSNR."""
    entry = done.experiment.sources[0]
    test = done.data.test(entry)
    images = normalised_images(test.take(choose_slices(test.subjects, min(16, len(test)))))
    physics = CartesianMRI(done.data.mask(entry))
    y, _, peak = normalise_measurement(physics.A(images), physics)
    x, _ = model.solve(y, physics, "knee", model.options("knee", iterations=iterations))
    return psnr((x * peak).abs(), images.abs(), data_range=1.0).tolist()


@torch.no_grad()
def test_quality_beyond_t_and_the_descent(done: Runner) -> None:
    extra = result(done, "train-ulda")["extra"]["knee"]
    model = load_method(done.folder / "models" / "ulda")
    assert isinstance(model, UniversalLDA)
    assert list(extra["beyond"]) == ["1T", "3T"]
    for name, iterations in (("1T", 2), ("3T", 6)):
        scores = solved(done, model, iterations)
        assert extra["beyond"][name]["psnr"] == pytest.approx(np.mean(scores), abs=2e-3)
    assert extra["slices"] == len(scores)
    assert extra["descent"]["accepted"] == 1.0  # there is no safeguard
    assert 0 <= extra["descent"]["descending"] <= 1
    assert result(done, "adapt-ulda-hip-2-0")["extra"].keys() == {"hip"}


def test_the_descent_counts_phases_that_do_not_rise(done: Runner) -> None:
    entry = done.experiment.sources[0]
    shares = {}
    for safeguard in (True, False):
        model = UniversalLDA(sources=["knee"], safeguard=safeguard, **SIZES)
        with torch.no_grad():
            for parameter in model.steps.parameters():
                parameter.add_(3.0)
        test = done.data.test(entry)
        shares[safeguard] = measure(["descent"], model, "knee", test, done.data.mask(entry))["descent"]
    assert shares[True]["descending"] == 1
    assert shares[True]["accepted"] < 1
    assert shares[False]["descending"] < 1
    assert shares[False]["accepted"] == 1


@torch.no_grad()
def test_the_features_of_two_trainings_are_compared(done: Runner) -> None:
    extra = result(done, "train-alone")["extra"]["knee"]
    assert extra.keys() == {"similarity"}
    alone, ours = (load_method(done.folder / "models" / name) for name in ("alone", "ulda"))
    assert isinstance(alone, LDA)
    assert isinstance(ours, UniversalLDA)
    test = done.data.test(done.experiment.sources[0])
    images = stacked(normalised_images(test.take(choose_slices(test.subjects, min(16, len(test))))))
    first, second = (net.extractor(images).numpy() for net in (alone.net("knee"), ours))
    maps = zip(first.reshape(-1, 32 * 32), second.reshape(-1, 32 * 32), strict=True)
    expected = np.mean([np.corrcoef(a, b)[0, 1] for a, b in maps])
    assert extra["similarity"]["ncc"] == pytest.approx(expected, abs=1e-3)
    assert 0.5 < extra["similarity"]["cka"] <= 1


def test_the_table_of_what_was_measured(done: Runner, tmp_path: Path) -> None:
    runs = {key: result(done, key) for key in ("train-ulda", "train-alone", "adapt-ulda-hip-2-0")}
    beyond = runs["train-ulda"]["extra"]["knee"]["beyond"]
    beyond |= {"30T": {"psnr": None, "ssim": None}}
    header, alone, ours, adapted = rows_of_measures(done.experiment, runs)
    # 2 T and 8 T were not measured here
    assert header[3:] == ["1T", "30T", "descending", "accepted", "NCC", "CKA"]
    assert alone[:3] == ["alone", "knee", "source"]
    assert alone[-1] == f"{runs['train-alone']['extra']['knee']['similarity']['cka']:.3f}"
    assert ours[3] == f"{beyond['1T']['psnr']:.2f} / {beyond['1T']['ssim']:.3f}"
    descending = runs["train-ulda"]["extra"]["knee"]["descent"]["descending"]
    assert ours[4:7] == ["not finite", f"{100 * descending:.1f} %", "100.0 %"]
    assert adapted[:3] == ["ulda", "hip", "2, draw 1"]
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(TINY))
    arguments = ["experiment", "measures", str(file), "--folder", str(done.folder), "--format", "csv"]
    printed = CliRunner().invoke(app, arguments).output.splitlines()
    assert len(printed) == 4
    assert printed[0] == "method,domain,slices,1T,descending,accepted,NCC,CKA"
    assert rows_of_measures(done.experiment, {}) == [
        ["method", "domain", "slices", "1T", "2T", "8T", "30T", "descending", "accepted", "NCC", "CKA"]
    ]


def test_a_family_shares_its_folder_but_not_its_tables(done: Runner, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "all-bench").symlink_to(done.folder)
    one = TINY | {"name": "one", "family": "all", "variants": TINY["variants"][1:]}
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(one))
    packed = CliRunner().invoke(app, ["experiment", "pack", "one.yaml", "--out", "one.json"])
    assert packed.output.startswith("2 runs")
    assert json.loads((tmp_path / "one.json").read_text())["runs"].keys() == {"train-ulda", "adapt-ulda-hip-2-0"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compare_with": ""}, "alone needs both, the measure similarity and compare_with"),
        ({"compare_with": "alone"}, "alone is compared with alone, which is no other variant"),
        ({"compare_with": "unet"}, "alone is compared with unet, which is no other variant"),
        ({"method": "TV"}, "alone learns nothing, so there is nothing to measure"),
    ],
)
def test_what_cannot_be_measured(changes: dict[str, Any], message: str) -> None:
    first, second = TINY["variants"]
    with pytest.raises(ValueError, match=message):
        Experiment.model_validate(TINY | {"variants": [first | changes, second]})


def test_a_network_without_phases_is_refused_before_it_is_trained(tmp_path: Path, data: Path) -> None:
    variants = [{"method": "dncn", "measure": ["descent"]}, TINY["variants"][1]]
    runner = Runner(Experiment.model_validate(TINY | {"variants": variants}), "bench", tmp_path, data)
    with pytest.raises(UldaError, match="dncn has no phases to measure"):
        runner.run(Run("train", "dncn"))
    assert not (tmp_path / "models").exists()
    model = DnCn(2, 2, 1, sources=["knee"])
    entry = runner.experiment.sources[0]
    with pytest.raises(UldaError, match="DnCn has no phases to measure"):
        measure(["descent"], model, "knee", runner.data.test(entry), runner.data.mask(entry))
