"""What the methods of an experiment cost, from the files of its runs alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ulda.experiments.definition import Experiment
from ulda.experiments.runs import cost_of


def rows_of_efficiency(
    experiment: Experiment, runs: dict[str, dict[str, Any]], sizes: tuple[int, ...]
) -> list[list[str]]:
    """Return the table: a row per method with its parameters, times and memory; what was not run is empty.

    Parameters
    ----------
    experiment
        What was run.
    runs
        The results by their keys.
    sizes
        The numbers of target slices; each has a column for the mean time of an adaptation.

    Returns
    -------
        The rows, with the header. Parameters are those that reconstruct a target, or a source where there was no
        adaptation: those that serve every domain, and its own. Training is the time of all its steps, those of
        networks that only help among them, on the processor where the run knows it; the time per slice is the mean
        over the tested domains and runs; memory is the largest of any process, with all that the process had loaded.
    """
    rows = [
        [
            "method",
            "parameters for a domain",
            "adapted parameters",
            "training (s)",
            *(f"adaptation, {size} slices (s)" for size in sizes),
            "per slice (s)",
            "peak memory (MB)",
        ]
    ]
    for variant in experiment.variants:
        own = [entry for entry in runs.values() if entry["run"]["method"] == variant.name]
        trained = [entry for entry in own if entry["run"]["kind"] == "train"]
        adapted = [[entry for entry in own if _is_adaptation(entry, size)] for size in sizes]
        counted = [entry for entries in adapted for entry in entries] or trained
        tests = [result["seconds_per_slice"] for entry in own for result in entry["results"].values()]
        memory = [entry["peak_memory_mb"] for entry in own if entry.get("peak_memory_mb") is not None]
        rows.append(
            [
                experiment.titles[variant.name],
                _listed(entry["n_domain"] for entry in counted),
                _listed(entry["n_adapted"] for entry in counted),
                _mean_seconds(trained),
                *(_mean_seconds(entries) for entries in adapted),
                f"{sum(tests) / len(tests):.4f}" if tests else "",
                str(max(memory)) if memory else "",
            ]
        )
    return rows


def _listed(numbers: Iterable[int]) -> str:
    return " or ".join(str(n) for n in sorted(set(numbers)))


def _is_adaptation(entry: dict[str, Any], size: int) -> bool:
    return bool(entry["run"]["kind"] == "adapt" and entry["run"]["size"] == size)


def _mean_seconds(entries: list[dict[str, Any]]) -> str:
    times = [cost_of(entry) for entry in entries]
    return f"{sum(times) / len(times):.1f}" if times else ""
