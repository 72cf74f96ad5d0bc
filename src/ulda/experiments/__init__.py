"""The paper's experiments as declarative files, one run after the other."""

from ulda.experiments.definition import Experiment, experiment_names, load_experiment

__all__ = ["Experiment", "experiment_names", "load_experiment"]
