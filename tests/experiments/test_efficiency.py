"""What the methods cost, read from their runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from ulda.cli import app
from ulda.experiments import Experiment
from ulda.experiments.efficiency import rows_of_efficiency
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
    Run("train", "ulda"): run(100.04, 500, 0.1, 0.3, n_domain=18870, n_adapted=4668),
    Run("adapt", "ulda", "hip"): {
        "peak_memory_mb": None,
        "n_domain": 18870,
        "n_adapted": 4668,
        "results": {"hip": {"seconds_per_slice": 0.2}},
    },
    Run("adapt", "ulda", "hip", 2): run(10.0, 300, 0.2, n_domain=23478, n_adapted=9366),
    Run("adapt", "ulda", "elbow", 2, 1): run(13.0, 700, 0.2, n_domain=23478, n_adapted=9366),
    # trained and not yet adapted; the processor time counts, not that of the clock
    Run("train", "dncn"): run(80.0, 400, 0.1, n_domain=144650, n_adapted=144650)
    | {"spent": {"seconds": 80.0, "processor_seconds": 60.0}},
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
        ["DnCn", "144650", "144650", "60.0", "", "", "0.1000", "400"],
    ]


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "costs.yaml"
    file.write_text(yaml.safe_dump(VALUES))
    for one, found in FOUND.items():
        write_run(tmp_path / "run" / "runs", one, found | {"recipe": {}})
    arguments = ["experiment", "efficiency", str(file), "--folder", str(tmp_path / "run")]
    assert CliRunner().invoke(app, arguments).stdout.splitlines()[3].startswith("| U-LDA | 23478 | 9366 | 100.0 |")
    assert "U-LDA,23478,9366" in CliRunner().invoke(app, [*arguments, "--format", "csv"]).output
    missing = CliRunner().invoke(app, [*arguments[:-1], str(tmp_path / "nowhere")])
    assert "there are no results of costs" in str(missing.exception)
