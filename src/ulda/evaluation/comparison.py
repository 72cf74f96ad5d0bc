"""Several methods side by side on the same slices, from the same measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ulda.baselines import Method
from ulda.data import Domain
from ulda.errors import UldaError
from ulda.evaluation.metrics import PER_SLICE, Scores, evaluate
from ulda.physics import CartesianMRI, Mask

METRICS = ("psnr", "ssim", "nmse")


@dataclass(frozen=True)
class Comparison:
    """Reconstructions and scores of several methods.

    Attributes
    ----------
    reference
        Magnitude images ``(n, H, W)``, each with peak 1.
    reconstructions
        Magnitude images ``(n, H, W)`` by method.
    scores
        Scores per slice by method.
    mask
        The sampled lines.
    phase_axis
        The axis of the images that `mask` undersamples.
    subjects
        The subject of each slice.
    """

    reference: Tensor
    reconstructions: dict[str, Tensor]
    scores: dict[str, Scores]
    mask: Mask
    phase_axis: int
    subjects: tuple[str, ...]

    def summary(self) -> list[dict[str, Any]]:
        """Return the mean and the standard deviation of each metric, one row per method."""
        rows = []
        for name, scores in self.scores.items():
            row: dict[str, Any] = {"method": name}
            for metric in METRICS:
                values: Tensor = getattr(scores, metric)
                row[metric] = float(values.mean())
                row[f"{metric}_std"] = float(values.std(correction=0))
            rows.append(row)
        return rows

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the images, for a result file."""
        return {
            "mask": self.mask.as_dict(),
            "phase_axis": self.phase_axis,
            "subjects": list(self.subjects),
            "summary": self.summary(),
            "scores": {name: scores.as_dict() for name, scores in self.scores.items()},
        }


def compare(
    methods: Mapping[str, Method],
    domain: Domain,
    mask: Mask,
    *,
    noise_std: float = 0.0,
    seed: int = 0,
    batch_size: int = 4,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Undersample every slice of a domain with one mask and reconstruct it with every method.

    Parameters
    ----------
    methods
        The methods by the name they are shown under.
    domain
        Fully sampled slices; k-space is simulated from images, or single-coil k-space is used as measured.
    mask
        The lines that are kept.
    noise_std, seed
        Gaussian noise added to the measurements, slice ``i`` with seed ``seed + i``.
    batch_size
        How many slices are reconstructed at once.
    progress
        Called with the number of reconstructions done and to do.
    """
    if len(domain) == 0:
        raise UldaError(f"the domain {domain.name} has no slices to compare on")
    if domain.n_coils > 1:
        raise UldaError(
            f"the domain {domain.name} has {domain.n_coils} coils; compare expects images or single-coil data"
        )
    if domain.undersampled:
        raise UldaError(f"the domain {domain.name} arrived undersampled, so there is no reference to compare with")
    physics = CartesianMRI(mask, domain.header.phase_axis)
    total = len(domain) * len(methods)
    references: list[Tensor] = []
    found: dict[str, list[Tensor]] = {name: [] for name in methods}
    done = 0
    for start in range(0, len(domain), batch_size):
        chosen = range(start, min(start + batch_size, len(domain)))
        images = torch.stack([image / image.abs().max() for image in domain.take(chosen).images()])
        y = torch.stack([physics.measure(x, noise_std, seed + i) for i, x in zip(chosen, images, strict=True)])
        references.append(images.abs())
        for name, method in methods.items():
            found[name].append(method(y, physics).abs())
            done += len(chosen)
            if progress:
                progress(done, total)
    reference = torch.cat(references)
    reconstructions = {name: torch.cat(batches) for name, batches in found.items()}
    scores = {name: evaluate(images, reference, PER_SLICE) for name, images in reconstructions.items()}
    return Comparison(reference, reconstructions, scores, mask, physics.axis, domain.subjects)
