"""A foreign network as the proposal: how good a UNet is alone, and inside the solver with a certificate.

Run: ``python -m benchmarks.certified_network``. It prints the table, and writes it to
``benchmarks/results/certified-network.json`` and into ``docs/proposals.md``.

A small UNet learns on the first 13 knee slices of the demo data and is judged on five of the last 9, which are of
another block of subjects. Alone, it turns zero-filling into an image. Inside the solver it proposes in every phase,
from the current iterate, and the solver takes what lowers the objective: data fidelity and the regulariser of the
bundled base, which has not seen a knee.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import ulda
from scripts.marked import write_between
from ulda.data import demo
from ulda.methods.unet import UNet
from ulda.metrics import psnr
from ulda.physics import CartesianMRI, Mask, cartesian_mask, fft2c
from ulda.solvers import Candidate, GradientProposal, Proposal, Reconstruction, certify, elda, verify

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- certified network: begin -->", "<!-- certified network: end -->"
SIDE, STEPS = 128, 300
PHASES = (3, 15)


class NetworkProposal(Proposal):
    """A network that turns images into better ones proposes; measured lines are put back before and after it."""

    kind: ClassVar[str] = "network"

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, problem: Any, x: Tensor, at_x: Any, eps: Any, t: int, memory: Any) -> list[Candidate]:
        """Return what the network makes of the iterate, as if that were fully sampled."""
        del eps, t, memory
        consistent = x - at_x.grad_f
        everything = CartesianMRI(Mask((True,) * x.shape[problem.physics.axis]), problem.physics.axis)
        u = self.network(fft2c(consistent), everything)
        return [Candidate(u - problem.fidelity_grad(u))]


def images(indices: range) -> Tensor:
    """Return slices of the demo data, with peak 1."""
    found = torch.stack(list(demo("knee").take(indices).images()))
    return found / found.abs().amax((-2, -1), keepdim=True)


def train(network: UNet, physics: CartesianMRI, steps: int = STEPS, seed: int = 0) -> None:
    """Train the network on zero-filled images, and on what it makes of them when it is applied again."""
    references, generator = images(range(13)), torch.Generator().manual_seed(seed)
    everything = CartesianMRI(Mask((True,) * SIDE))
    optimiser = torch.optim.Adam(network.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, steps)
    for _ in range(steps):
        index = torch.randint(len(references), (2,), generator=generator)
        reference = references[index]
        if torch.rand((), generator=generator) < 0.5:
            reference = reference.flip(-1)
        y = physics.A(reference)
        x, loss = physics.A_adjoint(y), torch.zeros(())
        for _ in range(2):
            x = network(fft2c(x), everything)
            loss = loss + torch.view_as_real(x - reference).square().sum(-1).mean()
            x = (x - physics.fidelity_grad(x, y)).detach()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()


def measure(steps: int = STEPS) -> dict[str, Any]:
    """Train, and compare the network alone with the network in the solver, and with the solver's own proposals."""
    began = time.perf_counter()
    physics = CartesianMRI(cartesian_mask(SIDE, 0.25, seed=0))
    network = UNet(channels=8, pools=3, inputs=2, outputs=2, seed=0)
    train(network, physics, steps)
    network.eval()
    model = ulda.load("base")
    assert model.domain is not None
    regularizer = model.regularizer(model.domain)
    references = images(range(15, 24, 2))
    y = physics.A(references)
    problem, x0 = Reconstruction(physics, y, regularizer), physics.A_adjoint(y)
    proposals = {
        "gradient": GradientProposal(),
        "U-LDA": model.proposal(model.domain),
        "UNet": NetworkProposal(network),
    }

    def quality(x: Tensor) -> float:
        return float(psnr(x.abs(), references.abs(), data_range=1.0).mean())

    runs = []
    with torch.no_grad():
        alone = network(y, physics)
        for phases in PHASES:
            for name, proposal in proposals.items():
                x, trace = elda(problem, x0, proposal, model.options(model.domain, iterations=phases))
                certificate = certify(trace, y, physics, regularizer, x)
                trail = [step for i in range(trace.n_samples) for step in trace.steps(i)]
                runs.append(
                    {
                        "proposal": name,
                        "phases": phases,
                        "psnr": quality(x),
                        "accepted": trace.accepted_fraction(),
                        "descended": sum(step.phi <= step.phi_before for step in trail) / len(trail),
                        "last_phi": sum(trace.steps(i)[-1].phi for i in range(len(y))) / len(y),
                        "verified": verify(certificate, y, physics, regularizer, x, None, proposal).ok,
                    }
                )
        return {
            "training_steps": steps,
            "parameters": network.n_parameters,
            "slices": len(references),
            "zero_filling": quality(x0),
            "alone": quality(alone),
            "data_consistent": quality(alone - physics.fidelity_grad(alone, y)),
            "runs": runs,
            "seconds": round(time.perf_counter() - began),
        }


def table(found: dict[str, Any]) -> str:
    """Return the comparison as a Markdown table."""
    titles = {
        "zero_filling": "zero-filling",
        "alone": "UNet alone",
        "data_consistent": "UNet alone, measured lines put back",
    }
    rows = [["", "PSNR", "proposals accepted", "phases that descend", "mean last phi", "certificate"], ["---"] * 6]
    rows += [[title, f"{found[name]:.2f} dB", *["-"] * 4] for name, title in titles.items()]
    for run in found["runs"]:
        shares = [f"{100 * run[key]:.0f} %" for key in ("accepted", "descended")]
        verified = "verified" if run["verified"] else "refused"
        title = f"solver, {run['phases']} phases, {run['proposal']} proposes"
        rows.append([title, f"{run['psnr']:.2f} dB", *shares, f"{run['last_phi']:.2f}", verified])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main() -> None:
    """Measure, print and write."""
    torch.set_num_threads(1)
    found = measure()
    print(table(found))
    path = ROOT / "benchmarks" / "results" / "certified-network.json"
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    write_between(ROOT / "docs" / "proposals.md", BEGIN, END, table(found))


if __name__ == "__main__":
    main()
