"""A configuration as text: the commented default file, a resolved one, and the table of all keys."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from ulda.training.config import Config
from ulda.training.presets import load_preset
from ulda.training.settings import Network, annotations_of, checked, parts_in

EXAMPLE_DATA = [
    {"name": "knee", "file": "demo:knee", "size": 64},
    {"name": "kidney", "file": "demo:kidney", "size": 64},
]
"""The sources of the default file, which has to run on any machine."""

_WIDTH = 100


def default_config(preset: str = "default") -> str:
    """Return a complete configuration with the values of a preset and what each key means.

    Examples
    --------
    >>> print(default_config().splitlines()[1])
    name: base
    """
    values = load_preset(preset)
    network, train = values.network.model_dump(), values.train.model_dump()
    config = checked(Config, {"data": EXAMPLE_DATA, "preset": preset, "network": network, "train": train})
    return "\n".join(_commented(config, "")) + "\n"


def config_yaml(config: Config) -> str:
    """Write a configuration as YAML that `parse_config` reads back."""
    return yaml.safe_dump(config.values(), sort_keys=False, default_flow_style=None, width=_WIDTH)


def config_table() -> str:
    """Return all keys as a Markdown table."""
    rows = [f"| `{path}` | {default} | {text} |" for path, default, text in _entries(Config, "")]
    return "\n".join(["| key | default | what it is |", "|---|---|---|", *rows])


def attribute_texts(part: type) -> dict[str, str]:
    """Return what the docstring of a part of the configuration says about each of its keys."""
    lines = inspect.cleandoc(part.__doc__ or "").splitlines()
    texts: dict[str, str] = {}
    names: list[str] = []
    for line in lines[lines.index("Attributes") + 2 :] if "Attributes" in lines else []:
        if line and not line.startswith(" "):
            names = [name.strip() for name in line.split(",")]
        for name in names if line.startswith(" ") else []:
            texts[name] = f"{texts.get(name, '')} {line.strip()}".strip()
    return texts


def _commented(part: Any, indent: str) -> Iterator[str]:
    """Yield the lines of a part of a configuration, each key below its comment."""
    texts = attribute_texts(type(part))
    for name, value in vars(part).items():
        for line in textwrap.wrap(_plain(texts.get(name, "")), _WIDTH - len(indent)):
            yield f"{indent}# {line}"
        part = checked(Network, value) if name == "network" and value else value
        if parts_in(type(part)):
            yield f"{indent}{name}:"
            yield from _commented(part, f"{indent}  ")
        elif name == "data":
            yield f"{indent}{name}:"
            for entry in value:
                first, *others = _commented_entry(entry)
                yield f"{indent}  - {first}"
                yield from (f"{indent}    {line}" for line in others)
        else:
            yield f"{indent}{name}: {_flow(value)}"


def _commented_entry(entry: BaseModel) -> list[str]:
    """Write one entry of a list, which cannot begin with a comment: each comment stands at the end of its line."""
    texts = attribute_texts(type(entry))
    return [f"{name}: {_flow(value)}  # {_plain(texts.get(name, ''))}" for name, value in entry]


def _entries(part: type, prefix: str) -> Iterator[tuple[str, str, str]]:
    """Yield path, default and meaning of each key."""
    texts = attribute_texts(part)
    for name, annotation in annotations_of(part).items():
        inner = parts_in(annotation)
        yield f"{prefix}{name}", _default(part, name), texts[name]
        inner = [Network] if name == "network" else inner
        if inner:
            yield from _entries(inner[0], f"{prefix}{name}{'[]' if name == 'data' else ''}.")


def _default(part: type, name: str) -> str:
    default = getattr(part, name, None)
    if issubclass(part, BaseModel):
        default = part.model_fields[name].get_default(call_default_factory=True)
    return "" if default is PydanticUndefined or parts_in(type(default)) else f"`{_flow(default)}`"


def _flow(value: Any) -> str:
    """Write a value on one line of YAML."""
    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(plain, default_flow_style=True, width=10_000).removesuffix("...\n").strip()


def _plain(text: str) -> str:
    return re.sub("`+", "", text)
