"""What the files of a domain hold, compared with what an experiment needs of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ulda.data import check_leakage
from ulda.data.importing import read_slices
from ulda.data.readers import Slice
from ulda.errors import UldaError
from ulda.experiments.data import Data, made_splits
from ulda.experiments.definition import DomainEntry, Scale
from ulda.training.slices import VALIDATED_FRACTION


@dataclass
class Scan:
    """What was found in the file or folder of a domain.

    Attributes
    ----------
    n_slices, n_empty
        Slices, and those among them that an import leaves out.
    smallest
        The smallest height and width.
    subjects, splits
        Of each slice that is not empty.
    n_nonfinite
        Slices that hold NaN or infinite values.
    undersampled
        Whether k-space arrived undersampled.
    contents
        What the slices hold, in words; an import takes slices of one kind, with as many coils.
    """

    n_slices: int = 0
    n_empty: int = 0
    smallest: tuple[int, int] | None = None
    subjects: list[str] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    n_nonfinite: int = 0
    undersampled: bool = False
    contents: set[str] = field(default_factory=set)

    def add(self, item: Slice, *, combine_coils: bool = False) -> None:
        """Count a slice, whose coils may be combined."""
        self.n_slices += 1
        if not np.isfinite(item.array).all():
            self.n_nonfinite += 1
        if not item.array.any():
            self.n_empty += 1
            return
        shapes = [item.array.shape[-2:], *([] if item.target is None else [item.target.shape])]
        sides = [self.smallest] if self.smallest else []
        height, width = (min(column) for column in zip(*sides, *shapes, strict=True))
        self.smallest = height, width
        self.subjects.append(item.subject or Path(item.source).stem or "unknown")
        self.splits.append(item.split)
        self.undersampled |= item.lines is not None
        n_coils = len(item.array) if item.array.ndim == 3 else 1
        is_combined = combine_coils and n_coils > 1
        coils = f" of {n_coils} coils" if n_coils > 1 and not is_combined else ""
        self.contents.add("magnitude" if is_combined else f"{item.kind}{coils}")

    @property
    def counts(self) -> dict[str, int]:
        """Slices by split."""
        return dict(Counter(self.splits))


@dataclass(frozen=True)
class DomainCheck:
    """A domain: what was found, what keeps the experiment from running, and what a user may want to know."""

    name: str
    found: str
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def scanned(data: Data, entry: DomainEntry) -> Scan | UldaError:
    """Read every slice of a domain; an error in place of what was found where it cannot be read."""
    try:
        found = Scan()
        options = data.options(entry)
        for item in read_slices([data.source_of(entry)], options):
            found.add(item, combine_coils=options.combine_coils)
    except UldaError as error:
        return error
    return found


def check_domain(entry: DomainEntry, is_source: bool, scan: Scan | UldaError, scale: Scale) -> DomainCheck:
    """Compare what was found in the file of a domain with what an experiment needs of it."""
    name = f"{entry.name} ({'source' if is_source else 'target'})"
    if isinstance(scan, UldaError):
        return DomainCheck(name, "", (f"{entry.name}: {scan}",))
    split, notes = _with_splits(scan)
    if _is_small(scan, scale) and entry.enlarge:
        notes.append(f"slices, the smallest {_size(scan)}, are enlarged to {scale.side} x {scale.side}")
    n_test = split.counts.get("test", 0)
    if scale.test_slices is not None and 0 < n_test < scale.test_slices:
        notes.append(f"there are {n_test} slices to report on, not {scale.test_slices}")
    problems = [*_slice_problems(entry, scan, scale), *_split_problems(split)]
    shortage, note = _shortage(n_train(split), is_source, scale) if not problems else ("", "")
    problems += [shortage] if shortage else []
    notes += [note] if note else []
    splits = _counted(scan)
    found = f"{len(scan.splits)} slices of {len(set(scan.subjects))} subjects, {_size(scan)} or larger; {splits}"
    problems, notes = ([f"{entry.name}: {sentence}" for sentence in said] for said in (problems, notes))
    return DomainCheck(name, found, tuple(problems), tuple(notes))


def _with_splits(scan: Scan) -> tuple[Scan, list[str]]:
    """Return what was found with the splits that the experiment makes where there are none, and a note about it."""
    if any(scan.splits):
        return scan, []
    try:
        assignment = made_splits(scan.subjects)
    except UldaError:
        return scan, []
    split = replace(scan, splits=[assignment[subject] for subject in scan.subjects])
    return split, [f"it has no splits; the experiment makes them by subject: {_counted(split)}"]


def _counted(scan: Scan) -> str:
    return ", ".join(f"{split or 'no split'} {n}" for split, n in sorted(scan.counts.items()))


def _size(scan: Scan) -> str:
    return " x ".join(map(str, scan.smallest or (0, 0)))


def _is_small(scan: Scan, scale: Scale) -> bool:
    return scan.smallest is not None and min(scan.smallest) < scale.side


def _slice_problems(entry: DomainEntry, scan: Scan, scale: Scale) -> Iterator[str]:
    if scan.smallest is None:
        yield "there is no slice that is not empty"
        return
    if _is_small(scan, scale) and not entry.enlarge:
        yield (
            f"the smallest slice is {_size(scan)}, but {scale.side} x {scale.side} is needed; "
            "`enlarge: true` in the definition would enlarge it"
        )
    if len(scan.contents) > 1:
        yield f"its slices cannot be in one file, they are of different kinds ({', '.join(sorted(scan.contents))})"
    if scan.n_nonfinite:
        yield f"{scan.n_nonfinite} slices hold NaN or infinite values; `ulda data inspect` shows where"
    if scan.undersampled:
        yield "the k-space arrived undersampled, so there is no reference to train on or to compare with"


def _split_problems(scan: Scan) -> Iterator[str]:
    if not any(scan.splits):
        try:
            made_splits(scan.subjects)
        except UldaError as error:
            yield str(error)
        return
    for split in ("train", "test"):
        if not scan.counts.get(split):
            yield f"it has no slices in the split {split}; put some into a folder `{split}`, or see `ulda data split`"
    try:
        check_leakage(scan.subjects, scan.splits)
    except UldaError as error:
        yield str(error)


def n_train(scan: Scan) -> int:
    """Return how many slices are left to train on, about, once subjects are held out where there is no val split."""
    n = scan.counts.get("train", 0)
    training = {subject for subject, split in zip(scan.subjects, scan.splits, strict=True) if split == "train"}
    is_held_out = not scan.counts.get("val") and len(training) > 1
    return round(n * (1 - VALIDATED_FRACTION)) if is_held_out else n


def _shortage(n: int, is_source: bool, scale: Scale) -> tuple[str, str]:
    """Return a problem and a note, one of them empty or both.

    For a target, all slices may stand for the largest size, but not for two sizes: they would be the same.
    """
    if is_source:
        wanted = scale.source_slices or 1
        return (f"there are {n} slices to train on, but {wanted} are asked for", "") if n < wanted else ("", "")
    sizes = sorted(scale.sizes)
    too_large = [size for size in sizes if size > n]
    if not too_large:
        return "", ""
    if len(too_large) > 1 or len(sizes) == 1 or n == sizes[-2]:
        return f"there are {n} slices to train on, but {', '.join(map(str, too_large))} are asked for", ""
    return "", f"there are {n} slices to train on; they stand for {sizes[-1]}"
