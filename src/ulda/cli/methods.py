"""`ulda methods`: which methods there are to train and to compare with."""

from __future__ import annotations

from typing import Annotated

import typer

from ulda.cli.output import JsonOption, print_json, print_table, say


def methods(
    sizes: Annotated[
        str | None, typer.Option("--sizes", metavar="NAME", help="Show the sizes of this method instead.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List all methods: their parameters, what adapts to a new domain, and where they were published."""
    from ulda.methods import listing

    if sizes is not None:
        defaults = listing.default_sizes(sizes)
        if as_json:
            print_json(defaults)
        else:
            rows = [[name, str(value)] for name, value in defaults.items()]
            print_table(f"sizes of {sizes}", ["size", "default"], rows)
        return
    found = listing.list_methods()
    if as_json:
        print_json([row.as_dict() for row in found])
        return
    rows = [[row.name, row.title, _count(row.n_parameters), _count(row.n_adapted), row.adapts] for row in found]
    print_table("", ["name", "method", "parameters", "per domain", "what adapts"], rows)
    for row in found:
        say(f"{row.title}: {row.citation}")
    say(f"Parameters are real numbers, counted for {len(listing.COUNTED_SOURCES)} sources and default sizes.")


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"
