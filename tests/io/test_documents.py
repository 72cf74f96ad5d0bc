from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ulda.errors import UldaError
from ulda.io.documents import parse_json, parse_yaml, read_json, read_yaml

LAUGHS = "a: &a [x, x]\n" + "".join(f"k{i}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(24))
"""Every line doubles: 2^25 entries."""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[" * 10**6, "more than 64 levels deep"),
        ("[" * 100 + "]" * 100, "more than 64 levels deep"),
        ('{"a":' * 100 + "1" + "}" * 100, "more than 64 levels deep"),
        ("{", "is not JSON"),
        ("1" * 5000, "is not JSON"),
        (b"\xff\xfe\xfd", "is not JSON"),
        (3, "it is int, no text"),
    ],
)
def test_json_that_is_none_or_too_deep(content: str | bytes, message: str) -> None:
    with pytest.raises(UldaError, match=message):
        parse_json(content, "model.json")


def test_json_of_a_usual_depth(tmp_path: Path) -> None:
    nested = "[" * 60 + "1" + "]" * 60
    assert parse_json(nested, "a") is not None
    (tmp_path / "a.json").write_text('{"name": "knee", "sizes": [1, 2.5, null]}')
    assert read_json(tmp_path / "a.json") == {"name": "knee", "sizes": [1, 2.5, None]}
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UldaError, match="is a device or a pipe"):
        read_json(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LAUGHS, "stands for more than 100000 entries"),
        ("a: &a [*a]", "entries in each other, without end"),
        ("a: " + "[" * 100 + "]" * 100, "more than 64 levels deep"),
        ("a: " + "[" * 50_000, "is not YAML"),
        ("? [a, b]\n: 1", "neither a name nor a whole number"),
        ("1.5: a", "neither a name nor a whole number"),
        ("a: !!set {b}", "a value of the type set in line 1"),
        ("a: !!python/object/apply:os.system [ls]", "a value of the type python"),
        ("a: !!binary aGk=", "a value of the type binary"),
        ("a: 99999999999999999999999", "is too large"),
        ("a: " + "9" * 5000, "is not YAML"),
        ("a: .inf", "numbers must be finite"),
        ("a: [1, {b: .nan}]", "numbers must be finite"),
        ("a: 1\na: 2", "the key 'a' is given twice, again in line 2"),
        ("a: b\n---\nc: d", "is not YAML"),
        ("a: \x00", "is not YAML"),
        ("- a", "not a list of keys and values"),
        ("", "not a list of keys and values"),
        ("a: " + "x" * 300_000, "too many for keys and values"),
    ],
)
def test_yaml_that_is_not_plain(content: str, message: str) -> None:
    start = time.perf_counter()
    with pytest.raises(UldaError, match=message):
        parse_yaml(content, "c.yaml")
    assert time.perf_counter() - start < 10


def test_yaml_of_plain_values(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: {5: x, when: 2026-01-02 03:04:05, on: &n [1, 2.5, yes, null]}\nb: *n\n")
    with pytest.raises(UldaError, match="neither a name nor a whole number"):
        read_yaml(tmp_path / "a.yaml")  # `on` is true in YAML
    (tmp_path / "a.yaml").write_text("a: {5: x, when: 2026-01-02 03:04:05, run: &n [1, 2.5, yes, null]}\nb: *n\n")
    values = [1, 2.5, True, None]
    assert read_yaml(tmp_path / "a.yaml") == {"a": {5: "x", "when": "2026-01-02 03:04:05", "run": values}, "b": values}
