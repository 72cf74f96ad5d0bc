"""Do one run of an experiment; what was interrupted continues where it stopped."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from ulda.errors import UldaError
from ulda.evaluation.comparison import chosen_weights, compare
from ulda.experiments.data import Data
from ulda.experiments.definition import DomainEntry, Experiment, Variant
from ulda.experiments.examples import save_examples, take_examples
from ulda.experiments.measures import check_measurable, measure, similarity
from ulda.experiments.recipes import code_fingerprint, digest_of, outdated, recipe_of, settings_of
from ulda.experiments.runs import UNADAPTED_SIZE, Run, read_runs, runs_of, write_run
from ulda.io.documents import read_json
from ulda.io.fingerprints import fingerprint
from ulda.io.locks import is_locked, locked
from ulda.methods import CLASSICAL, WEIGHTED, Method, TrainableMethod, Training, load_method, method_class, new_method
from ulda.methods.listing import weightless
from ulda.methods.runs import check_phases, peak_memory_mb
from ulda.solvers.certificate import software_versions
from ulda.training.history import Report
from ulda.training.slices import split_for_training

METRICS = ("psnr", "ssim", "nmse")
DIGITS = 4

_PATIENCE = 1.0
"""Seconds; a scheduler that asks whether a run is claimed holds its lock for a moment."""


@dataclass(frozen=True)
class Runner:
    """What runs the runs of an experiment at one scale.

    Attributes
    ----------
    experiment, scale_name
        What is run; the experiment has the domains of the scale.
    folder
        Gets ``runs``, one JSON each, ``examples``, ``models``, with checkpoints, and ``data``.
    data_folder
        Holds the data.
    device
        Where networks are trained and tested, e.g. ``cpu`` or ``cuda``.
    """

    experiment: Experiment
    scale_name: str
    folder: Path
    data_folder: Path
    device: str = "cpu"

    def __post_init__(self) -> None:
        object.__setattr__(self, "experiment", self.experiment.at(self.scale_name))

    @property
    def runs_folder(self) -> Path:
        """Where the results are."""
        return self.folder / "runs"

    @property
    def examples_folder(self) -> Path:
        """Where the example reconstructions are."""
        return self.folder / "examples"

    @property
    def data(self) -> Data:
        """The data at this scale."""
        return Data(self.data_folder, self.folder / "data", self.experiment.scale(self.scale_name))

    def is_done(self, run: Run) -> bool:
        """Tell whether a run has its result."""
        return self._result_of(run).exists()

    def is_claimed(self, run: Run) -> bool:
        """Tell whether a process does a run."""
        return is_locked(self._lock_of(run))

    def recipe(self, run: Run) -> dict[str, Any]:
        """Return what decides what a run finds: today's settings, and for an adaptation the training that there is."""
        recipe = recipe_of(self.experiment, self.data.scale, run)
        if run.kind != "adapt":
            return recipe
        trained = read_json(self.runs_folder / f"{run.needs}.json")
        return recipe | {"trained": digest_of(trained["recipe"])}

    def outdated(self) -> list[Run]:
        """Return the runs with a result of other settings than today's."""
        return outdated(self.experiment, self.data.scale, read_runs(self.runs_folder))

    def forget(self, run: Run) -> None:
        """Remove the result of a run, with its examples and what it trained, so that it is done anew.

        What was adapted from a training goes with it, also what is not done yet.
        """
        if run.kind == "train":
            for other in runs_of(self.experiment, self.data.scale):
                if other.kind == "adapt" and other.needs == run.key:
                    self.forget(other)
        models = self._model_folder(run.method)
        trained = {"train": models, "adapt": models / "adapted" / run.key, "classical": None}[run.kind]
        if trained is not None:
            shutil.rmtree(trained, ignore_errors=True)
        (self.examples_folder / f"{run.key}.npz").unlink(missing_ok=True)
        self._result_of(run).unlink(missing_ok=True)

    def forget_lost(self, keys: Collection[str]) -> None:
        """Remove the results of trainings, of these runs, whose models are gone while something is to be adapted."""
        runs = runs_of(self.experiment, self.data.scale)
        needed = {run.needs for run in runs if not self.is_done(run)}
        for run in runs:
            is_wanted = run.kind == "train" and run.key in keys and run.key in needed
            if is_wanted and not self._model_folder(run.method).is_dir():
                self._result_of(run).unlink(missing_ok=True)

    def run(self, run: Run, report: Report | None = None) -> dict[str, Any]:
        """Do a run and write its result; one that another process does is refused."""
        lock = self._lock_of(run)
        lock.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock, f"the run {run.key} in {self.folder}", patience=_PATIENCE):
            return self._run(run, report)

    def _run(self, run: Run, report: Report | None) -> dict[str, Any]:
        start = time.perf_counter()
        kinds = {"train": self._train, "adapt": self._adapt, "classical": self._classical}
        found = kinds[run.kind](run, report)
        result = {
            "experiment": self.experiment.name,
            "scale": {"name": self.scale_name} | self.data.scale.model_dump(mode="json"),
            "variant": self.experiment.variant(run.method).model_dump(mode="json"),
            "title": self.experiment.titles[run.method],
            "recipe": self.recipe(run),
            "software": software_versions() | {"code": code_fingerprint()},
            "threads": torch.get_num_threads(),
            "device": self.device,
            "wall_clock": round(time.perf_counter() - start + found.get("spent", {}).get("seconds_before", 0.0), 2),
            "peak_memory_mb": peak_memory_mb(),
        }
        write_run(self.runs_folder, run, result | found)
        return result | found

    def _train(self, run: Run, report: Report | None) -> dict[str, Any]:
        scale, variant = self.data.scale, self.experiment.variant(run.method)
        loaded = [self.data.task(entry, scale.source_slices) for entry in self.experiment.sources]
        names = [entry.name for entry in self.experiment.sources]
        check_measurable(variant, method_class(variant.method))
        model = new_method(variant.method, names, preset=variant.preset, **variant.sizes).to(self.device)
        settings = settings_of(variant, scale, run)
        check_phases(settings, model.sizes)
        place = self._model_folder(run.method)
        tasks = [task.to(self.device) for task, _ in loaded]
        with _Processor(place / "training", self.device) as processor:
            training = model.fit(tasks, settings, folder=place / "training", report=report)
        model.save(place, {"experiment": self.experiment.name}, overwrite=True)
        results = {}
        for entry, (_, slices) in zip(self.experiment.sources, loaded, strict=True):
            model.domain = entry.name
            results[entry.name] = self._test(run, model, entry) | {
                "trained_on": slices.fingerprint(),
                "n": len(slices),
            }
        shared = shared_parameters(variant)
        counts = {
            "n_parameters": model.n_parameters,
            "n_domain": shared + (model.n_parameters - shared) // len(names),
            "n_adapted": model.n_trainable(adapt=True),
        }
        extra = self._measure(variant, model, self.experiment.sources)
        return counts | {"spent": processor.spent_by(training), "results": results} | extra

    def _adapt(self, run: Run, report: Report | None) -> dict[str, Any]:
        variant, entry = self.experiment.variant(run.method), self.experiment.domain(run.domain)
        model = self._trained(variant)
        before = model.n_parameters
        found: dict[str, Any] = {}
        if run.size == UNADAPTED_SIZE:
            model.add_domain(entry.name)
            model.to(self.device).domain = entry.name
            test = self._test(run, model, entry)
        else:
            task, slices = self.data.task(entry, run.size, run.draw)
            settings = settings_of(variant, self.data.scale, run)
            place = self._model_folder(run.method) / "adapted" / run.key
            with _Processor(place, self.device) as processor:
                training = model.adapt(task.to(self.device), settings, folder=place, report=report)
            found["spent"] = processor.spent_by(training)
            test = self._test(run, model, entry) | {"trained_on": slices.fingerprint(), "n": len(slices)}
            found |= self._measure(variant, model, [entry])
        counts = {
            "n_parameters": model.n_parameters,
            "n_domain": shared_parameters(variant) + model.n_parameters - before,
            "n_adapted": model.n_adapted(entry.name),
        }
        return counts | found | {"results": {entry.name: test}}

    def _trained(self, variant: Variant) -> TrainableMethod:
        """Return the model of a variant as the sources made it."""
        name = variant.trained_as or variant.name
        if not self._model_folder(name).is_dir():
            raise UldaError(f"the model of train-{name} is gone; `ulda experiment run --renew` trains it again")
        model = load_method(self._model_folder(name))
        if not variant.trained_as:
            return model.to(self.device)
        own = new_method(variant.method, model.sources, preset=variant.preset, **variant.sizes)
        own.load_state_dict(model.state_dict())
        return own.eval().to(self.device)

    def _classical(self, run: Run, report: Report | None) -> dict[str, Any]:  # noqa: ARG002
        name, entry = self.experiment.variant(run.method).method, self.experiment.domain(run.domain)
        if name not in WEIGHTED:
            return {"results": {entry.name: self._test(run, CLASSICAL[name](), entry)}}
        train = split_for_training(self.data.domain(entry)).train
        weight = chosen_weights(train, self.data.mask(entry), acquisition="ideal")[name]
        return {"weight": weight, "results": {entry.name: self._test(run, WEIGHTED[name](weight), entry)}}

    def _test(self, run: Run, method: Method, entry: DomainEntry) -> dict[str, Any]:
        """Reconstruct the test slices of a domain, keep some as examples and return the scores of each."""
        test, mask = self.data.test(entry), self.data.mask(entry)
        start = time.process_time()  # other work on the machine does not change it
        comparison = compare({"method": method}, test, mask, acquisition="ideal")
        seconds = time.process_time() - start
        examples = take_examples(comparison, method, entry.name, test, mask)
        save_examples(self.examples_folder / f"{run.key}.npz", entry.name, examples)
        scores = comparison.scores["method"]
        values = {metric: [round(v, DIGITS) for v in getattr(scores, metric).tolist()] for metric in METRICS}
        return values | {
            "subjects": list(test.subjects),
            "data": test.fingerprint(),
            "mask": fingerprint([("mask", mask.lines)]),
            "kspace": test.header.kspace_origin,
            "convention": scores.convention.name,
            "seconds_per_slice": round(seconds / len(test), 4),
        }

    def _measure(self, variant: Variant, model: TrainableMethod, entries: Sequence[DomainEntry]) -> dict[str, Any]:
        """Measure what a variant asks for beside its scores; the features of two trainings on the sources alone."""
        extra: dict[str, Any] = {}
        for entry in entries:
            extra[entry.name] = measure(
                variant.measure, model, entry.name, self.data.test(entry), self.data.mask(entry)
            )
            if variant.compare_with and entry in self.experiment.sources:
                other = load_method(self._model_folder(variant.compare_with))
                extra[entry.name]["similarity"] = similarity(model, other, entry.name, self.data.test(entry))
        return {"extra": extra} if any(extra.values()) else {}

    def _result_of(self, run: Run) -> Path:
        return self.runs_folder / f"{run.key}.json"

    def _model_folder(self, method: str) -> Path:
        return self.folder / "models" / method

    def _lock_of(self, run: Run) -> Path:
        return self.folder / "locks" / run.key


class _Processor:
    """The processor time of a training; unknown where it continues an interrupted one, or computes elsewhere."""

    def __init__(self, folder: Path, device: str) -> None:
        self.is_resumed = any(folder.rglob("checkpoint.safetensors"))
        self.is_known = device == "cpu" and not self.is_resumed

    def __enter__(self) -> Self:
        self.start, self.began = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds, self.elapsed = time.process_time() - self.start, time.perf_counter() - self.began

    def spent_by(self, training: Training) -> dict[str, Any]:
        """Return what a training has spent; of a resumed one also the time before the interruption."""
        spent = training.spent.as_dict()
        if self.is_known:
            spent["processor_seconds"] = round(self.seconds, 2)
        if self.is_resumed:
            spent["seconds_before"] = round(max(0.0, spent["seconds"] - self.elapsed), 2)
        return spent


def shared_parameters(variant: Variant) -> int:
    """Return how many parameters of a method serve every domain: those that it has without any."""
    return weightless(variant.method, preset=variant.preset, **variant.sizes).n_parameters
