"""What runs measure beside the scores: quality beyond T, the descent, and how alike features are."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner

from tests.experiments.tiny import BENCH, SIZES, TINY, TINY_ULDA
from ulda.cli import app
from ulda.errors import UldaError
from ulda.experiments import Experiment, measures
from ulda.experiments.measures import MEASURED_SLICES, measure, rows_of_measures
from ulda.experiments.running import Runner
from ulda.experiments.runs import Run, read_runs, runs_of
from ulda.methods import ULDA, DnCn, load_method
from ulda.methods.lda import LDA
from ulda.metrics import psnr
from ulda.models.regularizer import stacked
from ulda.physics import CartesianMRI
from ulda.training.slices import choose_slices, normalised_images

ALONE: dict[str, Any] = {
    "label": "alone",
    "method": "lda",
    "sizes": {"width": 2, "depth": 2, "phases": 3, "steps_per_phase": 2},
    "train": {"phases": [2, 3]},
    "transfer": False,
    "measure": ["similarity"],
    "compare_with": "ulda",
}
FREE: dict[str, Any] = TINY_ULDA | {
    "sizes": SIZES | {"safeguard": False},
    "train": {"phases": [2, 3], "penalty_weight": 0.0},
    "adapt": {"penalty_weight": 0.0},
    "measure": ["beyond", "descent"],
}
MEASURED: dict[str, Any] = TINY | {
    "variants": [ALONE, FREE],
    "scales": {"bench": BENCH | {"steps": 3, "batch_size": 1, "adapt_steps": {2: 2}, "draws": 1}},
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Runner:
    runner = Runner(Experiment.model_validate(MEASURED), "bench", tmp_path_factory.mktemp("run"), data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measures, "MULTIPLES", (1, 3))
        for key in ("train-ulda", "train-alone", "adapt-ulda-hip-2-0"):
            runner.run(next(run for run in runs_of(runner.experiment, runner.data.scale) if run.key == key))
    return runner


def test_a_comparison_waits_for_both_trainings(measured: Runner) -> None:
    keys = {run.key: run.needs for run in runs_of(measured.experiment, measured.data.scale)}
    assert keys == {
        "train-alone": "train-ulda",
        "train-ulda": None,
        "adapt-ulda-hip-0-0": "train-ulda",
        "adapt-ulda-hip-2-0": "train-ulda",
    }
    assert Run("train", "a").needs is None


def solved(measured: Runner, model: ULDA, iterations: int) -> list[float]:
    """Reconstruct the measured slices of the source; return their PSNR."""
    entry = measured.experiment.sources[0]
    test = measured.data.test(entry)
    images = normalised_images(test.take(choose_slices(test.subjects, min(MEASURED_SLICES, len(test)))))
    physics = CartesianMRI(measured.data.mask(entry))
    y, demodulated, peak = model.prepared(physics.A(images), physics)
    x, _ = model.solve(y, demodulated, "knee", model.options("knee", iterations=iterations))
    return psnr((demodulated.shown(x, y) * peak).abs(), images.abs(), data_range=1.0).tolist()


@torch.no_grad()
def test_quality_beyond_t_and_the_descent(measured: Runner) -> None:
    extra = read_runs(measured.runs_folder)["train-ulda"]["extra"]["knee"]
    model = load_method(measured.folder / "models" / "ulda")
    assert isinstance(model, ULDA)
    assert list(extra["beyond"]) == ["1T", "3T"]
    for name, iterations in (("1T", 3), ("3T", 9)):
        scores = solved(measured, model, iterations)
        assert extra["beyond"][name]["psnr"] == pytest.approx(np.mean(scores), abs=2e-3)
    assert extra["slices"] == len(scores)
    assert extra["descent"]["accepted"] == 1.0  # there is no safeguard
    assert 0 <= extra["descent"]["descending"] <= 1
    assert read_runs(measured.runs_folder)["adapt-ulda-hip-2-0"]["extra"].keys() == {"hip"}


def test_the_descent_counts_phases_that_do_not_rise(measured: Runner) -> None:
    entry = measured.experiment.sources[0]
    shares = {}
    for safeguard in (True, False):
        model = ULDA(sources=["knee"], proposal="accelerated", safeguard=safeguard, **SIZES)
        with torch.no_grad():
            for parameter in model.proposals.parameters():
                parameter.add_(3.0)
        test = measured.data.test(entry)
        shares[safeguard] = measure(["descent"], model, "knee", test, measured.data.mask(entry))["descent"]
    assert shares[True]["descending"] == 1
    assert shares[True]["accepted"] < 1
    assert shares[False]["descending"] < 1
    assert shares[False]["accepted"] == 1


@torch.no_grad()
def test_the_features_of_two_trainings_are_compared(measured: Runner) -> None:
    extra = read_runs(measured.runs_folder)["train-alone"]["extra"]["knee"]
    assert extra.keys() == {"similarity"}
    alone, ours = (load_method(measured.folder / "models" / name) for name in ("alone", "ulda"))
    assert isinstance(alone, LDA)
    assert isinstance(ours, ULDA)
    test = measured.data.test(measured.experiment.sources[0])
    images = stacked(normalised_images(test.take(choose_slices(test.subjects, min(MEASURED_SLICES, len(test))))))
    first, second = (net.prior.extractor(images).numpy() for net in (alone.net("knee"), ours))
    maps = zip(first.reshape(-1, 32 * 32), second.reshape(-1, 32 * 32), strict=True)
    expected = np.mean([np.corrcoef(a, b)[0, 1] for a, b in maps])
    assert extra["similarity"]["ncc"] == pytest.approx(expected, abs=1e-3)
    assert 0.5 < extra["similarity"]["cka"] <= 1


def test_the_table_of_what_was_measured(measured: Runner, tmp_path: Path) -> None:
    runs = copy.deepcopy(read_runs(measured.runs_folder))
    beyond = runs["train-ulda"]["extra"]["knee"]["beyond"]
    beyond |= {"30T": {"psnr": None, "ssim": None}}
    header, alone, ours, adapted = rows_of_measures(measured.experiment, runs)
    # 2 T and 8 T were not measured here
    assert header[3:] == ["1T", "30T", "descending", "accepted", "NCC", "CKA"]
    assert alone[:3] == ["alone", "knee", "source"]
    assert alone[-1] == f"{runs['train-alone']['extra']['knee']['similarity']['cka']:.3f}"
    assert ours[3] == f"{beyond['1T']['psnr']:.2f} / {beyond['1T']['ssim']:.3f}"
    descending = runs["train-ulda"]["extra"]["knee"]["descent"]["descending"]
    assert ours[4:7] == ["not finite", f"{100 * descending:.1f} %", "100.0 %"]
    assert adapted[:3] == ["ulda", "hip", "2, draw 1"]
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(MEASURED))
    arguments = ["experiment", "measures", str(file), "--folder", str(measured.folder), "--format", "csv"]
    printed = CliRunner().invoke(app, arguments).output.splitlines()
    assert len(printed) == 4
    assert printed[0] == "method,domain,slices,1T,descending,accepted,NCC,CKA"
    assert rows_of_measures(measured.experiment, {}) == [
        ["method", "domain", "slices", "1T", "2T", "8T", "30T", "descending", "accepted", "NCC", "CKA"]
    ]


def test_a_network_without_phases_is_refused_before_it_is_trained(tmp_path: Path, data: Path) -> None:
    variants = [{"method": "dncn", "measure": ["descent"]}, FREE]
    runner = Runner(Experiment.model_validate(MEASURED | {"variants": variants}), "bench", tmp_path, data)
    with pytest.raises(UldaError, match="dncn has no phases to measure"):
        runner.run(Run("train", "dncn"))
    assert not (tmp_path / "models").exists()
    model = DnCn(2, 2, 1, sources=["knee"])
    entry = runner.experiment.sources[0]
    with pytest.raises(UldaError, match="DnCn has no phases to measure"):
        measure(["descent"], model, "knee", runner.data.test(entry), runner.data.mask(entry))
