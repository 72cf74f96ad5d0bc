"""A whole training, from a configuration to a base with its card, in a folder that can be continued."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from ulda.errors import UldaError
from ulda.io.atomic import atomic_output
from ulda.physics import cartesian_mask
from ulda.training.config import ULDA_METHOD, Config, DataConfig, MaskConfig, parse_config
from ulda.training.config_text import config_yaml
from ulda.training.files import save_base
from ulda.training.history import Progress, Report, last_validation, total_seconds, total_steps
from ulda.training.loop import Task
from ulda.training.network import ONE_STEP_PER_PHASE, ULDA, WITHOUT_GAINS, Architecture
from ulda.training.settings import Settings
from ulda.training.slices import DEMO, choose_slices, normalised_images, opened, split_for_training
from ulda.training.stages import initialise, train_sources

StageReport = Callable[[str, Progress], None]
"""Called after each step with the name of the stage: ``initialise``, ``train``, ``round-1``, ``round-2``, ..."""

CONFIG_NAME = "config.yaml"
BUDGET_NAME = "budget.json"
"""Keeps the number of steps that a time was found to allow."""


def train_base(
    config: Config,
    folder: str | Path,
    *,
    resume: bool = False,
    command: str = "",
    report: StageReport | None = None,
    steps_in_time: Callable[[Sequence[Task]], int] | None = None,
) -> ULDA:
    """Train a base and write it, with checkpoints and logs on the way.

    Parameters
    ----------
    config
        What to train, with absolute paths.
    folder
        Gets ``config.yaml``, the checkpoint and ``log.csv`` of step 1, those of step 0 in ``initialise/DOMAIN``, those
        of further rounds in ``round-1``, ``round-2``, ..., and at the end ``model.safetensors`` and ``model.json``.
    resume
        Continue what the folder holds; the result has the same bits as that of a run without a pause.
    command
        How the training was started, for the model card.
    report
        Called after each step.
    steps_in_time
        Says how many steps, those of step 0 among them, fit into the time that the configuration gives.
    """
    folder = Path(folder)
    prepare(folder, config, resume)
    tasks, data_facts = load_tasks(config)
    rounds = _rounds(config)
    if steps_in_time is not None:
        n_initial = stage_steps(config).get("initialise", 0)
        rounds["train"] = config.train.model_copy(update={"steps": _after(n_initial, steps_in_time(tasks))})
    model = ULDA(Architecture(**vars(config.architecture)), [task.domain for task in tasks], seed=config.seed)
    before: list[Progress] = []
    if config.initialise is not None:
        place = folder / "initialise"
        before = initialise(model, tasks, config.initialise, folder=place, report=named(report, "initialise"))
    after: dict[str, list[Progress]] = {}
    for name, settings in rounds.items():
        place = folder if name == "train" else folder / name
        after[name] = train_sources(model, tasks, settings, folder=place, report=named(report, name))
    n_steps = {name: total_steps(history) for name, history in after.items()}
    card = training_card(config, command, data_facts, before, *after.values())
    card["spent"] = {
        "equal": "steps" if config.seconds is None else "wall-clock",
        "steps": sum(n_steps.values()),
        "slices": sum(n_steps[name] * settings.batch_size for name, settings in rounds.items()),
        "seconds": round(sum(map(total_seconds, (before, *after.values()))), 2),
        "extra_steps": {"initialise": total_steps(before)} if before else {},
    }
    save_base(model, folder, card, overwrite=resume)
    return model.eval()


def stage_steps(config: Config) -> dict[str, int]:
    """Return the steps of each stage of a training, by name and in their order; a time may allow others."""
    initial = {"initialise": len(config.data) * config.initialise.steps} if config.initialise else {}
    return initial | {name: settings.steps for name, settings in _rounds(config).items()}


def round_name(number: int) -> str:
    """Return the name of a further round of step 1, as a stage and as a folder.

    Examples
    --------
    >>> round_name(1)
    'round-1'
    """
    return f"round-{number}"


def _rounds(config: Config) -> dict[str, Settings]:
    """Return the settings of all rounds of step 1, by name."""
    return {round_name(i) if i else "train": settings for i, settings in enumerate(config.all_rounds)}


def _after(n_initial: int, steps: int) -> int:
    """Return the steps that the initialisation leaves."""
    if steps <= n_initial:
        raise UldaError(
            f"the time is enough for {steps} steps, but the initialisation alone takes {n_initial}; give more time, or "
            "fewer initialise.steps"
        )
    return steps - n_initial


def load_tasks(config: Config) -> tuple[list[Task], list[dict[str, Any]]]:
    """Read all source domains; return what to train on, and what the model card says about them."""
    loaded = [load_task(entry, config.masks) for entry in config.data]
    return [task for task, _ in loaded], [facts for _, facts in loaded]


def training_card(
    config: Config, command: str, data_facts: list[dict[str, Any]], *histories: list[Progress]
) -> dict[str, Any]:
    """Return what is told about a training: the configuration, the data, the last validation, time and machine.

    The rows of the stages that followed each other are given one after the other: each stage counts for itself.
    """
    return {
        **config.card,
        "name": config.name,
        "command": command,
        "config": _without_folders(config),
        "data": data_facts,
        "validation": _validation(config, histories),
        "training": {
            "seconds": round(sum(map(total_seconds, histories)), 1),
            "peak_memory_mb": peak_memory_mb(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
    }


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


def prepare(folder: Path, config: Config, resume: bool) -> None:
    """Make the folder of a run with its ``config.yaml``, or check that the run in it is the one to continue."""
    place = folder / CONFIG_NAME
    if has_checkpoint(folder) and not place.exists():
        raise UldaError(f"{folder} holds a model, but no training that could be continued; choose another --out")
    if has_checkpoint(folder) and not resume:
        raise UldaError(f"{folder} holds a training already; continue it with --resume or choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    if resume and place.exists():
        text = place.read_text(encoding="utf-8")
        before = _facts(parse_config(text))
        # a run of before there were these sizes does not say them
        if config.method == ULDA_METHOD:
            earlier = {**ONE_STEP_PER_PHASE, **WITHOUT_GAINS}
            before |= {f"architecture.{key}": value for key, value in earlier.items() if key not in text}
        now = _facts(config)
        changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        if changed:
            raise UldaError(
                f"the run in {folder} was started with another {changed[0]} ({before.get(changed[0])}, now "
                f"{now.get(changed[0])}); continue with the same configuration or choose another --out"
            )
    if not resume:
        (folder / BUDGET_NAME).unlink(missing_ok=True)
    with atomic_output(place, overwrite=True) as temporary:
        temporary.write_text(config_yaml(config), encoding="utf-8")


def _facts(config: Config) -> dict[str, Any]:
    """Return all values of a configuration by the paths of their keys."""
    return {"number of rounds": len(config.rounds), **dict(_leaves(config.values()))}


def _leaves(values: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(values, dict | list) or not values:
        yield path, values
        return
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        step = f"[{key}]" if isinstance(values, list) else f".{key}" if path else str(key)
        yield from _leaves(value, f"{path}{step}")


def named(report: StageReport | None, stage: str) -> Report | None:
    """Name the stage of a report."""
    return None if report is None else lambda progress: report(stage, progress)


def _validation(config: Config, histories: Sequence[list[Progress]]) -> dict[str, Any]:
    """Return the validation of what the training ended with, or the last one of the stages before."""
    *earlier, last = histories
    found = last_validation(last, is_best=config.all_rounds[-1].keep_best)
    found = found or last_validation([row for history in earlier for row in history])
    return {} if found is None else {"step": found.step, "domains": found.validation}


def _without_folders(config: Config) -> dict[str, Any]:
    """Return the configuration for the model card, which tells no folders of the machine."""
    values = config.values()
    del values["card"]
    for entry in values["data"]:
        entry["file"] = _without_folder(entry["file"])
    return values


def _without_folder(file: str) -> str:
    return file if file.startswith(DEMO) else Path(file).name
