"""How alike the features of two trainings are, by the number of phases."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from ulda.experiments.definition import Variant
from ulda.experiments.figures.results import NothingToDrawError, Results, measured_words
from ulda.experiments.figures.style import add_legend, literal, looks_of, new_figure, panels
from ulda.experiments.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES = {"ncc": "normalised cross-correlation (NCC)", "cka": "centred kernel alignment (CKA)"}

Family = dict[int, dict[str, dict[str, float]]]
"""The similarities by T and domain, of variants that are alike in all else."""


def draw(results: Results) -> dict[str, Figure]:
    """Draw a panel per measure, with a curve over T per source, for variants that differ in their phases alone."""
    families = [family for family in _families(results).values() if len(family) > 1]
    if not families:
        raise NothingToDrawError("no two methods with a measured similarity differ in their phases alone")
    figures = {}
    for number, family in enumerate(families):
        stem = "similarity" if len(families) == 1 else f"similarity-{number + 1}"
        figures[stem] = _figure(results, family)
    return figures


def _figure(results: Results, family: Family) -> Figure:
    domains = list(dict.fromkeys(domain for by_domain in family.values() for domain in by_domain))
    figure = new_figure(
        6.5,
        3.4,
        results.experiment.title,
        "similarity of the features of two trainings, on test slices",
    )
    (axes,) = panels(figure, 1, len(MEASURES), sharey=True)
    looks = looks_of(domains)
    for ax, (measure, words) in zip(axes, MEASURES.items(), strict=True):
        for domain in domains:
            phases = sorted(n for n, by_domain in family.items() if domain in by_domain)
            values = [family[n][domain][measure] for n in phases]
            label = literal(f"{domain}: {measured_words(results, domain)}")
            ax.plot(phases, values, label=label, **looks[domain].line())
        ax.set_xticks(sorted(family))
        ax.set(xlabel="T, the number of phases", title=words)
    axes[0].set(ylabel="similarity; 1: the same", ylim=_limits(family))
    add_legend(figure, axes)
    return figure


def _limits(family: Family) -> tuple[float, float]:
    """Return where the axis begins and ends: at tenths, so that small differences do not look large."""
    values = [of[measure] for by_domain in family.values() for of in by_domain.values() for measure in MEASURES]
    low, high = math.floor(10 * min(values)), math.ceil(10 * max(values))
    return low / 10, max(high, low + 1) / 10


def _families(results: Results) -> dict[str, Family]:
    found: dict[str, Family] = {}
    for variant in results.experiment.variants:
        trained = results.runs.get(Run("train", variant.name).key, {})
        measured = {domain: of["similarity"] for domain, of in trained.get("extra", {}).items() if "similarity" in of}
        if measured:
            phases = int(trained["recipe"]["sizes"]["phases"])
            found.setdefault(_all_else(variant), {})[phases] = measured
    return found


def _all_else(variant: Variant) -> str:
    """Return what a variant is, but for its name, its phases and what it is compared with."""
    settings = ({**part, "phases": None} for part in (variant.sizes, variant.train))
    return json.dumps([variant.method, variant.preset, *settings], sort_keys=True)
