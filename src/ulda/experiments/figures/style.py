"""How all figures look: one style file, and for each method a colour, a marker, a dash and a hatch of its own.

The colours are those of Okabe and Ito (2008), which are told apart with any colour vision. In grey some of them look
alike, so that no two methods share a marker, a dash or a hatch.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ulda.errors import MissingExtraError
from ulda.io.atomic import atomic_output

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILE = Path(__file__).parent / "ulda.mplstyle"
Format = Literal["svg", "pdf"]

COLOURS = ("#D55E00", "#0072B2", "#009E73", "#56B4E9", "#E69F00", "#CC79A7", "#000000")
"""Of Okabe and Ito, the method that the others are compared with first; yellow is left out, being faint on white."""

GREYS = ("#BBBBBB", "#EEEEEE", "#999999")
"""For the methods without training."""

_LETTERS_PER_INCH = 15.0  # of the title, on average, so that its lines are not wider than the figure

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "h", "p", "d", "8")
HATCHES = ("", "////", "\\\\\\\\", "xxx", "+++", "----", "||||", "xxxxxx", "//", "\\\\", "--", "||", "//--", "\\\\||")
"""Of lines: dots, circles and stars would make a file several times as large."""

DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1.5, 1)),
    (0, (6, 1.5, 1.5, 1.5)),
    (0, (6, 1.5, 1.5, 1.5, 1.5, 1.5)),
    (0, (3, 3)),
    (0, (9, 2)),
    (0, (1, 2.5)),
    (0, (9, 2, 3, 2)),
    (0, (3, 1, 3, 4)),
    (0, (12, 3)),
    (0, (1, 1, 1, 4)),
    (0, (9, 1, 1, 1)),
    (0, (12, 2, 3, 2, 1, 2)),
)

HIGHLIGHT = COLOURS[4]
ERROR_MAP = "inferno"
"""Even steps of lightness, so that it reads the same in grey."""


@dataclass(frozen=True)
class Look:
    """How a method is drawn.

    Attributes
    ----------
    colour
        As ``#RRGGBB``.
    marker, dash, hatch
        Of points, lines and bars, in the words of matplotlib.
    """

    colour: str
    marker: str
    dash: Any
    hatch: str

    @property
    def ink(self) -> str:
        """Black or white, whichever stands out from the colour."""
        return "#FFFFFF" if lightness(self.colour) < 55 else "#000000"

    def line(self) -> dict[str, Any]:
        """Return the keywords of a line with points."""
        return {"color": self.colour, "linestyle": self.dash} | self.points()

    def points(self) -> dict[str, Any]:
        """Return the keywords of points."""
        return {"marker": self.marker, "markeredgecolor": "white", "markeredgewidth": 0.4, "color": self.colour}

    def bar(self) -> dict[str, Any]:
        """Return the keywords of a bar."""
        return {"facecolor": self.colour, "edgecolor": self.ink, "hatch": self.hatch, "linewidth": 0.4}


def looks_of(learned: Sequence[str], classical: Sequence[str] = (), first: str = "") -> dict[str, Look]:
    """Return the look of each method by its name.

    Parameters
    ----------
    learned, classical
        The methods with and without training.
    first
        The one that gets the first colour, drawn without a hatch and with an unbroken line.
    """
    ordered = sorted(learned, key=lambda name: name != first)
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(ordered)}
    colours |= {name: GREYS[i % len(GREYS)] for i, name in enumerate(classical)}
    return {
        name: Look(colour, MARKERS[i % len(MARKERS)], DASHES[i % len(DASHES)], HATCHES[i % len(HATCHES)])
        for i, (name, colour) in enumerate(colours.items())
    }


def lightness(colour: str) -> float:
    """Return the lightness L* of a colour ``#RRGGBB``, from 0 to 100: the grey it turns into.

    Examples
    --------
    >>> lightness("#000000"), round(lightness("#FFFFFF")), round(lightness("#777777"))
    (0.0, 100, 50)
    """
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    y = sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return 116 * y ** (1 / 3) - 16 if y > (6 / 29) ** 3 else y * (29 / 3) ** 3


@contextmanager
def styled() -> Iterator[None]:
    """Draw and save in the style of the package."""
    try:
        from matplotlib import style
    except ImportError as error:
        raise MissingExtraError("drawing figures", "plot") from error
    with style.context(["default", FILE]):
        yield


def new_figure(width: float, height: float, title: str, subtitle: str = "", *, pad: float = 0.06) -> Figure:
    """Return an empty figure, in inches, that says what it shows; `pad` inches are left around each panel."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=pad, h_pad=pad, wspace=0, hspace=0))
    lines = [line[:1].upper() + line[1:] for text in (title, subtitle) for line in text.splitlines()]
    wrapped = [part for line in lines for part in textwrap.wrap(line, int(_LETTERS_PER_INCH * width))]
    figure.suptitle(literal("\n".join(wrapped)))
    figure.set_label(title)
    return figure


def panels(figure: Figure, rows: int, columns: int, **options: Any) -> list[list[Axes]]:
    """Return the axes of a grid of panels, row by row."""
    return [list(row) for row in figure.subplots(rows, columns, squeeze=False, **options)]


def add_legend(figure: Figure, axes: Sequence[Axes], columns: int = 5) -> None:
    """Explain every name that occurs in some axes once, below them."""
    found: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=min(columns, len(found)))


def log_axis(ax: Axes, which: Literal["x", "y"], values: Sequence[float]) -> None:
    """Make an axis logarithmic, with plain round numbers that fit the range of some values, all above zero."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    ax.set(**{f"{which}scale": "log"})
    axis = ax.xaxis if which == "x" else ax.yaxis
    ratio = max(values) / min(values)
    digits = (1.0, 2.0, 5.0) if ratio <= 50 else (1.0, 3.0) if ratio <= 2000 else (1.0,)
    # in less than a decade these are too few
    axis.set_major_locator(LogLocator(subs=digits) if ratio > 5 else MaxNLocator(6, steps=[1, 2, 5, 10]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: round_number(value)))


def round_number(value: float) -> str:
    """Write a round number in short.

    Examples
    --------
    >>> round_number(0.5), round_number(2000), round_number(1e7)
    ('0.5', '2 k', '10 M')
    """
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g} {letter}"
    return f"{value:g}"


def literal(text: str) -> str:
    """Return a text whose dollar signs are no mathematics."""
    return text.replace("$", r"\$")


def save(figure: Figure, path: Path, format_: Format) -> None:
    """Write a figure; the same figure gives the same bytes."""
    unstable: dict[Format, list[str]] = {"svg": ["Date"], "pdf": ["CreationDate", "ModDate", "Producer"]}
    metadata = {"Creator": "ulda", "Title": figure.get_label()}
    with atomic_output(path, overwrite=True) as temporary:
        figure.savefig(temporary, format=format_, metadata=metadata | dict.fromkeys(unstable[format_]))
