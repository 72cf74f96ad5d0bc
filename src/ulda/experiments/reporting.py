"""The report of an experiment: the methods on one domain, from the folder it ran in or from a packed file."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ulda.data import Domain
from ulda.errors import UldaError
from ulda.evaluation.paired import counted
from ulda.evaluation.report.comparison_file import FILE_NAME
from ulda.evaluation.report.content import Provenance, Report, Slice, Traces
from ulda.evaluation.report.images import magnitude_of
from ulda.evaluation.report.sources import read_report as read_other_report
from ulda.experiments.definition import SUBJECTS, Experiment, experiment_names, load_experiment
from ulda.experiments.examples import TRACED, Examples, load_examples
from ulda.experiments.report_choice import AS_TRAINED, Choice, Tested, choose, tests_in
from ulda.experiments.runs import read_packed, read_runs
from ulda.io.fingerprints import fingerprint
from ulda.io.untrusted import reading
from ulda.metrics import PER_SLICE, evaluate
from ulda.physics import Mask, cartesian_mask
from ulda.solvers import Step
from ulda.solvers.batch import BRANCHES
from ulda.training.slices import choose_slices

PACKED_SUFFIX = ".json"
RUNS = "runs"
"""The folder with the results in the folder of an experiment."""

_TOLERANCE = 0.1  # decibels that the half precision of an example may change its score by; it is less than 0.02
_LARGEST_SIDE = 16384
_PACKED = ("a packed file holds scores and no images; the folder that the experiment ran in has some",)


def read_report(
    source: str | Path,
    reference: str | Path | None = None,
    *,
    domain: str | None = None,
    slices: int | None = None,
) -> Report:
    """Read results of any kind: those of `ulda experiment`, and all that `ulda.evaluation.report.read_report` reads.

    Parameters
    ----------
    source, reference
        As there; or the folder of an experiment, or a file that `ulda experiment pack` wrote.
    domain, slices
        Of an experiment: which domain, by default the first target, and the number of target slices, by default the
        fewest that most methods have; 0 for the methods as trained.
    """
    source = Path(source)
    if not _is_of_experiment(source):
        if domain is not None or slices is not None:
            raise UldaError(
                f"{source.name} is not of an experiment; --domain and --slices choose among its results alone"
            )
        return read_other_report(source, reference)
    if reference is not None:
        raise UldaError(f"{source.name} has its own reference; --reference is for an output of `ulda reconstruct`")
    return report_of_experiment(source, domain, slices)


def _is_of_experiment(source: Path) -> bool:
    if source.is_dir():
        return (source / RUNS).is_dir() and not (source / FILE_NAME).is_file()
    return source.suffix == PACKED_SUFFIX and source.exists()


def report_of_experiment(source: str | Path, domain: str | None = None, slices: int | None = None) -> Report:
    """Read the results of an experiment on one domain.

    Parameters
    ----------
    source
        The folder of `ulda experiment run`, with example images; or a file of `ulda experiment pack`, with scores.
    domain
        A target or a source; by default the first target.
    slices
        The number of target slices, 0 for the methods as trained; by default the fewest that most methods have.
    """
    source = Path(source)
    with reading(source, "the results of an experiment", "run the experiment again"):
        return _report(source, *_read(source), domain, slices)


def _report(
    source: Path, tests: list[Tested], definitions: list[Experiment], domain: str | None, slices: int | None
) -> Report:
    choice = choose(tests, definitions, domain, slices, source.name)
    first = choice.tested[0]
    entries = list(_domain_entries(choice, definitions))
    mask = _mask(first, entries)
    named = (str(entry["subjects_are"]) for entry in entries if "subjects_are" in entry)
    subjects = next((name for name in named if name != SUBJECTS), "")
    examples, notes = ({}, _PACKED) if source.is_file() else _examples(source, choice)
    data = None if source.is_file() else _data(source, first)
    shown = next(iter(examples.values()), None)
    report = Report(
        title=_title(tests, choice),
        description=_description(choice, mask, subjects),
        slices=tuple(Slice(subject, f"slice {i}", mask) for i, subject in enumerate(first.subjects)),
        images={title: found.images for title, found in examples.items()},
        reference=None if shown is None else shown.reference,
        pictured=None if shown is None else tuple(map(int, shown.indices)),
        kspace=None if shown is None else _kspace(data, shown),
        phase_axis=-2 if data is None else data.header.phase_axis,
        scores={one.title: one.scores for one in choice.tested},
        convention=str(first.facts.get("convention", "")),
        judged=choice.judged,
        traces={title: _traces(found) for title, found in examples.items() if found.trace},
        phases={title: found.phases for title, found in examples.items() if found.trace},
        notes=(*notes, *choice.notes, *_note_on_subjects(choice, subjects)),
        provenance=_provenance(source, choice, mask, data),
    )
    return replace(report, verdict=_verdict(report, subjects))


def _read(source: Path) -> tuple[list[Tested], list[Experiment]]:
    """Return what was tested, and the experiments it is of: that in the packed file, or those of the package."""
    if source.is_file():
        packed = read_packed(source)
        tests = tests_in(packed.runs, source.name)
        definitions = [packed.experiment]
    else:
        tests = tests_in(read_runs(source / RUNS), source.name)
        known = set(experiment_names())
        found = [(load_experiment(name), scale) for name, scale in _named(tests) if name in known]
        # at a scale it may have other domains
        definitions = [experiment.at(scale) for experiment, scale in found if scale in experiment.scales]
    if not tests:
        raise UldaError(f"there are no runs in {source} yet; `ulda experiment run` writes them")
    return tests, definitions


def _named(tests: Sequence[Tested]) -> list[tuple[str, str]]:
    """Return the names of the experiments that the runs are of, each with that of its scale."""
    names = ((one.result.get("experiment", ""), one.result.get("scale", {}).get("name", "")) for one in tests)
    return list(dict.fromkeys((str(experiment), str(scale)) for experiment, scale in names))


def _domain_entries(choice: Choice, definitions: Sequence[Experiment]) -> Iterator[Mapping[str, Any]]:
    """Yield what is known of the domain, from the runs and from the definitions: data, ratio and seed of the mask."""
    entries: list[Any] = []
    for one in choice.tested:
        recipe = one.result.get("recipe", {})
        entries += [recipe.get("domain"), *recipe.get("sources", ())]
    for experiment in definitions:
        entries += [entry.model_dump() for entry in (*experiment.targets, *experiment.sources)]
    yield from (entry for entry in entries if isinstance(entry, dict) and entry.get("name") == choice.domain)


def _mask(tested: Tested, entries: Sequence[Mapping[str, Any]]) -> Mask | None:
    """Return the mask that has the fingerprint in the run; None where nothing says how it was drawn."""
    if not 0 < tested.side <= _LARGEST_SIDE:
        return None
    for entry in entries:
        try:
            mask = cartesian_mask(tested.side, float(entry["ratio"]), seed=int(entry["mask_seed"]))
        except (UldaError, LookupError, TypeError, ValueError):
            continue
        if fingerprint([("mask", mask.lines)]) == tested.facts.get("mask"):
            return mask
    return None


def _data(folder: Path, tested: Tested) -> Domain | None:
    """Return the test slices from the data beside the results; None where they are not there."""
    for path in sorted(folder.glob("data/*.h5")):
        test = Domain.open(path).select(split="test")
        n = tested.result["scale"].get("test_slices")
        if isinstance(n, int) and 0 < n < len(test):
            test = test.take(choose_slices(test.subjects, n))
        # the labels are cheap to compare, the fingerprint reads all slices
        if test.subjects == tested.subjects and test.fingerprint() == tested.facts.get("data"):
            return test
    return None


def _kspace(data: Domain | None, examples: Examples) -> Any:
    if data is None or data.header.kind != "kspace":
        return None
    return np.stack([magnitude_of(data.kspace(int(i)).numpy()) for i in examples.indices])


def _examples(folder: Path, choice: Choice) -> tuple[dict[str, Examples], tuple[str, ...]]:
    """Return the example images by method, all of the same slices, and what a reader must know about them."""
    found: dict[str, Examples] = {}
    others: list[str] = []
    for one in choice.tested:
        kept = load_examples(folder / "examples" / f"{one.key}.npz").get(one.domain)
        if kept is not None and _belongs(kept, one):
            found[one.title] = kept
        elif kept is not None:
            others.append(one.title)
    if not found:
        return {}, ("no method has kept example images here, so that there are scores alone", *_misfits(others))
    leading = found.get(choice.judged) or next(iter(found.values()))
    same = {
        title: kept
        for title, kept in found.items()
        if kept.images.shape == leading.images.shape and np.array_equal(kept.indices, leading.indices)
    }
    others += [title for title in found if title not in same]
    without = [one.title for one in choice.tested if one.title not in (*same, *others)]
    n = len(leading.indices)
    notes = [
        f"{counted(n, 'example slice')} of {len(choice.tested[0].subjects)} {'has' if n == 1 else 'have'} images; "
        "the scores are of all test slices"
    ]
    if without:
        notes.append(f"in the tables alone, since without example images: {', '.join(without)}")
    return same, (*notes, *_misfits(others))


def _misfits(titles: Sequence[str]) -> list[str]:
    if not titles:
        return []
    return [f"in the tables alone, since the example images do not fit the scores: {', '.join(titles)}"]


def _belongs(examples: Examples, tested: Tested) -> bool:
    """Tell whether examples are of the slices of a test, and have its scores."""
    shape, indices = examples.images.shape, examples.indices
    if len(shape) != 3 or examples.reference.shape != shape or indices.shape != shape[:1] or len(indices) == 0:
        return False
    if not set(indices.tolist()) <= set(range(len(tested.subjects))) or len(set(indices.tolist())) < len(indices):
        return False
    if tested.facts.get("convention") != PER_SLICE.name or "psnr" not in tested.scores:
        return True
    images, reference = torch.from_numpy(examples.images), torch.from_numpy(examples.reference)
    psnr = evaluate(images, reference, PER_SLICE).psnr.double().numpy()
    return bool(np.allclose(psnr, tested.scores["psnr"][indices], rtol=0, atol=_TOLERANCE, equal_nan=True))


def _traces(examples: Examples) -> Traces:
    """Return the iterations of each example, as far as they are on record."""
    return tuple(_steps(examples, i) for i in range(len(examples.indices)))


def _steps(examples: Examples, sample: int) -> tuple[Step, ...]:
    phi, eps, grad_norm, taken = (examples.trace[name][:, sample] for name in TRACED)
    unknown = float("nan")
    return tuple(
        Step(
            eps=float(eps[t]),
            # with another smoothing the objective before is another one
            phi_before=float(phi[t - 1]) if eps[t] == eps[t - 1] else unknown,
            grad_norm_before=float(grad_norm[t - 1]) if eps[t] == eps[t - 1] else unknown,
            phi=float(phi[t]),
            grad_norm=float(grad_norm[t]),
            f=unknown,
            r=unknown,
            step_length=unknown,
            branch=BRANCHES[int(taken[t])],
            line_search_steps=-1,
            proposal_steps=-1,
        )
        for t in range(1, len(phi))
        if not np.isnan(phi[t])
    )


def _experiments(tests: Sequence[Tested]) -> str:
    return ", ".join(dict.fromkeys(str(one.result.get("experiment", "")) for one in tests)) or "experiment"


def _title(tests: Sequence[Tested], choice: Choice) -> str:
    return f"{_experiments(tests)}: {', '.join(filter(None, (choice.domain, choice.words)))}"


def _note_on_subjects(choice: Choice, subjects: str) -> list[str]:
    """Say what counts as a subject where it is not a person: the intervals are over subjects."""
    return [f"what counts as a subject of {choice.domain}, also in the intervals: {subjects}"] if subjects else []


def _description(choice: Choice, mask: Mask | None, subjects: str) -> str:
    first = choice.tested[0]
    parts = [f"{counted(len(first.subjects), 'test slice')} of {_counted_subjects(len(set(first.subjects)), subjects)}"]
    if mask is not None:
        parts.append(f"{mask.n_sampled} of {mask.n_lines} lines")
    if "kspace" in first.facts:
        parts.append(f"{first.facts['kspace']} k-space")
    return ", ".join(parts)


def _counted_subjects(n: int, subjects: str) -> str:
    """Say how many subjects there are, and what they are where they are not people."""
    return f"{n} {subjects}" if subjects else counted(n, "subject")


def _verdict(report: Report, subjects: str) -> str:
    """Say how the judged method compares with the best other one in PSNR; empty where there is nothing to compare."""
    means = {row["method"]: row["mean"].get("psnr", np.nan) for row in report.summary()}
    others = {name: mean for name, mean in means.items() if name != report.judged and not np.isnan(mean)}
    best = max(others, key=lambda name: others[name], default="")
    found = report.difference(best, "psnr") if report.judged and best else None
    if found is None:
        return ""
    interval = "" if found.resampled == "nothing" else f" [{found.low:+.2f}, {found.high:+.2f}]"
    basis = f"{_counted_subjects(found.n_subjects, subjects)} ({counted(found.n_slices, 'slice')})"
    rival = f"{best}, the best other method"
    if found.low > 0 or found.high < 0:
        verb = "leads" if found.low > 0 else "is behind"
        sentence = f"{report.judged} {verb} {rival}, by {abs(found.mean):.2f} dB (difference{interval}) on {basis}"
    else:
        sentence = f"no clear difference between {report.judged} and {rival}: {found.mean:+.2f} dB{interval} on {basis}"
    return sentence


def _provenance(source: Path, choice: Choice, mask: Mask | None, data: Domain | None) -> Provenance:
    first = choice.tested[0]
    names = {
        "results": source.name,
        "experiment": _experiments(choice.tested),
        "scale": ", ".join(dict.fromkeys(str(one.result.get("scale", {}).get("name", "")) for one in choice.tested)),
        "domain": choice.domain,
        "target slices": "" if choice.size is None else str(choice.size),
        "command": "; ".join(_commands(choice.tested)),
    }
    facts = {
        "SHA-256 of the test slices": str(first.facts.get("data", "")),
        "licence": "" if data is None else data.header.licence,
        "SHA-256 of the mask": str(first.facts.get("mask", "")),
        "mask": "not on record"
        if mask is None
        else f"{mask.kind}, seed {mask.seed}, {mask.n_sampled} of {mask.n_lines} lines, hash {mask.hash}",
        "phase axis": "" if data is not None else "rows, taken for granted: the data is not beside the results",
    }
    learned_from = {str(one.facts["trained_on"]) for one in choice.tested if "trained_on" in one.facts}
    if len(learned_from) == 1:
        facts["SHA-256 of the slices learned from"] = learned_from.pop()
    runs = {one.title: _run_words(one, with_data=bool(learned_from)) for one in choice.tested}
    return {"experiment": names, "runs": runs, "data": facts, "software": _software(choice.tested)}


def _commands(tests: Sequence[Tested]) -> list[str]:
    """Return the commands that run the runs; FILE is the file of an experiment that does not come with the package."""
    known = set(experiment_names())
    return [
        shlex.join(["ulda", "experiment", "run", name if name in known else "FILE", "--scale", scale])
        for name, scale in _named(tests)
    ]


def _run_words(one: Tested, *, with_data: bool) -> str:
    """Say which run it is, how long it learned, and from what."""
    settings = one.result.get("recipe", {}).get("settings", {})
    seed = settings.get("seed", one.draw if one.kind == "adapt" and one.size != AS_TRAINED else None)
    parts = [
        one.key,
        f"{one.result['spent']['steps']} steps" if "steps" in one.result.get("spent", {}) else "",
        "" if seed is None else f"seed {seed}",
        f"learned from {one.facts['n']} slices" if "n" in one.facts else "",
        f"SHA-256 {one.facts['trained_on']}" if with_data and "trained_on" in one.facts else "",
    ]
    return ", ".join(filter(None, parts))


def _software(tests: Sequence[Tested]) -> dict[str, str]:
    """Return the versions, with the number of runs of each where they differ or are not on record."""
    names = dict.fromkeys(name for one in tests for name in one.result["software"])
    found = {
        str(name): Counter(str(one.result["software"].get(name, "not on record")) for one in tests) for name in names
    }
    return {
        name: next(iter(versions))
        if len(versions) == 1
        else ", ".join(f"{version} ({counted(n, 'run')})" for version, n in versions.items())
        for name, versions in found.items()
    }
