"""Seconds and peak memory of all learned methods, per training step and per reconstructed slice, as ratios to UNet.

Run: ``python -m benchmarks.methods [--json FILE] [--write docs/methods.md]``; `--write` replaces the tables there.

Every method with its default sizes and two source domains, one slice per step, one thread.

Training step
    Loss, backward and the step of Adam, on one slice with a 20 % mask, as in the training loop. U-MRI without
    its teachers, Meta in one of its inner steps, LDA with the net of one domain.
Time
    The methods take turns in one process per image size; the best of a few rounds counts, since other work on the
    machine can only add to it.
Memory
    The peak resident memory during the first full-size step, less what was resident right before it, in a process of
    its own; a step on a small image has loaded the libraries by then.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.regularizer import machine, memory_mb
from scripts.marked import write_between
from ulda.methods import METHODS, TrainableMethod, new_method
from ulda.physics import CartesianMRI, cartesian_mask
from ulda.training.settings import Settings
from ulda.training.tasks import Batch, Task

ROOT = Path(__file__).resolve().parents[1]
SIDES = (64, 128, 256)
PEER = "unet"
SOURCES = ("brain", "knee")
SMALL_SIDE = 32
BEGIN, END = "<!-- speed -->", "<!-- end -->"


def task_of(side: int) -> Task:
    """Return smooth random slices with peak 1, of which steps take the first; times do not depend on what they show."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn((5, side, side), dtype=torch.complex64, generator=generator).cumsum(-1).cumsum(-2)
    images = noise / noise.abs().amax((-2, -1), keepdim=True)
    return Task(SOURCES[0], images, [cartesian_mask(side, 0.2)])


def training_step(model: TrainableMethod, side: int) -> Callable[[], None]:
    """Return a function that takes a training step on one slice."""
    task, settings = task_of(side), Settings(batch_size=1)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-6)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        model.loss(task, Batch(0, (0,), 0), settings, 0)[0].backward()
        optimiser.step()

    return step


def reconstruction(model: TrainableMethod, side: int) -> Callable[[], None]:
    """Return a function that reconstructs one slice."""
    task = task_of(side)
    physics = CartesianMRI(task.masks[0])
    y = physics.A(task.images[:1])

    @torch.no_grad()
    def reconstruct() -> None:
        model(y, physics, task.domain)

    return reconstruct


WORK: dict[str, Callable[[TrainableMethod, int], Callable[[], None]]] = {
    "training": training_step,
    "reconstruction": reconstruction,
}


def measure_times(side: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the best time of every kind of work for every method."""
    best: dict[str, dict[str, float]] = {kind: dict.fromkeys(METHODS, float("inf")) for kind in WORK}
    models = {name: new_method(name, SOURCES) for name in METHODS}
    for kind, make in WORK.items():
        work = {name: make(model, side) for name, model in models.items()}
        for turn in range(rounds + 1):
            for name, function in work.items():
                start = time.perf_counter()
                function()
                if turn > 0:
                    best[kind][name] = min(best[kind][name], time.perf_counter() - start)
    return best


def measure_memory(name: str, kind: str, side: int) -> float:
    """Return the peak memory in MiB of one piece of work, above what was resident before it."""
    model = new_method(name, SOURCES)
    WORK[kind](model, SMALL_SIDE)()
    model = new_method(name, SOURCES)
    work = WORK[kind](model, side)
    Path("/proc/self/clear_refs").write_text("5")
    before = memory_mb("VmRSS")
    work()
    return memory_mb("VmHWM") - before


def in_fresh_process(**task: Any) -> Any:
    """Return what `run_task` finds in a new process."""
    command = [sys.executable, "-m", "benchmarks.methods", "--task", json.dumps(task)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
    return json.loads(done.stdout.splitlines()[-1])


def run_task(task: str) -> None:
    """Measure in this process and print the result."""
    fields = json.loads(task)
    torch.set_num_threads(1)
    print(json.dumps(measure_memory(**fields) if "name" in fields else measure_times(**fields)))


def run(rounds: int) -> dict[str, Any]:
    """Measure everything."""
    result: dict[str, Any] = {
        "machine": machine(),
        "threads": 1,
        "sides": list(SIDES),
        "load average": [],
        "methods": {},
    }
    result["load average"].append(os.getloadavg()[0])
    for name in METHODS:
        model = new_method(name, SOURCES)
        counts = {"n_parameters": model.n_parameters, "n_adapted": model.n_trainable(adapt=True)}
        result["methods"][name] = {"title": model.title, **counts, "sizes": model.sizes}
    for side in SIDES:
        seconds = in_fresh_process(side=side, rounds=rounds)
        for name in METHODS:
            for kind in WORK:
                memory = in_fresh_process(name=name, kind=kind, side=side)
                entry = {"seconds": seconds[kind][name], "megabytes": memory}
                result["methods"][name].setdefault(kind, {})[str(side)] = entry
                print(f"{side} {name} {kind}: {entry['seconds']:.3f} s, {memory:.0f} MiB", file=sys.stderr, flush=True)
    result["load average"].append(os.getloadavg()[0])
    return result


def markdown(result: dict[str, Any]) -> str:
    """Return the numbers as tables of ratios to UNet, with UNet's own numbers in the last line."""
    methods = result["methods"]
    lines = []
    for kind, of in (("training", "per training step"), ("reconstruction", "per reconstructed slice")):
        for field, what, unit in (("seconds", "time", "s"), ("megabytes", "memory", "MiB")):
            lines += [
                f"| {what} {of}, relative to {methods[PEER]['title']} | "
                + " | ".join(f"{side} px" for side in result["sides"])
                + " |",
                "|---" * (len(result["sides"]) + 1) + "|",
            ]
            own = {side: methods[PEER][kind][str(side)][field] for side in result["sides"]}
            for entry in methods.values():
                cells = [f"{entry[kind][str(side)][field] / own[side]:.2f}" for side in result["sides"]]
                lines.append(f"| {entry['title']} | " + " | ".join(cells) + " |")
            cells = [f"{own[side]:.3g} {unit}" for side in result["sides"]]
            lines += [f"| {methods[PEER]['title']} itself | " + " | ".join(cells) + " |", ""]
    peer, ours = methods[PEER]["training"], methods["ulda"]["training"]
    faster = ", ".join(f"{peer[side]['seconds'] / ours[side]['seconds']:.2f} at {side} px" for side in peer)
    facts = ", ".join(f"{name} {value}" for name, value in result["machine"].items())
    loads = " and ".join(f"{load:.1f}" for load in result["load average"])
    lines += [
        f"The paper says that U-LDA trains 4 to 6 times faster than UNet, on a GPU. Here a step of U-LDA is this many "
        f"times as fast as one of UNet: {faster}.",
        "",
        f"- Machine: {facts}; one thread; load average before and after: {loads}",
        "- One slice per step; default sizes: "
        + "; ".join(f"{entry['title']} {entry['n_parameters']:,} parameters" for entry in methods.values()),
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure, print the tables, and keep them if asked to."""
    parser = argparse.ArgumentParser(description="Speed and memory of all learned methods.")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    parser.add_argument("--write", type=Path, help="replace the tables of this page")
    parser.add_argument("--rounds", type=int, default=2, help="how often everything is timed (default: 2)")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task is not None:
        run_task(arguments.task)
        return
    result = run(arguments.rounds)
    print(markdown(result))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.write is not None:
        write_between(arguments.write, BEGIN, END, markdown(result))


if __name__ == "__main__":
    main()
