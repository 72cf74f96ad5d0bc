from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.small_models import small_model
from ulda.errors import UldaError
from ulda.evaluation import save_curves
from ulda.evaluation.curves import BOTTOM, LEFT, RIGHT, TOP, Curves
from ulda.evaluation.histories import gradient_curves, objective_curves, validation_curves
from ulda.physics import CartesianMRI, cartesian_mask

SVG = "{http://www.w3.org/2000/svg}"


class Chart:
    """A chart read back from its file."""

    def __init__(self, path: Path) -> None:
        self.root = ET.parse(path).getroot()

    def runs(self, name: str) -> list[list[tuple[float, float]]]:
        (group,) = [g for g in self.root.iter(f"{SVG}g") if g.get("data-name") == name]
        points = [line.get("points", "").split() for line in group.iter(f"{SVG}polyline")]
        return [[(float(x), float(y)) for x, y in (point.split(",") for point in run)] for run in points]

    def ticks(self, axis: str) -> dict[float, float]:
        """Return the pixel of each labelled value; the label of a y-tick stands four pixels below its line."""
        ticks = [t for t in self.root.iter(f"{SVG}text") if t.get("class") == f"{axis}-tick"]
        return {float(t.text or "nan"): float(t.get(axis, "nan")) - (4 if axis == "y" else 0) for t in ticks}

    def texts(self) -> list[str]:
        return [text.text or "" for text in self.root.iter(f"{SVG}text")]


def draw(folder: Path, curves: Curves, *, log_y: bool = False) -> Chart:
    save_curves(folder / "chart.svg", curves, "title", "x", "y", log_y=log_y, overwrite=True)
    return Chart(folder / "chart.svg")


def test_points_lie_between_the_corners(tmp_path: Path) -> None:
    chart = draw(tmp_path, {"a": ([0, 5, 10], [-1.0, 0.0, 3.0]), "b": ([10, 0], [1.0, 1.0])})
    a, b = chart.runs("a"), chart.runs("b")
    assert a == [[(LEFT, BOTTOM), ((LEFT + RIGHT) / 2, BOTTOM - (BOTTOM - TOP) / 4), (RIGHT, TOP)]]
    assert b == [[(RIGHT, (TOP + BOTTOM) / 2), (LEFT, (TOP + BOTTOM) / 2)]]
    assert chart.ticks("x") == pytest.approx({v: LEFT + (RIGHT - LEFT) * v / 10 for v in (0, 2, 4, 6, 8, 10)}, abs=0.01)
    assert chart.ticks("y") == pytest.approx(
        {v: BOTTOM - (BOTTOM - TOP) * (v + 1) / 4 for v in (-1, 0, 1, 2, 3)}, abs=0.01
    )
    assert {"title", "x", "y", "a", "b"} <= set(chart.texts())


def test_a_logarithmic_axis_has_its_decades_evenly(tmp_path: Path) -> None:
    chart = draw(tmp_path, {"a": ([1, 2, 3], [1e-4, 1e-2, 1.0])}, log_y=True)
    heights = [y for _, y in chart.runs("a")[0]]
    assert heights == [BOTTOM, (TOP + BOTTOM) / 2, TOP]
    assert sorted(chart.ticks("y")) == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1, 1.0])
    narrow = draw(tmp_path, {"a": ([1, 2], [3.1, 3.9])}, log_y=True)
    assert len(narrow.ticks("y")) >= 3


def test_what_cannot_be_drawn_leaves_a_gap(tmp_path: Path) -> None:
    ys = [1.0, 2.0, math.nan, math.inf, 3.0, 0.0, 4.0, 5.0]
    assert [len(run) for run in draw(tmp_path, {"a": (range(8), ys)}).runs("a")] == [2, 4]
    # the 3 stands alone: a line from it to itself, drawn as a dot
    logarithmic = draw(tmp_path, {"a": (range(8), ys)}, log_y=True).runs("a")
    assert [len(set(run)) for run in logarithmic] == [2, 1, 2]


@pytest.mark.parametrize("log_y", [False, True])
@pytest.mark.parametrize("curves", [{}, {"a": ([], [])}, {"a": ([3], [0.0])}, {"a": ([1, 2], [7.0, 7.0])}])
def test_nothing_to_spread_is_still_a_chart(curves: Curves, log_y: bool, tmp_path: Path) -> None:
    chart = draw(tmp_path, curves, log_y=log_y)
    for run in chart.runs("a") if curves else []:
        assert all(LEFT <= x <= RIGHT and TOP <= y <= BOTTOM for x, y in run)
    assert chart.ticks("x")


@given(
    ys=st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=6),
    name=st.text(),
    log_y=st.booleans(),
)
def test_any_numbers_and_names(
    ys: list[float], name: str, log_y: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chart = draw(tmp_path_factory.getbasetemp(), {name: (range(len(ys)), ys)}, log_y=log_y)
    points = [p for line in chart.root.iter(f"{SVG}polyline") for p in line.get("points", "").split()]
    for point in points:
        x, y = map(float, point.split(","))
        assert LEFT - 0.01 <= x <= RIGHT + 0.01
        assert TOP - 0.01 <= y <= BOTTOM + 0.01
    assert len(chart.ticks("y")) <= 30


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    name = '</text><script>alert("1")</script>&\'\x00'
    save_curves(tmp_path / "c.svg", {name: ([1], [1.0])}, name, name, name)
    chart = Chart(tmp_path / "c.svg")
    assert not list(chart.root.iter(f"{SVG}script"))
    assert chart.texts().count(name.replace("\x00", "\ufffd")) == 4
    with pytest.raises(UldaError, match="exists already"):
        save_curves(tmp_path / "c.svg", {}, "", "", "")
    with pytest.raises(UldaError, match="2 positions and 1 values"):
        save_curves(tmp_path / "d.svg", {"a": ([1, 2], [1.0])}, "", "", "")


def test_many_curves_are_told_apart(tmp_path: Path) -> None:
    chart = draw(tmp_path, {str(i): ([0, 1], [i, i]) for i in range(30)})
    groups = list(chart.root.iter(f"{SVG}g"))
    assert len({(g.get("stroke"), g.get("stroke-dasharray")) for g in groups[:28]}) == 28
    lowest = max(float(line.get("y1", 0)) for g in groups for line in g.iter(f"{SVG}line"))
    assert lowest < float(chart.root.get("height", 0))


def test_validations_from_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("step,loss,brain_psnr,brain_ssim,low_field_psnr\n10,0.1,30.5,0.9,\n20,,31.5,0.91,22\n25,0.2,,,\n")
    assert validation_curves(log) == {"brain": ([10.0, 20.0], [30.5, 31.5]), "low_field": ([20.0], [22.0])}
    assert validation_curves(log, "ssim") == {"brain": ([10.0, 20.0], [0.9, 0.91])}
    with pytest.raises(UldaError, match="no validations with the metric nmse"):
        validation_curves(log, "nmse")
    with pytest.raises(UldaError, match="there is no file"):
        validation_curves(tmp_path / "other.csv")
    log.write_text("step,a_psnr\nten,3\n")
    with pytest.raises(UldaError, match=r"log\.csv cannot be read as the log of a training"):
        validation_curves(log)


def test_curves_of_a_reconstruction() -> None:
    model, physics = small_model("a", phases=4), CartesianMRI(cartesian_mask(24, 0.4))
    x = torch.ones(2, 24, 24, dtype=torch.complex64)
    x[1, 8:16] *= 3j
    _, trace = model(physics.A(x), physics, "a", return_trace=True)
    objective, gradient = objective_curves(trace, 24 * 24), gradient_curves(trace)
    assert list(objective) == list(gradient) == ["slice 0", "slice 1"]
    for i, (phases, values) in enumerate(objective.values()):
        steps = trace.as_dict()["samples"][i]
        assert phases == [1.0, 2.0, 3.0, 4.0]
        assert values == pytest.approx([s["phi"] + 288 * s["eps"] for s in steps])
        assert values == sorted(values, reverse=True)
        assert gradient[f"slice {i}"][1] == [s["grad_norm"] for s in steps]
