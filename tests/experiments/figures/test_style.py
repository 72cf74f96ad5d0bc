"""Methods are told apart, also in grey, and numbers can be read."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_hex

from ulda.experiments.figures.style import COLOURS, GREYS, lightness, log_axis, looks_of, new_figure, styled


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


def test_many_orders_of_parameters_have_ticks() -> None:
    with styled():
        ax = new_figure(3, 3, "").subplots()
        ax.plot([14262, 7756097], [1, 1])
        log_axis(ax, "x", [14262, 7756097])
        shown = [t.get_text() for t in ax.get_xticklabels() if 14262 <= t.get_position()[0] <= 7756097]
    assert shown == ["30 k", "100 k", "300 k", "1 M", "3 M"]
