from __future__ import annotations

import math
import re
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest

from ulda.errors import UldaError
from ulda.solvers import Options, beta_from_gamma


@pytest.mark.parametrize("name", ["alpha_bar", "eta1", "eta2", "eta3", "eps_0", "eps_tol"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_what_must_be_positive(name: str, value: float) -> None:
    with pytest.raises(UldaError, match=f"{name} must be positive"):
        replace(Options(), **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["rho", "sigma", "gamma"])
@pytest.mark.parametrize("value", [0.0, 1.0, -0.5, 1.5, math.nan])
def test_what_must_lie_between_zero_and_one(name: str, value: float) -> None:
    with pytest.raises(UldaError, match=f"{name} must lie strictly between"):
        replace(Options(), **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"iterations": 0}, "iterations must be at least 1"),
        ({"max_line_search": 0}, "max_line_search must be at least 1"),
        ({"max_line_search": 10**9}, "max_line_search must be at most 1000"),
        ({"iterations": 2.0}, "whole number, but it is 2.0"),
        ({"iterations": True}, "whole number, but it is True"),
        ({"eta1": "0.1"}, "eta1 must be positive and finite, but it is '0.1'"),
        ({"eta1": True}, "eta1 must be positive and finite, but it is True"),
        ({"alpha_bar": 10**400}, "alpha_bar must be positive and finite"),
        ({"rho": None}, "rho must lie strictly between 0 and 1, but it is None"),
        ({"safeguard": "no"}, "safeguard must be true or false"),
    ],
)
def test_other_wrong_values(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UldaError, match=message):
        Options(**wrong)


def test_options_are_frozen_and_survive_json() -> None:
    options = Options(rho=0.25, iterations=7, safeguard=False)
    with pytest.raises(FrozenInstanceError):
        options.rho = 0.9  # type: ignore[misc]
    assert Options(**options.as_dict()) == options


def test_the_proximal_form() -> None:
    assert beta_from_gamma(0.5, 1.5) == pytest.approx(0.375)


def test_the_documented_defaults_are_the_defaults() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "theory.md").read_text()
    documented: dict[str, float] = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = re.findall(r"`(\w+)`", cells[0])
        if line.startswith("| `") and len(cells) >= 3:
            documented |= zip(names, map(float, cells[1].split(",")), strict=True)
    assert documented == {name: value for name, value in vars(Options()).items() if name != "safeguard"}
