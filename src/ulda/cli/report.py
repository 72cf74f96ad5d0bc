"""`ulda report`: results as one page that anyone can read offline."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ulda.cli.output import ForceOption, JsonOption, command_line, print_json, say

if TYPE_CHECKING:
    from ulda.methods.ulda import ULDA


def report(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULTS...",
            help="A folder of `ulda evaluate`, `ulda demo` or `ulda experiment run`, an output of `ulda reconstruct`, "
            "or a file of `ulda experiment pack`.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file to write.")] = Path("report.html"),
    reference: Annotated[
        str | None,
        typer.Option(help="Fully sampled data to compare an output of `ulda reconstruct` with, slice by slice."),
    ] = None,
    domain: Annotated[
        list[str] | None,
        typer.Option(help="Of an experiment: this domain, by default the first target; may be given several times."),
    ] = None,
    slices: Annotated[
        list[int] | None,
        typer.Option(
            min=0,
            help="Of an experiment: this number of target slices, 0 for the methods as trained; "
            "by default the fewest that most methods have. May be given several times.",
        ),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write results as one HTML file: images side by side, error maps, scores by slice, certificates, provenance.

    The file needs no network and no other file. Several results are chosen between on the page.
    """
    from ulda.evaluation.report import write_report
    from ulda.experiments.reporting import read_report

    names = domain or (None,)
    sizes = slices or (None,)
    reports = [
        read_report(source, reference, domain=name, slices=size)
        for source, name, size in itertools.product(sources, names, sizes)
    ]
    n_bytes = write_report(reports, out, overwrite=force)
    if as_json:
        print_json({"out": str(out), "bytes": n_bytes})
    else:
        say(f"the report is {out} ({n_bytes / 1e6:.1f} MB); open it in a browser")


def provenance(model: ULDA, **more: dict[str, str]) -> dict[str, dict[str, str]]:
    """Say how a result came about, for its report: the command, the weights, the versions, and whatever else."""
    from ulda.solvers.certificate import software_versions

    domain = model.active_domain()
    return {
        "command": {"command": command_line()},
        "model": {
            "SHA-256 of the base": model.fingerprint,
            "adapter": domain,
            "SHA-256 of base, adapter and steps": model.domain_fingerprint(domain),
        },
        **more,
        "software": software_versions(),
    }
