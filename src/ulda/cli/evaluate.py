"""`ulda evaluate`: whether a model, or its adapter, helps."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ulda.cli.data import parse_size
from ulda.cli.output import ForceOption, JsonOption, print_json, print_table, progress_bar, to_json
from ulda.errors import UldaError

if TYPE_CHECKING:
    from ulda.data import Domain
    from ulda.evaluation.assessment import Assessment
    from ulda.evaluation.paired import PairedDifference

N_PICTURES = 6
DEFAULT_RATIO = 0.2


def evaluate(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A domain file, demo:knee, or anything readable: fully sampled.")
    ],
    model: Annotated[str, typer.Option("--model", "-m", help="A bundled model, or the folder of one.")] = "base",
    adapter: Annotated[
        str | None, typer.Option("--adapter", "-a", help="The folder of an adapter that belongs to the model.")
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
    size: Annotated[str, typer.Option(help="Fourier-crop or zero-pad to this size, e.g. 128 or 128x96.")] = "",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A folder for numbers (JSON, CSV) and pictures.")
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare a model with its un-adapted self, TV, wavelets and zero-filling, slice by slice.

    Differences are paired; their 95 % intervals are by subject. The last line is the verdict.
    """
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()) and not force:
            raise UldaError(f"the folder {out} is not empty; choose another one or pass --force to write into it")
    with progress_bar("evaluating") as advance:
        from ulda.api import load
        from ulda.data.measurements import Undersampling
        from ulda.evaluation.assessment import assess
        from ulda.evaluation.unseen import check_unseen
        from ulda.training.files import base_fingerprint
        from ulda.training.slices import opened

        start = time.perf_counter()
        network = load(model, adapter)
        if ratio is None and mask is None:
            ratio = DEFAULT_RATIO
        with opened(data, size=parse_size(size), progress=advance) as domain:
            chosen, notes = _choose(domain, split)
            notes += check_unseen(chosen, *_model_facts(model, adapter))
            lines = Undersampling(ratio, seed, mask).draw(chosen.shape[chosen.header.phase_axis])
            assessment = assess(network, chosen, lines, iterations=iterations, progress=advance)
            result = _data_facts(chosen, split) | {
                "base": base_fingerprint(network),
                "adapter": None if adapter is None else network.domain,
                "iterations": iterations or network.architecture.phases,
                "notes": notes,
                "seconds": time.perf_counter() - start,
            }
    result |= assessment.as_dict()
    if out is not None:
        _write(assessment, result, out, force)
    if as_json:
        print_json(result)
    else:
        _show(assessment, result)
        if out is not None:
            typer.echo(f"numbers and pictures in {out}")
        typer.echo(assessment.verdict)


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


def _model_facts(model: str, adapter: str | None) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return what the files of a base and of an adapter say about their training."""
    from ulda.bundled import model_folder
    from ulda.training.files import read_facts

    base = read_facts(model_folder(model, "base") / "model.json", "ulda-base")
    if adapter is None:
        return base, None
    return base, read_facts(model_folder(adapter, "adapter") / "adapter.json", "ulda-adapter")


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


def _write(assessment: Assessment, result: dict[str, Any], out: Path, force: bool) -> None:
    from ulda.data.atomic import atomic_output
    from ulda.evaluation import save_panel

    n = len(assessment.comparison.subjects)
    for index in sorted({round(i * (n - 1) / max(1, N_PICTURES - 1)) for i in range(N_PICTURES)}):
        save_panel(assessment.comparison, index, out / f"slice-{index:03}.png")
    assessment.save_scores(out / "scores.csv", overwrite=force)
    with atomic_output(out / "evaluation.json", overwrite=force) as temporary:
        temporary.write_text(to_json(result) + "\n", encoding="utf-8")


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
    typer.echo(f"{convention}; mean ± standard deviation over slices; {result['seconds']:.1f} s")
    for note in result["notes"]:
        typer.echo(f"note: {note}")


def _interval(difference: PairedDifference, digits: int) -> str:
    mean = f"{difference.mean:+.{digits}f}"
    if difference.resampled == "nothing":
        return mean
    return f"{mean} [{difference.low:.{digits}f}, {difference.high:.{digits}f}]"
