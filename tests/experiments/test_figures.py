"""Figures of a tiny experiment: what is drawn is what was measured."""

from __future__ import annotations

import json
import re
import shutil
import sys
from itertools import combinations
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
import numpy as np
import pytest
import torch
import yaml
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from typer.testing import CliRunner

from tests.experiments.tiny import TINY, runner
from tests.training.small_domains import write_domain
from ulda.cli import app
from ulda.errors import MissingExtraError, UldaError
from ulda.experiments import experiment_names, load_experiment
from ulda.experiments.examples import Examples, example_indices, load_examples, save_examples, trace_arrays
from ulda.experiments.figures import KINDS, Results, draw_figures
from ulda.experiments.figures.reconstructions import View, inset_corner, zoom_window
from ulda.experiments.figures.results import NothingToDrawError
from ulda.experiments.figures.style import COLOURS, GREYS, lightness, log_axis, looks_of, new_figure, styled
from ulda.experiments.running import Runner
from ulda.experiments.runs import Run, cost_of, pack, read_runs, write_run
from ulda.methods import load_method
from ulda.solvers import Options, Trace
from ulda.solvers.batch import LINE_SEARCH
from ulda.solvers.objective import Evaluation
from ulda.training.history import Progress, write_log

RUNS = [
    Run("classical", "zero-filling", "hip"),
    *(Run("train", method) for method in ("ulda", "dncn")),
    *(Run("adapt", method, "hip", 2, draw) for method in ("ulda", "dncn") for draw in (0, 1)),
]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """Return an experiment some of whose runs have been run."""
    data = tmp_path_factory.mktemp("data")
    write_domain(data / "knee.npz", every=6)
    write_domain(data / "hip.npz", size=48, every=4)
    one = runner(tmp_path_factory.mktemp("run"), data)
    for run in RUNS:
        one.run(run)
    return one


def results_of(one: Runner, **changes: Any) -> Results:
    experiment = one.experiment.model_copy(update=changes)
    return Results(experiment, one.data.scale.sizes, one.folder, read_runs(one.runs_folder))


@pytest.fixture
def results(done: Runner) -> Results:
    return results_of(done)


@pytest.fixture
def made_up(tmp_path: Path) -> Runner:
    """Return an experiment whose results are written by hand."""
    return runner(tmp_path, tmp_path)


def drawn(results: Results, kind: str, stem: str) -> list[Axes]:
    with styled():
        return KINDS[kind](results)[stem].axes


def line_of(ax: Axes, label: str) -> tuple[list[float], list[float]]:
    (line,) = [line for line in ax.get_lines() if line.get_label() == label]
    return list(np.asarray(line.get_xdata())), list(np.asarray(line.get_ydata()))


def vertical_lines(ax: Axes) -> list[tuple[float, float]]:
    """Return the ends of the intervals of a plot."""
    found = [c.get_segments()[0][:, 1] for c in ax.collections if isinstance(c, LineCollection)]
    return [(float(low), float(high)) for low, high in found]


def title_of(ax: Axes) -> str:
    """Return the words above a figure; their lines may be broken anywhere."""
    return " ".join(cast(Any, ax.figure).get_suptitle().split())


def by_subject(values: Any, subjects: list[str]) -> tuple[float, float]:
    """Bootstrap subjects the plain way, one resample after the other."""
    generator, names = np.random.default_rng(1), sorted(set(subjects))
    places = [np.flatnonzero([subject == name for subject in subjects]) for name in names]
    means = [
        np.mean(np.concatenate([values[places[i]] for i in generator.integers(len(names), size=len(names))]))
        for _ in range(4000)
    ]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def scores(psnr: list[float], subjects: list[str]) -> dict[str, Any]:
    return {"psnr": psnr, "ssim": [value / 40 for value in psnr], "subjects": subjects}


def test_bars_and_their_intervals(made_up: Runner) -> None:
    subjects = [f"s{i // 3}" for i in range(12)]
    generator = np.random.default_rng(0)
    values = {key: generator.normal(30, 2, 12) for key in ("zero", "first", "second")}
    for run, key in (
        (Run("classical", "zero-filling", "hip"), "zero"),
        (Run("adapt", "ulda", "hip", 2, 0), "first"),
        (Run("adapt", "ulda", "hip", 2, 1), "second"),
    ):
        write_run(made_up.runs_folder, run, {"results": {"hip": scores(values[key].tolist(), subjects)}})
    top, bottom, lowest = drawn(results_of(made_up), "bars", "bars-hip")
    mean = (values["first"] + values["second"]) / 2
    # an outline lies on each bar
    heights, below = (
        [patch.get_height() for patch in cast(Any, ax.patches) if patch.get_fill()] for ax in (top, bottom)
    )
    assert heights == pytest.approx([values["zero"].mean(), mean.mean()])
    assert below == pytest.approx([h / 40 for h in heights])
    # each interval is drawn twice, white below black; resamples of another seed agree to a few hundredths
    white, black = vertical_lines(top)[2:]
    assert white == black == pytest.approx(by_subject(mean, subjects), abs=0.08)
    assert top.get_ylim()[0] < min(low for low, _ in vertical_lines(top))
    assert f"axis from {top.get_ylim()[0]:g}" in top.get_ylabel()
    assert [tick.get_text() for tick in lowest.get_xticklabels()] == ["no training", "2 slices"]
    assert "12 test slices of 4 subjects, up to 2 draws" in title_of(top)
    assert title_of(top).endswith("Mean and 95 % bootstrap interval, resampling subjects")
    assert title_of(top).startswith("Knees to larger crops of knees: hip")


def test_differences_are_paired(made_up: Runner) -> None:
    """Slices that differ much leave no doubt about methods that differ by the same on each."""
    subjects = [f"s{i // 3}" for i in range(12)]
    generator = np.random.default_rng(0)
    ours = generator.normal(30, 4, 12)
    theirs = {"dncn": ours - 0.2 + generator.normal(0, 0.1, 12), "unet": ours - 5.25, "lda": ours + 1.5}
    for name, values in ({"ulda": ours} | theirs).items():
        found = {"results": {"hip": scores(values.tolist(), subjects)}}
        write_run(made_up.runs_folder, Run("adapt", name, "hip", 2, 0), found)
    variants = [{"method": name} for name in ("ulda", "dncn", "unet", "lda", "meta")]
    results = results_of(runner(made_up.folder, made_up.folder, variants=variants))
    _, _, lowest = drawn(results, "bars", "bars-hip")
    line, point = cast(Any, lowest.get_lines())
    assert list(line.get_ydata()) == [0, 0]
    difference = theirs["dncn"] - ours
    assert np.ravel(point.get_data()).tolist() == pytest.approx([1, difference.mean()])
    (interval,) = vertical_lines(lowest)
    assert interval == pytest.approx(by_subject(difference, subjects), abs=0.01)
    assert interval[1] < 0
    # what is far away is written at the edge
    written = [(text.get_text().strip(), text.get_position()) for text in lowest.texts]
    assert written == [("← -5.25", (2, -1)), ("1.50 →", (3, 1))]
    assert lowest.get_ylim() == (-1, 1)
    assert lowest.get_ylabel() == "PSNR minus that of\nU-LDA, by slice (dB)"


def test_subjects_are_called_what_they_are(made_up: Runner) -> None:
    found = {"results": {"hip": scores([30.0, 31.0], ["a", "b"])}}
    write_run(made_up.runs_folder, Run("adapt", "ulda", "hip", 2, 0), found)
    targets = [{"name": "hip", "ratio": 0.3, "subjects_are": "slice positions of one volunteer"}]
    ax, *_ = drawn(results_of(runner(made_up.folder, made_up.folder, targets=targets)), "bars", "bars-hip")
    assert "2 test slices of 2 slice positions of one volunteer, 1 draw" in title_of(ax)
    assert "resampling slice positions of one volunteer" in title_of(ax)
    assert "subject" not in title_of(ax)


def test_places_of_bars_and_how_many_slices_there_were(made_up: Runner) -> None:
    for method, size, learned in (("ulda", 2, 2), ("dncn", 2, 2), ("dncn", 100, 7)):
        found = {"results": {"hip": scores([30.0, 31.0], ["a", "b"]) | {"n": learned}}}
        write_run(made_up.runs_folder, Run("adapt", method, "hip", size, 0), found)
    _, bottom, lowest = drawn(results_of(made_up), "bars", "bars-hip")
    assert [tick.get_text() for tick in lowest.get_xticklabels()] == ["2 slices", "all 7 slices"]
    places = [patch.get_x() + patch.get_width() / 2 for patch in cast(Any, bottom.patches) if patch.get_fill()]
    assert places == pytest.approx([0, 1, 4])
    # U-LDA has none with all slices
    assert [(text.get_text().strip(), text.get_position()[0]) for text in bottom.texts] == [("no result", 3)]
    # and DnCn nothing to be compared with
    assert [(text.get_text().strip(), text.get_position()[0]) for text in lowest.texts] == [("no result", 4)]


def test_reconstructions_and_errors(results: Results, done: Runner) -> None:
    axes = drawn(results, "reconstructions", "reconstructions-hip-2")
    examples = {
        name: load_examples(done.examples_folder / f"{key}.npz")["hip"]
        for name, key in (
            ("zero-filling", "classical-zero-filling-hip"),
            ("ulda", "adapt-ulda-hip-2-0"),
            ("dncn", "adapt-dncn-hip-2-0"),
        )
    }
    n_examples = len(examples["ulda"].indices)
    assert n_examples == len(example_indices(done.data.test(done.experiment.targets[0]).subjects))
    rows = [axes[2 * n_examples * row :][: 2 * n_examples] for row in range(4)]
    # zero-filling has larger errors, which are saturated
    end = max(np.percentile(np.abs(examples[name].images - examples[name].reference), 99) for name in ("ulda", "dncn"))
    assert end < np.percentile(np.abs(examples["zero-filling"].images - examples["zero-filling"].reference), 99)
    assert f"saturated from {end:.3g} on" in axes[-1].get_xlabel()
    assert "99th percentile of the learned method with the largest errors" in axes[-1].get_xlabel()
    assert "white from the\n99th percentile" in axes[1].texts[0].get_text()
    assert "No examples" not in title_of(axes[0])
    for row, one in zip(rows[1:], examples.values(), strict=True):
        for number, (reference, image) in enumerate(zip(one.reference, one.images, strict=True)):
            (shown,), (error,) = (row[2 * number + k].get_images() for k in (0, 1))
            np.testing.assert_array_equal(np.asarray(shown.get_array()), image)
            assert shown.get_clim() == pytest.approx((0, np.percentile(reference, 99)))
            np.testing.assert_array_equal(np.asarray(error.get_array()), np.abs(image - reference))
            assert error.get_clim() == pytest.approx((0, end))
    psnr = results.runs["adapt-dncn-hip-2-0"]["results"]["hip"]["psnr"][examples["dncn"].indices[0]]
    assert rows[3][0].get_xlabel() == f"{psnr:.2f} dB"
    assert [row[0].get_ylabel() for row in rows] == ["reference", "zero-filling", "U-LDA", "DnCn"]


def test_methods_without_pictures_are_named(done: Runner, tmp_path: Path) -> None:
    shutil.copytree(done.examples_folder, tmp_path / "examples")
    (tmp_path / "examples" / "classical-zero-filling-hip.npz").unlink()
    other = load_examples(tmp_path / "examples" / "adapt-dncn-hip-2-0.npz")["hip"]
    # of other slices than U-LDA's
    moved = Examples(other.indices + 1, other.reference, other.images)
    save_examples(tmp_path / "examples" / "adapt-dncn-hip-2-0.npz", "hip", moved)
    results = Results(done.experiment, done.data.scale.sizes, tmp_path, read_runs(done.runs_folder))
    axes = drawn(results, "reconstructions", "reconstructions-hip-2")
    assert title_of(axes[0]).endswith("No examples of zero-filling, DnCn")


def test_the_examples_are_the_reconstructions(done: Runner) -> None:
    """Their PSNR is that in the result, but for the half precision."""
    found = load_examples(done.examples_folder / "train-ulda.npz")["knee"]
    listed = read_runs(done.runs_folder)["train-ulda"]["results"]["knee"]["psnr"]
    error = ((found.images - found.reference) ** 2).mean((1, 2))
    peak = found.reference.max((1, 2))
    expected = [listed[i] for i in found.indices]
    np.testing.assert_allclose(10 * np.log10(peak**2 / error), expected, atol=0.02)
    assert found.phases == 2
    assert found.trace["phi"].shape == (8 * 2 + 1, len(found.indices))
    # no step may raise this
    bounded = found.trace["phi"] + found.reference[0].size * found.trace["eps"] / 2
    assert (np.diff(bounded, axis=0) <= 1e-9 * bounded[:-1]).all()
    assert not load_examples(done.examples_folder / "train-dncn.npz")["knee"].trace


def test_examples_of_several_domains_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "examples" / "run.npz"
    image = np.linspace(0, 1, 16, dtype=np.float32).reshape(1, 4, 4)
    for domain, factor in (("knee", 1.0), ("hip", 0.5), ("knee", 0.25)):
        save_examples(path, domain, Examples(np.array([3]), image, factor * image))
    found = load_examples(path)
    assert sorted(found) == ["hip", "knee"]
    np.testing.assert_allclose(found["knee"].images, image / 4, atol=1e-3)
    path.write_bytes(b"nothing")
    with pytest.raises(UldaError, match=r"run\.npz does not hold the examples of a run"):
        load_examples(path)
    assert load_examples(tmp_path / "absent.npz") == {}


def test_a_slice_that_stopped_early_has_a_shorter_trace() -> None:
    trace = Trace(2, Options())
    for samples in ([0, 1], [1]):
        ones = torch.ones(len(samples), dtype=torch.float64)
        at = Evaluation(
            f=ones, r=2 * ones, grad_f=torch.ones(len(samples), 2, 2), grad_r=0 * torch.ones(len(samples), 2, 2)
        )
        x = torch.zeros(len(samples), 2, 2)
        trace.record(torch.tensor(samples), x, at, x, at, ones, LINE_SEARCH * ones, 0 * ones, 0 * ones)
    found = trace_arrays(trace)
    assert found["phi"][:, 1].tolist() == [3.0, 3.0, 3.0]
    np.testing.assert_array_equal(found["branch"], [[np.nan, np.nan], [1, 1], [np.nan, 1]])
    assert found["grad_norm"][:, 0].tolist()[:2] == [2.0, 2.0]
    assert np.isnan(found["phi"][:, 0]).tolist() == [False, False, True]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 100])
def test_examples_are_spread_evenly(n: int) -> None:
    found = example_indices(["a"] * n)
    assert len(found) == min(n, 3)
    assert found == sorted(set(found))
    assert [i + 0.5 for i in found] == pytest.approx([(k + 0.5) * n / len(found) for k in range(len(found))], abs=0.5)


def test_examples_are_of_distinct_subjects() -> None:
    # nine slice positions, one echo after the other: as the knee has them
    knee = [f"slice{15 + i % 9}" for i in range(27)]
    found = example_indices(knee)
    assert [knee[i] for i in found] == ["slice16", "slice19", "slice22"]
    assert found == [10, 13, 16]
    # volumes of different lengths: the middle of each
    assert example_indices(["a"] * 82 + ["b"] * 39 + ["c"] * 26) == [41, 82 + 19, 82 + 39 + 13]
    # fewer subjects than examples: all of them, also one with a single slice
    for subjects in (["a"] * 100 + ["b"], ["a"] + ["b"] * 100):
        assert {subjects[i] for i in example_indices(subjects)} == {"a", "b"}


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
    assert "T = 2" in title_of(left)


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
    # a file of an earlier version has no branches
    save_examples(path, "knee", Examples(np.array([0]), image[:1], image[:1]))
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files if not name.endswith("branch")}
    np.savez_compressed(path, **arrays)
    left, right = drawn(results_of(made_up), "convergence", "convergence-hip")
    assert "line search" not in title_of(left)


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


def test_many_orders_of_parameters_have_ticks() -> None:
    with styled():
        ax = new_figure(3, 3, "").subplots()
        ax.plot([14262, 7756097], [1, 1])
        log_axis(ax, "x", [14262, 7756097])
        shown = [t.get_text() for t in ax.get_xticklabels() if 14262 <= t.get_position()[0] <= 7756097]
    assert shown == ["30 k", "100 k", "300 k", "1 M", "3 M"]


def test_similarity_by_phases(made_up: Runner) -> None:
    variants = [
        {"method": "ulda"},
        *({"method": "lda", "label": f"alone-{n}", "sizes": {"phases": n}} for n in (3, 7)),
        {"method": "lda", "label": "wide", "sizes": {"width": 32}},
    ]
    for name, value in (("alone-3", 0.4), ("alone-7", 0.6), ("wide", 0.9)):
        extra = {"knee": {"similarity": {"ncc": value, "cka": value / 2}}}
        write_run(made_up.runs_folder, Run("train", name), {"results": {"knee": scores([30.0], ["a"])}, "extra": extra})
    one = runner(made_up.folder, made_up.folder, variants=variants)
    ncc, cka = drawn(results_of(one), "similarity", "similarity")
    label = "knee: 1 slice of 1 subject"
    assert line_of(ncc, label) == ([3, 7], [0.4, 0.6])
    assert line_of(cka, label) == ([3, 7], [0.2, 0.3])
    # both on one scale, which begins and ends at tenths
    assert ncc.get_ylim() == cka.get_ylim() == pytest.approx((0.2, 0.6))


def test_similarity_of_the_ablation(tmp_path: Path) -> None:
    experiment = load_experiment("ablation-phases")
    values = {1: 0.62, 2: 0.71, 3: 0.735, 4: 0.74}
    of_a_run = {source: scores([30.0] * 4, ["a", "a", "b", "b"]) for source in ("brain", "prostate")}
    for n, value in values.items():
        similarity = {"ncc": value, "cka": value - 0.1}
        extra = {source: {"similarity": similarity} for source in of_a_run}
        write_run(tmp_path / "runs", Run("train", f"alone-T{n}"), {"results": of_a_run, "extra": extra})
    results = Results(experiment, experiment.scale("bench").sizes, tmp_path, read_runs(tmp_path / "runs"))
    ncc, _ = drawn(results, "similarity", "similarity")
    for source in of_a_run:
        assert line_of(ncc, f"{source}: 4 slices of 2 subjects") == (list(values), list(values.values()))
    assert [tick.get_text() for tick in ncc.get_xticklabels()] == ["1", "2", "3", "4"]


@pytest.mark.parametrize("kind", KINDS)
def test_without_data_it_is_said_why(kind: str, made_up: Runner) -> None:
    with styled(), pytest.raises(NothingToDrawError):
        KINDS[kind](results_of(made_up))


def test_the_command(done: Runner, tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(TINY | {"title": "1 $ and 2 $ <b>"}))
    command = ["experiment", "figure", str(file), "--folder", str(done.folder)]
    only = ["--only", "bars", "--only", "beyond", "--format", "both"]
    for out in ("first", "second"):
        told = CliRunner().invoke(app, [*command, "--out", str(tmp_path / out), *only])
        assert told.exit_code == 0, told.output
    assert "no figure of the kind beyond: no run has measured the quality beyond T iterations" in told.output
    for name in ("bars-hip.svg", "bars-hip.pdf"):
        first, second = ((tmp_path / out / name).read_bytes() for out in ("first", "second"))
        assert first == second
        # no date, and letters as outlines or embedded
        assert b"CreationDate" not in first
        assert b"<dc:date>" not in first
        assert b"<text" not in first
    assert b"/FontFile2" in (tmp_path / "first" / "bars-hip.pdf").read_bytes()
    assert "1 $ and 2 $ &lt;b&gt;" in (tmp_path / "first" / "bars-hip.svg").read_text(encoding="utf-8")
    wrong = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "third"), "--only", "pies"])
    assert "there is no kind of figure 'pies'; there are: reconstructions, bars" in str(wrong.exception)


def test_pictures_have_the_same_bytes(results: Results, tmp_path: Path) -> None:
    first, second = (draw_figures(results, tmp_path / name, ["reconstructions"]).files for name in ("a", "b"))
    assert [path.name for path in first] == ["reconstructions-hip-2.svg"]
    assert first[0].read_bytes() == second[0].read_bytes()
    assert len(re.findall(rb"data:image/png;base64", first[0].read_bytes())) > 3 * len(example_indices(["a"] * 3))


def test_without_matplotlib(results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"ulda\[plot\]"):
        draw_figures(results, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_methods_are_told_apart_in_grey() -> None:
    looks = looks_of([f"learned {i}" for i in range(9)], ["zero-filling", "TV", "wavelet"], first="learned 4")
    assert looks["learned 4"].colour == COLOURS[0]
    assert looks["learned 4"].hatch == ""
    for (a, first), (b, second) in combinations(looks.items(), 2):
        alike = abs(lightness(first.colour) - lightness(second.colour)) < 10
        marks = [getattr(first, name) != getattr(second, name) for name in ("marker", "dash", "hatch")]
        assert all(marks) or not alike, f"{a} and {b} look alike in grey"
    for look in looks.values():
        assert abs(lightness(look.colour) - lightness(look.ink)) > 40, "a hatch is seen on its bar"


def test_lightness_is_that_of_another_library() -> None:
    from skimage.color import rgb2lab

    for colour in (*COLOURS, *GREYS):
        rgb = [int(to_hex(colour)[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        assert lightness(colour) == pytest.approx(rgb2lab(np.array([[rgb]]))[0, 0, 0], abs=0.05)


def test_the_zoom_shows_detail_and_hides_none() -> None:
    image = np.zeros((40, 60), np.float32)
    # straight, as fat below the skin, and away from the middle
    image[:, 24:] = 0.5
    image[0:8:2, 0:8:2] = 1
    image[20:26:2, 36:42:2] = 1
    row, column, side = window = zoom_window(image)
    assert side == 8
    assert (row, column) == pytest.approx((18, 34), abs=3)
    # the lower right corner hides a part of the window; of the others it is the signal that counts
    assert inset_corner(image, window) == 2
    image[24:, :24] = 0.1
    assert inset_corner(image, window) == 0
    image[:16, 36:] = 0
    image[:16, :24] = 0.6
    assert inset_corner(image, window) == 1


def test_the_zoom_stays_away_from_the_border() -> None:
    generator = np.random.default_rng(0)
    for shape in ((64, 64), (20, 33), (9, 9), (8, 40)):
        row, column, side = zoom_window(generator.random(shape, np.float32))
        for start, length in ((row, shape[0]), (column, shape[1])):
            low = min(round(length / 4), (length - side) // 2)
            assert low <= start <= length - side - low


def test_a_few_bright_pixels_do_not_darken_a_slice() -> None:
    image = np.linspace(0, 0.4, 1600, dtype=np.float32).reshape(40, 40)
    image[0, :5] = 1
    assert View.of(image).white == pytest.approx(np.percentile(image, 99))
    assert View.of(image).white < 0.41
    assert View.of(0 * image).white == 1


ROOT = Path(__file__).parents[2]
FROM_PACKED = ("bars", "beyond", "efficiency", "similarity")
"""The kinds that need nothing but packed results."""


def stale(experiment: str, figures: Path, packed: Path, out: Path) -> list[str]:
    """Return what to do about the figures of an experiment that are not what its packed results give.

    Parameters
    ----------
    experiment
        Its name; its figures are named after it.
    figures, packed
        The folder of the figures and the file of the results.
    out
        A folder to draw into.
    """
    names = {path.name.removeprefix(f"{experiment}-"): path for path in figures.glob(f"{experiment}-*.svg")}
    names = {name: path for name, path in names.items() if name.removesuffix(".svg").split("-")[0] in FROM_PACKED}
    if not names:
        return []
    if not packed.exists():
        return [f"ulda experiment pack {experiment} --out {packed}  # there is none for {', '.join(names)}"]
    scale = json.loads(packed.read_text(encoding="utf-8"))["scale"]
    kinds = sorted({name.removesuffix(".svg").split("-")[0] for name in names})
    command = ["experiment", "figure", experiment, "--scale", scale, "--results", str(packed)]
    command += [word for kind in kinds for word in ("--only", kind)]
    told = CliRunner().invoke(app, [*command, "--folder", str(out), "--out", str(out)])
    assert told.exit_code == 0, told.output
    found = []
    for name, path in sorted(names.items()):
        if not (out / name).exists():
            found.append(f"rm {path}  # the results no longer give it")
        elif (out / name).read_bytes() != path.read_bytes():
            found.append(f"cp redrawn/{name} {path}")
    return [f"ulda {' '.join(command)} --out redrawn", *found] if found else []


@pytest.mark.parametrize("experiment", experiment_names())
def test_the_figures_of_the_documentation_are_those_of_the_results(experiment: str, tmp_path: Path) -> None:
    pinned = re.search(r"^matplotlib==(.*)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    if pinned is None or mpl.__version__ != pinned[1].strip():
        pytest.skip("another version of matplotlib draws other bytes")
    packed = ROOT / "benchmarks" / "results" / "experiments" / f"{experiment}.json"
    to_do = stale(experiment, ROOT / "docs" / "figures", packed, tmp_path)
    here = [line.replace(f"{ROOT}/", "") for line in to_do]
    assert not here, "figures are not what the results give; do, in the folder of the repository:\n" + "\n".join(here)


def test_a_stale_figure_is_found(made_up: Runner, tmp_path: Path) -> None:
    experiment = load_experiment("ablation-ssim")
    target = experiment.targets[0].name
    results = {target: scores([30.0, 31.0], ["a", "b"])}
    write_run(made_up.runs_folder, Run("adapt", "ulda", target, 0, 0), {"results": results})
    figures, packed = tmp_path / "figures", tmp_path / "packed.json"
    pack(read_runs(made_up.runs_folder), packed, experiment=experiment.name, scale="bench")
    figures.mkdir()
    drawing = Results(experiment, experiment.scale("bench").sizes, tmp_path, read_runs(packed))
    (file,) = draw_figures(drawing, tmp_path / "drawn", ["bars"]).files
    committed = figures / f"ablation-ssim-{file.name}"
    shutil.copy(file, committed)
    assert stale("ablation-ssim", figures, packed, tmp_path / "fresh") == []
    committed.write_text(committed.read_text(encoding="utf-8").replace("30", "31"), encoding="utf-8")
    shutil.copy(file, figures / "ablation-ssim-bars-nowhere.svg")
    shutil.copy(file, figures / "ablation-ssim-learning-training.svg")  # needs more than the results
    redraw, copy, remove = stale("ablation-ssim", figures, packed, tmp_path / "again")
    assert redraw.startswith("ulda experiment figure ablation-ssim --scale bench --results ")
    assert redraw.endswith("--only bars --out redrawn")
    assert copy == f"cp redrawn/{file.name} {committed}"
    assert remove.startswith(f"rm {figures / 'ablation-ssim-bars-nowhere.svg'}")
    (missing,) = stale("ablation-ssim", figures, tmp_path / "none.json", tmp_path / "never")
    assert "ulda experiment pack ablation-ssim" in missing
