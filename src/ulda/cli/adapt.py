"""`ulda adapt`: adapt a base, or a model of another method, to data of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ulda.cli.data import AcquisitionName, AcquisitionOption, SizeOption, parse_size
from ulda.cli.output import ForceOption, JsonOption, print_json, progress_bar, say
from ulda.cli.train import ThreadsOption, set_threads, stop
from ulda.errors import UldaError

if TYPE_CHECKING:
    from ulda.methods.adaptation import Adaptation

DataOption = Annotated[
    str, typer.Option("--data", help="A domain file, anything readable, or an embedded domain such as demo:knee.")
]
BaseOption = Annotated[
    str, typer.Option("--base", help="A bundled base, or the folder of one or of a model of another method.")
]
MethodOption = Annotated[str | None, typer.Option(help="The method of the base, to be sure; its folder tells, too.")]
SlicesOption = Annotated[
    int | None, typer.Option(min=1, help="Train on this many slices, spread over the subjects; by default all.")
]
PresetOption = Annotated[
    str | None, typer.Option(help="How to adapt, paper or default; by default as the base was trained.")
]
RankOption = Annotated[
    int | None, typer.Option(min=0, help="Rank of the low-rank update of g; 0 trains h and the step sizes alone.")
]
AugOption = Annotated[
    bool | None, typer.Option("--aug/--no-aug", help="Begin with further-undersampled versions of the mask.")
]

SelfSupervisedOption = Annotated[
    bool, typer.Option("--self-supervised", help="Learn from the sampled lines alone; needs no fully sampled slices.")
]


def adapt(
    data: DataOption,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder of the adapter, or of the adapted model.")],
    base: BaseOption = "base",
    method: MethodOption = None,
    slices: SlicesOption = None,
    preset: PresetOption = None,
    rank: RankOption = None,
    aug: AugOption = None,
    ratio: Annotated[float | None, typer.Option(help="The fraction of lines that is kept.", show_default="0.2")] = None,
    mask: Annotated[Path | None, typer.Option(help="A file with the mask, instead of --ratio.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the mask, the choice of slices and the training.")] = 0,
    steps: Annotated[int | None, typer.Option(min=1, help="The most gradient steps to take.")] = None,
    size: SizeOption = "",
    acquisition: AcquisitionOption = AcquisitionName.scanner,
    self_supervised: SelfSupervisedOption = False,
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
    set_threads(threads)
    from ulda.io.locks import locked_folder
    from ulda.methods.adaptation import adapt as adapt_model
    from ulda.physics import load_mask
    from ulda.training.slices import opened

    changes = {"steps": steps, "augment": aug}
    with locked_folder(out):
        _check_folder(out, place, resume=resume, force=force)
        _check_base(base, method, out)
        try:
            with (
                progress_bar("adapting") as advance,
                opened(data, size=parse_size(size), name=name or "") as domain,
            ):
                # only now: a mistake in what was asked for must not cost what there is
                for checkpoint in _checkpoints(place) if force and not resume else ():
                    checkpoint.unlink()
                result = adapt_model(
                    base,
                    domain,
                    slices=slices,
                    mask=None if mask is None else load_mask(mask),
                    ratio=ratio,
                    seed=seed,
                    preset=preset,
                    changes={key: value for key, value in changes.items() if value is not None},
                    rank=rank,
                    name=name,
                    acquisition=acquisition.value,
                    self_supervised=self_supervised,
                    folder=place,
                    report=lambda progress: advance(progress.step, progress.steps),
                )
        except KeyboardInterrupt:
            stop(place, "with the same command and --resume")
        result.save(out, overwrite=resume or force)
    _tell(result, base, out, as_json=as_json)


def _tell(result: Adaptation, base: str, out: Path, *, as_json: bool) -> None:
    facts = result.facts
    if as_json:
        print_json({"domain": result.domain, "out": str(out), "gain": result.gain} | facts)
        return
    say(
        f"adapted {base} to {result.domain} with {facts['n_slices']} slices of {facts['n_subjects']} subjects in "
        f"{facts['seconds']:.0f} s; the {result.model.made} is in {out}"
    )
    say(result.parameters())
    say(result.sentence())


def _check_base(base: str, method: str | None, out: Path) -> None:
    """Refuse a model of another method than asked for, and a folder with files of another kind."""
    from ulda.methods import method_class
    from ulda.models.bundled import model_folder
    from ulda.models.files import BASE_FORMAT, read_facts

    folder = model_folder(base)
    held = method_class(str(read_facts(folder, BASE_FORMAT).get("method")))
    if method is not None and method_class(method) is not held:
        wanted = method_class(method).title
        raise UldaError(
            f"{base} holds a {held.title}, not a {wanted}; name the folder of a trained {wanted} with --base"
        )
    other = {"model": "adapter", "adapter": "model"}[held.made]
    if any(out.glob(f"{other}.*")):
        made = {"adapter": "an adapter", "model": "a model"}[held.made]
        raise UldaError(f"{out} holds the files of another {other}, and this makes {made}; choose another --out")
    if out.resolve() == folder.resolve():
        raise UldaError(f"{out} is the folder of the {held.title} itself; choose another --out")


def _check_folder(out: Path, place: Path, *, resume: bool, force: bool) -> None:
    """Refuse to mix with an earlier adaptation, before any work is done; --force starts anew."""
    from ulda.io.file_set import finish_below

    finish_below(out)
    has_begun, is_done = any(_checkpoints(place)), any(out.glob("adapter.*")) or any(out.glob("model.*"))
    if force:
        return
    if is_done and not has_begun:
        raise UldaError(f"{out} holds an adaptation without checkpoints to continue from; replace it with --force")
    if has_begun and not resume:
        raise UldaError(f"{out} holds an adaptation already; continue it with --resume or replace it with --force")


def _checkpoints(place: Path) -> list[Path]:
    return sorted(place.glob("**/checkpoint.safetensors"))
