"""Bars, intervals and paired differences."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from tests.experiments.figures.drawn import by_subject, drawn, results_of, scores, title_of, vertical_lines
from tests.experiments.tiny import runner
from ulda.experiments.running import Runner
from ulda.experiments.runs import Run, write_run


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
