"""The figures of an experiment, from the files of its runs, its logs and its examples alone."""

from ulda.experiments.figures.drawing import KINDS, Drawn, draw_figures
from ulda.experiments.figures.results import Results

__all__ = ["KINDS", "Drawn", "Results", "draw_figures"]
