"""How the lower level is trained decides whether the objective is worth solving: unrolled against equilibrium.

Run: ``python benchmarks/lower_level.py --name unrolled --folder runs/unrolled`` (again to continue), likewise
``equilibrium``. It trains on the brain and prostate slices of ``../shared/data`` at 64 x 64 with a 20 % mask, then
solves on the test slices for T, 2 T, 8 T and 30 T iterations from zero-filling with frozen weights, and writes
``benchmarks/results/lower_level-NAME.json``.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ulda.data import Domain, ImportOptions, import_domain
from ulda.evaluation import psnr, ssim
from ulda.physics import CartesianMRI, cartesian_mask
from ulda.training import ULDA, Architecture
from ulda.training.loop import Progress, Task, fit
from ulda.training.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"
SIDE, RATIO = 64, 0.2
SOURCES = ("brain", "prostate")

RECIPES: dict[str, dict[str, Any]] = {
    "unrolled": {"lower_level": "unrolled", "descent": "acceptance"},
    "penalty": {"lower_level": "unrolled", "descent": "penalty"},
    "equilibrium": {"lower_level": "equilibrium", "descent": "acceptance", "longest_rollout": 30, "phases": (10,)},
}


def domain(name: str, folder: Path) -> Domain:
    """Import a domain of the shared data at the size of this benchmark."""
    path = folder / f"{name}-{SIDE}.h5"
    if not path.exists():
        import_domain([SHARED / f"{name}.npz"], path, ImportOptions(size=(SIDE, SIDE)))
    return Domain.open(path)


def stack(domain: Domain) -> torch.Tensor:
    """Return all slices as one tensor."""
    return torch.stack(list(domain.images()))


def judge(model: ULDA, name: str, images: torch.Tensor, multiples: tuple[int, ...]) -> dict[str, Any]:
    """Solve from zero-filling for several numbers of iterations."""
    physics = CartesianMRI(cartesian_mask(SIDE, RATIO))
    y, reference = physics.A(images), images.abs()
    found: dict[str, Any] = {}
    for multiple in multiples:
        options = model.options(name, iterations=multiple * model.architecture.phases)
        with torch.no_grad():
            x, trace = model(y, physics, name, options=options, return_trace=True)
        found[f"{multiple}T"] = {
            "psnr": float(psnr(x.abs(), reference, data_range=1.0).mean()),
            "ssim": float(ssim(x.abs(), reference, data_range=1.0).mean()),
            "proposals": trace.accepted_fraction(),
        }
    return found


def main() -> None:
    """Train or continue, then judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", choices=RECIPES, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--phases", type=int, default=15)
    parser.add_argument("--thin", type=int, default=8, help="judge on every so many-th test slice")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    domains = {name: domain(name, arguments.folder) for name in SOURCES}
    masks = [cartesian_mask(SIDE, RATIO)]
    tasks = [
        Task(name, stack(d.select(split="train")), masks, stack(d.select(split="val"))) for name, d in domains.items()
    ]
    architecture = Architecture(phases=arguments.phases, shared_steps=arguments.name == "equilibrium")
    model = ULDA(architecture, SOURCES)
    settings = Settings(steps=arguments.steps, validate_every=50, checkpoint_every=10, **RECIPES[arguments.name])
    start = time.time()

    def report(progress: Progress) -> None:
        if progress.validation:
            print(progress.step, round(time.time() - start), f"{progress.loss:.5f}", progress.validation, flush=True)

    history = fit(model, tasks, settings, folder=arguments.folder, report=report)
    tests = {name: stack(d.select(split="test"))[:: arguments.thin] for name, d in domains.items()}
    result = {
        "settings": settings.model_dump(mode="json"),
        "architecture": asdict(architecture),
        "mask": masks[0].as_dict(),
        "n_parameters": sum(p.numel() for p in model.parameters()),
        "seconds_of_the_last_part": time.time() - start,
        "step_sizes": {name: {k: v.detach().tolist() for k, v in model.steps[name]().items()} for name in SOURCES},
        "validation": [vars(entry) for entry in history],
        "test": {name: judge(model, name, slices, (1, 2, 8, 30)) for name, slices in tests.items()},
        "n_test_slices": {name: len(slices) for name, slices in tests.items()},
    }
    path = ROOT / "benchmarks" / "results" / f"lower_level-{arguments.name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["test"], indent=1))


if __name__ == "__main__":
    main()
