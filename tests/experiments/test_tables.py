"""The tables of an experiment have the numbers of its runs."""

from __future__ import annotations

import numpy as np
import pytest

from ulda.experiments.running import Runner
from ulda.experiments.runs import read_runs
from ulda.experiments.tables import collect, difference, formatted, records_of, rows_of


def test_the_table_has_every_number(done: Runner) -> None:
    runs = read_runs(done.runs_folder)
    rows = rows_of(done.experiment, runs, done.data.scale.sizes)
    assert rows[0] == [
        "method",
        "knee (source)",
        "hip, as trained",
        "hip, 2 slices",
        "hip, all 4 slices",
        "hip, the paper",
    ]
    assert [row[0] for row in rows[1:]] == ["zero-filling", "U-LDA", "DnCn"]
    draws = [np.mean(runs[f"adapt-dncn-hip-2-{d}"]["results"]["hip"]["psnr"]) for d in (0, 1)]
    assert rows[3][3].startswith(f"{np.mean(draws):.2f} ± {np.std(draws, ddof=1):.2f} / ")
    entries = collect(runs)
    against = difference(entries, ("dncn", "hip", 2), ("ulda", "hip", 2))
    assert against is not None
    assert rows[3][3].endswith(f"({against.mean:+.2f} [{against.low:.2f}, {against.high:.2f}])")
    assert [row[5] for row in rows[1:]] == ["", "37.26 / 0.956", ""]
    narrow = rows_of(done.experiment, runs, done.data.scale.sizes, ["knee"])
    assert narrow == [row[:2] for row in rows]
    assert difference(entries, ("dncn", "hip", 7), ("ulda", "hip", 7)) is None


def test_formats() -> None:
    rows = [["method", "a_b"], ["U-LDA", "1 ± 2"]]
    assert formatted(rows, "csv") == "method,a_b\nU-LDA,1 ± 2"
    assert r"a\_b" in formatted(rows, "tex")
    assert r"1 $\pm$ 2" in formatted(rows, "tex")


def test_draws_are_compared_with_the_same_draws(done: Runner) -> None:
    runs = read_runs(done.runs_folder)
    both = collect(runs)
    fewer = collect({key: run for key, run in runs.items() if key != "adapt-ulda-hip-2-1"})
    ours, other = ("ulda", "hip", 2), ("dncn", "hip", 2)
    assert (both[ours].drawn, fewer[ours].drawn) == ((0, 1), (0,))
    found = difference(fewer, ours, other)
    assert found is not None
    assert found.mean == pytest.approx((both[ours].psnr[0] - both[other].psnr[0]).mean())
    # with other numbers of slices there are no draws in common
    found = difference(fewer, ours, ("dncn", "hip", 100))
    assert found is not None
    assert found.mean == pytest.approx((both[ours].psnr[0] - both["dncn", "hip", 100].psnr.mean(0)).mean())


def test_the_table_as_data(done: Runner) -> None:
    head, *rows = records_of(done.experiment, read_runs(done.runs_folder))
    records = [dict(zip(head, row, strict=True)) for row in rows]
    one = next(row for row in records if (row["method"], row["domain"], row["slices"]) == ("DnCn", "hip", "100"))
    entry = collect(read_runs(done.runs_folder))["dncn", "hip", 100]
    assert float(one["psnr"]) == pytest.approx(entry.psnr.mean(), abs=1e-4)
    assert float(one["ssim_std"]) == pytest.approx(entry.ssim.mean(1).std(ddof=1), abs=1e-4)
    assert (one["role"], one["draws"], int(one["learned_from"])) == ("target", "2", entry.n)
    for score in ("psnr", "ssim"):
        assert float(one[f"{score}_low"]) <= float(one[f"{score}_difference"]) <= float(one[f"{score}_high"])
    # a method without training has the same scores for every number of slices, each time beside those of ours
    floor = [row for row in records if (row["method"], row["domain"]) == ("zero-filling", "hip")]
    ours = [row for row in records if (row["method"], row["domain"]) == ("U-LDA", "hip")]
    assert [row["slices"] for row in floor] == [row["slices"] for row in ours] == ["0", "2", "100"]
    assert len({row["psnr"] for row in floor}) == 1
    for row, other in zip(floor, ours, strict=True):
        assert float(row["psnr_difference"]) == pytest.approx(float(row["psnr"]) - float(other["psnr"]), abs=2e-4)
        assert float(row["ssim_difference"]) == pytest.approx(float(row["ssim"]) - float(other["ssim"]), abs=2e-4)
    assert len(records) == (1 + 3) + 2 * (1 + 3)
    assert {row["domain"] for row in records} == {"knee", "hip"}
    # fewer slices than asked for are called all
    assert f"hip, all {entry.n} slices" in rows_of(done.experiment, read_runs(done.runs_folder), (2, 100))[0]
