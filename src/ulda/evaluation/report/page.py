"""One HTML file that shows reports: everything inline, nothing fetched, every name shown as text."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from ulda.evaluation.paired import PairedDifference
from ulda.evaluation.report.colours import error_colours
from ulda.evaluation.report.content import Metric, Report
from ulda.evaluation.report.images import BUDGET, CHANNELS, KSPACE_RANGE, encode_report, error_scale
from ulda.io.atomic import atomic_output
from ulda.solvers import Step
from ulda.solvers.batch import BRANCHES
from ulda.version import __version__

SCRIPTS = ("state.js", "images.js", "view.js", "table.js", "certificate.js", "page.js")
"""The parts of the script, in their order in the page."""

_TRACE_DIGITS = 7


def write_report(reports: Sequence[Report], path: str | Path, *, budget: int = BUDGET, overwrite: bool = False) -> int:
    """Write one page for one or several reports and return its size in bytes.

    Parameters
    ----------
    reports
        What to show; several are chosen between on the page.
    path
        The HTML file to write.
    budget
        How many bytes the images may take; they are compressed with loss where they would take more.
    overwrite
        Replace an existing file.
    """
    # a name of a file may hold bytes that are no text
    content = render(reports, budget=budget).encode(errors="replace")
    with atomic_output(path, overwrite=overwrite) as temporary:
        temporary.write_bytes(content)
    return len(content)


def render(reports: Sequence[Report], *, budget: int = BUDGET) -> str:
    """Return the page as text."""
    style, script = _template_text("report.css"), _script()
    n_values = [_n_planes(report) * len(report.shown) * report.n_pixels for report in reports]
    data, shown = [], []
    for report, n in zip(reports, n_values, strict=True):
        share = n / max(1, sum(n_values))
        data.append(_data(report, int(share * budget)))
        shown.append(_shown(report, data[-1]["precision"]))
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(_template_text("report.html"))
    return template.render(
        title=_heading(reports),
        reports=shown,
        style=Markup(style),
        script=Markup(script),
        policy=_policy(style, script),
        data=_embedded({"sources": data, "colours": error_colours().tolist(), "branches": list(BRANCHES)}),
        version=__version__,
    )


def _heading(reports: Sequence[Report]) -> str:
    """Return the title; of several reports what their titles begin with, and how many they are."""
    if len(reports) == 1:
        return reports[0].title
    names = list(dict.fromkeys(report.title.partition(": ")[0] for report in reports))
    count = f"{len(reports)} results"
    return count if len(names) > 2 else f"{' and '.join(names)}: {count}"


def _n_planes(report: Report) -> int:
    return len(report.all_images()) + 1


def _template_text(name: str) -> str:
    return resources.files("ulda.evaluation.report").joinpath("template", name).read_text(encoding="utf-8")


def _script() -> str:
    """Return the parts of the script in a scope of their own."""
    return '"use strict";\n(() => {\n' + "\n".join(map(_template_text, SCRIPTS)) + "})();\n"


def _policy(style: str, script: str) -> str:
    """Return the Content-Security-Policy: nothing is loaded, and no script or style runs but the page's own."""

    def own(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; script-src {own(script)}; style-src {own(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _embedded(value: Any) -> Markup:
    """Return JSON that stays inside of its script element, whatever the texts in it."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _data(report: Report, budget: int) -> dict[str, Any]:
    """Return what the script of the page needs."""
    masks = list(dict.fromkeys(one.mask for one in report.slices if one.mask is not None))
    images = report.all_images()
    pictures = encode_report(report, budget) if images else None
    height, width = next(iter(images.values())).shape[1:] if images else (0, 0)
    return {
        "title": report.title,
        "methods": list(report.methods),
        "judged": report.methods.index(report.judged) if report.judged in report.methods else None,
        "slices": [[one.subject, one.name, masks.index(one.mask) if one.mask else None] for one in report.slices],
        "masks": [
            {"nLines": mask.n_lines, "sampled": [i for i, line in enumerate(mask.sampled) if line]} for mask in masks
        ],
        "phaseAxis": report.phase_axis,
        "hasReference": report.reference is not None,
        # the method that each plane shows; null is the reference
        "planes": [report.methods.index(name) if name else None for name in images],
        "size": [height, width],
        # null for a slice without a picture
        "pictures": _by_slice(report, pictures.slices) if pictures else [],
        "whites": _by_slice(report, pictures.whites) if pictures else [],
        "mime": pictures.mime if pictures else "",
        "channels": list(CHANNELS) if pictures and pictures.packed else None,
        "precision": pictures.precision if pictures else "",
        "errorScale": error_scale(report),
        "kspaceRange": KSPACE_RANGE,
        "hasKspace": report.kspace is not None,
        "metrics": [
            {"key": m.key, "label": m.label, "digits": m.digits, "higher": m.higher_is_better} for m in report.metrics
        ],
        "scores": [
            {key: [_number(value) for value in values] for key, values in report.scores.get(name, {}).items()}
            for name in report.methods
        ],
        "traces": [
            {
                "method": name,
                "phases": report.phases.get(name),
                "slices": _by_slice(report, [_iterations(steps, report.n_pixels) for steps in traces]),
            }
            for name, traces in report.traces.items()
        ],
    }


def _by_slice(report: Report, values: Sequence[Any]) -> list[Any]:
    """Return the values of the pictured slices in a list of all slices, None for the others."""
    found: list[Any] = [None] * len(report.slices)
    for index, value in zip(report.shown, values, strict=True):
        found[index] = value
    return found


def _iterations(steps: Sequence[Step], n_pixels: int) -> list[list[Any]]:
    """Return the numbers of each iteration."""
    return [
        [
            *(_number(value, _TRACE_DIGITS) for value in (step.eps, step.phi_before, step.phi)),
            *(_number(value, _TRACE_DIGITS) for value in (step.grad_norm_before, step.grad_norm)),
            BRANCHES.index(step.branch),
            *(step.line_search_steps, int(_descended(step, steps[t - 1] if t else None, n_pixels))),
        ]
        for t, step in enumerate(steps)
    ]


def _descended(step: Step, last: Step | None, n_pixels: int) -> bool:
    """Tell whether an iteration did not raise the objective.

    Where the objective before it is not on record with its smoothing, both count with their bound, ``phi`` plus half of
    ``eps`` per pixel, which no change of the smoothing raises.
    """
    if last is None or not math.isnan(step.phi_before):
        return step.phi <= step.phi_before
    return step.phi + n_pixels / 2 * step.eps <= last.phi + n_pixels / 2 * last.eps


def _number(value: float, digits: int = 9) -> float | str | None:
    """Return a number as JSON has it: NaN as null, infinity as a word that JavaScript reads."""
    value = float(value)
    if math.isnan(value):
        return None
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return float(f"{value:.{digits}g}")


def _shown(report: Report, precision: str) -> dict[str, Any]:
    """Return the texts and tables that need no script."""
    rows = []
    for row in report.summary():
        name = row["method"]
        rows.append(
            {
                "method": name,
                "is_judged": name == report.judged,
                "cells": [
                    {
                        "text": _mean(row["mean"].get(m.key), row["std"].get(m.key), m.digits),
                        "best": m.key in row["best"],
                    }
                    for m in report.metrics
                ],
                "differences": [_difference(report, name, m) for m in report.metrics]
                if report.judged and name != report.judged
                else [],
            }
        )
    units = sorted({d.resampled for row in report.scores for m in report.metrics if (d := _paired(report, row, m))})
    return {
        "report": report,
        "verdict": _signed(report.verdict),
        "rows": rows,
        "unit": units[0] if len(units) == 1 else "subjects",
        "precision": precision,
        "errors": report.reference is not None and bool(report.images),
    }


def _paired(report: Report, other: str, metric: Metric) -> PairedDifference | None:
    return report.difference(other, metric.key) if report.judged and other != report.judged else None


def _difference(report: Report, other: str, metric: Metric) -> dict[str, str]:
    found = _paired(report, other, metric)
    if found is None:
        return {"text": "–", "better": ""}
    text = f"{found.mean:+.{metric.digits}f}"
    if found.resampled != "nothing":
        text += f" [{found.low:+.{metric.digits}f}, {found.high:+.{metric.digits}f}]"
    n_better = found.n_better
    if not metric.higher_is_better:
        first, second = (report.scores[name][metric.key] for name in (report.judged, other))
        n_better = int(np.sum(np.asarray(first) < np.asarray(second)))
    return {"text": _signed(text), "better": f"{n_better} of {found.n_slices}"}


def _mean(mean: float | None, std: float | None, digits: int) -> str:
    if mean is None or std is None or math.isnan(mean):
        return "–"
    return _signed(f"{mean:.{digits}f} ± {std:.{digits}f}") if math.isfinite(mean) else "∞"


def _signed(text: str) -> str:
    """Return a text whose negative numbers have a minus sign in place of the hyphen."""
    return re.sub(r"(?<![\w-])-(?=\d)", "\u2212", text)
