"""The modified ELDA: the algorithm, its objective, its record and its certificate."""

from ulda.solvers.certificate import Verdict, certify, verify
from ulda.solvers.elda import elda
from ulda.solvers.objective import Evaluation, Reconstruction, SmoothedObjective
from ulda.solvers.options import Options, beta_from_gamma
from ulda.solvers.record import Run, load_run, save_run
from ulda.solvers.trace import Status, Step, Trace

__all__ = [
    "Evaluation",
    "Options",
    "Reconstruction",
    "Run",
    "SmoothedObjective",
    "Status",
    "Step",
    "Trace",
    "Verdict",
    "beta_from_gamma",
    "certify",
    "elda",
    "load_run",
    "save_run",
    "verify",
]
