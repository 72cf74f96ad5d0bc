"""From data to the slices that a model is trained on and validated with."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ulda.data import Domain, ImportOptions, demo, find_reader, import_domain, split_by_subject
from ulda.data.importing import Progress as ImportProgress
from ulda.data.readers.domain_file import DomainFileReader
from ulda.errors import UldaError
from ulda.physics import (
    ACQUISITIONS,
    Acquisition,
    Mask,
    acquisition_named,
    cartesian_mask,
    coil_combine,
    coil_physics,
    ifft2c,
)
from ulda.training.config import DEMO, Config, DataConfig, MaskConfig
from ulda.training.tasks import Coils, Task

_TINY = 1e-30

VALIDATED_FRACTION = 0.2
"""How many slices of data without a validation split are held out, by subject."""


@contextmanager
def opened(
    source: str | Path,
    *,
    size: tuple[int, int] | None = None,
    name: str = "",
    progress: ImportProgress | None = None,
) -> Iterator[Domain]:
    """Open a domain file, an embedded domain (``demo:knee``), or anything readable, which is imported for the while.

    Examples
    --------
    >>> with opened("demo:knee", size=(32, 32)) as knee:
    ...     knee.name, knee.shape
    ('knee', (32, 32))
    """
    is_demo = str(source).startswith(DEMO)
    path = demo(str(source).removeprefix(DEMO)).path if is_demo else Path(source)
    is_ready = size is None and path.is_file()
    if is_ready and isinstance(find_reader(path), DomainFileReader):
        yield Domain.open(path)
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "domain.h5"
        options = ImportOptions(name=name or path.stem, size=size)
        import_domain([path], copy, options, progress=progress)
        yield Domain.open(copy)


def normalised_images(domain: Domain) -> Tensor:
    """Return the slices as complex images ``(n, H, W)``, each with peak 1."""
    return references(domain)[0]


def references(domain: Domain, mask: Mask | None = None) -> tuple[Tensor, Coils | None]:
    """Return the slices as complex images ``(n, H, W)`` with peak 1, and what several coils measured of them.

    The sensitivity maps are estimated from the calibration lines of a mask; without one, from the whole k-space.
    """
    domain.check_references("there is no reference to learn from")
    if domain.n_coils == 1:
        images, coils = torch.stack(list(domain.images())), None
    else:
        kspace, axis = torch.stack([domain.kspace(i) for i in range(len(domain))]), domain.header.phase_axis
        everything = cartesian_mask(kspace.shape[axis], 1.0)
        maps = coil_physics(kspace, mask or everything, axis).maps
        images = coil_combine(ifft2c(kspace), maps)
        coils = Coils(kspace / images.abs().amax((-2, -1))[:, None, None, None].clamp_min(_TINY), maps)
    peaks = images.abs().amax((-2, -1), keepdim=True)
    for number in (~(peaks > 0) | ~torch.isfinite(peaks)).flatten().nonzero().flatten().tolist():
        raise UldaError(f"slice {number} of the domain {domain.name} is empty or not finite; import the data again")
    return images / peaks, coils


@dataclass(frozen=True)
class TrainingSplit:
    """The slices to train on, those to validate with (may be empty), and where the latter come from, in words."""

    train: Domain
    validation: Domain
    origin: str


def split_for_training(domain: Domain, seed: int = 0) -> TrainingSplit:
    """Take the train and val splits of a domain; hold subjects out where no slice is labelled val.

    Slices labelled test are never used. With one subject there is nothing honest to validate with.
    """
    is_labelled = any(domain.label("split"))
    train, validation = domain.select(split="train" if is_labelled else ""), domain.select(split="val")
    if len(train) == 0:
        raise UldaError(f"the domain {domain.name} has no slices in the split train, so there is nothing to train on")
    if len(validation):
        return TrainingSplit(train, validation, "the val split")
    if len(set(train.subjects)) < 2:
        return TrainingSplit(train, validation, "none: the data has one subject to train on and no val split")
    fractions = {"train": 1 - VALIDATED_FRACTION, "val": VALIDATED_FRACTION}
    assignment = split_by_subject(train.subjects, fractions, seed)
    held_out = [i for i, subject in enumerate(train.subjects) if assignment[subject] == "val"]
    kept = [i for i, subject in enumerate(train.subjects) if assignment[subject] == "train"]
    return TrainingSplit(train.take(kept), train.take(held_out), "subjects held out, as the data has no val split")


def choose_slices(subjects: Sequence[str], n: int, seed: int = 0) -> list[int]:
    """Choose slices as evenly over the subjects as possible, and within a subject spread over its slices.

    Examples
    --------
    >>> choose_slices(["a"] * 6 + ["b"] * 2, 4)
    [1, 4, 6, 7]
    """
    if not 1 <= n <= len(subjects):
        raise UldaError(f"{n} slices were asked for, but there are {len(subjects)} to train on")
    generator = np.random.default_rng(seed)
    order = [str(subject) for subject in generator.permutation(sorted(set(subjects)))]
    places = {subject: [i for i, other in enumerate(subjects) if other == subject] for subject in order}
    counts = dict.fromkeys(order, 0)
    while sum(counts.values()) < n:
        for subject in order:
            if counts[subject] < len(places[subject]) and sum(counts.values()) < n:
                counts[subject] += 1
    chosen = []
    for subject in order:
        # one slice from each of as many blocks of neighbours as slices are wanted
        blocks = np.array_split(places[subject], counts[subject]) if counts[subject] else []
        chosen += [int(generator.choice(block)) for block in blocks]
    return sorted(chosen)


def load_tasks(config: Config) -> tuple[list[Task], list[dict[str, Any]]]:
    """Read all source domains; return what to train on, and what the model card says about them."""
    acquisition = acquisition_named(config.acquisition)
    loaded = [load_task(entry, config.masks, acquisition) for entry in config.data]
    return [task for task, _ in loaded], [facts for _, facts in loaded]


def load_task(entry: DataConfig, masks: MaskConfig, acquisition: Acquisition) -> tuple[Task, dict[str, Any]]:
    """Read a source domain; return what to train on, and what the model card says about it."""
    with opened(entry.file, size=entry.size, name=entry.name) as domain:
        split = split_for_training(domain)
        train = split.train
        if entry.slices is not None:
            train = train.take(choose_slices(train.subjects, entry.slices))
        (images, coils), axis = references(train), domain.header.phase_axis
        validation, validation_coils = references(split.validation) if len(split.validation) else (images[:0], None)
        simulated = acquisition_of(domain, acquisition)
        facts = {
            "domain": entry.name,
            "file": file_name(entry.file),
            "size": list(images.shape[-2:]),
            "n_slices": len(train),
            "n_subjects": len(set(train.subjects)),
            "subjects": sorted(set(train.subjects)),
            "fingerprint": train.fingerprint(),
            "validation": split.origin,
            "n_validation_slices": len(split.validation),
            "acquisition": simulated.name,
            "licence": domain.header.licence,
        }
    n_lines = images.shape[axis]
    ratios = masks.ratios if masks.ratios or simulated.masks else acquisition.ratios
    counted = enumerate(ratio for ratio in ratios or () for _ in range(masks.per_ratio))
    family = [cartesian_mask(n_lines, ratio, masks.center, masks.seed + number) for number, ratio in counted]
    judged_with = cartesian_mask(n_lines, masks.validation_ratio, masks.center, masks.validation_seed)
    task = Task(entry.name, images, family, validation, axis, judged_with, simulated, coils, validation_coils)
    return task, facts


def acquisition_of(domain: Domain, acquisition: Acquisition) -> Acquisition:
    """Return how measurements of a domain are simulated: only magnitude images lack what an acquisition adds."""
    return acquisition if domain.header.kind == "magnitude" else ACQUISITIONS["ideal"]


def file_name(file: str) -> str:
    """Return the name of a file without its folder; embedded domains have none."""
    return file if file.startswith(DEMO) else Path(file).name
