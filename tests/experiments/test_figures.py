"""Figures of a tiny experiment: what is drawn is what was measured."""

from __future__ import annotations

import re
import sys
from itertools import combinations
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import yaml
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from typer.testing import CliRunner

from tests.experiments.test_experiments import TINY, runner
from tests.training.small_domains import write_domain
from ulda.cli import app
from ulda.errors import MissingExtraError, UldaError
from ulda.experiments.cells import Cell, read_cells, write_cell
from ulda.experiments.examples import Examples, example_indices, load_examples, save_examples, trace_arrays
from ulda.experiments.figures import KINDS, Results, draw_figures
from ulda.experiments.figures.reconstructions import inset_corner, zoom_window
from ulda.experiments.figures.results import NothingToDrawError
from ulda.experiments.figures.style import COLOURS, GREYS, lightness, looks_of, styled
from ulda.experiments.running import Runner
from ulda.solvers import Options, Trace
from ulda.solvers.objective import Evaluation
from ulda.training.history import Progress, write_log

CELLS = [
    Cell("classical", "zero-filling", "hip"),
    *(Cell("train", method) for method in ("ulda", "dncn")),
    *(Cell("adapt", method, "hip", 2, draw) for method in ("ulda", "dncn") for draw in (0, 1)),
]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """Return an experiment some of whose cells have been run."""
    data = tmp_path_factory.mktemp("data")
    write_domain(data / "knee.npz", every=6)
    write_domain(data / "hip.npz", size=48, every=4)
    one = runner(tmp_path_factory.mktemp("run"), data)
    for cell in CELLS:
        one.run(cell)
    return one


def results_of(one: Runner, **changes: Any) -> Results:
    experiment = one.experiment.model_copy(update=changes)
    return Results(experiment, one.data.scale.sizes, one.folder, read_cells(one.cells_folder))


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
    for cell, key in (
        (Cell("classical", "zero-filling", "hip"), "zero"),
        (Cell("adapt", "ulda", "hip", 2, 0), "first"),
        (Cell("adapt", "ulda", "hip", 2, 1), "second"),
    ):
        write_cell(made_up.cells_folder, cell, {"results": {"hip": scores(values[key].tolist(), subjects)}})
    top, bottom = drawn(results_of(made_up), "bars", "bars-hip")
    mean = (values["first"] + values["second"]) / 2
    heights = [patch.get_height() for patch in cast(Any, top.patches)]
    assert heights == pytest.approx([values["zero"].mean(), mean.mean()])
    assert [patch.get_height() for patch in cast(Any, bottom.patches)] == pytest.approx([h / 40 for h in heights])
    # each interval is drawn twice, white below black; resamples of another seed agree to a few hundredths
    white, black = vertical_lines(top)[2:]
    assert white == black == pytest.approx(by_subject(mean, subjects), abs=0.08)
    assert top.get_ylim()[0] < min(low for low, _ in vertical_lines(top))
    assert f"axis from {top.get_ylim()[0]:g}" in top.get_ylabel()
    assert [tick.get_text() for tick in bottom.get_xticklabels()] == ["no training", "2 slices"]
    figure = top.figure
    assert figure is not None
    assert "12 test slices of 4 subjects, up to 2 draws" in cast(Any, figure).get_suptitle()
    assert "95 % bootstrap interval by subject" in cast(Any, figure).get_suptitle()


def test_reconstructions_and_errors(results: Results, done: Runner) -> None:
    axes = drawn(results, "reconstructions", "reconstructions-hip-2")
    title = " ".join(cast(Any, axes[0].figure).get_suptitle().split())  # its lines may be broken anywhere
    examples = {
        name: load_examples(done.examples_folder / f"{key}.npz")["hip"]
        for name, key in (
            ("zero-filling", "classical-zero-filling-hip"),
            ("ulda", "adapt-ulda-hip-2-0"),
            ("dncn", "adapt-dncn-hip-2-0"),
        )
    }
    n_rows = len(examples["ulda"].indices)
    assert n_rows == len(example_indices(len(done.data.test(done.experiment.targets[0]))))
    end = max(np.percentile(np.abs(one.images - one.reference), 99.5) for one in examples.values())
    assert f"all from 0 to {end:.3g}" in title
    for row in range(2 * n_rows):
        for column, one in enumerate(examples.values(), start=1):
            (picture,) = axes[4 * row + column].get_images()
            image = one.images[row // 2]
            shown = np.asarray(picture.get_array())
            if row % 2:
                np.testing.assert_array_equal(shown, np.abs(image - one.reference[row // 2]))
                assert picture.get_clim() == pytest.approx((0, end))
            else:
                np.testing.assert_array_equal(shown, image)
    psnr = results.cells["adapt-dncn-hip-2-0"]["results"]["hip"]["psnr"][examples["dncn"].indices[0]]
    assert axes[3].get_xlabel() == f"{psnr:.2f} dB"
    assert [ax.get_title() for ax in axes[:4]] == ["reference", "zero-filling", "U-LDA", "DnCn"]


def test_the_examples_are_the_reconstructions(done: Runner) -> None:
    """Their PSNR is that in the result, but for the half precision."""
    found = load_examples(done.examples_folder / "train-ulda.npz")["knee"]
    listed = read_cells(done.cells_folder)["train-ulda"]["results"]["knee"]["psnr"]
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
    path = tmp_path / "examples" / "cell.npz"
    image = np.linspace(0, 1, 16, dtype=np.float32).reshape(1, 4, 4)
    for domain, factor in (("knee", 1.0), ("hip", 0.5), ("knee", 0.25)):
        save_examples(path, domain, Examples(np.array([3]), image, factor * image))
    found = load_examples(path)
    assert sorted(found) == ["hip", "knee"]
    np.testing.assert_allclose(found["knee"].images, image / 4, atol=1e-3)
    path.write_bytes(b"nothing")
    with pytest.raises(UldaError, match=r"cell\.npz does not hold the examples of a cell"):
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
        trace.record(torch.tensor(samples), x, at, x, at, ones, 0 * ones, 0 * ones)
    found = trace_arrays(trace)
    assert found["phi"][:, 1].tolist() == [3.0, 3.0, 3.0]
    assert found["grad_norm"][:, 0].tolist()[:2] == [2.0, 2.0]
    assert np.isnan(found["phi"][:, 0]).tolist() == [False, False, True]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 100])
def test_examples_are_spread_evenly(n: int) -> None:
    found = example_indices(n)
    assert len(found) == min(n, 3)
    assert found == sorted(set(found))
    assert [i + 0.5 for i in found] == pytest.approx([(k + 0.5) * n / len(found) for k in range(len(found))], abs=0.5)


def test_learning_curves(made_up: Runner) -> None:
    facts = {"results": {"hip": scores([30.0], ["a"])}, "scale": {"validation_slices": 8}}
    write_cell(made_up.cells_folder, Cell("adapt", "dncn", "hip", 2, 0), facts)
    for place, domain in (("training", "knee"), ("adapted/adapt-dncn-hip-2-0", "hip")):
        folder = made_up.folder / "models" / "dncn" / place
        folder.mkdir(parents=True)
        write_log(folder / "log.csv", [Progress(s, 4, 0.1, 0.1, {domain: {"psnr": 20.0 + s}}) for s in (0, 2, 4)])
    results = results_of(made_up)
    for stem in ("learning-training", "learning-adaptation"):
        (ax,) = drawn(results, "learning", stem)
        assert line_of(ax, "DnCn") == ([0, 2, 4], [20, 22, 24])
    assert ax.get_title() == "hip, 2 slices"
    assert "at most 8 validation slices" in cast(Any, ax.figure).get_suptitle()


def test_the_objective_along_the_iterations(results: Results, done: Runner) -> None:
    left, right = drawn(results, "convergence", "convergence-hip")
    found = load_examples(done.examples_folder / "adapt-ulda-hip-2-0.npz")["hip"]
    subjects = results.cells["adapt-ulda-hip-2-0"]["results"]["hip"]["subjects"]
    for number, index in enumerate(found.indices):
        label = f"slice {index}, subject {subjects[index]}"
        n_pixels = 32 * 32
        expected = found.trace["phi"][:, number] + n_pixels * found.trace["eps"][:, number] / 2
        assert line_of(left, label)[1] == pytest.approx(expected)
        assert line_of(right, label)[1] == pytest.approx(found.trace["grad_norm"][:, number])
    assert left.get_yscale() == right.get_yscale() == "log"
    assert "T = 2" in cast(Any, left.figure).get_suptitle()


def test_beyond_T(made_up: Runner) -> None:
    for draw, psnr in enumerate((30.0, 32.0)):
        beyond = {f"{n}T": {"psnr": psnr - n, "ssim": 0.9} for n in (1, 8)} | {"30T": {"psnr": None, "ssim": None}}
        facts = {"results": {"hip": scores([30.0, 31.0], ["a", "b"])}, "extra": {"hip": {"beyond": beyond}}}
        write_cell(made_up.cells_folder, Cell("adapt", "ulda", "hip", 2, draw), facts)
    (ax,) = drawn(results_of(made_up), "beyond", "beyond")
    xs, ys = line_of(ax, "U-LDA")
    assert xs == [1, 8, 30]
    assert ys == pytest.approx([30, 23, np.nan], nan_ok=True)
    assert ax.get_title() == "hip, 2 slices\n2 slices of 2 subjects"


def test_quality_against_its_cost(results: Results) -> None:
    parameters, minutes = drawn(results, "efficiency", "efficiency-hip")
    training = results.cells["train-dncn"]
    adaptations = [results.cells[f"adapt-dncn-hip-2-{draw}"] for draw in (0, 1)]
    psnr = float(np.mean([cell["results"]["hip"]["psnr"] for cell in adaptations]))
    assert np.ravel(line_of(parameters, "DnCn")).tolist() == pytest.approx([training["n_parameters"], psnr])
    seconds = training["spent"]["seconds"] + sum(cell["spent"]["seconds"] for cell in adaptations) / 2
    assert np.ravel(line_of(minutes, "DnCn")).tolist() == pytest.approx([seconds / 60, psnr])


def test_similarity_by_phases(made_up: Runner) -> None:
    variants = [
        {"method": "ulda"},
        *({"method": "lda", "label": f"alone-{n}", "sizes": {"phases": n}} for n in (3, 7)),
        {"method": "lda", "label": "wide", "sizes": {"width": 32}},
    ]
    for name, value in (("alone-3", 0.4), ("alone-7", 0.6), ("wide", 0.9)):
        extra = {"knee": {"similarity": {"ncc": value, "cka": value / 2}}}
        write_cell(
            made_up.cells_folder, Cell("train", name), {"results": {"knee": scores([30.0], ["a"])}, "extra": extra}
        )
    one = runner(made_up.folder, made_up.folder, variants=variants)
    ncc, cka = drawn(results_of(one), "similarity", "similarity")
    label = "knee: 1 slice of 1 subject"
    assert line_of(ncc, label) == ([3, 7], [0.4, 0.6])
    assert line_of(cka, label) == ([3, 7], [0.2, 0.3])


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
    assert "no figure of the kind beyond: no cell has measured the quality beyond T iterations" in told.output
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
    assert len(re.findall(rb"data:image/png;base64", first[0].read_bytes())) > 3 * len(example_indices(3))


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
    image[4:10:2, 50:58] = 1
    row, column, side = window = zoom_window(image)
    assert side == 8
    assert row <= 4
    assert row + side >= 9
    assert column <= 50
    assert column + side >= 58
    # the corners at the top right hide the window, and at the top left there is some signal
    image[:5, :5] = 0.1
    assert inset_corner(image, window) == 2
