"""The data of an experiment: domain files at its size, tasks to train on, slices to test on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ulda.data import Domain, ImportOptions, import_domain
from ulda.errors import UldaError
from ulda.experiments.definition import DomainEntry, Scale
from ulda.physics import Mask, cartesian_mask
from ulda.training.loop import Task
from ulda.training.slices import choose_slices, normalised_images, split_for_training

SUFFIXES = (".npz", ".h5", "")


@dataclass(frozen=True)
class Data:
    """Where the data of an experiment is.

    Attributes
    ----------
    folder
        Holds one file, or folder, per domain.
    cache
        Where the domain files at the size of the experiment are kept.
    scale
        The scale of the experiment.
    """

    folder: Path
    cache: Path
    scale: Scale

    def source_of(self, entry: DomainEntry) -> Path:
        """Return the file or folder of a domain."""
        for suffix in SUFFIXES:
            path = self.folder / f"{entry.source}{suffix}"
            if path.exists():
                return path
        names = ", ".join(f"{entry.source}{suffix}" for suffix in SUFFIXES)
        raise UldaError(f"there is no data for {entry.name} in {self.folder}: none of {names}; say --data FOLDER")

    def domain(self, entry: DomainEntry) -> Domain:
        """Open a domain; it is imported when it is first asked for."""
        path = self.cache / f"{entry.source}-{self.scale.side}.h5"
        if not path.exists():
            self.cache.mkdir(parents=True, exist_ok=True)
            side = (self.scale.side, self.scale.side)
            import_domain([self.source_of(entry)], path, ImportOptions(name=entry.source, size=side), overwrite=True)
        return Domain.open(path)

    def mask(self, entry: DomainEntry) -> Mask:
        """Return the mask of a domain."""
        return cartesian_mask(self.scale.side, entry.ratio, seed=entry.mask_seed)

    def task(self, entry: DomainEntry, slices: int | None = None, draw: int = 0) -> tuple[Task, Domain]:
        """Return what is trained on, all slices or as many as asked for, and the slices as data."""
        domain = self.domain(entry)
        split = split_for_training(domain)
        train, validation = split.train, split.validation
        if slices is not None:
            train = train.take(choose_slices(train.subjects, min(slices, len(train)), draw))
        n_validation = min(self.scale.validation_slices, len(validation))
        images = normalised_images(train)
        judged = images[:0]
        if n_validation:
            judged = normalised_images(validation.take(choose_slices(validation.subjects, n_validation)))
        return Task(entry.name, images, [self.mask(entry)], judged, domain.header.phase_axis), train

    def test(self, entry: DomainEntry) -> Domain:
        """Return the slices that are only reported on."""
        test = self.domain(entry).select(split="test")
        if len(test) == 0:
            raise UldaError(f"the data of {entry.name} has no slices in the split test; see `ulda data split`")
        return test
