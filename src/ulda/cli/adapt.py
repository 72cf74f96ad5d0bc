"""`ulda adapt`: adapt a base, or a model of another method, to data of one's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ulda.cli.data import PhaseSeedOption, SizeOption, parse_size
from ulda.cli.output import ForceOption, JsonOption, print_json, progress_bar
from ulda.cli.train import ThreadsOption, set_threads, stop
from ulda.errors import UldaError

if TYPE_CHECKING:
    from ulda.training.adaptation import Outcome


def adapt(
    data: Annotated[
        str, typer.Option("--data", help="A domain file, anything readable, or an embedded domain such as demo:knee.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder of the adapter, or of the adapted model.")],
    base: Annotated[
        str, typer.Option("--base", help="A bundled base, or the folder of one or of a model of another method.")
    ] = "base",
    method: Annotated[
        str | None, typer.Option(help="The method of the base, to be sure; its folder tells, too.")
    ] = None,
    slices: Annotated[
        int | None, typer.Option(min=1, help="Train on this many slices, spread over the subjects; by default all.")
    ] = None,
    aug: Annotated[bool, typer.Option("--aug/--no-aug", help="Begin with further-undersampled versions.")] = False,
    ratio: Annotated[float, typer.Option(help="The fraction of lines that is kept.")] = 0.2,
    mask: Annotated[Path | None, typer.Option(help="A file with the mask, instead of --ratio.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the mask, the choice of slices and the training.")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="The most gradient steps to take.")] = None,
    size: SizeOption = "",
    phase_seed: PhaseSeedOption = None,
    name: Annotated[str | None, typer.Option(help="The adapter's domain; by default that of the data.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the adaptation in the folder.")] = False,
    threads: ThreadsOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Adapt a base, or a model of another method, to your data with a few slices, and say whether it helped.

    Ctrl-C saves; --resume continues as if nothing had happened.
    """
    place = out / "training"
    _check_folder(out, place, resume=resume, force=force)
    set_threads(threads)
    from ulda.physics import load_mask
    from ulda.training.slices import opened

    adapt_to, lines = _adaptation(base, method, out, augment=aug), None if mask is None else load_mask(mask)
    try:
        with (
            progress_bar("adapting") as advance,
            opened(data, size=parse_size(size), phase_seed=phase_seed, name=name or "") as domain,
        ):
            # only now: a mistake in what was asked for must not cost what there is
            for checkpoint in _checkpoints(place) if force and not resume else ():
                checkpoint.unlink()
            result = adapt_to(
                domain,
                slices=slices,
                mask=lines,
                ratio=ratio,
                seed=seed,
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
        f"{facts['seconds']:.0f} s; the {result.made} is in {out}"
    )
    typer.echo(result.sentence())


def _adaptation(base: str, method: str | None, out: Path, *, augment: bool) -> Callable[..., Outcome]:
    """Return what adapts the model in a folder: that of bases, or that of all other methods."""
    from ulda.methods import method_class, runs
    from ulda.models.bundled import model_folder
    from ulda.training import adaptation, load_base
    from ulda.training.catalogue import method_in

    folder = model_folder(base)
    held = method_in(folder)
    title = method_class(held or "ulda").title
    if method is not None and method_class(method).name != (held or "ulda"):
        wanted = method_class(method).title
        raise UldaError(f"{base} holds a {title}, not a {wanted}; name the folder of a trained {wanted} with --base")
    other = "model" if held is None else "adapter"
    if any(out.glob(f"{other}.*")):
        made = "an adapter" if held is None else "a model"
        raise UldaError(f"{out} holds the files of another {other}, and this makes {made}; choose another --out")
    if held is None:
        return partial(adaptation.adapt, load_base(folder), augment=augment)
    if augment:
        raise UldaError(f"--aug is a part of the adaptation of U-LDA, but {base} holds a {title}")
    if out.resolve() == folder.resolve():
        raise UldaError(f"{out} is the folder of the {title} itself; choose another --out")
    return partial(runs.adapt_method, folder)


def _check_folder(out: Path, place: Path, *, resume: bool, force: bool) -> None:
    """Refuse to mix with an earlier adaptation, before any work is done; --force starts anew."""
    has_begun, is_done = any(_checkpoints(place)), any(out.glob("adapter.*")) or any(out.glob("model.*"))
    if force:
        return
    if is_done and not has_begun:
        raise UldaError(f"{out} holds an adaptation without checkpoints to continue from; replace it with --force")
    if has_begun and not resume:
        raise UldaError(f"{out} holds an adaptation already; continue it with --resume or replace it with --force")


def _checkpoints(place: Path) -> list[Path]:
    return sorted(place.glob("**/checkpoint.safetensors"))
