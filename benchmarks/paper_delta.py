"""Which width delta of the smoothed ReLU trains with the preset `paper`, and why the paper's 0.001 does not.

Every row is a short training of the preset on brain and prostate with one thing changed: delta, the learning rate, or
no warm-up of the phases; T is 9 to be short. The alignment is the mean cosine between the gradients of g of different
batches at the start: near 0, a gradient is noise.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from benchmarks.studies import SOURCES, task_of, trained, write
from ulda.errors import UldaError
from ulda.methods import ULDA, method_settings, new_method
from ulda.training.tasks import draw, step_generator

STEPS, PHASES = 80, (3, 5, 7, 9)
DELTAS = (0.1, 0.01, 0.003, 0.001)
RATES = (5e-3, 1e-3)
BATCHES = 6


def gradient_alignment(delta: float) -> float:
    """Return the mean cosine between the gradients of g of different batches at the start: 1 is no noise."""
    model = new_method("ulda-paper", SOURCES, delta=delta)
    assert isinstance(model, ULDA)
    settings = method_settings("ulda-paper", "train", steps=STEPS, batch_size=2, phases=(7,))
    task, gradients = task_of("brain"), list[torch.Tensor]()
    for step in range(BATCHES):
        model.zero_grad()
        model.loss(task, draw([task], settings, step_generator(settings, step)), settings, 0)[0].backward()
        parts = [p.grad.flatten() for p in model.prior.extractor.parameters() if p.grad is not None]
        gradients.append(torch.nn.functional.normalize(torch.cat(parts), dim=0))
    cosines = torch.stack(gradients) @ torch.stack(gradients).T
    return float((cosines.sum() - BATCHES) / (BATCHES * (BATCHES - 1)))


def main() -> None:
    """Train all rows and write them."""
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    plans = [(delta, rate, True) for delta in DELTAS for rate in RATES] + [(0.001, 1e-4, True), (0.001, 1e-3, False)]
    for delta, rate, by_phases in plans:
        changes: dict[str, Any] = {"learning_rate": rate, "batch_size": 1, "phases": PHASES if by_phases else ()}
        try:
            _, score = trained("ulda-paper", STEPS, {"delta": delta, "initialise": 0.0, "phases": PHASES[-1]}, changes)
        except UldaError:
            score = math.nan
        rows.append({"delta": delta, "learning_rate": rate, "warm_up_of_phases": by_phases, "psnr": round(score, 3)})
        print(rows[-1], flush=True)
    start = {"initialise": 0.0, "phases": PHASES[-1]}
    _, untrained = trained("ulda-paper", 1, start, {"learning_rate": 1e-9, "phases": ()})
    alignment = {str(delta): round(gradient_alignment(delta), 3) for delta in DELTAS}
    print("untrained", untrained, "alignment", alignment)
    facts = {
        "steps": STEPS,
        "phases": PHASES,
        "batch_size": 1,
        "untrained_psnr": round(untrained, 3),
        "gradient_alignment": alignment,
    }
    write("paper-delta", "python -m benchmarks.paper_delta", rows, **facts)


if __name__ == "__main__":
    main()
