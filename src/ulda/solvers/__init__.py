"""The modified ELDA: the algorithm, its objective, its record and its certificate."""

from ulda.solvers.certificate import certify
from ulda.solvers.elda import elda
from ulda.solvers.objective import Evaluation, Reconstruction, SmoothedObjective
from ulda.solvers.options import Options, beta_from_gamma
from ulda.solvers.record import Run, load_run, save_run
from ulda.solvers.trace import Status, Step, Trace
from ulda.solvers.verification import Verdict, verify

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
