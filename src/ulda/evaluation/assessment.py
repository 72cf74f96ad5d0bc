"""Whether a model helps: against the classical methods and itself without its adapter, by subject, in a sentence."""

from __future__ import annotations

import copy
import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ulda.data import Domain
from ulda.evaluation.comparison import METRICS, Comparison, Observer, chosen_weights, compare, measure_some
from ulda.evaluation.learned import Learned
from ulda.evaluation.paired import PairedDifference, paired_difference, verdict
from ulda.io.atomic import atomic_output
from ulda.methods import CLASSICAL, WEIGHTED, Method
from ulda.methods.strength import SLICES
from ulda.methods.ulda import ULDA, UNADAPTED
from ulda.physics import Mask
from ulda.solvers import Trace

ADAPTED, BASE = "adapted", "un-adapted"
"""The names of the learned methods in tables."""


@dataclass(frozen=True)
class Assessment:
    """A model side by side with the other methods, and a verdict.

    Attributes
    ----------
    comparison
        The scores of all methods on the same slices.
    judged
        The method that is judged: ``adapted``, or ``un-adapted`` where there is no adapter.
    rival
        The method the verdict compares it with: the un-adapted model; without an adapter, the best classical method.
    differences
        Of the judged method minus each other one, by method and metric.
    traces
        The records of the judged method's runs; their samples, one after the other, are the slices.
    weights
        Those of the classical methods, where they were chosen on other slices.
    strength
        That of the un-adapted regulariser, chosen on held-out lines of some slices, without their references.
    """

    comparison: Comparison
    judged: str
    rival: str
    differences: dict[str, dict[str, PairedDifference]]
    traces: tuple[Trace, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    strength: float = 1.0

    @property
    def verdict(self) -> str:
        """Whether the adapter, or the learned prior, helped: one sentence."""
        difference = self.differences[self.rival]["psnr"]
        if self.judged == ADAPTED:
            return verdict(difference)
        return verdict(difference, "the learned prior", over=self.rival)

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the images, for a result file."""
        return self.comparison.as_dict() | {
            "judged": self.judged,
            "weights": dict(self.weights),
            "strength": self.strength,
            "differences": {
                method: {metric: difference.as_dict() for metric, difference in of_method.items()}
                for method, of_method in self.differences.items()
            },
            "verdict": self.verdict,
        }

    def save_scores(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a CSV with a row for every slice and method."""
        with (
            atomic_output(path, overwrite=overwrite) as temporary,
            temporary.open("w", newline="", encoding="utf-8") as stream,
        ):
            writer = csv.writer(stream)
            writer.writerow(["slice", "subject", "method", *METRICS])
            for method, scores in self.comparison.scores.items():
                for i, subject in enumerate(self.comparison.subjects):
                    writer.writerow([i, subject, method, *(float(getattr(scores, metric)[i]) for metric in METRICS)])


def assess(
    model: ULDA,
    domain: Domain,
    mask: Mask,
    *,
    tuning: Domain | None = None,
    against: Mapping[str, Method] | None = None,
    acquisition: str = "scanner",
    iterations: int | None = None,
    seed: int = 0,
    keep: Sequence[int] | None = None,
    observe: Observer | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Assessment:
    """Compare a model with zero-filling, TV, wavelets and itself without its adapter.

    Parameters
    ----------
    model
        A model, e.g. from `ulda.load`; its active domain names the adapter.
    domain
        Fully sampled slices that took no part in training; see `ulda.evaluation.unseen`.
    mask
        The lines that are kept.
    tuning
        Other slices of the same kind, on which the weights of TV and wavelets are chosen; None for their defaults.
    against
        Further methods to compare it with, by the name they are shown under.
    acquisition
        How k-space is simulated from magnitude images; see `ulda.physics.acquisition`.
    iterations
        How many phases; None for as many as the model was trained with.
    seed
        Seed of the bootstrap.
    keep, observe
        Which slices keep their images, and what is given those of all; see `ulda.evaluation.compare`.
    progress
        Called with the number of reconstructions done and to do.
    """
    traces: list[Trace] = []
    weights = {} if tuning is None else chosen_weights(tuning, mask, acquisition=acquisition)
    classical = {name: make() for name, make in CLASSICAL.items()}
    classical |= {name: WEIGHTED[name](weight) for name, weight in weights.items()}
    base = _unadapted(model)
    some = measure_some(domain, mask, acquisition=acquisition, seed=1, largest=SLICES)
    strength = base.calibrate(UNADAPTED, [(y, physics) for _, y, physics in some])
    learned = _learned(model, base, iterations, traces.append)
    *_, judged = learned
    methods = classical | dict(against or {}) | learned
    comparison = compare(methods, domain, mask, acquisition=acquisition, keep=keep, observe=observe, progress=progress)
    means = {row["method"]: row["psnr"] for row in comparison.summary()}
    return Assessment(
        comparison=comparison,
        judged=judged,
        rival=BASE if judged == ADAPTED else max(classical, key=means.__getitem__),
        differences=_differences(comparison, judged, seed),
        traces=tuple(traces),
        weights=weights,
        strength=strength,
    )


def _unadapted(model: ULDA) -> ULDA:
    """Return a copy of a model that has the mean of its source adapters, too."""
    model = copy.deepcopy(model)
    model.add_domain(UNADAPTED, rank=0)
    return model


def _learned(model: ULDA, base: ULDA, iterations: int | None, keep: Callable[[Trace], None]) -> dict[str, Method]:
    """Return the model without and with its adapter; the last one is judged, and its records are kept."""
    if model.active_domain() == UNADAPTED:
        return {BASE: Learned(base, UNADAPTED, iterations, keep)}
    adapted = Learned(copy.deepcopy(model), model.active_domain(), iterations, keep)
    return {BASE: Learned(base, UNADAPTED, iterations), ADAPTED: adapted}


def _differences(comparison: Comparison, judged: str, seed: int) -> dict[str, dict[str, PairedDifference]]:
    """Return the paired differences of the judged method from every other one, by method and metric."""
    scores = {
        name: {metric: getattr(of_method, metric).numpy() for metric in METRICS}
        for name, of_method in comparison.scores.items()
    }
    return {
        other: {
            metric: paired_difference(scores[judged][metric], scores[other][metric], comparison.subjects, seed=seed)
            for metric in METRICS
        }
        for other in scores
        if other != judged
    }
