from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from ulda.cli import app
from ulda.experiments import Experiment
from ulda.experiments.efficiency import parameters_of_domain, rows_of_efficiency
from ulda.experiments.runs import Run, write_run

VALUES: dict[str, Any] = {
    "name": "costs",
    "title": "what it costs",
    "sources": [{"name": "knee"}],
    "targets": [{"name": "hip"}, {"name": "elbow"}],
    "variants": [{"method": "zero-filling"}, {"method": "ulda"}, {"method": "dncn"}],
    "scales": {"bench": {"side": 32, "steps": 4, "batch_size": 2, "adapt_steps": {2: 3, 9: 3}}},
}


def run(seconds: float, memory: int | None, *per_slice: float, **facts: Any) -> dict[str, Any]:
    results = {f"d{i}": {"seconds_per_slice": value} for i, value in enumerate(per_slice)}
    return {"spent": {"seconds": seconds}, "peak_memory_mb": memory, "results": results} | facts


FOUND: dict[Run, dict[str, Any]] = {
    Run("classical", "zero-filling", "hip"): {"peak_memory_mb": 90, "results": {"hip": {"seconds_per_slice": 0.5}}},
    Run("train", "ulda"): run(100.04, 500, 0.1, 0.3, n_parameters=18870, n_adapted=4668),
    Run("adapt", "ulda", "hip"): {
        "peak_memory_mb": None,
        "n_adapted": 4668,
        "results": {"hip": {"seconds_per_slice": 0.2}},
    },
    Run("adapt", "ulda", "hip", 2): run(10.0, 300, 0.2, n_parameters=28236, n_adapted=9366),
    Run("adapt", "ulda", "elbow", 2, 1): run(13.0, 700, 0.2, n_parameters=28236),
}


def runs() -> dict[str, dict[str, Any]]:
    return {one.key: found | {"run": vars(one)} for one, found in FOUND.items()}


def test_the_costs_are_read_from_the_runs() -> None:
    rows = rows_of_efficiency(Experiment.model_validate(VALUES), runs(), (2, 9))
    assert rows == [
        [
            "method",
            "parameters for a domain",
            "adapted parameters",
            "training (s)",
            "adaptation, 2 slices (s)",
            "adaptation, 9 slices (s)",
            "per slice (s)",
            "peak memory (MB)",
        ],
        ["zero-filling", "", "", "", "", "", "0.5000", "90"],
        ["U-LDA", "23478", "9366", "100.0", "11.5", "", "0.2000", "700"],
        ["DnCn", "", "", "", "", "", "", ""],
    ]


@pytest.mark.parametrize(
    ("method", "trained", "adapted", "one"),
    [
        # the extractor has 14112, an adapter 6183, one with kernels of its own 20351
        ("ulda", 26478, 46829, 14112 + 20351),
        ("lda", 28524, 42786, 14262),
        ("meta", 14264, 14265, 14263),
        ("umri", 146570, 147850, 145290),
        ("dncn", 144650, 144650, 144650),
    ],
)
def test_parameters_of_other_domains_do_not_count(method: str, trained: int, adapted: int, one: int) -> None:
    """The counts are those of cross-anatomy: two sources, and the target."""
    values = VALUES | {"sources": [{"name": "knee"}, {"name": "brain"}], "variants": [{"method": method}]}
    experiment = Experiment.model_validate(values | {"reference": method})
    before, after = Run("train", method), Run("adapt", method, "hip", 2)
    found = {run.key: {"run": vars(run), "n_parameters": n} for run, n in ((before, trained), (after, adapted))}
    assert parameters_of_domain(experiment, found, found[after.key]) == one
    of_a_source = {"ulda": 14112 + 6183}.get(method, one)
    assert parameters_of_domain(experiment, found, found[before.key]) == of_a_source
    del found[before.key]
    assert parameters_of_domain(experiment, found, found[after.key]) is None


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "costs.yaml"
    file.write_text(yaml.safe_dump(VALUES))
    for one, found in FOUND.items():
        write_run(tmp_path / "run" / "runs", one, found)
    arguments = ["experiment", "efficiency", str(file), "--folder", str(tmp_path / "run")]
    assert CliRunner().invoke(app, arguments).output.splitlines()[3].startswith("| U-LDA | 23478 | 9366 | 100.0 |")
    assert "U-LDA,23478,9366" in CliRunner().invoke(app, [*arguments, "--format", "csv"]).output
    missing = CliRunner().invoke(app, [*arguments[:-1], str(tmp_path / "nowhere")])
    assert "there are no results of costs" in str(missing.exception)
