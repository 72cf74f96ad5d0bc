"""What the results say, on scores made up for the purpose."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

from tests.experiments.tiny import TINY
from ulda.errors import UldaError
from ulda.experiments import Experiment
from ulda.experiments.tables import records_of, rows_of
from ulda.experiments.verdict import overview, sentences, standings

SUBJECTS = ["a", "a", "b", "b"]
EXPERIMENT = Experiment.model_validate(
    TINY | {"variants": [{"method": name} for name in ("zero-filling", "ulda", "dncn", "unet")]}
)


def adapted(method: str, size: int, psnr: list[float], ssim: float, draw: int = 0) -> tuple[str, dict[str, Any]]:
    scores = {"psnr": psnr, "ssim": [ssim] * len(psnr), "subjects": SUBJECTS}
    run = {"kind": "adapt", "method": method, "domain": "hip", "size": size, "draw": draw}
    return f"adapt-{method}-hip-{size}-{draw}", {"run": run, "results": {"hip": scores}}


RUNS = dict(
    [
        adapted("ulda", 2, [31.0, 31.0, 33.0, 33.0], 0.9),
        adapted("dncn", 2, [30.0, 30.0, 31.0, 31.0], 0.8),
        adapted("unet", 2, [29.0, 29.0, 29.0, 29.0], 0.95),
        adapted("ulda", 100, [32.0, 32.0, 34.0, 34.0], 0.92),
        adapted("dncn", 100, [31.5, 31.5, 34.5, 34.5], 0.91),
    ]
)


def test_the_best_other_method_is_found_for_each_score() -> None:
    found = standings(EXPERIMENT, RUNS, (2, 100))
    told = [(s.score, s.size, s.other_size, s.best_other, round(s.difference.mean, 4), s.is_first) for s in found]
    assert told == [
        ("psnr", 2, 2, "dncn", 1.5, True),
        ("ssim", 2, 2, "unet", -0.05, False),
        ("psnr", 100, 100, "dncn", 0.0, True),
        ("ssim", 100, 100, "dncn", 0.01, True),
        ("psnr", 2, 100, "dncn", -1.0, False),
        ("ssim", 2, 100, "dncn", -0.01, False),
    ]
    assert (found[0].difference.low, found[0].difference.high) == (1.0, 2.0)


def test_the_standings_as_rows() -> None:
    first, *_, last = overview(EXPERIMENT, RUNS, (2, 100))
    assert first == [
        "hip",
        "2 slices",
        "32.00 / 0.900",
        "DnCn: **+1.50** [1.00, 2.00]",
        "UNet: -0.0500 [-0.0500, -0.0500]",
    ]
    assert last[1] == "2 against 100 slices"
    assert last[3].startswith("DnCn: -1.00 [")


def test_draws_are_averaged() -> None:
    again = dict([adapted("ulda", 2, [30.0, 30.0, 30.0, 30.0], 0.9, draw=1)])
    # the second draw counts once the other method has it, too
    assert standings(EXPERIMENT, RUNS | again, (2,))[0].difference.mean == pytest.approx(1.5)
    again |= dict([adapted("dncn", 2, [30.5, 30.5, 30.5, 30.5], 0.8, draw=1)])
    assert standings(EXPERIMENT, RUNS | again, (2,))[0].difference.mean == pytest.approx(0.5)


def test_the_sentences_count_and_say_where_it_is_behind() -> None:
    first, *rest = sentences(EXPERIMENT, RUNS, (2, 100))
    assert first == (
        "U-LDA is at least as good as the best other method in 3 of 6 comparisons, clearly better in 2 and clearly "
        "worse in 3"
    )
    assert rest[0] == (
        "hip, 2 slices, PSNR: U-LDA leads DnCn, the best other method, by 1.50 dB (difference [1.00, 2.00])"
    )
    assert rest[4] == (
        "hip, 2 against 100 slices, PSNR: U-LDA is behind DnCn, the best other method, by 1.00 dB "
        "(difference [-1.50, -0.50])"
    )


def test_a_difference_of_no_clear_sign_is_said_to_be_one() -> None:
    _, _, _, equal, *_ = sentences(EXPERIMENT, RUNS, (2, 100))
    assert equal.endswith("(difference [-0.50, 0.50], no clear one)")


def test_a_method_without_training_is_among_the_others() -> None:
    scores = {"psnr": [40.0] * 4, "ssim": [0.5] * 4, "subjects": SUBJECTS}
    run = {"kind": "classical", "method": "zero-filling", "domain": "hip", "size": 0, "draw": 0}
    classical = {"classical-zero-filling-hip": {"run": run, "results": {"hip": scores}}}
    found = standings(EXPERIMENT, RUNS | classical, (2, 100))
    assert [s.best_other for s in found if s.score == "psnr"] == ["zero-filling"] * 3
    assert [s.best_other for s in found if s.score == "ssim"] == ["unet", "dncn", "dncn"]


def test_the_best_other_one_is_the_best_on_the_draws_in_common() -> None:
    """A lucky draw of another one, which the reference does not have, does not hide who is ahead of it."""
    ours, common = adapted("ulda", 2, [30.0] * 4, 0.9), adapted("dncn", 2, [30.5] * 4, 0.8)
    lucky = adapted("unet", 2, [29.0] * 4, 0.8), adapted("unet", 2, [39.0] * 4, 0.8, draw=1)
    (psnr, _) = standings(EXPERIMENT, dict([ours, common, *lucky]), (2,))
    assert (psnr.best_other, psnr.difference.mean) == ("dncn", -0.5)
    # one without a draw in common cannot be compared, and hides no other
    (psnr, _) = standings(EXPERIMENT, dict([ours, common, lucky[1]]), (2,))
    assert psnr.best_other == "dncn"


def test_only_what_was_tested_alike_is_compared() -> None:
    runs = copy.deepcopy(RUNS)
    for key, result in runs.items():
        result["results"]["hip"] |= {"data": "A", "mask": "other" if "dncn-hip-2" in key else "M"}
    assert [s.best_other for s in standings(EXPERIMENT, runs, (2,))] == ["unet", "unet"]
    rows = rows_of(EXPERIMENT, runs, (2,))
    assert [row[-2] for row in rows if row[0] == "DnCn"] == ["30.50 / 0.800"]
    again = dict([adapted("dncn", 2, [30.0] * 4, 0.8, draw=1)])
    with pytest.raises(UldaError, match="the draws of dncn on hip with 2 slices were tested on different slices"):
        standings(EXPERIMENT, runs | again, (2,))


def test_a_score_that_is_not_finite_is_shown_and_left_out() -> None:
    runs = RUNS | dict([adapted("dncn", 2, [math.nan, 30.0, 31.0, 31.0], 0.8)])
    (psnr, _) = standings(EXPERIMENT, runs, (2,))
    assert psnr.best_other == "unet"
    rows = rows_of(EXPERIMENT, runs, (2,))
    assert [row[-2] for row in rows if row[0] == "DnCn"] == ["not finite"]
    assert records_of(EXPERIMENT, runs)


def test_what_is_missing_is_not_compared() -> None:
    assert sentences(EXPERIMENT, {}, (2, 100)) == ["there is nothing to compare yet"]
    alone = dict([adapted("ulda", 2, [31.0] * 4, 0.9)])
    assert standings(EXPERIMENT, alone, (2, 100)) == []
