"""How good a reconstruction is, in numbers that carry their convention, and side by side."""

from ulda.evaluation.comparison import Comparison, compare
from ulda.evaluation.curves import save_curves
from ulda.evaluation.metrics import PER_SLICE, PER_VOLUME, Convention, Scores, evaluate, nmse, psnr, ssim
from ulda.evaluation.paired import PairedDifference, paired_difference, verdict
from ulda.evaluation.panels import save_panel

__all__ = [
    "PER_SLICE",
    "PER_VOLUME",
    "Comparison",
    "Convention",
    "PairedDifference",
    "Scores",
    "compare",
    "evaluate",
    "nmse",
    "paired_difference",
    "psnr",
    "save_curves",
    "save_panel",
    "ssim",
    "verdict",
]
