"""Small reports with known pixels, for the tests of the page and of its files."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ulda.evaluation.report import Report, Slice
from ulda.physics import cartesian_mask
from ulda.solvers import Step

HEIGHT, WIDTH = 24, 32
METHODS = ("zero-filling", "TV", "adapted")
SUBJECTS = ("b", "b", "a10", "a2", "a2")
HOSTILE = "</script><img src=x onerror=\"window.hacked = 1\"> & 'x' \u2028 ∇φ"

PSNR = {
    "zero-filling": [20.0, 21.0, 22.0, 23.0, 24.0],
    "TV": [30.0, 9.5, 100.25, float("nan"), 28.0],
    "adapted": [33.0, 34.0, float("inf"), 31.0, 29.0],
}


def grey(seed: int, n: int = 5) -> NDArray[np.uint8]:
    """Return random grey levels."""
    return np.random.default_rng(seed).integers(0, 256, (n, HEIGHT, WIDTH), dtype=np.uint8)


def step(t: int, branch: str = "u", *, rises: bool = False) -> Step:
    """Return an iteration of a descent, or one that ascends."""
    before = 10.0 / (t + 1)
    return Step(
        eps=0.01, phi_before=before, grad_norm_before=1.0 / (t + 1), phi=before * (1.1 if rises else 0.6), f=1.0, r=1.0,
        grad_norm=1.0 / (t + 2), step_length=0.1, branch=branch, line_search_steps=2 if branch == "v" else 0,
        proposal_steps=int(branch == "u"),
    )  # fmt: skip


def example(name: str = "knee", methods: tuple[str, ...] = METHODS, subjects: tuple[str, ...] = SUBJECTS) -> Report:
    """Return a report of five slices; the reference has the grey levels of seed 0, method i those of seed i + 1."""
    mask = cartesian_mask(HEIGHT, 0.4, seed=1)
    branches = ("u", "u", "v", "u", "v", "stalled")
    return Report(
        title=name,
        description="five slices",
        slices=tuple(Slice(subject, f"slice {i}", mask) for i, subject in enumerate(subjects)),
        images={method: (grey(i + 1) / np.float32(255)).astype(np.float32) for i, method in enumerate(methods)},
        reference=(grey(0) / np.float32(255)).astype(np.float32),
        scores={
            method: {
                "psnr": np.array(PSNR[key]),
                "ssim": np.array([0.5, 0.6, 0.7, 0.8, 0.9]) + 0.01 * i,
                "nmse": np.array([0.5, 0.4, 0.3, 0.2, 0.1]) / (i + 1),
            }
            for i, (method, key) in enumerate(zip(methods, METHODS, strict=True))
        },
        convention="per slice, peak 1",
        judged=methods[-1],
        traces={
            methods[-1]: tuple(
                tuple(step(t, branch, rises=i == 4 and t == 1) for t, branch in enumerate(branches)) for i in range(5)
            )
        },
        verdict="adaptation helped by 1.00 dB",
        notes=("a note",),
        provenance={"command": {"command": "ulda evaluate knee.h5"}, "software": {"ulda": "0.1.0"}},
    )


def hostile() -> Report:
    """Return a report in which every name is an attack."""
    report = example(HOSTILE, tuple(f"{HOSTILE} {i}" for i in range(3)), tuple(f"{HOSTILE}{i}" for i in range(5)))
    return Report(
        **{
            **vars(report),
            "slices": tuple(Slice(one.subject, f"{HOSTILE} {one.name}", one.mask) for one in report.slices),
            "description": HOSTILE,
            "verdict": HOSTILE,
            "convention": HOSTILE,
            "notes": (HOSTILE,),
            "provenance": {HOSTILE: {HOSTILE: HOSTILE}},
        }
    )


def embedded(page: str) -> dict[str, Any]:
    """Return the data in a page."""
    start = page.index('id="data">') + len('id="data">')
    data: dict[str, Any] = json.loads(page[start : page.index("</script>", start)])
    return data
