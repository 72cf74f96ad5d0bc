"""`ulda reconstruct`: from undersampled data of any known format to images with a certificate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ulda.cli.data import KindName, KindOption
from ulda.cli.output import ForceOption, JsonOption, command_line, print_json, print_table, progress_bar, say
from ulda.errors import UldaError

if TYPE_CHECKING:
    from ulda.reconstruction import FileSummary


def reconstruct(
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="A file or folder of any known format.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The output: .h5, .nii, .nii.gz, .png or .npy, told by its suffix.")
    ],
    model: Annotated[str, typer.Option("--model", "-m", help="A bundled model, or the folder of one.")] = "base",
    adapter: Annotated[
        str | None, typer.Option("--adapter", "-a", help="The folder of an adapter that belongs to the model.")
    ] = None,
    domain: Annotated[
        str | None, typer.Option(help="Use the adapter of this source domain of the model, instead.")
    ] = None,
    ratio: Annotated[
        float | None, typer.Option(help="Retrospective test: keep this fraction of the lines of fully sampled data.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the mask for --ratio.")] = 0,
    mask: Annotated[
        Path | None, typer.Option(help="Retrospective test: keep the lines of this mask (JSON, text, .npy, HDF5).")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Number of phases; by default as many as the model was trained with.")
    ] = None,
    noise: Annotated[
        str,
        typer.Option(
            help="keep: as in a full scan; auto: remove what is estimated from k-space; or the standard deviation of "
            "its real and imaginary part."
        ),
    ] = "keep",
    strength: Annotated[
        float | None,
        typer.Option(
            help="How strong the regulariser is, 1 as trained; without an adapter it is chosen on held-out lines.",
            show_default="chosen",
        ),
    ] = None,
    kind: KindOption = KindName.auto,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Reconstruct undersampled data, or undersample and reconstruct fully sampled data as a test.

    A .h5 output holds the images, the trace and the certificate. Beside other formats they are in OUT.run.h5.
    Check either with `ulda verify OUT`.
    """
    with progress_bar("reconstructing") as advance:
        from ulda.data.measurements import Undersampling
        from ulda.reconstruction import load, model_notes, reconstruct_file

        if adapter is not None and domain is not None:
            raise UldaError("give either --adapter or --domain, not both")
        summary = reconstruct_file(
            load(model, adapter),
            source,
            out,
            undersampling=Undersampling(ratio, seed, mask),
            domain=domain,
            iterations=iterations,
            kind=kind.value,
            noise=noise,
            strength=strength,
            command=command_line(),
            overwrite=force,
            progress=advance,
        )
    if as_json:
        print_json(summary.as_dict())
    else:
        _tell(summary, model_notes(model))


def _tell(summary: FileSummary, notes: list[str]) -> None:
    rows = [
        ["slices", f"{summary.n_slices} of {' x '.join(map(str, summary.shape))}, coils: {summary.n_coils}"],
        ["sampled lines", f"{100 * summary.sampled:.1f} %"],
        ["adapter", summary.domain],
        ["phases per slice", f"{summary.phases:g}, of which {100 * summary.accepted:.1f} % took learned steps"],
        ["every phase descended", "yes" if summary.every_step_descended else "no"],
        ["certificate in", summary.run_file],
        ["time", f"{summary.seconds:.1f} s"],
    ]
    print_table(summary.out, ["what", "value"], rows)
    if summary.n_detected:
        notes = [f"no mask came with {summary.n_detected} slices, so their empty lines count as not sampled", *notes]
    for note in notes:
        say(f"note: {note}")
    say(f"check it with: ulda verify {summary.out}")
