"""Settings and presets, losses, the loop, and the three steps of the method."""

from ulda.training.losses import DescentPenalty, reconstruction_loss
from ulda.training.presets import load_preset
from ulda.training.settings import Network, Settings
from ulda.training.tasks import Task

__all__ = ["DescentPenalty", "Network", "Settings", "Task", "load_preset", "reconstruction_loss"]
