"""`ulda sign`: tell whose a certificate is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ulda.cli.output import say
from ulda.errors import UldaError


def sign(
    out: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="What `ulda reconstruct` wrote, as given to --out.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="The file of the private key to sign with.")] = None,
    new_key: Annotated[
        Path | None, typer.Option(metavar="NAME", help="Make a key instead: NAME, to be kept secret, and NAME.pub.")
    ] = None,
) -> None:
    """Sign a reconstruction with an Ed25519 key: with NAME.pub, others can tell that it is yours (`ulda verify --key`).

    The signature covers all that the run file and the images beside it hold, and is kept in the run file. What is
    signed must be as it was written; it is not replayed, `ulda verify` does that.
    """
    from ulda.solvers.signatures import new_key as make_key
    from ulda.solvers.signatures import sign_output

    if new_key is not None and out is None and key is None:
        private, public = make_key(new_key)
        say(f"the private key is {private}: keep it to yourself; the public key is {public}: give it to others")
    elif new_key is None and out is not None and key is not None:
        say(f"{out} is signed with the key {sign_output(out, key)}")
    else:
        raise UldaError("give an output and its --key to sign it, or --new-key NAME alone to make a key")
