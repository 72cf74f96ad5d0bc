"""Give a domain file new splits."""

from __future__ import annotations

import csv
import io
import shutil
from typing import TYPE_CHECKING

from ulda.data.splits import check_leakage, check_split_name
from ulda.errors import UldaError
from ulda.io.atomic import atomic_output
from ulda.io.hdf5 import hdf5_output
from ulda.io.untrusted import read_text, reading

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ulda.data.domain import Domain


def write_splits(domain: Domain, assignment: Mapping[str, str], out: Path, *, overwrite: bool = False) -> None:
    """Write a copy of the domain file whose splits follow `assignment`, subject by subject.

    The copy is whole or absent; `out` may be the domain's own path.
    """
    missing = sorted(set(domain.labels["subject"]) - set(assignment))
    if missing:
        others = f" (and {len(missing) - 1} more subjects)" if len(missing) > 1 else ""
        raise UldaError(f"no split is given for subject {missing[0]}{others}; give every subject of the domain one")
    splits = [assignment[subject] for subject in domain.labels["subject"]]
    for _ in type(domain).open(domain.path).records():
        pass  # a damaged slice is not copied
    with atomic_output(out, overwrite=overwrite) as temporary:
        shutil.copyfile(domain.path, temporary)
        with hdf5_output(temporary, "r+") as file:
            file["split"][...] = splits


def read_assignment(path: Path) -> dict[str, str]:
    """Read a CSV with the columns ``subject`` and ``split``; a subject in two splits is refused."""
    form = "a table of splits"
    content = read_text(path, form)
    with reading(path, form, "expected a CSV whose first line is `subject,split`"):
        rows = [(row["subject"], row["split"] or "") for row in csv.DictReader(io.StringIO(content, newline=""))]
    for _, split in rows:
        check_split_name(split, path.name)
    check_leakage([subject for subject, _ in rows], [split for _, split in rows])
    return dict(rows)
