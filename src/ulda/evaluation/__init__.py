"""How good a reconstruction is, in numbers that carry their convention, and side by side."""

from ulda.evaluation.comparison import Comparison, chosen_weights, compare
from ulda.evaluation.curves import save_curves
from ulda.evaluation.paired import PairedDifference, paired_difference, verdict
from ulda.evaluation.panels import save_panel

__all__ = [
    "Comparison",
    "PairedDifference",
    "chosen_weights",
    "compare",
    "paired_difference",
    "save_curves",
    "save_panel",
    "verdict",
]
