"""Quality against its cost, and how alike the features of trainings are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.experiments.figures.drawn import drawn, line_of, results_of, scores
from tests.experiments.tiny import runner
from ulda.experiments import load_experiment
from ulda.experiments.figures import Results
from ulda.experiments.running import Runner
from ulda.experiments.runs import Run, cost_of, read_runs, write_run
from ulda.methods import load_method


def test_quality_against_its_cost(results: Results) -> None:
    parameters, minutes, milliseconds = drawn(results, "efficiency", "efficiency-hip")
    training = results.runs["train-dncn"]
    adaptations = [results.runs[f"adapt-dncn-hip-2-{draw}"] for draw in (0, 1)]
    psnr = float(np.mean([run["results"]["hip"]["psnr"] for run in adaptations]))
    assert np.ravel(line_of(parameters, "DnCn")).tolist() == pytest.approx([training["n_parameters"], psnr])
    seconds = cost_of(training) + sum(cost_of(run) for run in adaptations) / 2
    assert np.ravel(line_of(minutes, "DnCn")).tolist() == pytest.approx([seconds / 60, psnr])
    per_slice = sum(run["results"]["hip"]["seconds_per_slice"] for run in adaptations) / 2
    assert np.ravel(line_of(milliseconds, "DnCn")).tolist() == pytest.approx([1000 * per_slice, psnr])


def test_parameters_are_those_that_reconstruct_the_target(results: Results, done: Runner) -> None:
    """The model of the adaptation has another adapter, that of the source, which takes no part."""
    model = load_method(done.folder / "models" / "ulda")
    ax, *_ = drawn(results, "efficiency", "efficiency-hip")
    source = sum(p.numel() for name, p in model.named_parameters() if "knee" in name)
    whole = results.runs["adapt-ulda-hip-2-0"]["n_parameters"]
    assert line_of(ax, "U-LDA")[0] == [whole - source]


def test_similarity_by_phases(made_up: Runner) -> None:
    variants = [
        {"method": "ulda"},
        *({"method": "lda", "label": f"alone-{n}", "sizes": {"phases": n}} for n in (3, 7)),
        {"method": "lda", "label": "wide", "sizes": {"width": 32}},
        {"method": "lda", "label": "paper", "preset": "paper"},
    ]
    for name, phases, value in (("alone-3", 3, 0.4), ("alone-7", 7, 0.6), ("wide", 3, 0.9), ("paper", 15, 0.9)):
        extra = {"knee": {"similarity": {"ncc": value, "cka": value / 2}}}
        found = {"results": {"knee": scores([30.0], ["a"])}, "recipe": {"sizes": {"phases": phases}}, "extra": extra}
        write_run(made_up.runs_folder, Run("train", name), found)
    one = runner(made_up.folder, made_up.folder, variants=variants)
    ncc, cka = drawn(results_of(one), "similarity", "similarity")
    label = "knee: 1 slice of 1 subject"
    assert line_of(ncc, label) == ([3, 7], [0.4, 0.6])
    assert line_of(cka, label) == ([3, 7], [0.2, 0.3])
    # both on one scale, which begins and ends at tenths
    assert ncc.get_ylim() == cka.get_ylim() == pytest.approx((0.2, 0.6))


def test_similarity_of_the_ablation(tmp_path: Path) -> None:
    experiment = load_experiment("ablation-phases")
    values = {3: 0.62, 7: 0.71, 11: 0.735, 15: 0.74}
    of_a_run = {source: scores([30.0] * 4, ["a", "a", "b", "b"]) for source in ("brain", "prostate")}
    for n, value in values.items():
        similarity = {"ncc": value, "cka": value - 0.1}
        extra = {source: {"similarity": similarity} for source in of_a_run}
        found = {"results": of_a_run, "recipe": {"sizes": {"phases": n}}, "extra": extra}
        write_run(tmp_path / "runs", Run("train", f"alone-T{n}"), found)
    results = Results(experiment, experiment.scale("bench").sizes, tmp_path, read_runs(tmp_path / "runs"))
    ncc, _ = drawn(results, "similarity", "similarity")
    for source in of_a_run:
        assert line_of(ncc, f"{source}: 4 slices of 2 subjects") == (list(values), list(values.values()))
    assert [tick.get_text() for tick in ncc.get_xticklabels()] == ["3", "7", "11", "15"]
