"""Put a trained base into the package, with its metrics on the test splits in its card.

Run after ``ulda train configs/base.yaml --out runs/base``::

    python -m scripts.bundle_base runs/base

It needs ``../shared/data``. Every source is judged with its own adapter on its test split at 128 x 128 with a 20 %
mask that training did not see, against zero-filling, and total variation and wavelets with weights that are chosen on
its training slices.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from ulda.evaluation import chosen_weights, compare
from ulda.evaluation.learned import Learned
from ulda.methods import ULDA, WEIGHTED, Method, ZeroFilled
from ulda.models.files import BASE_FORMAT, read_facts
from ulda.physics import cartesian_mask
from ulda.training.slices import opened

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"
RATIO, SIDE, MASK_SEED = 0.2, 128, 1000


def metrics(model: ULDA, name: str, thin: int) -> dict[str, Any]:
    """Compare the model with the classical methods on the test split of a source."""
    mask = cartesian_mask(SIDE, RATIO, seed=MASK_SEED)
    methods: dict[str, Method] = {"zero-filling": ZeroFilled()}
    with opened(SHARED / f"{name}.npz", size=(SIDE, SIDE)) as domain:
        weights = chosen_weights(domain.select(split="train"), mask)
        methods |= {method: WEIGHTED[method](weight) for method, weight in weights.items()}
        test = domain.select(split="test")
        test = test.take(range(0, len(test), thin))
        comparison = compare(methods | {"ulda": Learned(model, name)}, test, mask)
    rows = {row["method"]: {key: round(row[key], 4) for key in ("psnr", "ssim")} for row in comparison.summary()}
    print(name, len(test), rows, flush=True)
    return {"n_slices": len(test), "n_subjects": len(set(test.subjects)), "mask": mask.hash, "methods": rows}


def solved_on(model: ULDA, name: str, most: int = 6) -> dict[str, float]:
    """Return the PSNR on validation slices after T phases, and after ten times as many."""
    mask = cartesian_mask(SIDE, RATIO, seed=MASK_SEED)
    runs = {"T": Learned(model, name), "10 T": Learned(model, name, 10 * model.n_phases)}
    with opened(SHARED / f"{name}.npz", size=(SIDE, SIDE)) as domain:
        val = domain.select(split="val")
        comparison = compare(runs, val.take(range(0, len(val), -(-len(val) // most))), mask)
    return {row["method"]: round(row["psnr"], 3) for row in comparison.summary()}


def main() -> None:
    """Judge a base and write it into the package."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of the training")
    parser.add_argument("--thin", type=int, default=1, help="judge on every so many-th test slice")
    parser.add_argument("--out", type=Path, default=ROOT / "src" / "ulda" / "models" / "bundled" / "base")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    card = read_facts(arguments.run, BASE_FORMAT)["card"]
    model = ULDA.load(arguments.run)
    test = {name: metrics(model, name, arguments.thin) for name in model.sources}
    judged = f"test splits, every {arguments.thin}-th slice, {SIDE} x {SIDE}, {RATIO:.0%} mask, acquisition scanner"
    card["test"] = {"judged_on": judged, "domains": test}
    card["solved_on"] = {name: solved_on(model, name) for name in model.sources}
    print(card["solved_on"])
    model.save(arguments.out, card, overwrite=True)


if __name__ == "__main__":
    main()
