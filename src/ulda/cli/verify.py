"""`ulda verify`: compute a certificate again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ulda.cli.output import JsonOption, print_json, print_table, say


def verify(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="What `ulda reconstruct` wrote, as given to --out.")],
    key: Annotated[
        Path | None, typer.Option(help="A public key; what is not signed with it is refused (`ulda sign`).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Replay a reconstruction and check that every phase descended as its certificate says.

    Of images (NIfTI, PNG, .npy) the run file OUT.run.h5 beside them is replayed, and every pixel and the header
    compared with it. Exits with 1 when anything disagrees.
    """
    from ulda.solvers import verify_output
    from ulda.solvers.verification import NOT_PROVEN

    checked = verify_output(out)
    verdict = checked.verdict
    if key is not None:
        from ulda.solvers.signatures import signature_problem

        verdict = verdict.joined(filter(None, [signature_problem(checked.digest, checked.signature, key)]))
    if as_json:
        print_json(verdict.as_dict() | {"digest": checked.digest, "not_proven": list(NOT_PROVEN)})
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
            signed = f", signed with {key.name}" if key else ""
            print_table(f"{out.name}: every phase descended, the replay agrees{signed}", columns, rows)
            say("a replay does not prove")
            for limit in NOT_PROVEN:
                say(f"- {limit}")
        for problem in verdict.problems:
            say(f"{out.name}: {problem}", err=True)
    if not verdict.ok:
        raise typer.Exit(1)
