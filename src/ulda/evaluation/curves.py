"""Line charts as SVG, without a plotting library."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from ulda.errors import UldaError
from ulda.io.atomic import atomic_output

Curves = Mapping[str, tuple[Sequence[float], Sequence[float]]]
"""Positions and values by the name of their curve."""

LEFT, RIGHT, TOP, BOTTOM = 72, 560, 40, 348
"""The sides of the plot within the picture, in pixels; the legend is to the right of it."""

_WIDTH, _HEIGHT, _LEGEND_LINE = 740, 400, 16
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Of Okabe and Ito (2008): told apart with any colour vision; yellow is left out, being faint on white."""

_DASHES = ("none", "6 3", "2 2", "8 3 2 3")  # one after the other where the colours are used up
_LARGEST, _SMALLEST = 1e100, 1e-100  # differences and ratios of what lies between do not overflow
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def save_curves(
    path: str | Path,
    curves: Curves,
    title: str,
    x_label: str,
    y_label: str,
    *,
    log_y: bool = False,
    overwrite: bool = False,
) -> None:
    """Write a line chart as SVG.

    Points that are not finite, or not positive on a logarithmic axis, leave a gap; a point between gaps is a dot.

    Parameters
    ----------
    path
        The SVG to write.
    curves
        The points by the name that stands in the legend.
    title, x_label, y_label
        What is drawn.
    log_y
        Whether the vertical axis is logarithmic.
    overwrite
        Replace an existing file.
    """
    for name, (xs, ys) in curves.items():
        if len(xs) != len(ys):
            raise UldaError(f"the curve {name} has {len(xs)} positions and {len(ys)} values")
    x_axis = _axis((x for xs, _ in curves.values() for x in xs), LEFT, RIGHT)
    y_axis = _axis((y for _, ys in curves.values() for y in ys), BOTTOM, TOP, log_y)
    height = max(_HEIGHT, TOP + _LEGEND_LINE * (len(curves) + 1))
    middle, center = (LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{_text(title)}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{middle}" y="22" text-anchor="middle" font-size="14">{_text(title)}</text>',
        f'<text x="{middle}" y="{BOTTOM + 40}" text-anchor="middle">{_text(x_label)}</text>',
        f'<text transform="translate(16 {center}) rotate(-90)" text-anchor="middle">{_text(y_label)}</text>',
        *_grid(x_axis, y_axis),
    ]
    for number, (name, points) in enumerate(curves.items()):
        parts += _curve(number, name, _runs(points, x_axis, y_axis))
    with atomic_output(path, overwrite=overwrite) as temporary:
        temporary.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class _Axis:
    """Maps the numbers of one axis to pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def pixel(self, value: float) -> float:
        low, high, at = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            between = (1.0, 2.0, 5.0) if len(decades) <= 4 else (1.0,)
            marks = [digit * 10.0**decade for decade in decades[:: -(-len(decades) // 8)] for digit in between]
            marks = [mark for mark in marks if self.low * (1 - 1e-9) <= mark <= self.high * (1 + 1e-9)]
            if len(marks) >= 2:
                return marks
        step = _round_step((self.high - self.low) / 5)
        return [n * step for n in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def _axis(values: Iterable[float], start: float, end: float, log: bool = False) -> _Axis:
    shown = [value for value in values if _is_shown(value, log)]
    low, high = (min(shown), max(shown)) if shown else (1.0, 10.0)
    if high - low <= max(1e-9 * max(abs(low), abs(high)), _SMALLEST):
        margin = abs(low) / 2 if abs(low) > _SMALLEST else 1.0
        low, high = low - margin, high + margin
    return _Axis(float(low), float(high), start, end, log)


def _is_shown(value: float, log: bool) -> bool:
    return abs(value) < _LARGEST and (value > _SMALLEST or not log)


def _round_step(raw: float) -> float:
    """Return the next of 1, 2 and 5 times a power of ten from `raw` upwards."""
    power = 10.0 ** math.floor(math.log10(raw))
    return next((digit * power for digit in (1, 2, 5) if digit * power >= raw), 10 * power)


def _grid(x_axis: _Axis, y_axis: _Axis) -> list[str]:
    parts = []
    for value in x_axis.ticks():
        x = f"{x_axis.pixel(value):.2f}"
        parts.append(f'<line x1="{x}" y1="{TOP}" x2="{x}" y2="{BOTTOM}" stroke="#dddddd"/>')
        parts.append(f'<text class="x-tick" x="{x}" y="{BOTTOM + 18}" text-anchor="middle">{value:.6g}</text>')
    for value in y_axis.ticks():
        y = y_axis.pixel(value)
        parts.append(f'<line x1="{LEFT}" y1="{y:.2f}" x2="{RIGHT}" y2="{y:.2f}" stroke="#dddddd"/>')
        parts.append(f'<text class="y-tick" x="{LEFT - 6}" y="{y + 4:.2f}" text-anchor="end">{value:.6g}</text>')
    frame = f'<rect x="{LEFT}" y="{TOP}" width="{RIGHT - LEFT}" height="{BOTTOM - TOP}" fill="none" stroke="#444444"/>'
    return [*parts, frame]


def _runs(points: tuple[Sequence[float], Sequence[float]], x_axis: _Axis, y_axis: _Axis) -> list[str]:
    """Return the unbroken stretches of a curve as SVG point lists."""
    runs: list[list[str]] = [[]]
    for x, y in zip(*points, strict=True):
        if _is_shown(x, x_axis.log) and _is_shown(y, y_axis.log):
            runs[-1].append(f"{x_axis.pixel(x):.2f},{y_axis.pixel(y):.2f}")
        else:
            runs.append([])
    return [" ".join(run) for run in runs if run]


def _curve(number: int, name: str, runs: Sequence[str]) -> list[str]:
    colour, dash = _COLOURS[number % len(_COLOURS)], _DASHES[number // len(_COLOURS) % len(_DASHES)]
    y = TOP + _LEGEND_LINE * number + _LEGEND_LINE // 2
    # round caps turn a run of a single point into a dot
    style = f'stroke="{colour}" stroke-dasharray="{dash}" stroke-width="2" stroke-linecap="round" fill="none"'
    return [
        f'<g class="curve" data-name={quoteattr(_clean(name))} {style}>',
        *(f'<polyline points="{run if " " in run else f"{run} {run}"}"/>' for run in runs),
        f'<line x1="{RIGHT + 10}" y1="{y}" x2="{RIGHT + 34}" y2="{y}"/>',
        f'<text x="{RIGHT + 40}" y="{y + 4}" fill="black" stroke="none">{_text(name)}</text>',
        "</g>",
    ]


def _clean(text: str) -> str:
    """Replace the characters that XML has no way to write."""
    return _NOT_IN_XML.sub("\ufffd", text)


def _text(text: str) -> str:
    return escape(_clean(text))
