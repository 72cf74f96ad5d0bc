"""What a report shows, wherever it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulda.errors import UldaError
from ulda.evaluation.paired import PairedDifference, paired_difference
from ulda.physics import Mask
from ulda.solvers import Step

Images = NDArray[np.float32]
Provenance = Mapping[str, Mapping[str, str]]
"""Texts by heading and name: commands, versions, fingerprints."""

Traces = tuple[tuple[Step, ...], ...]
"""For each slice its iterations. What is not on record is NaN, for a number of steps negative."""


@dataclass(frozen=True)
class Metric:
    """A score that a report shows.

    Attributes
    ----------
    key
        Its name in the data.
    label
        Its name for a reader, with the unit.
    digits
        How many decimals are shown.
    higher_is_better
        Which end is best.
    """

    key: str
    label: str
    digits: int
    higher_is_better: bool


METRICS = (Metric("psnr", "PSNR (dB)", 2, True), Metric("ssim", "SSIM", 4, True), Metric("nmse", "NMSE", 5, False))


@dataclass(frozen=True)
class Slice:
    """One slice: whose it is, what it is called, and which lines of it were sampled."""

    subject: str
    name: str
    mask: Mask | None = None


@dataclass(frozen=True)
class Report:
    """Reconstructions, scores and records of the same slices; every source of a report is turned into one.

    Attributes
    ----------
    title, description
        A few words, and what was compared in one line.
    slices
        The slices, in the order of all arrays.
    images
        Magnitude images ``(n, H, W)`` by method, in units of the peak of the reference (without one: of their own).
        May be empty, e.g. for results that keep numbers alone.
    reference
        The same of the reference; None without one.
    pictured
        Which slices the images, the reference, the k-space and the traces are of; None for all. The scores are of all.
    kspace
        Magnitude of the k-space that the methods started from ``(n, H, W)``, in any unit; None shows the Fourier
        transform of the reference in its place.
    phase_axis
        The axis that the masks undersample.
    scores
        Scores per slice ``(n,)``, by method and metric.
    convention
        What the scores mean.
    judged
        The method whose differences from the others are shown; empty for none.
    traces
        By method the iterations of each slice, where they are on record.
    phases
        By method, how many of these iterations made its images; without an entry all of them.
    verdict, notes
        The result in one sentence, and what a reader must know about it.
    provenance
        How to make it again.
    """

    title: str
    description: str
    slices: tuple[Slice, ...]
    images: Mapping[str, Images] = field(default_factory=dict)
    reference: Images | None = None
    pictured: tuple[int, ...] | None = None
    kspace: Images | None = None
    phase_axis: int = -2
    scores: Mapping[str, Mapping[str, NDArray[np.float64]]] = field(default_factory=dict)
    convention: str = ""
    judged: str = ""
    traces: Mapping[str, Traces] = field(default_factory=dict)
    phases: Mapping[str, int] = field(default_factory=dict)
    verdict: str = ""
    notes: tuple[str, ...] = ()
    provenance: Provenance = field(default_factory=dict)

    def __post_init__(self) -> None:
        n, shown = len(self.slices), self.shown
        if n == 0:
            raise UldaError(f"there are no slices to report on in {self.title}")
        if not set(shown) <= set(range(n)) or len(set(shown)) < len(shown):
            raise UldaError(f"the pictured slices of a report on {n} slices must be some of 0 to {n - 1}, each once")
        if "" in self.methods:
            raise UldaError(f"a method of {self.title} has no name")
        shapes = {images.shape for images in self.all_images().values()}
        if self.kspace is not None:
            shapes.add(self.kspace.shape)
        if len(shapes) > 1 or any(len(shape) != 3 or shape[0] != len(shown) for shape in shapes):
            found = ", ".join(sorted(map(str, shapes)))
            raise UldaError(f"the images of a report must all be ({len(shown)}, H, W), but there are {found}")
        lengths = {len(values) for by_metric in self.scores.values() for values in by_metric.values()}
        if not lengths <= {n} or not {len(traces) for traces in self.traces.values()} <= {len(shown)}:
            raise UldaError(
                f"a report on {n} slices needs {n} scores of every method, and for each pictured slice a trace or none"
            )

    @property
    def shown(self) -> tuple[int, ...]:
        """The slices that the images and traces are of."""
        return tuple(range(len(self.slices))) if self.pictured is None else self.pictured

    @property
    def methods(self) -> tuple[str, ...]:
        """All methods with images or scores, in their order."""
        return tuple(dict.fromkeys([*self.scores, *self.images]))

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics that there are scores of."""
        known = {key for by_metric in self.scores.values() for key in by_metric}
        return tuple(metric for metric in METRICS if metric.key in known)

    @property
    def n_pixels(self) -> int:
        """The number of pixels of a slice; 0 without images."""
        return next((images[0].size for images in self.all_images().values()), 0)

    def all_images(self) -> dict[str, Images]:
        """Return the images by method, the reference under the empty name first."""
        first = {} if self.reference is None else {"": self.reference}
        return first | dict(self.images)

    def difference(self, other: str, metric: str) -> PairedDifference | None:
        """Return by how much the judged method exceeds another; None where the scores allow no mean."""
        first, second = (self.scores.get(name, {}).get(metric) for name in (self.judged, other))
        if first is None or second is None:
            return None
        try:
            return paired_difference(first, second, [one.subject for one in self.slices])
        except UldaError:
            return None

    def summary(self) -> list[dict[str, Any]]:
        """Return a row for every method: mean and standard deviation by metric, and which of them are best."""
        rows: list[dict[str, Any]] = []
        for name, by_metric in self.scores.items():
            row: dict[str, Any] = {"method": name, "mean": {}, "std": {}, "best": set()}
            for key, values in by_metric.items():
                with np.errstate(invalid="ignore"):
                    row["mean"][key], row["std"][key] = float(np.mean(values)), float(np.std(values))
            rows.append(row)
        for metric in self.metrics:
            means = {i: row["mean"][metric.key] for i, row in enumerate(rows) if metric.key in row["mean"]}
            finite = [value for value in means.values() if not np.isnan(value)]
            if len(finite) > 1:
                best = max(finite) if metric.higher_is_better else min(finite)
                for i, value in means.items():
                    if value == best:
                        rows[i]["best"].add(metric.key)
        return rows
