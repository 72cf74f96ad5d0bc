"""The folder of an evaluation: numbers, pictures, and what a report is made of. It is the old one or the new one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ulda.data import Domain
from ulda.errors import UldaError
from ulda.evaluation.assessment import Assessment
from ulda.evaluation.panels import save_panel
from ulda.evaluation.report.comparison_file import (
    EVALUATION,
    FILE_NAME,
    ImageStore,
    report_of_assessment,
    write_data,
)
from ulda.evaluation.report.content import Provenance
from ulda.io.file_set import file_set, finish
from ulda.io.hdf5 import hdf5_output
from ulda.io.locks import locked_folder

N_PICTURES = 6
_PICTURE = re.compile(r"slice-\d{3,}\.png")


@dataclass(frozen=True)
class EvaluationWriter:
    """Writes the results of an evaluation; `evaluation_output` makes one.

    Attributes
    ----------
    folder
        Where the files are until all of them are written.
    domain
        The slices that are evaluated.
    store
        Takes the images as they are made.
    """

    folder: Path
    domain: Domain
    store: ImageStore

    @property
    def pictures(self) -> dict[int, str]:
        """The names of the pictures, by the slices that there are some of."""
        return {index: f"slice-{index:03}.png" for index in pictured_slices(len(self.domain))}

    def save(self, assessment: Assessment, notes: tuple[str, ...], provenance: Provenance) -> None:
        """Write the scores and pictures, and complete the data of the report."""
        stored = self.store.stored()
        report = report_of_assessment(assessment, self.domain, notes=notes, provenance=provenance, images=stored)
        write_data(self.store.file, report)
        for index, name in self.pictures.items():
            save_panel(assessment.comparison, index, self.folder / name)
        assessment.save_scores(self.folder / "scores.csv")

    def save_text(self, name: str, text: str) -> None:
        """Write a file of text."""
        (self.folder / name).write_text(text, encoding="utf-8")


def check_folder(out: Path, *, overwrite: bool = False) -> None:
    """Refuse to write over anything before the long work rather than after it."""
    if not out.exists():
        return
    if not out.is_dir():
        raise UldaError(f"{out} is a file; the results go into a folder, so choose another name")
    finish(out / EVALUATION)
    if any(not path.name.startswith(".") for path in out.iterdir()) and not overwrite:
        raise UldaError(f"the folder {out} is not empty; choose another one or pass --force to write into it")


@contextmanager
def evaluation_output(out: Path, domain: Domain, *, overwrite: bool = False) -> Iterator[EvaluationWriter]:
    """Give what writes the results of an evaluation into a folder, when the block succeeds.

    Parameters
    ----------
    out
        The folder; made if it does not exist.
    domain
        The slices that are evaluated.
    overwrite
        Replace the results of another evaluation.
    """
    check_folder(out, overwrite=overwrite)
    with locked_folder(out):
        with (
            file_set(out / EVALUATION, overwrite=overwrite) as folder,
            hdf5_output(folder / FILE_NAME) as file,
        ):
            writer = EvaluationWriter(folder, domain, ImageStore(file, domain))
            yield writer
        for path in out.iterdir():
            # a picture of another evaluation, of slices that this one has no pictures of
            if _PICTURE.fullmatch(path.name) and path.name not in writer.pictures.values():
                path.unlink()


def pictured_slices(n_slices: int) -> tuple[int, ...]:
    """Return which slices there are pictures of: the first, the last, and some between.

    Examples
    --------
    >>> pictured_slices(11)
    (0, 2, 4, 6, 8, 10)
    """
    return tuple(sorted({round(i * (n_slices - 1) / max(1, N_PICTURES - 1)) for i in range(N_PICTURES)}))
