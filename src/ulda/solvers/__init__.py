"""The modified ELDA: the algorithm, its objective, its record and its certificate."""

from ulda.solvers.certificate import certify, describe
from ulda.solvers.composed import MeanProposal, Repeated, proposal_from_dict
from ulda.solvers.elda import elda
from ulda.solvers.objective import Evaluation, Reconstruction, SmoothedObjective
from ulda.solvers.options import Options, beta_from_gamma
from ulda.solvers.outputs import CheckedOutput, verify_output
from ulda.solvers.proposals import (
    AcceleratedProposal,
    Candidate,
    GradientProposal,
    Memory,
    Proposal,
)
from ulda.solvers.record import Run, RunWriter, run_output, save_run
from ulda.solvers.record_reader import load_run, load_runs
from ulda.solvers.trace import Status, Step, Trace
from ulda.solvers.verification import Verdict, verify

__all__ = [
    "AcceleratedProposal",
    "Candidate",
    "CheckedOutput",
    "Evaluation",
    "GradientProposal",
    "MeanProposal",
    "Memory",
    "Options",
    "Proposal",
    "Reconstruction",
    "Repeated",
    "Run",
    "RunWriter",
    "SmoothedObjective",
    "Status",
    "Step",
    "Trace",
    "Verdict",
    "beta_from_gamma",
    "certify",
    "describe",
    "elda",
    "load_run",
    "load_runs",
    "proposal_from_dict",
    "run_output",
    "save_run",
    "verify",
    "verify_output",
]
