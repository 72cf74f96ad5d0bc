"""`ulda demo`: see the package at work on real, embedded data."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ulda.cli.output import JsonOption, print_json, print_table, progress_bar, say, to_json
from ulda.cli.report import provenance
from ulda.cli.train import ThreadsOption, set_threads
from ulda.errors import UldaError

if TYPE_CHECKING:
    from ulda.data import Domain
    from ulda.evaluation.assessment import Assessment
    from ulda.methods import ULDA
    from ulda.methods.adaptation import Adaptation
    from ulda.physics import Mask

ADAPTER, REPORT = "knee-adapter", "report.html"


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for pictures and numbers.")] = Path(
        "demo-output"
    ),
    base: Annotated[str, typer.Option("--base", help="A bundled base or the folder of one.")] = "base",
    slices: Annotated[int, typer.Option(min=1, help="Adapt with this many slices.")] = 5,
    steps: Annotated[int, typer.Option(min=1, help="The most gradient steps of the adaptation.")] = 60,
    ratio: Annotated[float, typer.Option(help="The fraction of lines that is kept.")] = 0.2,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the mask, the choice of slices and the training.")] = 0,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Adapt the bundled base to the embedded knee with 5 slices, and compare it on slices it has not seen.

    The k-space of the knee is simulated, with phase, noise and coils. The base is compared un-adapted, too, on measured
    k-space of a brain.

    Writes the adapter, a reconstruction with its certificate, tables, curves, pictures and a report to read them in.
    """
    start = time.perf_counter()
    if out.is_dir() and any(out.iterdir()) and not (out / ADAPTER).is_dir():
        raise UldaError(f"{out} holds other files than those of a demonstration; choose another --out")
    set_threads(threads)
    from ulda.data import demo as demo_domain
    from ulda.evaluation import save_panel
    from ulda.evaluation.assessment import assess
    from ulda.io.atomic import atomic_output
    from ulda.physics import cartesian_mask

    knee = demo_domain("knee")
    mask = cartesian_mask(knee.shape[knee.header.phase_axis], ratio, seed=seed)
    adaptation, model = _adapt(base, knee, mask, slices, steps, seed)
    out.mkdir(parents=True, exist_ok=True)
    adaptation.save(out / ADAPTER, overwrite=True)
    test = knee.select(split="test")
    with progress_bar("comparing") as advance:
        assessment = assess(model, test, mask, tuning=knee.select(split="train"), progress=advance)
    measured = _on_measured(base, ratio, seed)
    certified = _certify(model, test, mask, out)
    for index in range(0, len(test), 2):
        save_panel(assessment.comparison, index, out / f"knee-{index:02}.png")
    assessment.save_scores(out / "scores.csv", overwrite=True)
    _report(assessment, model, test, certified, out)
    result = assessment.as_dict() | {
        "domain": knee.name,
        "licence": knee.header.licence,
        "note": knee.header.note,
        "adaptation": adaptation.facts,
        "measured": measured.as_dict(),
        "certificate": certified,
        "wins": _wins(assessment),
        "seconds": time.perf_counter() - start,
    }
    with atomic_output(out / "demo.json", overwrite=True) as temporary:
        temporary.write_text(to_json(result) + "\n", encoding="utf-8")
    if as_json:
        print_json(result)
    else:
        _show(assessment, measured, adaptation, result, out)


def _adapt(base: str, knee: Domain, mask: Mask, slices: int, steps: int, seed: int) -> tuple[Adaptation, ULDA]:
    from ulda.methods import ULDA
    from ulda.methods.adaptation import adapt

    with progress_bar(f"adapting to {slices} slices") as advance:
        adaptation = adapt(
            base,
            knee,
            slices=slices,
            mask=mask,
            seed=seed,
            changes={"steps": steps},
            report=lambda progress: advance(progress.step, progress.steps),
        )
    if not isinstance(adaptation.model, ULDA):
        raise UldaError(f"the demonstration needs a base of U-LDA, but {base} holds a {adaptation.model.title}")
    return adaptation, adaptation.model


def _on_measured(base: str, ratio: float, seed: int) -> Assessment:
    """Compare the un-adapted base with the classical methods on the embedded measured k-space of several coils."""
    from ulda.data import demo as demo_domain
    from ulda.evaluation.assessment import assess
    from ulda.physics import cartesian_mask
    from ulda.reconstruction import load

    brain = demo_domain("brain-multicoil")
    with progress_bar("measured k-space"):
        return assess(load(base), brain, cartesian_mask(brain.shape[brain.header.phase_axis], ratio, seed=seed))


def _certify(model: ULDA, test: Domain, mask: Mask, out: Path) -> dict[str, Any]:
    """Reconstruct three slices, write them with their certificate, replay it, and draw what the phases did."""
    import torch

    from ulda.evaluation import save_curves
    from ulda.evaluation.histories import gradient_curves, objective_curves
    from ulda.evaluation.learned import psnr_per_phase
    from ulda.physics import ACQUISITIONS
    from ulda.physics.acquisition import with_given_masks
    from ulda.reconstruction import reconstruct
    from ulda.solvers import verify_output
    from ulda.training.slices import normalised_images

    images = normalised_images(test.take(range(0, len(test), max(1, len(test) // 3))))
    scanner, generator = with_given_masks(ACQUISITIONS["scanner"]), torch.Generator().manual_seed(0)
    y, physics, images = scanner.measure(images, generator, mask, test.header.phase_axis, keep_noise=True)
    result = reconstruct(model, y, physics)
    run_file = out / "knee.h5"
    result.save(run_file, overwrite=True)
    verdict = verify_output(run_file).verdict
    curves = psnr_per_phase(model, y, physics, images.abs())
    phases = [float(t) for t in range(len(curves))]
    by_slice = {f"slice {i}": (phases, curves[:, i].tolist()) for i in range(len(images))}
    save_curves(out / "psnr.svg", by_slice, "Quality, phase by phase", "phase", "PSNR (dB)", overwrite=True)
    drawn = objective_curves(result.trace, images[0].numel())
    save_curves(out / "objective.svg", drawn, "The objective never increases", "phase", "phi", overwrite=True)
    drawn = gradient_curves(result.trace)
    save_curves(out / "gradient.svg", drawn, "Norm of the gradient", "phase", "norm", log_y=True, overwrite=True)
    return {
        "file": run_file.name,
        "digest": result.certificate["digest"],
        "verified": verdict.ok,
        "problems": list(verdict.problems),
        "every_step_descended": all(s["every_step_descended"] for s in result.certificate["samples"]),
        "u_steps": result.trace.accepted_fraction(),
    }


def _report(assessment: Assessment, model: ULDA, test: Domain, certified: dict[str, Any], out: Path) -> None:
    """Write the data of the report, and the report."""
    from ulda.evaluation.report import report_of_assessment, save_comparison, write_report

    certificate = {"certificate": {"file": certified["file"], "digest": certified["digest"]}}
    notes = (test.header.note,) if test.header.note else ()
    content = report_of_assessment(assessment, test, notes=notes, provenance=provenance(model, **certificate))
    save_comparison(out / "comparison.h5", content, overwrite=True)
    write_report([content], out / REPORT, overwrite=True)


def _wins(assessment: Assessment) -> bool:
    """Tell whether the adapted model has the best mean PSNR and the best mean SSIM."""
    rows = assessment.comparison.summary()
    return all(max(rows, key=lambda row: row[metric])["method"] == assessment.judged for metric in ("psnr", "ssim"))


def _table(assessment: Assessment, what: str) -> None:
    mask = assessment.comparison.mask
    rows = [
        [row["method"], f"{row['psnr']:.2f} ± {row['psnr_std']:.2f}", f"{row['ssim']:.4f} ± {row['ssim_std']:.4f}"]
        for row in assessment.comparison.summary()
    ]
    print_table(f"{what}, {mask.n_sampled} of {mask.n_lines} lines", ["method", "PSNR (dB)", "SSIM"], rows)


def _show(
    assessment: Assessment, measured: Assessment, adaptation: Adaptation, result: dict[str, Any], out: Path
) -> None:
    facts, n_test = adaptation.facts, len(assessment.comparison.subjects)
    _table(assessment, f"{n_test} held-out knee slices, k-space simulated with phase, noise and coils")
    _table(measured, "a brain slice, measured k-space of a scanner, 4 virtual coils")
    say(
        f"per slice, peak 1; mean ± standard deviation; adapted with {facts['n_slices']} slices "
        f"in {facts['seconds']:.0f} s; {result['seconds']:.0f} s in all"
    )
    certified = result["certificate"]
    say(
        f"certificate of {certified['file']}: "
        + (
            "every phase descended, and the replay agrees"
            if certified["verified"]
            else "; ".join(certified["problems"])
        )
    )
    if not result["wins"]:
        say("the adapted model is NOT the best in both PSNR and SSIM here")
    say(assessment.verdict)
    say(f"adapter, certificate, numbers, curves and pictures in {out}")
    say(f"the report is {out / REPORT}; open it in a browser")
