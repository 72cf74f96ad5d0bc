"""A whole training of any method, from a configuration to a model with its card, in a folder that can be continued."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ulda.errors import UldaError
from ulda.io.atomic import atomic_output
from ulda.io.documents import read_json
from ulda.io.locks import locked_folder
from ulda.io.untrusted import read_text, reading
from ulda.methods.listing import check_sizes
from ulda.methods.registry import method_settings, new_method, preset_of
from ulda.methods.trainable import TrainableMethod, Training
from ulda.training.config import Config, parse_config
from ulda.training.config_text import config_yaml
from ulda.training.history import Report, last_validation, total_seconds
from ulda.training.settings import Settings
from ulda.training.slices import file_name, load_tasks
from ulda.training.tasks import Task

CONFIG_NAME = "config.yaml"
TIMED_NAME = "timed.json"
"""Keeps the number of steps that a time was found to allow."""

_TIMED_STEPS = 6
"""Per source, so that networks which help with one source each are timed in their proportion."""


def resolve(
    config: Config, method: str | None = None, preset: str | None = None, seconds: float | None = None
) -> Config:
    """Return a configuration with every size and setting given: those of the file, above those of its preset.

    A file for one method trains every other on the same data and masks with its settings; sizes belong to the method
    of the file and are left out for another.

    Parameters
    ----------
    config
        A configuration from a file.
    method, preset, seconds
        In place of those of the file.
    """
    name = method or config.method
    chosen = preset_of(name, preset or config.preset)
    network = config.network if name == config.method else {}
    check_sizes(name, network, chosen)
    settings = method_settings(name, "train", chosen, **config.given)
    sizes = new_method(name, preset=chosen, **network).sizes
    check_phases(settings, sizes)
    return config.model_copy(
        update={
            "method": name,
            "preset": chosen,
            "network": sizes,
            "train": Settings.model_validate(settings.model_dump()),
            "seconds": seconds or config.seconds,
        }
    )


def check_phases(settings: Settings, sizes: Mapping[str, Any]) -> None:
    """Refuse to train more phases than a network of these sizes has."""
    n_phases = sizes.get("phases")
    if settings.phases and n_phases is not None and max(settings.phases) > n_phases:
        wanted = f"{max(settings.phases)} phases are to be trained, but the network has {n_phases}"
        raise UldaError(f"{wanted}; change train.phases or network.phases")


def train(
    config: Config,
    folder: str | Path,
    *,
    resume: bool = False,
    command: str = "",
    report: Report | None = None,
) -> TrainableMethod:
    """Train the method of a configuration and write it, with checkpoints and logs on the way.

    Parameters
    ----------
    config
        What to train, from `resolve`, with absolute paths.
    folder
        Gets ``config.yaml``, the checkpoint, ``log.csv``, those of step 0 in ``initialise/DOMAIN``, and at the end
        ``model.safetensors`` and ``model.json``.
    resume
        Continue what the folder holds; the result has the same bits as that of a run without a pause.
    command
        How the training was started, for the model card.
    report
        Called after each step.
    """
    folder = Path(folder)
    with locked_folder(folder):
        prepare(folder, config, resume)
        tasks, data_facts = load_tasks(config)
        sources = [task.domain for task in tasks]
        model = new_method(config.method, sources, config.seed, config.preset, **config.network)
        settings = config.train if config.seconds is None else calibrate(model, tasks, config, folder)
        training = model.fit(tasks, settings, folder=folder, report=report)
        model.save(folder, training_card(config, command, data_facts, training), overwrite=resume)
    return model.eval()


def stage_steps(config: Config) -> dict[str, int]:
    """Return the steps of each stage of a training, by name and in their order; a time may allow others."""
    initial = round(config.network.get("initialise", 0.0) * config.train.steps)
    return ({"initialise": len(config.data) * initial} if initial else {}) | {"train": config.train.steps}


def calibrate(model: TrainableMethod, tasks: Sequence[Task], config: Config, folder: Path) -> Settings:
    """Turn a time into steps by trying a few; a training that is continued keeps the number it began with."""
    assert config.seconds is not None
    place = folder / TIMED_NAME
    if place.exists():
        with reading(place, "the number of steps", "remove it to count them again"):
            return config.train.changed(steps=int(read_json(place)["steps"]))
    n_steps = _TIMED_STEPS * len(tasks)
    trial = config.train.changed(steps=n_steps, validate_every=0)
    for _ in range(2):  # the first time, libraries are loaded and memory is found
        training = copy.deepcopy(model).fit(tasks, trial)
    steps = max(1, int(config.seconds / (training.spent.seconds / n_steps)))
    with atomic_output(place, overwrite=True) as temporary:
        temporary.write_text(json.dumps({"steps": steps}) + "\n", encoding="utf-8")
    return config.train.changed(steps=steps)


def training_card(config: Config, command: str, data_facts: list[dict[str, Any]], training: Training) -> dict[str, Any]:
    """Return what is told about a training: the configuration, the data, the last validation, time and machine."""
    found = last_validation(training.history)
    return {
        **config.card,
        "name": config.name,
        "preset": config.preset,
        "acquisition": config.acquisition,
        "command": command,
        "config": _without_folders(config),
        "data": data_facts,
        "validation": {} if found is None else {"step": found.step, "domains": found.validation},
        "spent": training.spent.as_dict() | {"equal": "steps" if config.seconds is None else "wall-clock"},
        "training": {
            "seconds": round(total_seconds(training.history), 1),
            "peak_memory_mb": peak_memory_mb(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
    }


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
    """Write ``config.yaml`` into the folder of a run, or check that the run in it is the one to continue."""
    place = folder / CONFIG_NAME
    if has_checkpoint(folder) and not place.exists():
        raise UldaError(f"{folder} holds a model, but no training that could be continued; choose another --out")
    if has_checkpoint(folder) and not resume:
        raise UldaError(f"{folder} holds a training already; continue it with --resume or choose another --out")
    if resume and place.exists():
        before = dict(_leaves(parse_config(read_text(place, "a configuration")).values()))
        now = dict(_leaves(config.values()))
        changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        if changed:
            raise UldaError(
                f"the run in {folder} was started with another {changed[0]} ({before.get(changed[0])}, now "
                f"{now.get(changed[0])}); continue with the same configuration or choose another --out"
            )
    if not resume:
        (folder / TIMED_NAME).unlink(missing_ok=True)
    with atomic_output(place, overwrite=True) as temporary:
        temporary.write_text(config_yaml(config), encoding="utf-8")


def _leaves(values: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(values, dict | list) or not values:
        yield path, values
        return
    for key, value in values.items() if isinstance(values, dict) else enumerate(values):
        step = f"[{key}]" if isinstance(values, list) else f".{key}" if path else str(key)
        yield from _leaves(value, f"{path}{step}")


def _without_folders(config: Config) -> dict[str, Any]:
    """Return the configuration for the model card, which tells no folders of the machine."""
    values = config.values()
    del values["card"]
    for entry in values["data"]:
        entry["file"] = file_name(entry["file"])
    return values
