"""How PSNR changes where the solver continues far beyond the iterations it was trained with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ulda.experiments.figures.results import NothingToDrawError, Results, measured_words
from ulda.experiments.figures.style import literal, new_figure, panels
from ulda.experiments.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Measured = dict[str, list[dict[str, Any]]]
"""What was measured on a domain, a dictionary of PSNR and SSIM by multiple of T per draw, by method."""


def draw(results: Results) -> dict[str, Figure]:
    """Draw one figure: a panel per source and per target, a curve per method that was measured so."""
    shown = _panels(results)
    if not shown:
        raise NothingToDrawError("no run has measured the quality beyond T iterations")
    figure = new_figure(
        max(5.0, 0.8 + 2.3 * len(shown)),
        3.9,
        results.experiment.title,
        "beyond T, the number of iterations of the training",
    )
    (axes,) = panels(figure, 1, len(shown), sharey=True)
    for ax, (title, domain, by_method) in zip(axes, shown, strict=True):
        multiples: set[float] = set()
        for method, draws in by_method.items():
            xs, ys = curve(draws)
            multiples |= set(xs)
            at_T = ys[xs.index(1)]
            label = f"{results.titles[method]}: {at_T:.2f} dB at T"
            ax.plot(xs, np.array(ys) - at_T, label=literal(label), **results.looks[method].line())
        ax.set_xscale("log")
        ax.set_xticks(sorted(multiples), [f"{x:g} T" for x in sorted(multiples)])
        ax.minorticks_off()
        ax.set(title=literal(f"{title}\n{measured_words(results, domain)}"), xlabel="iterations")
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
    axes[0].set_ylabel("mean PSNR minus that at T (dB)")
    return {"beyond": figure}


def curve(draws: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Return multiples of T and the PSNR there, the mean over draws; NaN where one is not finite.

    Examples
    --------
    >>> curve([{"1T": {"psnr": 20.0}, "2T": {"psnr": None}}, {"1T": {"psnr": 22.0}, "2T": {"psnr": 9.0}}])
    ([1.0, 2.0], [21.0, nan])
    """
    found = [{float(at.removesuffix("T")): scores["psnr"] for at, scores in one.items()} for one in draws]
    shared = sorted(set.intersection(*(set(one) for one in found)))
    return shared, [float(np.mean([np.nan if one[x] is None else one[x] for one in found])) for x in shared]


def _panels(results: Results) -> list[tuple[str, str, Measured]]:
    """Return the title, the domain and the curves of each panel."""
    trainings = {name: [results.runs.get(Run("train", name).key, {})] for name in results.methods}
    found = [
        (f"{entry.name} (source)", entry.name, _measured(trainings, entry.name)) for entry in results.experiment.sources
    ]
    for target in results.targets:
        # with the most slices for which anything was measured, the same for all methods
        for size in reversed(results.all_sizes):
            runs = {name: results.runs_of(name, target, size) for name in results.methods}
            by_method = _measured(runs, target)
            if by_method:
                found.append((f"{target}, {results.size_words(target, size)}", target, by_method))
                break
    return [panel for panel in found if panel[2]]


def _measured(runs: dict[str, list[dict[str, Any]]], domain: str) -> Measured:
    found = {
        name: [extra["beyond"] for one in listed if "beyond" in (extra := one.get("extra", {}).get(domain, {}))]
        for name, listed in runs.items()
    }
    return {name: draws for name, draws in found.items() if draws}
