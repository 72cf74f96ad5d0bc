"""The canonical domain file, read through the same interface as the other formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ulda.io.hdf5_input import peek_hdf5, text

from .arrays import require_kind
from .base import Description, KindChoice, Reader, Slice

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class DomainFileReader(Reader):
    """Reads files written by `ulda data import`, to merge or to resize them."""

    name = "ulda domain file"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Recognise the ``format`` attribute."""
        with peek_hdf5(path, head) as file:
            return file is not None and text(file.attrs.get("format", "")) == "ulda-domain"

    def describe(self, path: Path, kind: KindChoice = "auto") -> Description:
        """Report the header."""
        from ulda.data.domain import Domain

        domain = Domain.open(path)
        header = domain.header
        require_kind(path, self.name, header.kind, kind)
        return Description(
            format=self.name,
            kind=header.kind,
            n_slices=len(domain),
            shape=domain.shape,
            dtype="float32" if header.kind == "magnitude" else "complex64",
            attributes={
                "name": header.name,
                "subjects": str(len(set(domain.subjects))),
                "contrasts": ", ".join(sorted(set(domain.label("contrast")) - {""})),
                "splits": ", ".join(
                    f"{split or 'none'} {domain.label('split').count(split)}"
                    for split in sorted(set(domain.label("split")))
                ),
                "k-space": header.kspace_origin,
                "normalisation": header.normalisation,
                "licence": header.licence,
                "note": header.note,
            },
        )

    def slices(self, path: Path, kind: KindChoice = "auto") -> Iterator[Slice]:
        """Stream the stored slices."""
        from ulda.data.domain import Domain

        domain = Domain.open(path)
        header = domain.header
        require_kind(path, self.name, header.kind, kind)
        for record in domain.records():
            yield Slice(
                array=record.array,
                kind=header.kind,
                subject=record.subject,
                contrast=record.contrast,
                split=record.split,
                volume=record.volume,
                source=record.source,
                target=record.target,
                lines=record.lines,
                lines_are_detected=record.lines_are_detected,
                phase_axis=header.phase_axis,
                scale=record.scale,
                licence=header.licence,
                note=header.note,
            )
