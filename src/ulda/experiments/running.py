"""Run one cell of an experiment; what was interrupted goes on where it stopped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ulda.baselines import (
    CLASSICAL,
    Budget,
    Method,
    TrainableMethod,
    load_method,
    method_class,
)
from ulda.evaluation.comparison import compare
from ulda.experiments.cells import UNADAPTED_SIZE, Cell, write_cell
from ulda.experiments.data import Data
from ulda.experiments.definition import DomainEntry, Experiment, Variant
from ulda.experiments.examples import save_examples, take_examples
from ulda.experiments.measures import check_measurable, measure, similarity
from ulda.solvers.certificate import fingerprint, software_versions
from ulda.training.history import Report
from ulda.training.runs import peak_memory_mb

METRICS = ("psnr", "ssim", "nmse")
DIGITS = 4


@dataclass(frozen=True)
class Runner:
    """What runs the cells of an experiment at one scale.

    Attributes
    ----------
    experiment, scale_name
        What is run.
    folder
        Gets ``cells``, one JSON each, ``examples``, ``models``, with checkpoints, and ``data``.
    data_folder
        Holds the data.
    """

    experiment: Experiment
    scale_name: str
    folder: Path
    data_folder: Path

    @property
    def cells_folder(self) -> Path:
        """Where the results are."""
        return self.folder / "cells"

    @property
    def examples_folder(self) -> Path:
        """Where the example reconstructions are."""
        return self.folder / "examples"

    @property
    def data(self) -> Data:
        """The data at this scale."""
        return Data(self.data_folder, self.folder / "data", self.experiment.scale(self.scale_name))

    def is_done(self, cell: Cell) -> bool:
        """Tell whether a cell has its result."""
        return (self.cells_folder / f"{cell.key}.json").exists()

    def run(self, cell: Cell, report: Report | None = None) -> dict[str, Any]:
        """Run a cell and write its result."""
        start = time.perf_counter()
        kinds = {"train": self._train, "adapt": self._adapt, "classical": self._classical}
        found = kinds[cell.kind](cell, report)
        result = {
            "experiment": self.experiment.name,
            "scale": {"name": self.scale_name} | self.data.scale.model_dump(mode="json"),
            "variant": self.experiment.variant(cell.method).model_dump(mode="json"),
            "software": software_versions(),
            "threads": torch.get_num_threads(),
            "wall_clock": round(time.perf_counter() - start, 2),
            "peak_memory_mb": peak_memory_mb(),
        }
        write_cell(self.cells_folder, cell, result | found)
        return result | found

    def _train(self, cell: Cell, report: Report | None) -> dict[str, Any]:
        scale, variant = self.data.scale, self.experiment.variant(cell.method)
        loaded = [self.data.task(entry, scale.source_slices) for entry in self.experiment.sources]
        names = [entry.name for entry in self.experiment.sources]
        kind = method_class(variant.method)
        check_measurable(variant, kind)
        model = kind(sources=names, **variant.sizes)
        place = self._model_folder(cell.method)
        training = model.fit(
            [task for task, _ in loaded],
            Budget.of_steps(scale.steps, scale.steps * scale.batch_size),
            changes=_given(variant.train, scale.steps),
            folder=place / "training",
            report=report,
        )
        model.save(place, {"experiment": self.experiment.name}, overwrite=True)
        results = {}
        for entry, (_, slices) in zip(self.experiment.sources, loaded, strict=True):
            model.domain = entry.name
            results[entry.name] = self._test(cell, model, entry) | {
                "trained_on": slices.fingerprint(),
                "n": len(slices),
            }
        extra = self._measure(variant, model, self.experiment.sources)
        return _counts(model) | {"spent": training.spent.as_dict(), "results": results} | extra

    def _adapt(self, cell: Cell, report: Report | None) -> dict[str, Any]:
        scale, variant, entry = (
            self.data.scale,
            self.experiment.variant(cell.method),
            self.experiment.domain(cell.domain),
        )
        model = self._trained(variant)
        found: dict[str, Any] = {}
        if cell.size == UNADAPTED_SIZE:
            model.add_domain(entry.name)
            model.domain = entry.name
            test = self._test(cell, model, entry)
        else:
            task, slices = self.data.task(entry, cell.size, cell.draw)
            steps = scale.adapt_steps[cell.size]
            place = self._model_folder(cell.method) / "adapted" / cell.key
            training = model.adapt(
                task,
                Budget.of_steps(steps, steps * scale.batch_size),
                seed=cell.draw,
                changes=_given(variant.adapt, steps),
                folder=place,
                report=report,
            )
            found["spent"] = training.spent.as_dict()
            test = self._test(cell, model, entry) | {"trained_on": slices.fingerprint(), "n": len(slices)}
            found |= self._measure(variant, model, [entry])
        return _counts(model) | found | {"results": {entry.name: test}}

    def _trained(self, variant: Variant) -> TrainableMethod:
        """Return the model of a variant as the sources made it."""
        model = load_method(self._model_folder(variant.trained_as or variant.name))
        if not variant.trained_as:
            return model
        own = method_class(variant.method)(sources=model.sources, **variant.sizes)
        own.load_state_dict(model.state_dict())
        return own.eval()

    def _classical(self, cell: Cell, report: Report | None) -> dict[str, Any]:  # noqa: ARG002
        method = CLASSICAL[self.experiment.variant(cell.method).method]()
        entry = self.experiment.domain(cell.domain)
        return {"results": {entry.name: self._test(cell, method, entry)}}

    def _test(self, cell: Cell, method: Method, entry: DomainEntry) -> dict[str, Any]:
        """Reconstruct the test slices of a domain, keep some as examples and return the scores of each."""
        test, mask = self.data.test(entry), self.data.mask(entry)
        start = time.perf_counter()
        comparison = compare({"method": method}, test, mask)
        seconds = time.perf_counter() - start
        examples = take_examples(comparison, method, entry.name, test, mask)
        save_examples(self.examples_folder / f"{cell.key}.npz", entry.name, examples)
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

    def _model_folder(self, method: str) -> Path:
        return self.folder / "models" / method


def _given(changes: dict[str, Any], steps: int) -> dict[str, Any]:
    """Return the settings of a stage: checkpoints for resuming, and few validations, which are not free."""
    often = max(1, steps // 8)
    return {"checkpoint_every": min(25, steps), "validate_every": often} | changes


def _counts(model: TrainableMethod) -> dict[str, Any]:
    return {"n_parameters": model.n_parameters, "n_adapted": model.n_trainable(adapt=True), "title": model.title}


def variant_titles(experiment: Experiment) -> dict[str, str]:
    """Return the name of each variant for people: its label, or the title of its method."""

    def title(variant: Variant) -> str:
        if variant.label or not variant.is_learned:
            return variant.name
        return method_class(variant.method).title

    return {variant.name: title(variant) for variant in experiment.variants}
