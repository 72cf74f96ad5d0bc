"""Several methods side by side on the same slices, from the same measurements."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ulda.data import Domain
from ulda.errors import UldaError
from ulda.methods import WEIGHTED, Method, chosen_weight
from ulda.metrics import PER_SLICE, Scores, evaluate, joined
from ulda.physics import Acquisition, Mask, Physics, acquisition_named, coil_physics
from ulda.physics.acquisition import with_given_masks
from ulda.training.slices import acquisition_of, choose_slices

METRICS = ("psnr", "ssim", "nmse")

Observer = Callable[[int, Tensor, Mapping[str, Tensor]], None]
"""Called with the number of the first slice of a batch, its references ``(n, H, W)``, and the images by method."""


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
        Scores per slice by method, of all slices.
    mask
        The sampled lines.
    phase_axis
        The axis of the images that `mask` undersamples.
    acquisition
        How k-space was simulated; ``ideal`` where nothing was added to what the data hold.
    subjects
        The subject of each slice.
    kept
        Which slices the images are of; None for all.
    """

    reference: Tensor
    reconstructions: dict[str, Tensor]
    scores: dict[str, Scores]
    mask: Mask
    phase_axis: int
    acquisition: str
    subjects: tuple[str, ...]
    kept: tuple[int, ...] | None = None

    def row_of(self, index: int) -> int:
        """Return where the images of a slice are in `reference` and `reconstructions`."""
        return index if self.kept is None else self.kept.index(index)

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
            "acquisition": self.acquisition,
            "subjects": list(self.subjects),
            "summary": self.summary(),
            "scores": {name: scores.as_dict() for name, scores in self.scores.items()},
        }


class _Found:
    """What a comparison keeps of its batches: the scores, and the images of some slices."""

    def __init__(self, names: Iterable[str], kept: Sequence[int]) -> None:
        self.kept = kept
        self.references: list[Tensor] = []
        self.images: dict[str, list[Tensor]] = {name: [] for name in names}
        self.scores: dict[str, list[Scores]] = {name: [] for name in self.images}

    def add(self, start: int, reference: Tensor, images: Mapping[str, Tensor]) -> None:
        """Add a batch that begins with the slice `start`."""
        rows = [index - start for index in self.kept if start <= index < start + len(reference)]
        self.references.append(reference[rows])
        for name, stack in images.items():
            self.images[name].append(stack[rows])
            self.scores[name].append(evaluate(stack, reference, PER_SLICE))


@torch.no_grad()
def compare(
    methods: Mapping[str, Method],
    domain: Domain,
    mask: Mask,
    *,
    acquisition: str = "scanner",
    seed: int = 0,
    batch_size: int = 4,
    keep: Sequence[int] | None = None,
    observe: Observer | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Undersample every slice of a domain with one mask and reconstruct it with every method.

    Parameters
    ----------
    methods
        The methods by the name they are shown under.
    domain
        Fully sampled slices. K-space is simulated from images, of which complex ones keep their phase; measured k-space
        is used as it is. With several coils the sensitivities are estimated from the lines that are kept, as they would
        be on a scanner.
    mask
        The lines that are kept.
    acquisition, seed
        How k-space is simulated from magnitude images, see `ulda.physics.acquisition`, and the seed of that.
    batch_size
        How many slices are reconstructed at once.
    keep
        The slices whose images are kept; all if None. Scores are of all.
    observe
        Is given the images of all slices, a batch at a time.
    progress
        Called with the number of reconstructions done and to do.
    """
    _check(domain)
    simulated = with_given_masks(acquisition_of(domain, acquisition_named(acquisition)))
    total = len(domain) * len(methods)
    kept = tuple(range(len(domain))) if keep is None else tuple(sorted(keep))
    found, done = _Found(methods, kept), 0
    for start in range(0, len(domain), batch_size):
        part = domain.take(range(start, min(start + batch_size, len(domain))))
        reference, y, physics = _measure(part, mask, simulated, seed + start)
        batch: dict[str, Tensor] = {}
        for name, method in methods.items():
            device = _device_of(method)
            batch[name] = method(y.to(device), physics.to(device)).abs().cpu()
            done += len(part)
            if progress:
                progress(done, total)
        found.add(start, reference, batch)
        if observe:
            observe(start, reference, batch)
        _release_free_memory()
    return Comparison(
        reference=torch.cat(found.references),
        reconstructions={name: torch.cat(batches) for name, batches in found.images.items()},
        scores={name: joined(parts) for name, parts in found.scores.items()},
        mask=mask,
        phase_axis=domain.header.phase_axis,
        acquisition=simulated.name,
        subjects=domain.subjects,
        kept=None if keep is None else kept,
    )


@torch.no_grad()
def chosen_weights(
    domain: Domain, mask: Mask, *, acquisition: str = "scanner", seed: int = 1, largest: int = 6
) -> dict[str, float]:
    """Choose the weights of TV and wavelets on slices of a domain, measured as `compare` measures them.

    Parameters
    ----------
    domain
        Fully sampled slices that are not compared on.
    mask, acquisition, seed
        As for `compare`; another seed draws other noise.
    largest
        So many slices are used, of as many subjects as possible.
    """
    some = measure_some(domain, mask, acquisition=acquisition, seed=seed, largest=largest)
    examples = [(y, physics, reference) for reference, y, physics in some]
    return {name: chosen_weight(make, examples).weight for name, make in WEIGHTED.items()}


def measure_some(
    domain: Domain, mask: Mask, *, acquisition: str, seed: int, largest: int
) -> list[tuple[Tensor, Tensor, Physics]]:
    """Return reference, measurement and operator of some slices of as many subjects as possible, each drawn alone."""
    _check(domain)
    some = domain.take(choose_slices(domain.subjects, min(largest, len(domain))))
    simulated = with_given_masks(acquisition_of(some, acquisition_named(acquisition)))
    return [_measure(some.take([i]), mask, simulated, seed + i) for i in range(len(some))]


def _release_free_memory() -> None:
    """Give free memory back to the system, where the C library keeps it.

    Scores and records stay from every batch. They lie among the large arrays that are freed, whose places are then too
    small for the next ones: without this the memory grows by megabytes with every slice.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc has it
        if trim is not None:
            trim(0)


def _check(domain: Domain) -> None:
    if len(domain) == 0:
        raise UldaError(f"the domain {domain.name} has no slices to compare on")
    domain.check_references("there is no reference to compare with")


def _device_of(method: Method) -> torch.device:
    """Return where the parameters of a method are; the CPU for one without any."""
    module = method if isinstance(method, nn.Module) else getattr(method, "model", None)
    parameter = next(module.parameters(), None) if isinstance(module, nn.Module) else None
    return torch.device("cpu") if parameter is None else parameter.device


def _measure(domain: Domain, mask: Mask, acquisition: Acquisition, seed: int) -> tuple[Tensor, Tensor, Physics]:
    """Return magnitude images with peak 1, their undersampled k-space, and its operator."""
    axis = domain.header.phase_axis
    images = torch.stack(list(domain.images()))
    peaks = images.abs().amax((-2, -1), keepdim=True)
    if domain.n_coils == 1:
        y, physics, images = acquisition.measure(
            images / peaks, torch.Generator().manual_seed(seed), mask, axis, keep_noise=True
        )
        return images.abs(), y, physics
    y = torch.stack([domain.kspace(i) for i in range(len(domain))]) / peaks[:, None] * mask.along(axis)
    return images.abs() / peaks, y, coil_physics(y, mask, axis)
