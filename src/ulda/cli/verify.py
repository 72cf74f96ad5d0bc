"""`ulda verify`: compute a certificate again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ulda.cli.output import JsonOption, print_json, print_table


def verify(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="What `ulda reconstruct` wrote, as given to --out.")],
    as_json: JsonOption = False,
) -> None:
    """Replay a reconstruction and check that every phase descended as its certificate says.

    Of images (NIfTI, PNG, .npy) the run file OUT.run.h5 beside them is replayed, and every pixel compared with it.
    Exits with 1 when anything disagrees.
    """
    from ulda.solvers import verify_output

    checked = verify_output(out)
    verdict = checked.verdict
    if as_json:
        print_json(verdict.as_dict())
    else:
        rows, gap = [], checked.n_pixels / 2
        for number, sample in enumerate(checked.samples if verdict.ok else []):
            steps = sample["iterations"]
            n_learned = sum(step["proposal_steps"] for step in steps)
            # phi with its smoothing gap, which is what no phase and no change of the smoothing may increase
            first, last = steps[0]["phi_before"] + gap * steps[0]["eps"], steps[-1]["phi"] + gap * steps[-1]["eps"]
            gradient = f"{sample['stationarity']:.3g}"
            rows.append([str(number), str(len(steps)), str(n_learned), f"{first:.6g}", f"{last:.6g}", gradient])
        if rows:
            columns = ["slice", "phases", "learned steps", "first phi + d eps/2", "last phi + d eps/2", "last gradient"]
            print_table(f"{out.name}: every phase descended, the replay agrees", columns, rows)
        for problem in verdict.problems:
            typer.echo(f"{out.name}: {problem}", err=True)
    if not verdict.ok:
        raise typer.Exit(1)
