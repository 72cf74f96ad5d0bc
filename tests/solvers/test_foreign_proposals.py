"""Whatever proposes, the solver descends and its certificate is verified."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from benchmarks.certified_network import NetworkProposal
from ulda.data import demo
from ulda.errors import UldaError
from ulda.methods.dncn import DnCn
from ulda.methods.unet import UNet
from ulda.models import Adapter, FeatureExtractor, Regularizer
from ulda.models.regularizer import stacked, unstacked
from ulda.physics import CartesianMRI, cartesian_mask
from ulda.solvers import Candidate, Options, Proposal, Reconstruction, Trace, certify, elda, load_run, save_run, verify

OPTIONS = Options(eps_0=3e-4, eps_tol=3e-6, iterations=4)


class CascadeProposal(Proposal):
    """Phase t is cascade t of DnCn."""

    kind: ClassVar[str] = "dncn"

    def __init__(self, network: DnCn) -> None:
        super().__init__()
        self.network = network

    def forward(self, problem: Any, x: Tensor, at_x: Any, eps: Any, t: int, memory: Any) -> list[Candidate]:
        """Return the cascade of this phase, data consistency included."""
        del at_x, eps, memory
        t = min(t, len(self.network.cascades) - 1)
        u = x + unstacked(self.network.denoise(stacked(x), t, None, None))
        return [Candidate(u - problem.fidelity_grad(u))]


class Scripted(Proposal):
    """Steps down, up, not at all and to infinity, phase by phase; remembers how often it was asked."""

    kind: ClassVar[str] = "scripted"
    steps: ClassVar[tuple[float, ...]] = (-0.5, 1.0, 0.0, float("inf"))

    def first_memory(self, x0: Tensor, at_x0: Any) -> tuple[Tensor, ...]:
        """Nothing was asked yet."""
        del at_x0
        return (torch.zeros(len(x0)),)

    def forward(self, problem: Any, x: Tensor, at_x: Any, eps: Any, t: int, memory: Any) -> list[Candidate]:
        """Return one step along the gradient."""
        del problem, eps
        assert memory[0].tolist() == [t] * len(x)
        return [Candidate(x + self.steps[t] * at_x.grad, (memory[0] + 1,))]


@pytest.fixture(scope="module")
def problem() -> Reconstruction:
    images = torch.stack(list(demo("knee").take([6, 12]).images()))[:, :64, :64]
    physics = CartesianMRI(cartesian_mask(64, 0.3, seed=2))
    return Reconstruction(physics, physics.A(images), Regularizer(FeatureExtractor(6, 2), Adapter(6, weight=0.003)))


def noisy(network: nn.Module, scale: float = 0.02) -> nn.Module:
    """Give a network weights that do something, wrong though it may be."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return network.eval()


PROPOSALS = {
    "unet": NetworkProposal(noisy(UNet(channels=4, pools=2, inputs=2, outputs=2))),
    "dncn": CascadeProposal(noisy(DnCn(8, 3, 4))),  # type: ignore[arg-type]
    "scripted": Scripted(),
}


@torch.no_grad()
def solved(problem: Reconstruction, proposal: Proposal, options: Options = OPTIONS) -> tuple[Tensor, Trace]:
    return elda(problem, problem.physics.A_adjoint(problem.y), proposal, options)


@pytest.mark.parametrize("name", PROPOSALS)
def test_every_phase_descends_and_the_certificate_is_verified(problem: Reconstruction, name: str) -> None:
    proposal = PROPOSALS[name]
    x, trace = solved(problem, proposal)
    for sample in range(2):
        steps = trace.steps(sample)
        assert len(steps) == 4
        assert all(step.phi < step.phi_before for step in steps)
        assert all(step.holds(OPTIONS) for step in steps)
    parts = problem.y, problem.physics, problem.regularizer, x
    certificate = certify(trace, *parts)
    assert certificate["proposal"].keys() == {"kind", "weights"}
    assert verify(certificate, *parts, proposal=proposal).ok


def test_a_line_search_takes_over_where_the_proposal_leads_uphill(problem: Reconstruction) -> None:
    _, trace = solved(problem, Scripted())
    for sample in range(2):
        assert [step.branch for step in trace.steps(sample)] == ["u", "v", "v", "v"]


def test_without_the_safeguard_the_solver_is_the_network(problem: Reconstruction) -> None:
    """DnCn alone is its cascades one after the other, on a measurement with the peak of its zero-filled image at 1."""
    network = noisy(DnCn(8, 3, 4))
    peak = problem.physics.A_adjoint(problem.y).abs().amax((-2, -1), keepdim=True)
    scaled = Reconstruction(problem.physics, problem.y / peak, problem.regularizer)
    free = Options(eps_0=3e-4, eps_tol=3e-6, iterations=4, safeguard=False)
    x, trace = solved(scaled, CascadeProposal(network), free)  # type: ignore[arg-type]
    with torch.no_grad():
        expected = network(problem.y, problem.physics) / peak
    assert torch.allclose(x, expected, atol=1e-5)
    assert trace.accepted_fraction() == 1
    assert any(step.phi > step.phi_before for i in range(2) for step in trace.steps(i))


def test_the_network_must_be_the_one_on_record(problem: Reconstruction, tmp_path: Path) -> None:
    proposal = NetworkProposal(noisy(UNet(channels=4, pools=2, inputs=2, outputs=2)))
    x, trace = solved(problem, proposal)
    parts = problem.y, problem.physics, problem.regularizer, x
    certificate = certify(trace, *parts)
    problems = verify(certificate, *parts).problems
    assert len(problems) == 1
    assert "kind 'network' cannot be built from its description; pass the proposal" in problems[0]
    other = NetworkProposal(noisy(UNet(channels=4, pools=2, inputs=2, outputs=2), scale=0.03))
    assert verify(certificate, *parts, proposal=other).problems[0] == (
        "the proposal is not the one the certificate was made for"
    )
    save_run(tmp_path / "run.h5", trace, *parts)
    assert load_run(tmp_path / "run.h5").verify(proposal).ok
    assert not load_run(tmp_path / "run.h5").verify().ok


def test_a_proposal_of_another_shape_is_one_sentence(problem: Reconstruction) -> None:
    class Cropped(Scripted):
        def forward(self, problem: Any, x: Tensor, *rest: Any) -> list[Candidate]:
            del problem, rest
            return [Candidate(x[..., 1:])]

    with pytest.raises(UldaError, match=r"the proposal has shape \(2, 64, 63\)"):
        solved(problem, Cropped())


def test_the_documented_example_is_short_and_certified(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).resolve().parents[2] / "docs" / "proposals.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert code is not None
    assert len([line for line in code[1].splitlines() if line.strip()]) < 25
    exec(compile(code[1], "proposals.md", "exec"), {})
    is_verified, tests, *_ = capsys.readouterr().out.splitlines()
    assert is_verified == "True"
    assert tests == "3 of 3 iterations passed their acceptance test: 0 proposals accepted, 3 line searches."
