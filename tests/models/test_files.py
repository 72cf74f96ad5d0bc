"""Model files of others: what they ask for is compared with what they hold before a network is built."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.small_models import small_model
from ulda.errors import UldaError
from ulda.io.fingerprints import fingerprint
from ulda.methods import new_method
from ulda.methods.registry import load_method
from ulda.models.ulda import is_same_name


@pytest.fixture
def base(tmp_path: Path) -> Path:
    small_model("brain").save(tmp_path / "base")
    return tmp_path / "base"


def changed(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    facts = json.loads((folder / "model.json").read_text())
    change(facts)
    (folder / "model.json").write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("size", "value"),
    [("width", 10**6), ("depth", 10**9), ("phases", 10**12), ("kernel_size", 4097), ("width", 512), ("depth", 4000)],
)
def test_sizes_that_the_tensors_do_not_have_are_refused_at_once(base: Path, size: str, value: int) -> None:
    changed(base, lambda facts: facts["sizes"].update({size: value}))
    start = time.perf_counter()
    with pytest.raises(UldaError, match=r"describes a larger model than model\.safetensors holds"):
        load_method(base)
    assert time.perf_counter() - start < 20


@pytest.mark.parametrize("value", [4000, 10**15])
@pytest.mark.parametrize("method", ["dncn", "unet", "humus", "umri"])
def test_other_methods_too(tmp_path: Path, method: str, value: int) -> None:
    model = new_method(method, ["brain"])
    size = next(name for name, known in model.sizes.items() if type(known) is int)
    model.save(tmp_path)
    changed(tmp_path, lambda facts: facts["sizes"].update({size: value}))
    start = time.perf_counter()
    with pytest.raises(UldaError):
        load_method(tmp_path)
    assert time.perf_counter() - start < 20


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_must_be_finite(base: Path, value: float) -> None:
    tensors = load_file(base / "model.safetensors")
    name = "prior.extractor.layers.0.real"
    tensors[name][0, 0, 0, 0] = value
    save_file(tensors, base / "model.safetensors")
    changed(base, lambda facts: facts.update(weights=fingerprint(sorted(tensors.items()))))
    with pytest.raises(UldaError, match=f"the weights {name} in base are not finite"):
        load_method(base)


def test_json_without_end_and_files_that_are_none(base: Path) -> None:
    for content, message in (("[" * 10**5, "more than 64 levels"), ("\xff", "expected text in UTF-8")):
        (base / "model.json").write_bytes(content.encode("latin-1"))
        with pytest.raises(UldaError, match=message):
            load_method(base)
    (base / "model.json").unlink()
    os.mkfifo(base / "model.json")
    with pytest.raises(UldaError, match="is a device or a pipe"):
        load_method(base)


def test_names_that_read_the_same() -> None:
    assert is_same_name("Brain", " brain")
    assert is_same_name("brain", "bra\u200bin")
    assert not is_same_name("brain", "brains")
