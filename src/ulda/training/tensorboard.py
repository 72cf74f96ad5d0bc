"""Curves of a training for TensorBoard, which is an extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ulda.errors import MissingExtraError
from ulda.training.history import Progress, Report


@contextmanager
def tensorboard_report(folder: Path) -> Iterator[Report]:
    """Give a report that writes loss, learning rate and validations as events into a folder."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtraError("TensorBoard", "tensorboard") from error
    with SummaryWriter(folder) as writer:

        def report(progress: Progress) -> None:
            scalars = {"loss": progress.loss, "learning_rate": progress.learning_rate}
            for domain, scores in (progress.validation or {}).items():
                scalars |= {f"{domain}/{name}": value for name, value in scores.items()}
            for name, value in scalars.items():
                writer.add_scalar(f"{progress.stage}/{name}", value, progress.step)

        yield report
