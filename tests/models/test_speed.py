from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.regularizer import BEGIN, END, Size, TrainingStep, assert_same, markdown, memory_of_both
from scripts.marked import between

ROOT = Path(__file__).parents[2]
SMALL = Size(side=64, phases=3)


@pytest.mark.serial
def test_training_takes_less_memory_than_a_double_backward() -> None:
    ours, peer = memory_of_both(SMALL, returning=True)
    assert ours / peer < 0.75


def test_both_ways_of_training_have_the_same_gradients() -> None:
    size = Size(side=16, phases=2, batch=1)
    expected = TrainingStep(size, double_backward=True)()
    assert_same(TrainingStep(size)(), expected)
    assert_same(TrainingStep(size, recompute=True)(), expected)


def test_the_page_shows_the_stored_results() -> None:
    results = json.loads((ROOT / "benchmarks/results/regularizer.json").read_text())
    page = (ROOT / "docs/speed.md").read_text()
    assert between(page, BEGIN, END) == markdown(results)
