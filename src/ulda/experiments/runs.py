"""The runs of an experiment: each is one training, one adaptation or one classical method, and writes one JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ulda.errors import UldaError
from ulda.experiments.definition import Experiment, Scale
from ulda.io.atomic import atomic_output
from ulda.io.documents import read_json
from ulda.io.untrusted import reading
from ulda.training.settings import checked

Kind = Literal["train", "adapt", "classical"]
UNADAPTED_SIZE = 0


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes
    ----------
    kind
        ``train``: a method on all sources, tested on them. ``adapt``: a trained method on a target. ``classical``: a
        method without training on one domain.
    method
        The name of the variant.
    domain
        The domain; empty for a training.
    size, draw
        The number of target slices, 0 for none: the method as the sources made it; and which draw of them.
    compare_with
        The variant whose training a training is compared with; empty for none.
    trained_as
        The variant whose training an adaptation starts from; empty for its own.
    """

    kind: Kind
    method: str
    domain: str = ""
    size: int = 0
    draw: int = 0
    compare_with: str = ""
    trained_as: str = ""

    @property
    def key(self) -> str:
        """A name for its file."""
        if self.kind == "train":
            return f"train-{self.method}"
        if self.kind == "classical":
            return f"classical-{self.method}-{self.domain}"
        return f"adapt-{self.method}-{self.domain}-{self.size}-{self.draw}"

    @property
    def needs(self) -> str | None:
        """The key of the run that must be done first; None without one."""
        if self.kind == "adapt":
            return f"train-{self.trained_as or self.method}"
        return f"train-{self.compare_with}" if self.compare_with else None


def runs_of(experiment: Experiment, scale: Scale) -> list[Run]:
    """Return all runs, the most telling first: every method with few slices before draws and large sizes."""
    runs = list(_runs(experiment, scale))
    for key, number in Counter(run.key for run in runs).items():
        if number > 1:
            raise UldaError(f"two runs of {experiment.name} would be called {key}; name methods or domains otherwise")
    return runs


def _runs(experiment: Experiment, scale: Scale) -> Iterator[Run]:
    learned = [variant for variant in experiment.variants if variant.is_learned]
    transferred = [variant for variant in learned if variant.transfer]
    targets = [entry.name for entry in experiment.targets]
    for variant in experiment.variants:
        if not variant.is_learned:
            for entry in (*experiment.sources, *experiment.targets):
                yield Run("classical", variant.name, entry.name)
    for variant in learned:
        if not variant.trained_as:
            yield Run("train", variant.name, compare_with=variant.compare_with)
    draws = {UNADAPTED_SIZE: 1} | {size: scale.draws_of(size) for size in scale.sizes}
    for draw in range(max(draws.values())):
        for size in (size for size in draws if draw < draws[size]):
            for variant in transferred:
                for target in targets:
                    yield Run("adapt", variant.name, target, size, draw, trained_as=variant.trained_as)


def write_run(folder: Path, run: Run, found: dict[str, Any]) -> None:
    """Write what was found in a run; half a file is never left behind."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_output(folder / f"{run.key}.json", overwrite=True) as temporary:
        temporary.write_text(json.dumps({"run": asdict(run)} | found, separators=(",", ":")) + "\n", encoding="utf-8")


def read_runs(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the results in a folder of runs, by their keys."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        advice = "remove it, and it is made again"
        with reading(path, "the result of a run", advice):
            found[path.stem] = _checked_result(read_json(path))
    return found


def _checked_result(result: Any) -> dict[str, Any]:
    """Refuse what is not the result of a run."""
    if not isinstance(result, dict) or not isinstance(result.get("run"), dict):
        raise TypeError("it holds something other than the result of a run")
    return result


@dataclass(frozen=True)
class Packed:
    """The results of an experiment in one file.

    Attributes
    ----------
    experiment, scale_name
        What was run, as it was defined then, and at which scale.
    runs
        The results by their keys.
    """

    experiment: Experiment
    scale_name: str
    runs: dict[str, dict[str, Any]]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of target slices that there are results for."""
        found = {result["run"]["size"] for result in self.runs.values()}
        return tuple(size for size in self.experiment.scale(self.scale_name).sizes if size in found)


def pack(packed: Packed, path: Path) -> None:
    """Write the results of an experiment into one compact file, with its definition."""
    definition = packed.experiment.model_dump(mode="json", exclude_defaults=True)
    content = {"definition": definition, "scale": packed.scale_name, "runs": packed.runs}
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_output(path, overwrite=True) as temporary:
        temporary.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")


def read_packed(path: Path) -> Packed:
    """Read a file that `pack` wrote; the experiment has the domains of the scale."""
    with reading(path, "packed results", "expected a file that `ulda experiment pack` wrote"):
        content = read_json(path)
        experiment = checked(Experiment, content["definition"]).at(content["scale"])
        runs = {str(key): _checked_result(result) for key, result in content["runs"].items()}
    return Packed(experiment, content["scale"], runs)


def cost_of(result: dict[str, Any]) -> float:
    """Return the time of the steps of a training or adaptation, on the processor: other work does not change it.

    Where that is not known, as after an interruption, it is the time on the clock.
    """
    spent = result["spent"]
    return float(spent.get("processor_seconds", spent["seconds"]))
