"""What each extra of the preset `default` is worth: the preset without it, adapted to three domains with 5 slices.

Short trainings of one seed on brain and prostate at 64 x 64; the last parameters are judged, on validation slices that
chose nothing. A difference under about 0.5 dB is within the noise of a seed.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch

from benchmarks.studies import TARGETS, task_of, trained, write
from ulda.methods import ULDA, method_settings
from ulda.training.validation import validate

STEPS, ADAPT_STEPS, SLICES, BATCH = 150, 45, 5, 1
EVERY_STEP: dict[str, Any] = {"phases": 15, "steps_per_phase": 1}
GRADIENT: dict[str, Any] = EVERY_STEP | {"proposal": "gradient", "adapter_weight": 0.1, "eps_ratio": 0.3}
WITHOUT: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "nothing left out": ({}, {}, {}),
    "accelerated proposal": (GRADIENT, {"phases": (7, 11, 15), "adapter_multiplier": 0.1}, {"adapter_multiplier": 0.1}),
    "several steps per test": (EVERY_STEP, {"phases": (5, 10, 15)}, {}),
    "low-rank update": ({"rank": 0}, {}, {}),
    "penalty": ({}, {"penalty_weight": 0.0}, {"penalty_weight": 0.0}),
    "mean-adapter steps": ({}, {"mean_adapter": 0.0}, {}),
    "warps": ({}, {"warp": 0.0}, {"warp": 0.0}),
}
"""Changes of the network, of the training and of the adaptation."""


def adapted(model: ULDA, method: str, name: str, changes: dict[str, Any]) -> dict[str, float]:
    """Adapt a copy to a domain; return its PSNR before and after."""
    few, judged = task_of(name, SLICES), task_of(name)
    model = copy.deepcopy(model)
    model.add_domain(name)
    before = validate(model, [judged])[name]["psnr"]
    settings = method_settings(method, "adapt", steps=ADAPT_STEPS, batch_size=BATCH, validate_every=0, **changes)
    model.adapt(replace(few, validation=few.images[:0]), settings)
    return {"before": round(before, 3), "psnr": round(validate(model, [judged])[name]["psnr"], 3)}


def main() -> None:
    """Train, adapt and judge all rows."""
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    plans = [("ulda", label, *changes) for label, changes in WITHOUT.items()]
    plans.append(("ulda-paper", "all extras", {}, {}, {}))
    for method, label, network, train, adapt in plans:
        model, sources = trained(method, STEPS, network, {"batch_size": BATCH} | train)
        found = {name: adapted(model, method, name, adapt) for name in TARGETS}
        rows.append({"method": method, "without": label, "sources": round(sources, 3), "targets": found})
        whole = rows[0]["targets"]
        rows[-1]["worth"] = {name: round(whole[name]["psnr"] - found[name]["psnr"], 2) for name in TARGETS}
        print(rows[-1], flush=True)
        write(
            "extras",
            "python -m benchmarks.extras",
            rows,
            steps=STEPS,
            adapt_steps=ADAPT_STEPS,
            slices=SLICES,
            batch_size=BATCH,
            targets=TARGETS,
        )


if __name__ == "__main__":
    main()
