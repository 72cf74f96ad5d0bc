"""The five promises of the theory, measured on small problems in double precision.

Run: ``python -m benchmarks.promises``. It prints the numbers, writes them to ``benchmarks/results/promises.json`` and
into ``docs/theory.md``, and draws ``docs/figures/promises.svg``. The tests assert the same numbers.

Each promise is measured for both proposals, with usual and with bad step sizes.

The problems are a learned regulariser with random weights on small images (non-convex), and group shrinkage, where the
features are linear and the minimiser is known.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from scripts.marked import write_between
from ulda.models import Adapter, FeatureExtractor, Regularizer
from ulda.physics import CartesianMRI, cartesian_mask
from ulda.solvers import (
    AcceleratedProposal,
    Evaluation,
    GradientProposal,
    Options,
    Proposal,
    Reconstruction,
    Trace,
    elda,
)

ROOT = Path(__file__).resolve().parents[1]
SIDE = 8
BEGIN, END = "<!-- promises: begin -->", "<!-- promises: end -->"


@dataclass(frozen=True)
class GroupShrinkage:
    """``1/2 ||x - y||^2 + weight * sum_k ||x_k||`` for groups ``x_k`` of a real tensor ``(n, groups, channels)``."""

    y: Tensor
    weight: float

    def minimiser(self) -> Tensor:
        """Return the closed form: every group is shortened by the weight."""
        length = self.y.norm(dim=2, keepdim=True)
        return self.y * (1 - self.weight / length).clamp_min(0)

    def lipschitz(self, eps: float) -> float:
        """Return the Lipschitz constant of the gradient."""
        return 1 + self.weight**2 / eps

    def evaluate(self, x: Tensor, eps: Tensor) -> Evaluation:
        """Return both terms and their gradients."""
        length = self.weight * x.norm(dim=2)
        eps = eps[:, None]
        r = torch.where(length <= eps, length.square() / (2 * eps), length - eps / 2).sum(1)
        grad_r = self.weight**2 * x / torch.maximum(length, eps)[..., None]
        return Evaluation(0.5 * (x - self.y).square().sum((1, 2)), x - self.y, r, grad_r)

    def fidelity_grad(self, x: Tensor) -> Tensor:
        """Return the gradient of the first term."""
        return x - self.y

    def regularizer_grad(self, x: Tensor, eps: Tensor) -> Tensor:
        """Return the gradient of the second term."""
        return self.evaluate(x, eps).grad_r

    def unmeasured(self, x: Tensor) -> Tensor:
        """Return nothing: everything is measured."""
        return torch.zeros_like(x)

    def take(self, index: Tensor) -> Self:
        """Keep some samples."""
        return replace(self, y=self.y[index])

    def check(self, x: Tensor) -> None:
        """Accept every starting point."""


def shrinkage_problem() -> GroupShrinkage:
    """Return three samples with six groups longer than the weight and six shorter ones, whose minimiser is zero.

    The smoothed minimiser is ``eps / weight^2`` times the measurement in the short groups. They are chosen short, so
    that an accuracy of 1e-6 is reached before the decrease of the objective drowns in the rounding of its value.
    """
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(3, 12, 3, dtype=torch.float64, generator=generator)
    length = 0.02 + 0.03 * torch.rand(3, 12, 1, dtype=torch.float64, generator=generator)
    length[:, :6] += 3
    return GroupShrinkage(0.5 * length * direction / direction.norm(dim=2, keepdim=True), weight=0.5)


def learned_problem(n_samples: int = 2, seed: int = 0) -> tuple[Reconstruction, Tensor]:
    """Return a reconstruction with random weights and its zero-filled start."""
    generator = torch.Generator().manual_seed(seed)
    regularizer = Regularizer(FeatureExtractor(4, 2, start="random", seed=seed), Adapter(4, weight=0.47)).double()
    image = torch.randn(n_samples, SIDE, SIDE, dtype=torch.complex128, generator=generator)
    physics = CartesianMRI(cartesian_mask(SIDE, 0.5, seed=seed))
    y = physics.A(image)
    return Reconstruction(physics, y, regularizer), physics.A_adjoint(y)


def lipschitz_bound(regularizer: Regularizer, eps: float) -> float:
    """Return an upper bound of the Lipschitz constant of ``grad phi_eps`` on images of side `SIDE`.

    ``grad r_eps = J(x)^T w`` with ``||w|| <= sqrt(pixels)``; J is bounded by the product of the layers' norms, w is
    ``||J|| / eps`` Lipschitz, and J changes through the activations, whose second derivative is ``1 / (2 delta)``.
    The data fidelity adds 1.
    """
    layers = [*regularizer.extractor.layers]
    if regularizer.adapter is not None:
        layers.append(regularizer.adapter.layer)
    norms = [_operator_norm(layer, SIDE) for layer in layers]
    product = math.prod(norms)
    curvature = 1 / (2 * regularizer.extractor.activation.delta)
    bending = sum(
        math.prod(norms[: i + 1]) ** 2 * math.prod(norms[i + 1 :]) * curvature
        for i in range(len(regularizer.extractor.layers))
    )
    return 1 + product**2 / eps + math.sqrt(SIDE * SIDE) * bending


def _operator_norm(layer: Any, side: int) -> float:
    n_inputs = 2 * layer.in_channels * side * side
    basis = torch.eye(n_inputs, dtype=torch.float64).reshape(n_inputs, -1, side, side)
    with torch.no_grad():
        return float(torch.linalg.matrix_norm(layer(basis).reshape(n_inputs, -1), 2))


@dataclass(frozen=True)
class Setting:
    """Which proposal with which step sizes."""

    kind: str = "gradient"
    alpha: float = 0.1
    beta: float = 0.1

    def proposal(self, x0: Tensor) -> Proposal:
        """Return the proposal for a problem; gains by spatial frequency need images."""
        if self.kind == "gradient":
            return GradientProposal(1, self.alpha, self.beta).double()
        sizes = {"alpha": self.alpha, "beta": self.beta, "kappa": self.beta, "momentum": 0.5}
        return AcceleratedProposal(2, 2, gains=x0.is_complex(), **sizes).double()


def solve(problem: Any, x0: Tensor, setting: Setting, options: Options) -> tuple[Tensor, Trace]:
    """Run the solver without gradients."""
    with torch.no_grad():
        return elda(problem, x0, setting.proposal(x0), options)


@cache
def solve_learned(setting: Setting, options: Options) -> Trace:
    """Return the record of a run on the learned problem."""
    problem, x0 = learned_problem()
    return solve(problem, x0, setting, options)[1]


def descent(setting: Setting, options: Options, n_pixels: int = SIDE * SIDE) -> dict[str, Any]:
    """Return ``phi_eps(x_t) + n_pixels eps / 2`` along the run and its largest increase, also where eps is reduced."""
    trace = solve_learned(setting, options)
    curves, increase, n_reductions = [], -math.inf, 0
    for sample in range(trace.n_samples):
        steps = trace.steps(sample)
        curve = [steps[0].phi_before + n_pixels * steps[0].eps / 2]
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            increase = max(increase, step.phi - step.phi_before)
            curve.append(step.phi + n_pixels * step.eps / 2)
            if following is not None and following.eps < step.eps:
                n_reductions += 1
                curve.append(following.phi_before + n_pixels * following.eps / 2)
        increase = max(increase, float(np.diff(curve).max()))
        curves.append(curve)
    return {
        "curves": curves,
        "largest_increase": increase,
        "n_reductions": n_reductions,
        "proposals": trace.accepted_fraction(),
        "every_inequality_held": all(s.holds(options) for i in range(trace.n_samples) for s in trace.steps(i)),
    }


def line_searches(setting: Setting, options: Options) -> dict[str, Any]:
    """Return the most reductions of any line search and the bound of the theory, for both problems."""
    learned, shrinkage = learned_problem()[0], shrinkage_problem()
    found: dict[str, Any] = {}
    for name, trace, lipschitz in (
        ("learned", solve_learned(setting, options), cache(lambda eps: lipschitz_bound(learned.regularizer, eps))),
        ("shrinkage", solve(shrinkage, shrinkage.y, setting, options)[1], shrinkage.lipschitz),
    ):
        steps = [step for i in range(trace.n_samples) for step in trace.steps(i) if step.branch == "v"]
        slack = [search_bound(options, lipschitz(step.eps), step.eps) - step.line_search_steps for step in steps]
        most = max((step.line_search_steps for step in steps), default=0)
        found[name] = {"n_searches": len(steps), "most_reductions": most, "least_slack": min(slack, default=None)}
    return found


def search_bound(options: Options, lipschitz: float, eps: float) -> int:
    """Return the bound ``floor(log(alpha_bar (L / 2 + eta3 / eps)) / log(1 / rho)) + 1`` on the reductions."""
    argument = options.alpha_bar * (lipschitz / 2 + options.eta3 / eps)
    return max(0, math.floor(math.log(argument) / math.log(1 / options.rho)) + 1)


def fixed_smoothing(setting: Setting, options: Options) -> dict[str, Any]:
    """Return the smallest gradient norm so far at a smoothing that is never reduced."""
    trace = solve_learned(setting, options)
    curves = [np.minimum.accumulate([s.grad_norm for s in trace.steps(i)]).tolist() for i in range(trace.n_samples)]
    return {"curves": curves, "last": max(curve[-1] for curve in curves)}


def complexity(setting: Setting, options: Options, tolerances: list[float]) -> dict[str, Any]:
    """Return the iterations until the solver would stop, for each tolerance down to ``eps_tol``, and the fitted power.

    A run to a small tolerance goes the same way as one to a larger tolerance, and further.
    """
    trace = solve_learned(setting, options)
    smoothings = [np.array([step.eps for step in trace.steps(i)]) for i in range(trace.n_samples)]
    counts = [[int((options.sigma * eps >= tolerance).sum()) + 1 for eps in smoothings] for tolerance in tolerances]
    logs = np.log(np.array(counts, float))
    slopes = [float(np.polyfit(-np.log(tolerances), logs[:, i], 1)[0]) for i in range(logs.shape[1])]
    return {"tolerances": tolerances, "iterations": counts, "exponents": slopes}


def known_minimiser(setting: Setting, options: Options) -> dict[str, Any]:
    """Return the distance to the closed-form minimiser of the group shrinkage."""
    problem = shrinkage_problem()
    x, trace = solve(problem, problem.y, setting, options)
    minimiser = problem.minimiser()
    return {
        "largest_error": float((x - minimiser).abs().max()),
        "zero_groups": int((minimiser.norm(dim=2) == 0).sum()),
        "iterations": [len(trace.steps(i)) for i in range(trace.n_samples)],
        "proposals": trace.accepted_fraction(),
    }


NORMAL = Options(eta1=0.09, eps_0=0.5, eps_tol=0.00625, iterations=10**6, gamma=0.7)
FIXED = replace(NORMAL, sigma=1e-12, eps_tol=1e-300, iterations=1500)
TOLERANCES = [0.2, 0.1, 0.05, 0.025, 0.0125, 0.00625]
SHRINKAGE = Options(eta1=1e-4, eta3=1e-9, eps_0=0.5, eps_tol=8e-6, iterations=2000, gamma=0.7)

SETTINGS = {"gradient": Setting("gradient"), "accelerated": Setting("accelerated", 0.05, 0.05)}
"""Step sizes that suit the learned problem."""

SHORT = {kind: replace(setting, alpha=0.02, beta=2e-4) for kind, setting in SETTINGS.items()}
"""Step sizes that suit the shrinkage, where the smoothing becomes very small."""

BAD_BETA = 1e3
"""Proposals with this step always overshoot: the safeguard has to take over."""


def measure() -> dict[str, Any]:
    """Measure all five promises for both proposals, with usual and with bad step sizes."""
    found: dict[str, Any] = {}
    for kind, setting in SETTINGS.items():
        for name, usual, short in (
            (kind, setting, SHORT[kind]),
            (f"{kind}, bad", replace(setting, beta=BAD_BETA), replace(SHORT[kind], beta=BAD_BETA)),
        ):
            found[name] = {
                "descent": descent(usual, NORMAL),
                "line_searches": line_searches(usual, NORMAL),
                "fixed_smoothing": fixed_smoothing(usual, FIXED),
                "complexity": complexity(usual, NORMAL, TOLERANCES),
                "known_minimiser": known_minimiser(short, SHRINKAGE),
            }
    return found


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw the measured promises."""
    from ulda.experiments.figures.style import add_legend, looks_of, new_figure, panels, save, styled

    with styled():
        figure = new_figure(7.0, 3.0, "what the theory promises, measured in double precision")
        ((left, middle, right),) = panels(figure, 1, 3)
        for (name, results), look in zip(found.items(), looks_of(list(found)).values(), strict=True):
            line = {"label": name, "color": look.colour, "linestyle": look.dash}
            curve = results["descent"]["curves"][0]
            left.plot(range(1, len(curve) + 1), np.array(curve) - curve[-1] + 1e-6, **line)
            curve = results["fixed_smoothing"]["curves"][0]
            middle.plot(range(1, len(curve) + 1), curve, **line)
            cost = results["complexity"]
            counts = [row[0] for row in cost["iterations"]]
            right.plot(cost["tolerances"], counts, **line | look.line())
        reference = np.array(TOLERANCES)
        cubic = counts[0] * (reference[0] / reference) ** 3
        right.plot(reference, cubic, label="cubic growth", color="#666666", linestyle=":")
        left.set(title="objective with smoothing gap", xlabel="iteration", ylabel="above its last value")
        middle.set(title="gradient at fixed smoothing", xlabel="iteration", ylabel="smallest norm so far")
        right.set(title="iterations to a tolerance", xlabel="tolerance", ylabel="iterations")
        for axes in (left, middle, right):
            axes.set(xscale="log", yscale="log")
        add_legend(figure, [left, middle, right])
        save(figure, path, "svg")


def table(found: dict[str, Any]) -> str:
    """Return the measured promises as a Markdown table."""

    def searches(results: dict[str, Any]) -> str:
        parts = results["line_searches"]
        texts = (f"{parts[name]['most_reductions']} ({name})" for name in ("learned", "shrinkage"))
        return ", ".join(texts) + f"; closest by {min(part['least_slack'] for part in parts.values())}"

    def minimiser(results: dict[str, Any]) -> str:
        numbers = results["known_minimiser"]
        return f"{numbers['largest_error']:.1e} ({100 * numbers['proposals']:.0f} %)"

    columns: dict[str, Any] = {
        "proposals accepted": lambda results: f"{100 * results['descent']['proposals']:.0f} %",
        "largest increase of `phi + d eps / 2`, also when eps is reduced": lambda results: (
            f"{results['descent']['largest_increase']:.1e}, {results['descent']['n_reductions']} reductions"
        ),
        "most reductions of a line search; never above the bound": searches,
        f"smallest gradient after {FIXED.iterations} iterations at fixed eps": lambda results: (
            f"{results['fixed_smoothing']['last']:.1e}"
        ),
        "exponent of the iterations in 1 / tolerance (two slices)": lambda results: ", ".join(
            f"{value:.2f}" for value in results["complexity"]["exponents"]
        ),
        "distance to the known minimiser (proposals accepted there)": minimiser,
    }
    rows = [["promise", *found], ["---"] * (1 + len(found))]
    rows += [[promise, *(show(results) for results in found.values())] for promise, show in columns.items()]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main() -> None:
    """Measure, print, write and draw."""
    torch.set_num_threads(1)
    found = measure()
    draw(found, ROOT / "docs" / "figures" / "promises.svg")
    for name, results in found.items():
        print(name)
        for part in ("descent", "fixed_smoothing"):
            del results[part]["curves"]
        for promise, numbers in results.items():
            print(f"  {promise}: {json.dumps(numbers)}")
    (ROOT / "benchmarks" / "results" / "promises.json").write_text(json.dumps(found, indent=1) + "\n")
    write_between(ROOT / "docs" / "theory.md", BEGIN, END, table(found))


if __name__ == "__main__":
    main()
