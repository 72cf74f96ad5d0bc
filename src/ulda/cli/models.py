"""`ulda models`: what models there are, and what is inside one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ulda.cli.output import JsonOption, print_json, print_table, say

app = typer.Typer(help="List and inspect models and adapters.", no_args_is_help=True)


@app.command("list")
def list_(
    paths: Annotated[
        list[Path] | None, typer.Option("--path", "-p", help="Also list the models in and below this folder.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the bundled models, and those in the given folders."""
    from ulda.methods.catalogue import describe_or_excuse, find_models

    found = [describe_or_excuse(folder) for folder in find_models(paths or [])]
    if as_json:
        print_json(found)
        return
    rows = []
    for entry in (entry for entry in found if "problem" not in entry):
        kind = f"method {entry['method']}" if entry["kind"] == "method" else entry["kind"]
        domains = entry.get("domain") or ", ".join(entry["sources"])
        base = entry.get("fingerprint") or str(entry.get("base") or "-")
        rows.append([entry["name"], kind, domains, str(entry["parameters"]["file"]), base[:12], entry["path"]])
    if not rows:
        say("no models are bundled with this installation; name a folder with --path")
        return
    print_table("", ["name", "kind", "domains", "parameters", "base", "folder"], rows)
    for entry in found:
        if "problem" in entry:
            say(f"{entry['path']} is left out: {entry['problem']}", err=True)


@app.command()
def inspect(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A bundled name, or the folder of a model.")],
    as_json: JsonOption = False,
) -> None:
    """Show what is known about a base, an adapter or a model of another method: sizes, parameters, data, metrics."""
    from ulda.methods.catalogue import describe_model

    facts = describe_model(model)
    if as_json:
        print_json(facts)
        return
    print_table(f"{facts['kind']} {facts['name']}", ["what", "value"], _rows(facts))
    if facts["kind"] == "base":
        say(
            "Counts are real numbers, two per complex weight. The kernels of the gradient are those of the network, "
            "so they are counted once."
        )


def _rows(facts: dict[str, Any], prefix: str = "") -> list[list[str]]:
    """Flatten nested facts into rows."""
    rows = []
    for key, value in facts.items():
        if isinstance(value, dict) and value:
            rows += _rows(value, f"{prefix}{key}: ")
        elif isinstance(value, list) and not any(isinstance(item, dict | list) for item in value):
            rows.append([prefix + key, ", ".join(map(str, value))])
        else:
            rows.append([prefix + key, f"{value:.6g}" if isinstance(value, float) else str(value)])
    return rows
