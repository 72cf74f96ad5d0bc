"""A kill or a full disk at any file operation leaves the old result or the new one, and nothing else for long."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault_injection import Fault, Outcome, Writer, inject
from tests.fault_writers import writers

NAMES = (
    "model.json + model.safetensors",
    "adapter.json + adapter.safetensors",
    "knee.h5",
    "knee.npy + knee.npy.run.h5",
    "knee.nii.gz + knee.nii.gz.run.h5",
    "knee.png + knee.png.run.h5",
    "evaluation folder",
    "packed results",
    "checkpoint",
    "signature",
    "pair of keys",
    "domain file",
    "splits",
)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Writer]:
    return {writer.name: writer for writer in writers(tmp_path_factory.mktemp("inputs"))}


def check(outcome: Outcome, *, is_new: bool) -> None:
    assert outcome.operations > 3
    assert set(outcome.found) <= {"new", "none" if is_new else "old"}
    assert sum(outcome.found.values()) == outcome.operations
    assert (outcome.crashes, outcome.leftovers) == (0, 0)


QUICK = {
    "kill": set(NAMES) - {"knee.h5", "knee.nii.gz + knee.nii.gz.run.h5"},
    "full": {"adapter.json + adapter.safetensors", "knee.npy + knee.npy.run.h5", "checkpoint", "splits"},
}
"""The others do nothing that these do not; `benchmarks.fault_injection` does all of them, too."""

CASES = [
    pytest.param(name, fault, marks=[] if name in quick else pytest.mark.slow)
    for fault, quick in QUICK.items()
    for name in NAMES
]


@pytest.mark.parametrize(("name", "fault"), CASES)
def test_a_fault_while_replacing_leaves_the_old_or_the_new(
    known: dict[str, Writer], tmp_path: Path, name: str, fault: Fault
) -> None:
    is_new = name == "pair of keys"  # which is never replaced
    check(inject(known[name], tmp_path, fault, is_new=is_new, every=40), is_new=is_new)


@pytest.mark.parametrize("name", ["adapter.json + adapter.safetensors", "knee.npy + knee.npy.run.h5"])
def test_a_fault_while_writing_anew_leaves_nothing_or_the_new(
    known: dict[str, Writer], tmp_path: Path, name: str
) -> None:
    check(inject(known[name], tmp_path, "kill", is_new=True, every=40), is_new=True)


def test_every_writer_is_tested(known: dict[str, Writer]) -> None:
    assert set(known) == set(NAMES)
