"""Curves of trainings, of the solver, and beyond T."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from tests.experiments.figures.drawn import drawn, line_of, results_of, scores, title_of
from ulda.experiments.examples import Examples, load_examples, save_examples
from ulda.experiments.figures import Results
from ulda.experiments.figures.style import COLOURS
from ulda.experiments.running import Runner
from ulda.experiments.runs import Run, write_run
from ulda.training.history import Progress, write_log


def test_learning_curves(made_up: Runner) -> None:
    facts = {"results": {"hip": scores([30.0], ["a"])}, "scale": {"validation_slices": 8}}
    write_run(made_up.runs_folder, Run("adapt", "dncn", "hip", 2, 0), facts)
    for place, domain in (("training", "knee"), ("adapted/adapt-dncn-hip-2-0", "hip")):
        folder = made_up.folder / "models" / "dncn" / place
        folder.mkdir(parents=True)
        write_log(folder / "log.csv", [Progress(s, 4, 0.1, 0.1, {domain: {"psnr": 20.0 + s}}) for s in (0, 2, 4)])
    results = results_of(made_up)
    for stem in ("learning-training", "learning-adaptation"):
        (ax,) = drawn(results, "learning", stem)
        assert line_of(ax, "DnCn") == ([0, 2, 4], [20, 22, 24])
        assert title_of(ax).endswith("No log of U-LDA")
    assert ax.get_title() == "hip, 2 slices"
    assert "At most 8 validation slices" in title_of(ax)


def test_draws_are_a_mean_and_a_band(made_up: Runner) -> None:
    facts = {"results": {"hip": scores([30.0], ["a"])}, "scale": {"validation_slices": 8}}
    for draw, slope in enumerate((1.0, 2.0, 6.0)):
        run = Run("adapt", "ulda", "hip", 2, draw)
        write_run(made_up.runs_folder, run, facts)
        folder = made_up.folder / "models" / "ulda" / "adapted" / run.key
        folder.mkdir(parents=True)
        rows = [Progress(s, 4, 0.1, 0.1, {"hip": {"psnr": 20.0 + slope * s}}) for s in (0, 2, 4)]
        write_log(folder / "log.csv", rows)
    (ax,) = drawn(results_of(made_up), "learning", "learning-adaptation")
    assert line_of(ax, "U-LDA") == ([0, 2, 4], [20, 26, 32])
    assert len(ax.get_lines()) == 1
    (band,) = ax.collections
    corners = {(float(x), float(y)) for x, y in np.asarray(band.get_paths()[0].vertices)}
    assert corners == {(0, 20), (2, 22), (2, 32), (4, 24), (4, 44)}
    assert "mean over up to 3 draws" in title_of(ax)


def test_a_panel_names_whose_log_it_lacks(made_up: Runner) -> None:
    facts = {"results": {"hip": scores([30.0], ["a"])}, "scale": {"validation_slices": 8}}
    for method, size in (("dncn", 2), ("ulda", 2), ("ulda", 100)):
        run = Run("adapt", method, "hip", size, 0)
        write_run(made_up.runs_folder, run, facts)
        folder = made_up.folder / "models" / method / "adapted" / run.key
        folder.mkdir(parents=True)
        write_log(folder / "log.csv", [Progress(s, 4, 0.1, 0.1, {"hip": {"psnr": 20.0 + s}}) for s in (0, 4)])
    axes = drawn(results_of(made_up), "learning", "learning-adaptation")
    assert [ax.get_title() for ax in axes] == ["hip, 2 slices", "hip, 100 slices\nno log of DnCn"]
    assert "No log" not in title_of(axes[0])


def test_the_objective_along_the_iterations(results: Results, done: Runner) -> None:
    left, right = drawn(results, "convergence", "convergence-hip")
    found = load_examples(done.examples_folder / "adapt-ulda-hip-2-0.npz")["hip"]
    subjects = results.runs["adapt-ulda-hip-2-0"]["results"]["hip"]["subjects"]
    for number, index in enumerate(found.indices):
        label = f"slice {index} of {subjects[index]}"
        n_pixels = 32 * 32
        expected = found.trace["phi"][:, number] + n_pixels * found.trace["eps"][:, number] / 2
        assert line_of(left, label)[1] == pytest.approx(expected)
        assert line_of(right, label)[1] == pytest.approx(found.trace["grad_norm"][:, number])
    assert left.get_yscale() == right.get_yscale() == "log"
    assert "T = 3" in title_of(left)


def test_steps_of_the_line_search_are_marked(made_up: Runner) -> None:
    path = made_up.examples_folder / "adapt-ulda-hip-2-0.npz"
    subjects = ["a", "b"]
    write_run(
        made_up.runs_folder, Run("adapt", "ulda", "hip", 2, 0), {"results": {"hip": scores([30.0, 31.0], subjects)}}
    )
    trace = {
        "phi": np.array([[13.9, 12.2], [11.1, 10.0], [9.6, 9.4], [9.5, np.nan]]),
        "eps": np.full((4, 2), 1e-4),
        "grad_norm": np.array([[1.2, 0.9], [0.2, 0.3], [0.02, 0.01], [0.005, np.nan]]),
        "branch": np.array([[np.nan, np.nan], [0, 1], [1, 0], [1, np.nan]]),
    }
    image = np.ones((2, 4, 4), np.float32)
    save_examples(path, "hip", Examples(np.array([0, 1]), image, image, 2, trace))
    left, right = drawn(results_of(made_up), "convergence", "convergence-hip")
    ticks = [
        (line.get_xdata()[0], line.get_color()) for line in cast(Any, right.get_lines()) if len(line.get_xdata()) == 2
    ]
    # the dotted line of T, too, has two ends
    assert [tick for tick in ticks if tick[1] in COLOURS] == [(2, COLOURS[0]), (3, COLOURS[0]), (1, COLOURS[1])]
    assert "Ticks above the gradients: the line search stepped" in title_of(left)
    numbers = [label.get_text() for label in left.get_yticklabels()]
    assert [number for number in ("10", "11", "12", "13") if number in numbers] == ["10", "11", "12", "13"]
    assert {"0.01", "0.1", "1"} <= {label.get_text() for label in right.get_yticklabels()}


def test_beyond_T(made_up: Runner) -> None:
    for draw, psnr in enumerate((30.0, 32.0)):
        beyond = {f"{n}T": {"psnr": psnr - n, "ssim": 0.9} for n in (1, 8)} | {"30T": {"psnr": None, "ssim": None}}
        facts = {"results": {"hip": scores([30.0, 31.0], ["a", "b"])}, "extra": {"hip": {"beyond": beyond}}}
        write_run(made_up.runs_folder, Run("adapt", "ulda", "hip", 2, draw), facts)
    (ax,) = drawn(results_of(made_up), "beyond", "beyond")
    xs, ys = line_of(ax, "U-LDA: 30.00 dB at T")
    assert xs == [1, 8, 30]
    assert ys == pytest.approx([0, -7, np.nan], nan_ok=True)
    assert ax.get_ylabel() == "mean PSNR minus that at T (dB)"
    assert ax.get_title() == "hip, 2 slices\n2 slices of 2 subjects"
