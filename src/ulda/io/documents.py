"""JSON and YAML of others, with limits on size, depth and what one text may stand for."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ulda.errors import UldaError
from ulda.io.untrusted import HARMLESS_BYTES, read_text, reason

if TYPE_CHECKING:
    import yaml

MOST_DEPTH = 64
"""Lists in lists in lists."""

MOST_YAML = 256 * 1024
"""Characters of a configuration; the reader of YAML is slow."""

MOST_NODES = 100_000
"""Entries of a configuration, with those that aliases stand for."""

MOST_INTEGER = 2**63

KEY_TAGS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:int")

PLAIN_TAGS = ("null", "bool", "int", "float", "str", "seq", "map")


def read_json(path: str | Path, what: str = "JSON") -> Any:
    """Read a JSON file."""
    return parse_json(read_text(path, what), str(path))


def parse_json(content: str | bytes, where: str) -> Any:
    """Read JSON from a text.

    Parameters
    ----------
    content
        The text.
    where
        What it is, for messages.

    Examples
    --------
    >>> parse_json("[" * 100_000, "model.json")
    Traceback (most recent call last):
    ...
    ulda.errors.UldaError: model.json is not JSON (lists in lists, more than 64 levels deep)
    """
    if not isinstance(content, str | bytes):
        raise UldaError(f"{where} is not JSON (it is {type(content).__name__}, no text)")
    if len(content) > HARMLESS_BYTES:
        raise UldaError(f"{where} is not read as JSON: it has more than {HARMLESS_BYTES} characters")
    try:
        value = json.loads(content)
        check_depth(value)
    except RecursionError as error:
        raise UldaError(f"{where} is not JSON (lists in lists, more than {MOST_DEPTH} levels deep)") from error
    except ValueError as error:
        raise UldaError(f"{where} is not JSON ({reason(error)})") from error
    return value


def check_depth(value: Any) -> None:
    """Raise a RecursionError for lists and mappings in each other, deeper than `MOST_DEPTH`."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MOST_DEPTH):
        nested = [entry.values() if isinstance(entry, dict) else entry for entry in level]
        level = [child for entries in nested for child in entries if isinstance(child, dict | list)]
        if not level:
            return
    raise RecursionError


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read keys and values from a YAML file."""
    return parse_yaml(read_text(path, "YAML", MOST_YAML), Path(path).name)


def parse_yaml(content: str, where: str = "the configuration") -> dict[str, Any]:
    r"""Read keys and values from YAML: texts, numbers, true, false, null, lists and mappings, nothing else.

    A date stays a text. A key that is given twice is refused, of which YAML would keep the last in silence.

    Parameters
    ----------
    content
        The text.
    where
        What it is, for messages.

    Examples
    --------
    >>> parse_yaml("a: 2026-01-01\nb: [1, 2.5, yes]")
    {'a': '2026-01-01', 'b': [1, 2.5, True]}
    """
    import yaml

    if len(content) > MOST_YAML:
        raise UldaError(f"{where} has more than {MOST_YAML} characters, too many for keys and values in YAML")
    try:
        loader = yaml.SafeLoader(content)
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise UldaError(f"{where} is not a list of keys and values")
        _check_nodes(where, node)
        values: dict[str, Any] = loader.construct_document(node)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UldaError(f"{where} is not YAML that can be read ({reason(error)})") from error
    _check_numbers(where, values)
    return values


def _check_nodes(where: str, root: yaml.Node) -> None:
    """Refuse keys that are given twice or are no texts, tags, and aliases that stand for too much."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: yaml.Node, level: int) -> int:
        if id(node) in sizes:
            return sizes[id(node)]
        if id(node) in open_nodes or level > MOST_DEPTH:
            raise UldaError(f"{where} has entries in each other, without end or more than {MOST_DEPTH} levels deep")
        _check_tag(where, node)
        open_nodes.add(id(node))
        found = 1 + sum(size(child, level + 1) for child in _children(where, node))
        open_nodes.remove(id(node))
        if found > MOST_NODES:
            raise UldaError(f"{where} stands for more than {MOST_NODES} entries; write fewer, or fewer aliases")
        sizes[id(node)] = found
        return found

    size(root, 0)


def _children(where: str, node: yaml.Node) -> list[yaml.Node]:
    import yaml

    if isinstance(node, yaml.SequenceNode):
        return list(node.value)
    if not isinstance(node, yaml.MappingNode):
        return []
    seen = set()
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or key.tag not in KEY_TAGS:
            raise UldaError(f"{where} has a key in line {line} that is neither a name nor a whole number")
        if key.value in seen:
            raise UldaError(f"{where}: the key {key.value!r} is given twice, again in line {line}; remove one of them")
        seen.add(key.value)
    return [value for _, value in node.value]


def _check_tag(where: str, node: yaml.Node) -> None:
    name = str(node.tag).removeprefix("tag:yaml.org,2002:")
    if name == "timestamp":
        node.tag = "tag:yaml.org,2002:str"
    elif name not in PLAIN_TAGS:
        raise UldaError(
            f"{where} holds a value of the type {name} in line {node.start_mark.line + 1}; expected texts, numbers, "
            "true, false, null, lists and mappings"
        )


def _check_numbers(where: str, value: Any) -> None:
    if isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            _check_numbers(where, child)
    elif isinstance(value, float) and not math.isfinite(value):
        raise UldaError(f"{where} holds the number {value}; numbers must be finite")
    elif isinstance(value, int) and abs(value) >= MOST_INTEGER:
        raise UldaError(f"{where} holds the whole number {str(value)[:20]}..., which is too large")
