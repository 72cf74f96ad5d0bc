"""The data of an experiment: domain files at its size, tasks to train on, slices to test on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ulda.data import Domain, ImportOptions, import_domain, split_by_subject
from ulda.data.resplit import write_splits
from ulda.errors import UldaError
from ulda.experiments.definition import DomainEntry, Scale
from ulda.io.atomic import atomic_output
from ulda.physics import Mask, cartesian_mask
from ulda.training.slices import choose_slices, normalised_images, split_for_training
from ulda.training.tasks import Task

SUFFIXES = (".npz", ".h5", "")

MADE_SPLITS = {"train": 0.7, "val": 0.1, "test": 0.2}
"""The splits of data that has none."""


def made_splits(subjects: Sequence[str]) -> dict[str, str]:
    """Return a split for each subject of data that has none, the same ones each time.

    Raises
    ------
    ulda.errors.UldaError
        When there are fewer subjects than splits.
    """
    try:
        return split_by_subject(subjects, MADE_SPLITS, seed=0)
    except UldaError as error:
        raise UldaError(f"it has no splits, and they cannot be made: {error}") from error


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

    def options(self, entry: DomainEntry) -> ImportOptions:
        """Return how the file or folder of a domain is imported."""
        return ImportOptions(
            name=entry.source,
            size=(self.scale.side, self.scale.side),
            picture_subjects=entry.picture_subjects,
            folder_splits=True,
            combine_coils=self.scale.single_coil,
            enlarge=entry.enlarge,
        )

    def domain(self, entry: DomainEntry) -> Domain:
        """Open a domain; it is imported when it is first asked for, and gets splits by subject where it has none."""
        options = {"pictures": entry.picture_subjects, "combined": self.scale.single_coil, "enlarged": entry.enlarge}
        kept_apart = "".join(f"-{name}" for name, is_set in options.items() if is_set)
        path = self.cache / f"{entry.source}-{self.scale.side}{kept_apart}.h5"
        if not path.exists():
            self.cache.mkdir(parents=True, exist_ok=True)
            with atomic_output(path, overwrite=True) as temporary:
                self._import(entry, temporary)
        return Domain.open(path)

    def _import(self, entry: DomainEntry, out: Path) -> None:
        import_domain([self.source_of(entry)], out, self.options(entry), overwrite=True)
        domain = Domain.open(out)
        if any(domain.label("split")):
            return
        try:
            assignment = made_splits(domain.subjects)
        except UldaError as error:
            raise UldaError(f"the data of {entry.name} cannot be used: {error}") from error
        write_splits(domain, assignment, out, overwrite=True)

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
        """Return the slices that are only reported on, as many as the scale has of them."""
        test = self.domain(entry).select(split="test")
        if len(test) == 0:
            raise UldaError(f"the data of {entry.name} has no slices in the split test; see `ulda data split`")
        if self.scale.test_slices is not None and self.scale.test_slices < len(test):
            test = test.take(choose_slices(test.subjects, self.scale.test_slices))
        return test
