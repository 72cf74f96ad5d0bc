"""What ablations measure beside the scores: quality beyond T, what the phases do, how alike features are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ulda.data import Domain
from ulda.errors import UldaError
from ulda.evaluation.comparison import compare
from ulda.evaluation.learned import Learned
from ulda.evaluation.similarity import centred_kernel_alignment, normalised_cross_correlation
from ulda.experiments.definition import Experiment, Measure, Variant
from ulda.methods import ULDA, TrainableMethod
from ulda.methods.lda import LDA
from ulda.models.regularizer import stacked
from ulda.physics import Mask
from ulda.solvers import Trace
from ulda.training.slices import choose_slices, normalised_images

MULTIPLES = (1, 2, 8, 30)
"""At so many times T the quality is measured."""

MEASURED_SLICES = 8
"""The most test slices of a domain that are measured: 30 T iterations are expensive."""

DIGITS = 4


def check_measurable(variant: Variant, kind: type[TrainableMethod]) -> None:
    """Refuse to measure phases and features of a method that has none, before it is trained."""
    if variant.measure and not issubclass(kind, ULDA | LDA):
        raise UldaError(f"{variant.name} has no phases to measure; leave `measure` out for the method {variant.method}")


def network_of(model: TrainableMethod, domain: str) -> ULDA:
    """Return the unrolled network that reconstructs a domain."""
    if isinstance(model, LDA):
        return model.net(domain)
    if not isinstance(model, ULDA):
        raise UldaError(f"{model.title} has no phases to measure")
    return model


def measure(wanted: Sequence[Measure], model: TrainableMethod, domain: str, test: Domain, mask: Mask) -> dict[str, Any]:
    """Return ``beyond`` and ``descent`` of a model on some test slices of a domain, as far as they are wanted.

    Parameters
    ----------
    wanted
        What to measure. ``beyond``: mean PSNR and SSIM after T, 2 T, 8 T and 30 T iterations from zero-filling.
        ``descent``: the share of the T phases, over all slices, that do not raise the objective, and of those that take
        learned steps; without an acceptance test the latter is 1.
    model, domain
        A model and which of its domains.
    test, mask
        The slices and the mask.
    """
    found: dict[str, Any] = {}
    if not {"beyond", "descent"} & set(wanted):
        return found
    network, some = network_of(model, domain), _some(test)
    found["slices"] = len(some)
    multiples = MULTIPLES if "beyond" in wanted else MULTIPLES[:1]
    traces: list[Trace] = []
    methods = {
        f"{n}T": Learned(network, domain, n * network.n_phases, traces.append if n == 1 else None) for n in multiples
    }
    scores = compare(methods, some, mask, acquisition="ideal").scores
    if "beyond" in wanted:
        found["beyond"] = {
            name: {"psnr": _number(entry.psnr.mean()), "ssim": _number(entry.ssim.mean())}
            for name, entry in scores.items()
        }
    if "descent" in wanted:
        found["descent"] = descent(traces)
    return found


def descent(traces: Sequence[Trace]) -> dict[str, float]:
    """Return which share of the phases does not raise the objective, and which takes learned steps."""
    steps = [step for trace in traces for sample in range(trace.n_samples) for step in trace.steps(sample)]
    return {
        "descending": round(sum(step.phi <= step.phi_before for step in steps) / len(steps), DIGITS),
        "accepted": round(sum(step.branch == "u" for step in steps) / len(steps), DIGITS),
    }


@torch.no_grad()
def similarity(first: TrainableMethod, second: TrainableMethod, domain: str, test: Domain) -> dict[str, float]:
    """Return NCC and CKA between the features of two models, g alone, of some test slices of a domain."""
    images = stacked(normalised_images(_some(test)))
    networks = [network_of(model, domain).cpu() for model in (first, second)]
    a, b = (network.prior.extractor(images) for network in networks)
    return {
        "ncc": round(normalised_cross_correlation(a, b), DIGITS),
        "cka": round(centred_kernel_alignment(a, b), DIGITS),
    }


def rows_of_measures(experiment: Experiment, runs: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Return the table of what was measured: a row per variant, domain and number of target slices.

    Measures that no variant of the experiment was asked for have no column.
    """
    columns = [f"{n}T" for n in MULTIPLES]
    rows = [["method", "domain", "slices", *columns, "descending", "accepted", "NCC", "CKA"]]
    order = [variant.name for variant in experiment.variants]
    measured = [entry for entry in runs.values() if "extra" in entry and entry["run"]["method"] in order]
    for entry in sorted(measured, key=lambda entry: (order.index(entry["run"]["method"]), entry["run"]["size"])):
        run = entry["run"]
        for domain, extra in entry["extra"].items():
            size = "source" if run["kind"] == "train" else f"{run['size']}, draw {run['draw'] + 1}"
            beyond, shares, alike = (extra.get(name, {}) for name in ("beyond", "descent", "similarity"))
            quality = [_scores(beyond[column]) if column in beyond else "" for column in columns]
            percent = [f"{100 * shares[name]:.1f} %" if name in shares else "" for name in ("descending", "accepted")]
            features = [f"{alike[name]:.3f}" if name in alike else "" for name in ("ncc", "cka")]
            rows.append([run["method"], domain, size, *quality, *percent, *features])
    used = [any(column) for column in zip(*rows[1:], strict=True)] or [True] * len(rows[0])
    return [[text for text, is_used in zip(row, used, strict=True) if is_used] for row in rows]


def _scores(entry: dict[str, float | None]) -> str:
    psnr, ssim = entry["psnr"], entry["ssim"]
    return "not finite" if psnr is None or ssim is None else f"{psnr:.2f} / {ssim:.3f}"


def _some(test: Domain) -> Domain:
    return test.take(choose_slices(test.subjects, min(MEASURED_SLICES, len(test))))


def _number(value: Tensor) -> float | None:
    """Round a number for JSON, which has none that are not finite."""
    number = float(value)
    return round(number, DIGITS) if math.isfinite(number) else None
