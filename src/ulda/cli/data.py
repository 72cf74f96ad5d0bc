"""`ulda data`: import, inspect and split data of any known format."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ulda.cli.output import ForceOption, JsonOption, print_json, print_table, progress_bar, say
from ulda.errors import UldaError

if TYPE_CHECKING:
    from ulda.data import Domain, Inspection

app = typer.Typer(help="Import, inspect and split data.", no_args_is_help=True)


class KindName(StrEnum):
    """What arrays without metadata hold."""

    auto = "auto"
    magnitude = "magnitude"
    complex = "complex"
    kspace = "kspace"


class NormalisationName(StrEnum):
    """Whose peak a slice is divided by."""

    slice = "slice"
    volume = "volume"
    none = "none"


MAX_SIDE = 8192
"""No slice is larger; a typing error of a few digits would fill the memory."""

SizeOption = Annotated[str, typer.Option(help="Fourier-crop or zero-pad to this size, e.g. 128 or 128x96.")]


class AcquisitionName(StrEnum):
    """The presets of `ulda.physics.acquisition`."""

    ideal = "ideal"
    single_coil = "single-coil"
    scanner = "scanner"


AcquisitionOption = Annotated[
    AcquisitionName,
    typer.Option(
        "--acquisition",
        help="How k-space is simulated from magnitude images: scanner has phase, noise and coils, ideal has nothing.",
    ),
]
KindOption = Annotated[KindName, typer.Option("--kind", help="What arrays without metadata hold.")]


@app.command("import")
def import_(
    sources: Annotated[list[Path], typer.Argument(metavar="SRC...", help="Files or folders of any known format.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The domain file to write.")],
    size: SizeOption = "",
    kind: KindOption = KindName.auto,
    normalise: Annotated[
        NormalisationName, typer.Option(help="Whose peak every slice is divided by.")
    ] = NormalisationName.slice,
    name: Annotated[str, typer.Option(help="The domain's name; by default that of the output file.")] = "",
    subject: Annotated[str | None, typer.Option(help="Label all slices with this subject.")] = None,
    contrast: Annotated[str | None, typer.Option(help="Label all slices with this contrast.")] = None,
    split: Annotated[str | None, typer.Option(help="Put all slices into train, val or test.")] = None,
    licence: Annotated[str, typer.Option(help="The licence of the data, kept in the file.")] = "",
    note: Annotated[str, typer.Option(help="What a user of the data must know, kept in the file.")] = "",
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make one domain file of files and folders."""
    from ulda.data import ImportOptions, import_domain

    options = ImportOptions(
        name=name,
        size=parse_size(size),
        kind=kind.value,
        normalisation=normalise.value,
        subject=subject,
        contrast=contrast,
        split=split,
        licence=licence,
        note=note,
    )
    with progress_bar("importing") as advance:
        summary = import_domain(sources, out, options, overwrite=force, progress=advance)
    if as_json:
        print_json(summary.as_dict())
        return
    splits = ", ".join(f"{label or 'none'} {count}" for label, count in summary.splits.items())
    rows = [
        ["domain", summary.name],
        ["holds", f"{summary.kind} ({summary.kspace_origin} k-space)"],
        ["slices", str(summary.n_slices)],
        ["subjects", str(summary.n_subjects)],
        ["size", " x ".join(map(str, summary.shape))],
        ["splits", splits],
        ["empty slices left out", str(summary.n_empty)],
    ]
    print_table(str(out), ["what", "value"], rows)


@app.command()
def inspect(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Files or folders of any known format.")],
    kind: KindOption = KindName.auto,
    as_json: JsonOption = False,
) -> None:
    """Show what is inside anything, and what is wrong with it.

    Exits with 1 when a file has an error.
    """
    from ulda.data import inspect as inspect_path

    results: list[Inspection] = []
    with progress_bar("inspecting") as advance:
        for path in paths:
            results += inspect_path(path, kind.value, progress=lambda done: advance(done, None))
    if as_json:
        print_json([result.as_dict() for result in results])
    else:
        _show(results)
    if not all(result.ok for result in results):
        raise typer.Exit(1)


@app.command()
def split(
    path: Annotated[Path, typer.Argument(help="A domain file.")],
    train: Annotated[float, typer.Option(help="Fraction of the slices to train on.")] = 0.7,
    val: Annotated[float, typer.Option(help="Fraction of the slices to validate on.")] = 0.1,
    test: Annotated[float, typer.Option(help="Fraction of the slices to report on.")] = 0.2,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the order of the subjects.")] = 0,
    table: Annotated[
        Path | None, typer.Option(help="A CSV with the columns subject and split, instead of the fractions.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write here instead of replacing the file.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Only check the present splits for leakage.")] = False,
    against: Annotated[
        list[Path] | None,
        typer.Option(help="With --check: further domain files the subjects must not leak into."),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Split a domain by subject; a subject in two splits is refused."""
    from ulda.data import Domain, check_leakage, split_by_subject
    from ulda.data.resplit import read_assignment, write_splits

    domains = [Domain.open(file) for file in (path, *(against or []))]
    if check:
        subjects = [label for domain in domains for label in domain.subjects]
        splits = [label for domain in domains for label in domain.label("split")]
        check_leakage(subjects, splits)
    else:
        if table is not None:
            assignment = read_assignment(table)
        else:
            assignment = split_by_subject(domains[0].subjects, {"train": train, "val": val, "test": test}, seed)
        write_splits(domains[0], assignment, out or path, overwrite=force or out is None)
        domains = [Domain.open(out or path)]
    _show_splits(domains, as_json)


def _show_splits(domains: list[Domain], as_json: bool) -> None:
    subjects_of: dict[str, list[str]] = {}
    for domain in domains:
        for subject, label in zip(domain.subjects, domain.label("split"), strict=True):
            subjects_of.setdefault(label or "none", []).append(subject)
    counts = {
        label: {"slices": len(subjects), "subjects": len(set(subjects))}
        for label, subjects in sorted(subjects_of.items())
    }
    if as_json:
        print_json({"splits": counts, "leakage": False})
        return
    rows = [[label, str(entry["slices"]), str(entry["subjects"])] for label, entry in counts.items()]
    print_table("no subject is in two splits", ["split", "slices", "subjects"], rows)


def _show(results: list[Inspection]) -> None:
    rows = []
    for result in results:
        what = result.description
        facts = ["-"] * 6
        if what is not None:
            size = " x ".join(map(str, what.shape))
            facts = [what.format, what.kind, str(what.n_slices), size, what.dtype, str(result.n_subjects)]
        rows.append([Path(result.path).name, *facts, "ok" if result.ok else "error"])
    print_table("", ["file", "format", "holds", "slices", "size", "type", "subjects", "state"], rows)
    for result in results:
        lines = []
        if result.description is not None:
            lines += [f"{key}: {value}" for key, value in result.description.attributes.items() if value]
        if result.center is not None:
            lines.append(f"k-space centre: {result.center}")
        lines += [f"{finding.severity}: {finding.message}" for finding in result.findings]
        if lines:
            say(f"{Path(result.path).name}")
            for line in lines:
                say(f"  {line}")


def parse_size(text: str) -> tuple[int, int] | None:
    """Read ``128`` or ``128x96``; None for an empty text."""
    if not text:
        return None
    try:
        sides = [int(part) for part in text.lower().split("x")]
    except ValueError:
        sides = []
    if len(sides) not in (1, 2) or min(sides) < 1 or max(sides) > MAX_SIDE:
        raise UldaError(
            f"--size must be a number up to {MAX_SIDE} or HEIGHTxWIDTH, e.g. 128 or 128x96, but it is {text!r}"
        )
    return sides[0], sides[-1]
