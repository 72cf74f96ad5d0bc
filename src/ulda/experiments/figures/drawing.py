"""Draw the figures that the results allow, and say why the others are missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ulda.errors import UldaError
from ulda.experiments.figures import bars, beyond, convergence, curves, efficiency, reconstructions, similarity
from ulda.experiments.figures.results import NothingToDrawError, Results
from ulda.experiments.figures.style import Format, save, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS: dict[str, Callable[[Results], dict[str, Figure]]] = {
    "reconstructions": reconstructions.draw,
    "bars": bars.draw,
    "learning": curves.draw,
    "convergence": convergence.draw,
    "beyond": beyond.draw,
    "efficiency": efficiency.draw,
    "similarity": similarity.draw,
}
"""What draws each kind of figure: it returns them by the stem of their file."""


@dataclass(frozen=True)
class Drawn:
    """What came of drawing.

    Attributes
    ----------
    files
        What was written.
    skipped
        Why there is no figure of a kind.
    """

    files: list[Path]
    skipped: dict[str, str]


def draw_figures(results: Results, out: Path, kinds: Sequence[str] = (), formats: Sequence[Format] = ("svg",)) -> Drawn:
    """Draw the figures of an experiment.

    Parameters
    ----------
    results
        What there is to draw.
    out
        The folder that gets them.
    kinds
        Of `KINDS`; all if empty.
    formats
        As what they are written.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise UldaError(f"there is no kind of figure {kind!r}; there are: {', '.join(KINDS)}")
    files, skipped = [], {}
    with styled():
        out.mkdir(parents=True, exist_ok=True)
        for kind in kinds or KINDS:
            try:
                figures = KINDS[kind](results)
            except NothingToDrawError as error:
                skipped[kind] = str(error)
                continue
            for stem, figure in figures.items():
                for format_ in formats:
                    files.append(out / f"{_file_stem(stem)}.{format_}")
                    save(figure, files[-1], format_)
    return Drawn(files, skipped)


def _file_stem(stem: str) -> str:
    return re.sub(r"[^\w-]+", "-", stem)
