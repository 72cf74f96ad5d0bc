"""The results of an experiment as a section of a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ulda.evaluation.paired import counted, counted_span
from ulda.experiments.definition import Experiment, Scale, ScaleName, load_experiment
from ulda.experiments.efficiency import rows_of_efficiency
from ulda.experiments.measures import MEASURED_SLICES, rows_of_measures
from ulda.experiments.recipes import outdated
from ulda.experiments.runs import UNADAPTED_SIZE, runs_of, seconds_of
from ulda.experiments.tables import SOURCE, collect, formatted, rows_of
from ulda.experiments.verdict import overview, sentences


def overview_of(results: Mapping[str, dict[str, dict[str, Any]]], scale_name: ScaleName) -> str:
    """Return a table of how the references of several experiments stand, from their runs, as Markdown."""
    rows = [["experiment", "target", "slices", "U-LDA", "best other in PSNR", "best other in SSIM"]]
    for name, runs in results.items():
        experiment = load_experiment(name)
        sizes = _sizes_in(experiment.scale(scale_name), runs)
        rows += [[name, *row] for row in overview(experiment.at(scale_name), runs, sizes)]
    return formatted(rows, "md")


def scores_on_targets(experiment: Experiment, scale_name: ScaleName, runs: dict[str, dict[str, Any]]) -> str:
    """Return the scores of all methods on the targets, and nothing else, as a table in Markdown."""
    at, titles, entries = experiment.at(scale_name), experiment.titles, collect(runs)
    sizes = _sizes_in(experiment.scale(scale_name), runs)
    columns = [(target.name, size) for target in at.targets for size in sizes if size > UNADAPTED_SIZE]
    rows = [["method", *(f"{target}, {size} slices" for target, size in columns)]]
    for variant in at.variants:
        keys = [(variant.name, target, size if variant.is_learned else SOURCE) for target, size in columns]
        rows.append([titles[variant.name], *(entries[key].text() if key in entries else "" for key in keys)])
    return formatted(rows, "md")


def summaries_of(results: Mapping[str, dict[str, dict[str, Any]]], scale_name: ScaleName) -> str:
    """Return how the references of several experiments stand, a sentence each, as a list in Markdown."""
    lines = []
    for name, runs in results.items():
        experiment = load_experiment(name)
        counted, *_ = sentences(experiment.at(scale_name), runs, _sizes_in(experiment.scale(scale_name), runs))
        lines.append(f"- {_title(experiment)}: {counted}.")
    return "\n".join(lines)


def _sizes_in(scale: Scale, runs: dict[str, dict[str, Any]]) -> tuple[int, ...]:
    """Return the numbers of target slices that there are results for."""
    return tuple(size for size in scale.sizes if any(entry["run"]["size"] == size for entry in runs.values()))


def section(experiment: Experiment, scale_name: ScaleName, runs: dict[str, dict[str, Any]]) -> str:
    """Return all that the runs of an experiment say, as Markdown; nothing in it is typed by hand."""
    return "\n\n".join(_parts(experiment.at(scale_name), experiment.scale(scale_name), runs))


def _parts(experiment: Experiment, scale: Scale, runs: dict[str, dict[str, Any]]) -> Iterator[str]:
    sizes = _sizes_in(scale, runs)
    yield _setting(experiment, scale, runs)
    summary, *single = sentences(experiment, runs, sizes)
    yield f"**{summary}.**"
    if experiment.family:  # each single comparison of the others is in the overview
        yield "\n".join(f"- {sentence}." for sentence in single)
    yield "On the sources, as trained:"
    yield formatted(rows_of(experiment, runs, sizes, [entry.name for entry in experiment.sources]), "md")
    for target in experiment.targets:
        yield f"On {target.name}:"
        yield formatted(rows_of(experiment, runs, sizes, [target.name]), "md")
    if any("extra" in entry for entry in runs.values()):
        yield f"Beside the scores, on up to {MEASURED_SLICES} of the test slices:"
        yield formatted(rows_of_measures(experiment, runs), "md")
    yield "What it costs:"
    yield formatted(rows_of_efficiency(experiment, runs, sizes), "md")


def _setting(experiment: Experiment, scale: Scale, runs: dict[str, dict[str, Any]]) -> str:
    """Return what was run, in a few sentences."""
    steps = ", ".join(f"{n} with {size} slices" for size, n in scale.adapt_steps.items())
    tested = [
        f"{name} {len(result['subjects'])} of {len(set(result['subjects']))} {experiment.domain(name).subjects_are}"
        for name, result in {name: r for entry in runs.values() for name, r in entry["results"].items()}.items()
    ]
    hours = sum(seconds_of(entry) for entry in runs.values()) / 3600
    return (
        f"{_title(experiment)}; {scale.side} x {scale.side} "
        f"pixels. Every learned method: "
        f"{scale.steps} gradient steps with {counted(scale.batch_size, 'slice')} each on the sources, then {steps}; "
        f"{_draws(runs)}. For all of them, up to {scale.validation_slices} more slices of a target, with references, "
        "decide how much of what an adaptation has changed is kept: nothing, a quarter, a half, three quarters or all. "
        f"Test slices: {'; '.join(sorted(tested))}. "
        f"{_done(experiment, scale, runs)}, {hours:.1f} h of one core, which other work shared at times."
        f"{_outdated(experiment, scale, runs)}"
    )


def _title(experiment: Experiment) -> str:
    """Return the title as the beginning of a sentence."""
    return f"{experiment.title[:1].upper()}{experiment.title[1:]}"


def _outdated(experiment: Experiment, scale: Scale, runs: dict[str, dict[str, Any]]) -> str:
    """Return which results were made by other settings than today's, in a sentence; nothing where there are none."""
    old = outdated(experiment, scale, runs)
    if not old:
        return ""
    titles = experiment.titles
    counts = Counter(titles[run.method] for run in old)
    whose = ", ".join(f"{n} of {name}" for name, n in counts.items())
    return f" {len(old)} of these runs were run with other settings than today's: {whose}."


def _draws(runs: dict[str, dict[str, Any]]) -> str:
    """Return how often the target slices were drawn, in words: the fewest and the most draws of a method."""
    found: dict[int, list[int]] = {}
    for (_, _, size), entry in collect(runs).items():
        if size > UNADAPTED_SIZE:
            found.setdefault(size, []).append(entry.draws)
    spans = {size: counted_span(numbers, "draw") for size, numbers in sorted(found.items())}
    if len(set(spans.values())) <= 1:
        return f"{next(iter(spans.values()), 'no draw')} of the target slices"
    return ", ".join(f"{span} of {size} target slices" for size, span in spans.items())


def _done(experiment: Experiment, scale: Scale, runs: dict[str, dict[str, Any]]) -> str:
    """Return how many runs were run, and which methods are missing."""
    wanted = runs_of(experiment, scale)
    done = sum(run.key in runs for run in wanted)
    if done == len(wanted):
        return f"{done} runs"
    titles, found = experiment.titles, {entry["run"]["method"] for entry in runs.values()}
    missing = [titles[variant.name] for variant in experiment.variants if variant.name not in found]
    of_whom = f" (nothing of {', '.join(missing)} yet)" if missing else ""
    return f"{done} of {len(wanted)} runs were run{of_whom}"
