"""A whole training, from a configuration to a base with its card, in a folder that can be continued."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ulda.data.atomic import atomic_output
from ulda.errors import UldaError
from ulda.physics import cartesian_mask
from ulda.training.config import Config, DataConfig, MaskConfig, parse_config
from ulda.training.config_text import config_yaml
from ulda.training.files import save_base
from ulda.training.history import Progress, Report, total_seconds
from ulda.training.loop import Task
from ulda.training.network import ULDA, Architecture
from ulda.training.slices import DEMO, choose_slices, normalised_images, opened, split_for_training
from ulda.training.stages import initialise, train_sources

StageReport = Callable[[str, Progress], None]
"""Called after each step with the name of the stage, ``initialise`` or ``train``."""

CONFIG_NAME = "config.yaml"


def train_base(
    config: Config,
    folder: str | Path,
    *,
    resume: bool = False,
    command: str = "",
    report: StageReport | None = None,
) -> ULDA:
    """Train a base and write it, with checkpoints and logs on the way.

    Parameters
    ----------
    config
        What to train, with absolute paths.
    folder
        Gets ``config.yaml``, the checkpoint and ``log.csv`` of step 1, those of step 0 in ``initialise/DOMAIN``, and at
        the end ``model.safetensors`` and ``model.json``.
    resume
        Continue what the folder holds; the result has the same bits as that of a run without a pause.
    command
        How the training was started, for the model card.
    report
        Called after each step.
    """
    folder = Path(folder)
    _prepare(folder, config, resume)
    tasks, data_facts = [], []
    for entry in config.data:
        task, facts = load_task(entry, config.masks)
        tasks.append(task)
        data_facts.append(facts)
    model = ULDA(Architecture(**vars(config.architecture)), [task.domain for task in tasks], seed=config.seed)
    history: list[Progress] = []
    if config.initialise is not None:
        place = folder / "initialise"
        history += initialise(model, tasks, config.initialise, folder=place, report=_named(report, "initialise"))
    history += train_sources(model, tasks, config.train, folder=folder, report=_named(report, "train"))
    card = {
        **config.card,
        "name": config.name,
        "command": command,
        "config": _without_folders(config),
        "data": data_facts,
        "validation": _last_validation(history),
        "training": {
            "seconds": round(total_seconds(history), 1),
            "peak_memory_mb": peak_memory_mb(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
    }
    save_base(model, folder, card, overwrite=resume)
    return model.eval()


def load_task(entry: DataConfig, masks: MaskConfig) -> tuple[Task, dict[str, Any]]:
    """Read a source domain; return what to train on, and what the model card says about it."""
    with opened(entry.file, size=entry.size, phase_seed=entry.phase_seed, name=entry.name) as domain:
        split = split_for_training(domain)
        train = split.train
        if entry.slices is not None:
            train = train.take(choose_slices(train.subjects, entry.slices))
        images, axis = normalised_images(train), domain.header.phase_axis
        validation = normalised_images(split.validation) if len(split.validation) else images[:0]
        facts = {
            "domain": entry.name,
            "file": _without_folder(entry.file),
            "size": list(images.shape[-2:]),
            "n_slices": len(train),
            "n_subjects": len(set(train.subjects)),
            "subjects": sorted(set(train.subjects)),
            "fingerprint": train.fingerprint(),
            "validation": split.origin,
            "n_validation_slices": len(split.validation),
            "licence": domain.header.licence,
        }
    n_lines = images.shape[axis]
    counted = enumerate(ratio for ratio in masks.ratios for _ in range(masks.per_ratio))
    family = [cartesian_mask(n_lines, ratio, masks.center, masks.seed + number) for number, ratio in counted]
    judged_with = cartesian_mask(n_lines, masks.validation_ratio, masks.center, masks.validation_seed)
    return Task(entry.name, images, family, validation, axis, judged_with), facts


def has_checkpoint(folder: Path) -> bool:
    """Tell whether a folder holds a training, finished or not."""
    return any(folder.glob("**/checkpoint.safetensors")) or (folder / "model.safetensors").exists()


def peak_memory_mb() -> int | None:
    """Return the largest memory of this process so far; None where the system does not tell."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1e6 if sys.platform == "darwin" else 1e3))


def _prepare(folder: Path, config: Config, resume: bool) -> None:
    """Make the folder of a run, or check that the run in it is the one to continue."""
    if has_checkpoint(folder) and not resume:
        raise UldaError(f"{folder} holds a training already; continue it with --resume or choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / CONFIG_NAME
    if resume and place.exists():
        before = dict(_leaves(parse_config(place.read_text(encoding="utf-8")).model_dump(mode="json")))
        now = dict(_leaves(config.model_dump(mode="json")))
        changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        if changed:
            raise UldaError(
                f"the run in {folder} was started with another {changed[0]} ({before.get(changed[0])}, now "
                f"{now.get(changed[0])}); continue with the same configuration or choose another --out"
            )
    with atomic_output(place, overwrite=True) as temporary:
        temporary.write_text(config_yaml(config), encoding="utf-8")


def _leaves(values: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(values, dict | list) or not values:
        yield path, values
        return
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        step = f"[{key}]" if isinstance(values, list) else f".{key}" if path else str(key)
        yield from _leaves(value, f"{path}{step}")


def _named(report: StageReport | None, stage: str) -> Report | None:
    return None if report is None else lambda progress: report(stage, progress)


def _last_validation(history: list[Progress]) -> dict[str, Any]:
    last = next((row for row in reversed(history) if row.validation), None)
    return {} if last is None else {"step": last.step, "domains": last.validation}


def _without_folders(config: Config) -> dict[str, Any]:
    """Return the configuration for the model card, which tells no folders of the machine."""
    values = config.model_dump(mode="json", exclude={"card"})
    for entry in values["data"]:
        entry["file"] = _without_folder(entry["file"])
    return values


def _without_folder(file: str) -> str:
    return file if file.startswith(DEMO) else Path(file).name
