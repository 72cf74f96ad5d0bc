"""The results of an experiment as a page, and in a line."""

from __future__ import annotations

from collections.abc import Iterator

from ulda.evaluation.paired import counted, counted_span
from ulda.experiments.efficiency import rows_of_efficiency
from ulda.experiments.measures import MEASURED_SLICES, rows_of_measures
from ulda.experiments.runs import UNADAPTED_SIZE, Packed, runs_of
from ulda.experiments.tables import collect, formatted, rows_of
from ulda.experiments.verdict import overview, sentences


def page_of(packed: Packed) -> str:
    """Return all that the packed runs of an experiment say, as a page in Markdown; nothing in it is typed by hand."""
    return "\n\n".join(_parts(packed)) + "\n"


def line_of(packed: Packed) -> str:
    """Return how the reference of an experiment stands, in a sentence."""
    return sentences(packed.experiment, packed.runs, packed.sizes)[0]


def _parts(packed: Packed) -> Iterator[str]:
    experiment, runs, sizes = packed.experiment, packed.runs, packed.sizes
    yield f"# {experiment.name}"
    yield _setting(packed)
    summary, *single = sentences(experiment, runs, sizes)
    yield f"**{summary}.**"
    if experiment.family:
        yield "\n".join(f"- {sentence}." for sentence in single)
    else:
        head = ["target", "slices", experiment.titles[experiment.reference], "best other in PSNR", "best other in SSIM"]
        yield formatted([head, *overview(experiment, runs, sizes)], "md")
    yield (
        "In the tables: mean PSNR in dB / mean SSIM over the test slices, ± the standard deviation over draws; in "
        f"brackets the difference in PSNR from {experiment.titles[experiment.reference]}, slice by slice, with a 95 % "
        "bootstrap interval by subject."
    )
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


def _setting(packed: Packed) -> str:
    """Return what was run, in a few sentences."""
    experiment, runs = packed.experiment, packed.runs
    scale = experiment.scale(packed.scale_name)
    steps = ", ".join(f"{n} with {size} slices" for size, n in scale.adapt_steps.items())
    tested = [
        f"{name} {len(result['subjects'])} of {len(set(result['subjects']))} {experiment.domain(name).subjects_are}"
        for name, result in {name: r for entry in runs.values() for name, r in entry["results"].items()}.items()
    ]
    hours = sum(float(entry["wall_clock"]) for entry in runs.values()) / 3600
    return (
        f"{experiment.title[:1].upper()}{experiment.title[1:]}; {scale.side} x {scale.side} pixels. Every learned "
        f"method: {scale.steps} gradient steps with {counted(scale.batch_size, 'slice')} each on the sources, then "
        f"{steps}; {_draws(packed)}. Up to {scale.validation_slices} more slices of a target, with references, "
        f"validate an adaptation. Test slices: {'; '.join(sorted(tested))}. "
        f"{_done(packed)}, {hours:.1f} h of one core, which other work shared at times."
    )


def _draws(packed: Packed) -> str:
    """Return how often the target slices were drawn, in words: the fewest and the most draws of a method."""
    found: dict[int, list[int]] = {}
    for (_, _, size), entry in collect(packed.runs).items():
        if size > UNADAPTED_SIZE:
            found.setdefault(size, []).append(entry.draws)
    spans = {size: counted_span(numbers, "draw") for size, numbers in sorted(found.items())}
    if len(set(spans.values())) <= 1:
        return f"{next(iter(spans.values()), 'no draw')} of the target slices"
    return ", ".join(f"{span} of {size} target slices" for size, span in spans.items())


def _done(packed: Packed) -> str:
    """Return how many runs are done, and which methods are missing."""
    experiment, runs = packed.experiment, packed.runs
    wanted = runs_of(experiment, experiment.scale(packed.scale_name))
    done = sum(run.key in runs for run in wanted)
    if done == len(wanted):
        return f"{done} runs"
    found = {entry["run"]["method"] for entry in runs.values()}
    missing = [experiment.titles[variant.name] for variant in experiment.variants if variant.name not in found]
    of_whom = f" (nothing of {', '.join(missing)} yet)" if missing else ""
    return f"{done} of {len(wanted)} runs are done{of_whom}"
