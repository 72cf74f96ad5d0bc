"""`ulda adapt`: train an adapter for data of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ulda.cli.data import parse_size
from ulda.cli.output import ForceOption, JsonOption, print_json, progress_bar
from ulda.cli.train import ThreadsOption, set_threads, stop
from ulda.errors import UldaError


def adapt(
    data: Annotated[
        str, typer.Option("--data", help="A domain file, anything readable, or an embedded domain such as demo:knee.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder of the adapter.")],
    base: Annotated[str, typer.Option("--base", help="A bundled base or the folder of one.")] = "base",
    slices: Annotated[
        int | None, typer.Option(min=1, help="Train on this many slices, spread over the subjects; by default all.")
    ] = None,
    aug: Annotated[bool, typer.Option("--aug/--no-aug", help="Begin with further-undersampled versions.")] = False,
    ratio: Annotated[float, typer.Option(help="The fraction of lines that is kept.")] = 0.2,
    mask: Annotated[Path | None, typer.Option(help="A file with the mask, instead of --ratio.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the mask, the choice of slices and the training.")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="The most gradient steps to take.")] = None,
    size: Annotated[str, typer.Option(help="Fourier-crop or zero-pad to this size, e.g. 128 or 128x96.")] = "",
    phase_seed: Annotated[
        int | None, typer.Option(min=0, help="Give magnitude images a smooth random phase with this seed.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The adapter's domain; by default that of the data.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the adaptation in the folder.")] = False,
    threads: ThreadsOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Adapt a base to your data with a few slices, and say whether it helped.

    Ctrl-C saves; --resume continues as if nothing had happened.
    """
    place = out / "training"
    _check_folder(out, place, resume=resume, force=force)
    set_threads(threads)
    from ulda.bundled import model_folder
    from ulda.physics import load_mask
    from ulda.training import adaptation, load_base
    from ulda.training.slices import opened

    model = load_base(model_folder(base))
    try:
        with (
            progress_bar("adapting") as advance,
            opened(data, size=parse_size(size), phase_seed=phase_seed, name=name or "") as domain,
        ):
            result = adaptation.adapt(
                model,
                domain,
                slices=slices,
                mask=None if mask is None else load_mask(mask),
                ratio=ratio,
                seed=seed,
                augment=aug,
                steps=steps,
                name=name,
                folder=place,
                report=lambda progress: advance(progress.step, progress.steps),
            )
    except KeyboardInterrupt:
        stop(place, "with the same command and --resume")
    result.save(out, overwrite=resume or force)
    if as_json:
        print_json({"domain": result.domain, "out": str(out), "gain": result.gain} | result.facts)
        return
    facts = result.facts
    typer.echo(
        f"adapted {base} to {result.domain} with {facts['n_slices']} slices of {facts['n_subjects']} subjects in "
        f"{facts['seconds']:.0f} s; the adapter is in {out}"
    )
    typer.echo(result.sentence())


def _check_folder(out: Path, place: Path, *, resume: bool, force: bool) -> None:
    """Refuse to mix with an earlier adaptation, before any work is done; --force starts anew."""
    checkpoints = sorted(place.glob("**/checkpoint.safetensors"))
    if resume:
        return
    if force:
        for checkpoint in checkpoints:
            checkpoint.unlink()
        return
    if checkpoints or any(out.glob("adapter.*")):
        raise UldaError(f"{out} holds an adaptation already; continue it with --resume or replace it with --force")
