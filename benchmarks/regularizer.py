"""Speed and memory of the regulariser, as ratios of measurements from one run, for one and for two threads.

Run: ``python -m benchmarks.regularizer [--json FILE] [--write docs/speed.md]``; `--write` replaces the table of
that page. Every measurement is a fresh process.

Training step
    Forward through the phases ``z = x - alpha grad f(x)``, ``x = z - beta grad r_eps(z)`` (20 % Cartesian mask, step
    sizes trained too), mean squared error, backward. The peer is the same network with its gradient from
    ``torch.autograd.grad(r.value(z).sum(), z, create_graph=True)``, so that training goes through a double backward.
Time
    What is compared alternates in one process, after one untimed round; the best time of each counts, since other
    work on the machine can only add to it.
Memory
    The peak resident memory (VmHWM of /proc/self/status) during the first full-size step, less what was resident right
    before it. A step on 8 x 8 images has loaded the libraries by then, and the peak is reset (/proc/self/clear_refs).
    "Tensors alone": the same with an allocator that returns every tensor to the system at once
    (``MALLOC_MMAP_THRESHOLD_=65536``), so that memory lost between tensors counts for neither side.
Convolution peak
    FLOP/s of a bare 32 -> 32 convolution (3 x 3, same batch and image size) in the faster of both memory layouts.
    Needed are, per phase and layer, two convolutions for value and gradient (inference), and six for a training step:
    those two, one forward and one back for the derivative along the incoming direction, and two kernel gradients.
    Multiplying and adding count as two operations; all other work (FFT, activations, norms, loss) counts as none.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scripts.marked import write_between
from ulda.models import Adapter, FeatureExtractor, Regularizer
from ulda.models.regularizer import _evaluate, stacked
from ulda.physics import CartesianMRI, cartesian_mask

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]
EPS = 0.03
BEGIN, END = "<!-- begin: written by benchmarks/regularizer.py -->", "<!-- end -->"


@dataclass(frozen=True)
class Size:
    """The size of a training step."""

    side: int = 128
    phases: int = 5
    batch: int = 2
    width: int = 16

    def convolution_flops(self) -> int:
        """Return the operations of one pass through the layers of the network (1 -> width, then width -> width)."""
        channels = 2 * self.width
        return 2 * 9 * self.batch * self.side**2 * (2 * channels + 4 * channels**2)

    def bare_flops(self) -> int:
        """Return the operations of one convolution between stacked channels."""
        return 2 * 9 * self.batch * self.side**2 * (2 * self.width) ** 2


class TrainingStep:
    """Forward and backward through the phases; `double_backward` selects the peer."""

    def __init__(self, size: Size, *, double_backward: bool = False, recompute: bool = False) -> None:
        self.size, self.double_backward = size, double_backward
        extractor = FeatureExtractor(size.width)
        self.regularizer = Regularizer(extractor, Adapter(size.width), recompute=recompute)
        self.steps = nn.Parameter(torch.tensor([1.0, 0.1]))
        self.parameters = [self.steps, *self.regularizer.parameters()]
        self.physics = CartesianMRI(cartesian_mask(size.side, 0.2))
        generator = torch.Generator().manual_seed(0)
        self.target = torch.randn((size.batch, size.side, size.side), dtype=torch.complex64, generator=generator)
        self.y = self.physics.A(self.target)

    def __call__(self) -> list[Tensor]:
        """Take the step and return the gradients of the parameters."""
        x = self.physics.A_adjoint(self.y)
        alpha, beta = self.steps
        for _ in range(self.size.phases):
            z = x - alpha * self.physics.fidelity_grad(x, self.y)
            x = z - beta * self._grad(z)
        loss = torch.view_as_real(x - self.target).square().mean()
        return list(torch.autograd.grad(loss, self.parameters))

    def _grad(self, z: Tensor) -> Tensor:
        if not self.double_backward:
            return self.regularizer.grad(z, EPS)
        return torch.autograd.grad(self.regularizer.value(z, EPS).sum(), z, create_graph=True)[0]


def best_times(functions: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the best time of each function; they take turns."""
    for function in functions.values():
        function()
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def assert_same(a: list[Tensor], b: list[Tensor]) -> None:
    """Assert that two steps have the same gradients: only then are their times worth comparing."""
    for p, q in zip(a, b, strict=True):
        error = float((p - q).abs().max() / q.abs().max())
        assert error < 1e-2, f"the gradients differ by {error:.1e}"


def measure_training(size: Size, rounds: int) -> dict[str, float]:
    """Return the times of a training step, of its peer, of an inference pass and of a bare convolution."""
    ours, peer = TrainingStep(size), TrainingStep(size, double_backward=True)
    assert_same(ours(), peer())
    times = best_times({"training": ours, "training by double backward": peer}, rounds)
    x = ours.physics.A_adjoint(ours.y)
    features = torch.randn(size.batch, 2 * size.width, size.side, size.side)
    last = features.contiguous(memory_format=torch.channels_last)
    kernel = torch.randn(2 * size.width, 2 * size.width, 3, 3)
    functions: dict[str, Callable[[], Any]] = {
        "inference": lambda: ours.regularizer.value_and_grad(x, EPS),
        "bare convolution": lambda: F.conv2d(features, kernel, padding=1),
        "bare convolution, channels last": lambda: F.conv2d(last, kernel, padding=1),
    }
    with torch.no_grad():
        return times | best_times(functions, 8 * rounds)


def measure_recompute(size: Size, rounds: int) -> dict[str, float]:
    """Return the times of a training step that keeps its features and of one that computes them again."""
    keep, recompute = TrainingStep(size), TrainingStep(size, recompute=True)
    assert_same(recompute(), keep())
    return best_times({"keep": keep, "recompute": recompute}, rounds)


def measure_compiled(size: Size, rounds: int) -> dict[str, float]:
    """Return the times of an inference pass, plain and with `torch.compile` (and of the compilation)."""
    step = TrainingStep(size)
    regularizer, x = step.regularizer.requires_grad_(False), step.physics.A_adjoint(step.y)
    with torch.no_grad():
        kernels = tuple(layer.kernel() for layer in [*regularizer.extractor.layers, regularizer.adapter.layer])  # type: ignore[union-attr]
        eps = torch.full((size.batch, 1, 1), EPS)
        arguments = stacked(x), eps, kernels, regularizer.extractor.activation, regularizer.extractor.depth
        compiled = torch.compile(_evaluate)
        start = time.perf_counter()
        _, result, _ = compiled(*arguments)
        compilation = time.perf_counter() - start
        assert_same([result], [_evaluate(*arguments)[1]])
        times = best_times({"plain": lambda: _evaluate(*arguments), "compiled": lambda: compiled(*arguments)}, rounds)
    return times | {"compilation": compilation}


def measure_memory(size: Size, *, double_backward: bool = False, recompute: bool = False) -> dict[str, float]:
    """Return the peak memory in MiB of one training step, above what was resident before it."""
    TrainingStep(Size(8, 1, 1, size.width), double_backward=double_backward, recompute=recompute)()
    step = TrainingStep(size, double_backward=double_backward, recompute=recompute)
    Path("/proc/self/clear_refs").write_text("5")
    before = memory_mb("VmRSS")
    step()
    return {"peak": memory_mb("VmHWM") - before}


def memory_mb(field: str) -> float:
    """Return a field of the process's status, such as VmRSS (resident) or VmHWM (its peak), in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


MEASUREMENTS: dict[str, Callable[..., dict[str, float]]] = {
    "training": measure_training,
    "recompute": measure_recompute,
    "compiled": measure_compiled,
    "memory": measure_memory,
}


def in_fresh_process(
    name: str, threads: int, size: Size, *, returning: bool = False, **options: int | bool
) -> dict[str, float]:
    """Return the result of a measurement that runs alone in a new process.

    `returning`: with an allocator that returns every tensor to the system at once.
    """
    task = json.dumps({"name": name, "threads": threads, "size": asdict(size), "options": options})
    allocator = {"MALLOC_MMAP_THRESHOLD_": "65536"} if returning else {}
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)} | allocator
    command = [sys.executable, "-m", "benchmarks.regularizer", "--task", task]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def run_task(task: str) -> None:
    """Measure in this process and print the result."""
    fields = json.loads(task)
    torch.set_num_threads(fields["threads"])
    print(json.dumps(MEASUREMENTS[fields["name"]](Size(**fields["size"]), **fields["options"])))


@dataclass(frozen=True)
class Row:
    """One line of the table: `wanted` is a bound from above or from below."""

    what: str
    threads: int
    measured: float
    bound: str = ""
    wanted: float | None = None

    @property
    def verdict(self) -> str:
        """Say whether the bound holds."""
        if self.wanted is None:
            return ""
        holds = self.measured <= self.wanted if self.bound == "at most" else self.measured >= self.wanted
        return "yes" if holds else "no"

    def cells(self) -> list[str]:
        """Return the texts of the columns."""
        wanted = "" if self.wanted is None else f"{self.bound} {self.wanted:g}"
        return [self.what, str(self.threads), f"{self.measured:.2f}", wanted, self.verdict]


def memory_of_both(size: Size, threads: int = 1, *, returning: bool = False) -> tuple[float, float]:
    """Return the peak memory in MiB of our training step and of its peer."""
    ours = in_fresh_process("memory", threads, size, returning=returning)
    peer = in_fresh_process("memory", threads, size, returning=returning, double_backward=True)
    return ours["peak"], peer["peak"]


def run(threads: int, size: Size, rounds: int, *, compiled: bool) -> tuple[list[Row], dict[str, Any]]:
    """Measure everything with a number of threads."""
    times = in_fresh_process("training", threads, size, rounds=rounds)
    ours, peer = memory_of_both(size, threads)
    ours_alone, peer_alone = memory_of_both(size, threads, returning=True)
    short, long = Size(size.side, 3, size.batch, size.width), Size(size.side, 15, size.batch, size.width)
    peaks = [in_fresh_process("memory", threads, s, recompute=True)["peak"] for s in (short, long)]
    again = in_fresh_process("recompute", threads, long, rounds=max(2, rounds // 2))
    layouts = min(times["bare convolution"], times["bare convolution, channels last"])
    peak = size.bare_flops() / layouts
    inference = 2 * size.convolution_flops() / times["inference"] / peak
    training = 6 * size.phases * size.convolution_flops() / times["training"] / peak
    rows = [
        Row("training: times faster than by double backward", threads,
            times["training by double backward"] / times["training"], "at least", 1.5),
        Row("training: memory relative to double backward", threads, ours / peer, "at most", 0.6),
        Row("training: the same, tensors alone", threads, ours_alone / peer_alone, "at most", 0.6),
        Row("inference: fraction of the convolution peak", threads, inference, "at least", 0.5),
        Row("training: fraction of the convolution peak", threads, training, "at least", 0.4),
        Row("recomputing: memory of 15 phases relative to 3", threads, peaks[1] / peaks[0], "at most", 1.5),
        Row("recomputing: time relative to keeping, 15 phases", threads, again["recompute"] / again["keep"],
            "at most", 1.4),
    ]  # fmt: skip
    raw: dict[str, Any] = {
        "seconds": times | {f"{name}, 15 phases": seconds for name, seconds in again.items()},
        "MiB": {
            "training": ours,
            "training by double backward": peer,
            "training, tensors alone": ours_alone,
            "training by double backward, tensors alone": peer_alone,
            "recompute, 3 phases": peaks[0],
            "recompute, 15 phases": peaks[1],
        },
        "convolution peak in GFLOP/s": peak / 1e9,
    }
    if compiled:
        raw["torch.compile"] = in_fresh_process("compiled", threads, size, rounds=4 * rounds)
        ratio = raw["torch.compile"]["plain"] / raw["torch.compile"]["compiled"]
        rows.append(Row("inference: times faster with torch.compile (off by default)", threads, ratio))
    return rows, raw


def machine() -> dict[str, str]:
    """Return the facts about this machine that the numbers depend on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = {line.split(":")[1].strip() for line in lines if line.startswith("model name")}
    return {
        "processor": f"{', '.join(models)}, {os.cpu_count()} cores",
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "PyTorch": torch.__version__,
        "Python": platform.python_version(),
    }


def markdown(results: dict[str, Any]) -> str:
    """Return the table and the facts of the machine as Markdown."""
    header = ["what", "threads", "measured", "wanted", "met"]
    table = [header, ["---"] * len(header), *(Row(**row).cells() for row in results["rows"])]
    facts = ", ".join(f"{name} {value}" for name, value in results["machine"].items())
    loads = " and ".join(f"{load:.1f}" for load in results["load average before and after"])
    size = results["size"]
    peaks = ", ".join(
        f"{raw['convolution peak in GFLOP/s']:.0f} GFLOP/s (threads: {n})" for n, raw in results["raw"].items()
    )
    lines = [
        *("| " + " | ".join(cells) + " |" for cells in table),
        "",
        f"- Batch {size['batch']}, {size['side']} x {size['side']}, {size['width']} complex channels, "
        f"{size['phases']} phases where not said otherwise",
        f"- Machine: {facts}; load average before and after: {loads}",
        f"- Convolution peak: {peaks}",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table, and keep it if asked to."""
    parser = argparse.ArgumentParser(description="Speed and memory of the regulariser.")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    parser.add_argument("--write", type=Path, help="replace the table of this page")
    parser.add_argument("--rounds", type=int, default=6, help="how often a training step is timed (default: 6)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads (default: 1 2)")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task is not None:
        run_task(arguments.task)
        return
    size, before = Size(), os.getloadavg()[0]
    measured = {n: run(n, size, arguments.rounds, compiled=not arguments.no_compile) for n in arguments.threads}
    results = {
        "machine": machine(),
        "size": asdict(size),
        "load average before and after": [before, os.getloadavg()[0]],
        "rows": [asdict(row) for rows, _ in measured.values() for row in rows],
        "raw": {str(n): raw for n, (_, raw) in measured.items()},
    }
    print(markdown(results))
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    if arguments.write is not None:
        write_between(arguments.write, BEGIN, END, markdown(results))


if __name__ == "__main__":
    main()
