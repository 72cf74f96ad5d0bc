"""`ulda evaluate`: whether a model, or its adapter, helps."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ulda.cli.data import AcquisitionName, AcquisitionOption, SizeOption, parse_size
from ulda.cli.output import ForceOption, JsonOption, print_json, print_table, progress_bar, say, to_json
from ulda.cli.report import provenance
from ulda.errors import UldaError

if TYPE_CHECKING:
    from ulda.data import Domain
    from ulda.evaluation.assessment import Assessment
    from ulda.evaluation.paired import PairedDifference
    from ulda.methods import TrainableMethod
    from ulda.methods.ulda import ULDA

DEFAULT_RATIO = 0.2


def evaluate(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A domain file, demo:knee, or anything readable: fully sampled.")
    ],
    model: Annotated[str, typer.Option("--model", "-m", help="A bundled model, or the folder of one.")] = "base",
    adapter: Annotated[
        str | None, typer.Option("--adapter", "-a", help="The folder of an adapter that belongs to the model.")
    ] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option("--against", help="The folder of a model of another method to compare with; may be repeated."),
    ] = None,
    split: Annotated[
        str, typer.Option(help="The split to evaluate on; all slices where the data has no splits.")
    ] = "test",
    ratio: Annotated[float | None, typer.Option(help="The fraction of lines to keep.", show_default="0.2")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the mask.")] = 0,
    mask: Annotated[Path | None, typer.Option(help="A mask file, instead of --ratio.")] = None,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Number of phases; by default as many as the model was trained with.")
    ] = None,
    size: SizeOption = "",
    acquisition: AcquisitionOption = AcquisitionName.scanner,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A folder for numbers (JSON, CSV) and pictures.")
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare a model with its un-adapted self, other methods, TV, wavelets and zero-filling, slice by slice.

    Differences are paired; their 95 % intervals are by subject. The last line is the verdict.
    """
    with progress_bar("evaluating") as advance:
        from ulda.data.measurements import Undersampling
        from ulda.evaluation.assessment import assess
        from ulda.evaluation.folder import check_folder, evaluation_output
        from ulda.reconstruction import load
        from ulda.training.slices import opened

        start = time.perf_counter()
        if out is not None:
            check_folder(out, overwrite=force)
        network, others = load(model, adapter), _load_others(against or [])
        fraction = DEFAULT_RATIO if ratio is None and mask is None else ratio
        with opened(data, size=parse_size(size), progress=advance) as domain, ExitStack() as stack:
            chosen, notes = _choose(domain, split)
            notes += _notes(chosen, model, adapter, others)
            lines = Undersampling(fraction, seed, mask).draw(chosen.shape[chosen.header.phase_axis])
            writer = stack.enter_context(evaluation_output(out, chosen, overwrite=force)) if out is not None else None
            assessment = assess(
                network,
                chosen,
                lines,
                tuning=_tuning(domain, split),
                against={name: other.method for name, other in others.items()},
                acquisition=acquisition.value,
                iterations=iterations,
                keep=() if writer is None else tuple(writer.pictures),
                observe=None if writer is None else writer.store.observe,
                progress=advance,
            )
            result = _data_facts(chosen, split) | _model_facts(network, adapter, others)
            notes.append(_weights_note(assessment))
            result |= {"iterations": iterations or network.n_phases, "notes": notes}
            result |= {"seconds": time.perf_counter() - start} | assessment.as_dict()
            if writer is not None:
                writer.save(assessment, tuple(notes), _provenance(network, result))
                writer.save_text("evaluation.json", to_json(result) + "\n")
    _present(assessment, result, out, as_json)


def _present(assessment: Assessment, result: dict[str, Any], out: Path | None, as_json: bool) -> None:
    """Print the result."""
    if as_json:
        print_json(result)
        return
    _show(assessment, result)
    if out is not None:
        say(f"numbers and pictures in {out}; make a page of them with: ulda report {out}")
    say(assessment.verdict)


def _choose(domain: Domain, split: str) -> tuple[Domain, list[str]]:
    """Return the slices to evaluate on, and what a reader must know about them."""
    labels, notes = domain.label("split"), [domain.header.note] if domain.header.note else []
    if not any(labels):
        return domain, [*notes, f"the data has no splits, so all {len(domain)} slices are evaluated"]
    chosen = domain.select(split=split)
    if len(chosen) == 0:
        known = ", ".join(sorted({label for label in labels if label}))
        raise UldaError(f"the domain {domain.name} has no slices in the split {split!r}; it has: {known}")
    return chosen, notes


def _tuning(domain: Domain, split: str) -> Domain | None:
    """Return the slices of another split, on which the weights of the classical methods are chosen."""
    others = (domain.select(split=name) for name in ("train", "val") if name != split)
    return next((slices for slices in others if len(slices)), None)


def _weights_note(assessment: Assessment) -> str:
    if not assessment.weights:
        return "TV and wavelet have their default weights: there are no training slices to choose better ones on"
    weights = ", ".join(f"{name} {weight:.2g}" for name, weight in assessment.weights.items())
    return f"the weights of the classical methods were chosen on slices of another split: {weights}"


def _notes(domain: Domain, model: str, adapter: str | None, others: dict[str, _Other]) -> list[str]:
    """Refuse slices that any of the models was trained on, and return what a reader must know."""
    from ulda.evaluation.unseen import check_unseen
    from ulda.models.bundled import model_folder
    from ulda.models.files import ADAPTER_FORMAT, BASE_FORMAT, read_facts
    from ulda.reconstruction import model_notes

    base = read_facts(model_folder(model, "base"), BASE_FORMAT)
    facts = None if adapter is None else read_facts(model_folder(adapter, "adapter"), ADAPTER_FORMAT)
    notes = model_notes(model) + check_unseen(domain, base, facts)
    for name, other in others.items():
        notes += _notes_on_other(name, other, domain)
    return notes


@dataclass(frozen=True)
class _Other:
    """A model of another method, with what its file says about it."""

    folder: Path
    method: TrainableMethod
    facts: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        chosen = ("method", "sizes", "sources", "domain", "n_parameters", "weights")
        card = self.facts["card"]
        spent = {"training": card.get("spent")}
        if "adaptation" in card:
            spent["adaptation"] = card["adaptation"].get("spent")
        return {"folder": self.folder.name, **{key: self.facts.get(key) for key in chosen}, "spent": spent}


def _load_others(folders: list[Path]) -> dict[str, _Other]:
    """Load the models of other methods, by their titles; the name of the folder tells two of one title apart."""
    from ulda.methods.registry import load_method
    from ulda.methods.ulda import UNADAPTED
    from ulda.models.files import BASE_FORMAT, read_facts

    found = [_Other(folder, load_method(folder), read_facts(folder, BASE_FORMAT)) for folder in folders]
    for other in found:
        if other.method.domain is None:
            other.method.add_domain(UNADAPTED)
            other.method.domain = UNADAPTED
    titles = [other.method.title for other in found]
    named = {
        title if titles.count(title) == 1 else f"{title} ({other.folder.name})": other
        for title, other in zip(titles, found, strict=True)
    }
    if len(named) < len(found):
        raise UldaError("two of the folders after --against have the same name and method; rename one of them")
    return named


def _notes_on_other(name: str, other: _Other, domain: Domain) -> list[str]:
    """Apply `check_unseen` to another method; its sentences begin with its name."""
    from ulda.evaluation.unseen import check_unseen

    notes = [] if other.facts["domain"] else ["not adapted to a domain, so it is what an adaptation would start from"]
    try:
        notes += check_unseen(domain, other.facts, other.facts["card"].get("adaptation"))
        return [f"{name}: {note}" for note in notes]
    except UldaError as error:
        raise UldaError(f"{name}: {error}") from error


def _data_facts(domain: Domain, split: str) -> dict[str, Any]:
    from ulda.solvers.certificate import software_versions

    return {
        "domain": domain.name,
        "split": split if any(domain.label("split")) else None,
        "data": domain.fingerprint(),
        "kspace": domain.header.kspace_origin,
        "n_coils": domain.n_coils,
        "n_slices": len(domain),
        "n_subjects": len(set(domain.subjects)),
        "licence": domain.header.licence,
        "software": software_versions(),
    }


def _model_facts(model: ULDA, adapter: str | None, others: dict[str, _Other]) -> dict[str, Any]:
    return {
        "base": model.fingerprint,
        "adapter": None if adapter is None else model.domain,
        "weights": model.domain_fingerprint(model.active_domain()),
        "against": {name: other.as_dict() for name, other in others.items()},
    }


def _provenance(model: ULDA, result: dict[str, Any]) -> dict[str, dict[str, str]]:
    rivals = {name: str(facts["weights"]) for name, facts in result["against"].items() if facts["weights"]}
    return provenance(model, **({"SHA-256 of the other methods": rivals} if rivals else {}))


def _show(assessment: Assessment, result: dict[str, Any]) -> None:
    from ulda.evaluation.paired import counted

    mask = assessment.comparison.mask
    counts = f"{counted(result['n_slices'], 'slice')} of {counted(result['n_subjects'], 'subject')}"
    title = f"{result['domain']}: {counts}, {mask.n_sampled} of {mask.n_lines} lines, {result['kspace']} k-space"
    rows = [
        [
            row["method"],
            f"{row['psnr']:.2f} ± {row['psnr_std']:.2f}",
            f"{row['ssim']:.3f} ± {row['ssim_std']:.3f}",
            f"{row['nmse']:.4f} ± {row['nmse_std']:.4f}",
        ]
        for row in assessment.comparison.summary()
    ]
    print_table(title, ["method", "PSNR (dB)", "SSIM", "NMSE"], rows)
    rows = [
        [other, _interval(by["psnr"], 2), _interval(by["ssim"], 3), f"{by['psnr'].n_better} of {by['psnr'].n_slices}"]
        for other, by in assessment.differences.items()
    ]
    title = f"{assessment.judged} minus the others, with 95 % intervals"
    print_table(title, ["method", "PSNR (dB)", "SSIM", "better on"], rows)
    convention = next(iter(assessment.comparison.scores.values())).convention.name
    say(f"{convention}; mean ± standard deviation over slices; {result['seconds']:.1f} s")
    for note in result["notes"]:
        say(f"note: {note}")


def _interval(difference: PairedDifference, digits: int) -> str:
    mean = f"{difference.mean:+.{digits}f}"
    if difference.resampled == "nothing":
        return mean
    return f"{mean} [{difference.low:.{digits}f}, {difference.high:.{digits}f}]"
