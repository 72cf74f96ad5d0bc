from __future__ import annotations

import math
import re
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ulda.errors import UldaError
from ulda.solvers import Options
from ulda.solvers.options import GAINS


@pytest.mark.parametrize("name", ["alpha", "beta", "alpha_bar", "eta1", "eta2", "eta3", "eps_0", "eps_tol"])
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
        ({"steps_per_phase": 0}, "steps_per_phase must be at least 1"),
        ({"steps_per_phase": 10**9}, "steps_per_phase must be at most 100"),
        ({"iterations": 2.0}, "whole number, but it is 2.0"),
        ({"iterations": True}, "whole number, but it is True"),
        ({"eta1": "0.1"}, "eta1 must be positive and finite, but it is '0.1'"),
        ({"eta1": True}, "eta1 must be positive and finite, but it is True"),
        ({"alpha_bar": 10**400}, "alpha_bar must be positive and finite"),
        ({"rho": None}, "rho must lie strictly between 0 and 1, but it is None"),
        ({"safeguard": "no"}, "safeguard must be true or false"),
        ({"alpha": "fast"}, "alpha must hold numbers only"),
        ({"alpha": [[0.1, 0.2], [0.3]]}, "alpha must hold numbers only, in rows of equal length"),
        ({"alpha": 10**400}, "alpha must hold numbers only"),
        ({"momentum": 1.0}, "momentum must lie in"),
        ({"alpha": [0.1, -0.1]}, "alpha must be positive"),
        ({"beta": torch.ones(2, 2, 2)}, "beta must be a number, one per learned step"),
        ({"beta": []}, "beta must be a number"),
        ({"spectrum": [1.0, 2.0]}, r"spectrum must hold 6 gains, or as many per learned step; its shape is \(2,\)"),
        ({"spectrum": []}, "spectrum must hold 6 gains"),
        ({"spectrum": 1.0}, "spectrum must hold 6 gains"),
        ({"spectrum": [[1.0] * 6, [1.0]]}, "spectrum must hold numbers only, in rows of equal length"),
        ({"spectrum": [1.0] * 5 + [-1.0]}, "spectrum must be finite and at least 0"),
        ({"spectrum": [[math.nan] * 6]}, "spectrum must be finite and at least 0"),
        ({"lines": [1.0] * 6}, r"lines must hold 15 gains, or as many per learned step; its shape is \(6,\)"),
        ({"lines": [-1.0] * 15}, "lines must be finite and at least 0"),
        ({"channels": [1.0, 2.0]}, r"channels must hold gains for each layer and channel, .* its shape is \(2,\)"),
        ({"channels": [[]]}, "channels must hold gains for each layer and channel"),
        ({"channels": [[1.0, 2.0], [1.0]]}, "channels must hold numbers only, in rows of equal length"),
        ({"channels": [[1.0, math.inf]]}, "channels must be finite and at least 0"),
    ],
)
def test_other_wrong_values(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UldaError, match=message):
        Options(**wrong)


def test_options_are_frozen_and_survive_json() -> None:
    gains = torch.tensor([[4.0, 3.0, 2.0, 1.0, 1.0, 0.5], [1.0] * 6])
    channels = torch.arange(12.0).reshape(2, 3, 2)
    options = Options(alpha=0.1, beta=torch.tensor([[0.2, 0.3]]), spectrum=gains, lines=[2.0] * 15, channels=channels)
    with pytest.raises(FrozenInstanceError):
        options.rho = 0.9  # type: ignore[misc]
    again = Options(**options.as_dict())
    assert again.as_dict() == options.as_dict()
    like, samples = torch.zeros(2, 3, 3, dtype=torch.complex128), torch.arange(2)
    assert torch.equal(again.step("beta", 5, samples, like), options.step("beta", 5, samples, like))
    assert float(options.step("alpha", 0, samples, like)) == 0.1
    for iteration, row in ((0, 0), (1, 1), (9, 1)):
        for name, expected in (
            ("spectrum", gains[row]),
            ("lines", torch.full((15,), 2.0)),
            ("channels", channels[row]),
        ):
            found = again.gains(name, iteration, like)
            assert found is not None
            assert found.tolist() == expected.tolist()
    assert [Options().gains(name, 0, like) for name in GAINS] == [None] * 3


def test_beyond_the_last_phase_its_steps_are_used_again() -> None:
    options = Options(beta=[0.1, 0.2, 0.3, 0.4, 0.5], steps_per_phase=2)
    like, samples = torch.zeros(1, 3, 3, dtype=torch.complex128), torch.arange(1)
    found = [round(float(options.step("beta", number, samples, like)), 6) for number in range(9)]
    assert found == [0.1, 0.2, 0.3, 0.4, 0.5, 0.4, 0.5, 0.4, 0.5]
    few = Options(beta=[0.1, 0.2], steps_per_phase=3)
    assert [round(float(few.step("beta", n, samples, like)), 6) for n in range(5)] == [0.1, 0.2, 0.1, 0.2, 0.1]


def test_the_documented_defaults_are_the_defaults() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "theory.md").read_text()
    documented: dict[str, float] = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = re.findall(r"`(\w+)`", cells[0])
        if line.startswith("| `") and len(cells) >= 3:
            documented |= zip(names, map(float, cells[1].split(",")), strict=True)
    without_number = ("safeguard", *GAINS)
    assert documented == {name: value for name, value in vars(Options()).items() if name not in without_number}
