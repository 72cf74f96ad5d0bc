"""What the methods of an experiment cost, from the files of its cells alone."""

from __future__ import annotations

from typing import Any

from ulda.experiments.cells import cost_of
from ulda.experiments.definition import Experiment
from ulda.experiments.running import variant_titles


def rows_of_efficiency(
    experiment: Experiment, cells: dict[str, dict[str, Any]], sizes: tuple[int, ...]
) -> list[list[str]]:
    """Return the table: a row per method with its parameters, times and memory; what was not run is empty.

    Parameters
    ----------
    experiment
        What was run.
    cells
        The results by their keys.
    sizes
        The numbers of target slices; each has a column for the mean time of an adaptation.

    Returns
    -------
        The rows, with the header. Training is the time of all its steps, those of networks that only help among them,
        on the processor where the cell knows it; the time per slice is the mean over the tested domains and cells;
        memory is the largest of any process, with all that the process had loaded.
    """
    titles = variant_titles(experiment)
    rows = [
        [
            "method",
            "parameters",
            "adapted parameters",
            "training (s)",
            *(f"adaptation, {size} slices (s)" for size in sizes),
            "per slice (s)",
            "peak memory (MB)",
        ]
    ]
    for variant in experiment.variants:
        own = [entry for entry in cells.values() if entry["cell"]["method"] == variant.name]
        trained = [entry for entry in own if entry["cell"]["kind"] == "train"]
        adapted = [[entry for entry in own if _is_adaptation(entry, size)] for size in sizes]
        # an adaptation knows what it adapted; a training knows it only of its day
        counted = [entry for entries in adapted for entry in entries if "n_adapted" in entry] or trained
        tests = [result["seconds_per_slice"] for entry in own for result in entry["results"].values()]
        memory = [entry["peak_memory_mb"] for entry in own if entry.get("peak_memory_mb") is not None]
        rows.append(
            [
                titles[variant.name],
                str(trained[0]["n_parameters"]) if trained else "",
                " or ".join(str(n) for n in sorted({entry["n_adapted"] for entry in counted})),
                _mean_seconds(trained, 1),
                *(_mean_seconds(entries, 1) for entries in adapted),
                f"{sum(tests) / len(tests):.4f}" if tests else "",
                str(max(memory)) if memory else "",
            ]
        )
    return rows


def _is_adaptation(entry: dict[str, Any], size: int) -> bool:
    return bool(entry["cell"]["kind"] == "adapt" and entry["cell"]["size"] == size)


def _mean_seconds(entries: list[dict[str, Any]], digits: int) -> str:
    times = [cost_of(entry) for entry in entries]
    return f"{sum(times) / len(times):.{digits}f}" if times else ""
