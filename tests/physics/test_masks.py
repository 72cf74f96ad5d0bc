from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ulda.errors import UldaError
from ulda.physics import Mask, cartesian_mask, equispaced_mask, load_mask, mask_from_array, random_mask

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@given(st.integers(1, 400), st.floats(0.0, 0.3), st.floats(0.0, 1.0), st.integers(0, 2**31))
def test_cartesian_mask_has_exactly_the_lines_asked_for(n: int, center: float, extra: float, seed: int) -> None:
    ratio = center + extra * (1 - center)
    if round(ratio * n) == 0:
        with pytest.raises(UldaError):
            cartesian_mask(n, ratio, center, seed)
        return
    mask = cartesian_mask(n, ratio, center, seed)
    assert mask.n_sampled == round(ratio * n)
    n_center = round(center * n)
    distances = sorted(abs(i - n // 2) for i in range(n))[:n_center]
    if n_center:
        lowest = {i for i in range(n) if abs(i - n // 2) < distances[-1]}
        assert all(mask.sampled[i] for i in lowest)
        # an even number of centre lines among an odd number of lines is one line off a centred window
        assert mask.n_center >= n_center - (n % 2) * (n_center % 2 == 0)
    assert mask == cartesian_mask(n, ratio, center, seed)


def test_cartesian_mask_follows_its_density() -> None:
    """The chance of a line, over many seeds, falls with its distance from the origin."""
    n = 64
    counts = np.mean([cartesian_mask(n, 0.2, seed=seed).sampled for seed in range(500)], axis=0)
    inner, middle, outer = counts[22:30].mean(), counts[12:20].mean(), counts[:8].mean()
    assert inner > 2 * middle > 8 * outer > 0


def test_a_seed_gives_this_mask_on_every_machine() -> None:
    assert np.flatnonzero(cartesian_mask(32, 0.25, seed=7).sampled).tolist() == [
        6,
        12,
        15,
        16,
        20,
        21,
        23,
        24,
    ]
    assert cartesian_mask(32, 0.25, seed=7).hash == "78aa5377eeea"


def test_facts_of_a_mask() -> None:
    mask = Mask((False, True, True, False, True), seed=3)
    assert (mask.n_lines, mask.n_sampled, mask.ratio, mask.n_center, mask.seed) == (5, 3, 0.6, 2, 3)
    assert Mask((False, False, True, True, True)).n_center == 1
    assert Mask((False, True, True, True, True)).n_center == 3
    assert mask.acceleration == pytest.approx(5 / 3)
    assert mask.as_dict()["sampled"] == [1, 2, 4]
    assert mask.hash == Mask(mask.sampled, kind="other", seed=9).hash
    assert mask.hash != Mask((*mask.sampled, False)).hash


@given(st.integers(16, 400), st.floats(1.0, 10.0), st.integers(0, 1000))
def test_random_mask_keeps_its_centre_and_its_expected_ratio(n: int, acceleration: float, seed: int) -> None:
    center = 0.5 / acceleration
    mask = random_mask(n, acceleration, center, seed)
    start = (n - round(center * n) + 1) // 2
    assert all(mask.sampled[start : start + round(center * n)])


def test_random_mask_has_its_acceleration_on_average() -> None:
    ratios = [random_mask(320, 4, 0.08, seed).ratio for seed in range(300)]
    assert np.mean(ratios) == pytest.approx(0.25, abs=0.005)
    assert np.std(ratios) > 0.01


@pytest.mark.parametrize(("n", "acceleration", "center"), [(320, 4, 0.08), (368, 8, 0.04), (65, 3, 0.1)])
def test_equispaced_mask_has_equal_gaps_outside_the_centre(n: int, acceleration: float, center: float) -> None:
    for seed in range(20):
        mask = equispaced_mask(n, acceleration, center, seed)
        assert mask.n_sampled == pytest.approx(n / acceleration, abs=3)
        below = np.flatnonzero(mask.sampled[: (n - round(center * n)) // 2 - 2])
        assert np.ptp(np.diff(below)) <= 1


@pytest.mark.parametrize(("n", "acceleration", "center"), [(320, 4, 0.08), (368, 8, 0.04), (65, 3, 0.1)])
def test_equispaced_mask_is_one_of_fastmris(n: int, acceleration: float, center: float) -> None:
    """Their formula, whose only randomness is the offset: every offset occurs and nothing else."""
    n_low = round(n * center)
    spacing = acceleration * (n_low - n) / (n_low * acceleration - n)
    possible = set()
    for offset in range(round(spacing)):
        lines = np.zeros(n, bool)
        lines[(n - n_low + 1) // 2 :][:n_low] = True
        lines[np.around(np.arange(offset, n - 1, spacing)).astype(int)] = True
        possible.add(tuple(lines.tolist()))
    assert {equispaced_mask(n, acceleration, center, seed).sampled for seed in range(200)} == possible


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cartesian_mask(64, 0.04), "below the centre fraction"),
        (lambda: cartesian_mask(64, 1.01), r"in \(0, 1\]"),
        (lambda: cartesian_mask(64, 0.0, 0.0), r"in \(0, 1\]"),
        (lambda: cartesian_mask(64, float("nan")), r"in \(0, 1\]"),
        (lambda: cartesian_mask(0, 0.2), "at least one line"),
        (lambda: cartesian_mask(-3, 0.2), "at least one line"),
        (lambda: cartesian_mask(4, 0.1), "rounds to zero"),
        (lambda: cartesian_mask(64, 0.5, center=-0.1), "center must lie"),
        (lambda: random_mask(64, 0.5), "at least 1"),
        (lambda: random_mask(64, 20, center=0.2), "fewer than the 13 centre lines"),
        (lambda: equispaced_mask(64, float("inf")), "at least 1"),
        (lambda: Mask((False, False)), "at least one sampled line"),
        (lambda: mask_from_array(np.array([0, 2, 1])), "other than 0 and 1"),
        (lambda: mask_from_array(np.eye(4)), "whole lines"),
        (lambda: mask_from_array(np.zeros((2, 2, 2))), "one entry per line"),
    ],
)
def test_impossible_requests_are_clear_errors(make: Callable[[], Mask], message: str) -> None:
    with pytest.raises(UldaError, match=message):
        make()


def _write_npz(path: Path, lines: Any) -> None:
    np.savez(path.with_suffix(".npz"), mask=lines)
    path.with_suffix(".npz").rename(path)


def _write_h5(path: Path, lines: Any) -> None:
    with h5py.File(path, "w") as file:
        file["mask"] = lines.astype(np.float32)


def _write_npy(path: Path, lines: Any) -> None:
    with path.open("wb") as stream:
        np.save(stream, np.tile(lines[:, None], (1, 6)))


def _write_text(path: Path, lines: Any) -> None:
    path.write_text("\n".join(str(int(v)) for v in lines))


@pytest.mark.parametrize("write", [_write_npz, _write_h5, _write_npy, _write_text])
def test_masks_are_read_from_files(tmp_path: Path, write: Callable[[Path, Any], None]) -> None:
    mask = cartesian_mask(40, 0.3, seed=5)
    write(tmp_path / "mask", mask.lines.numpy())
    loaded = load_mask(tmp_path / "mask")
    assert loaded.sampled == mask.sampled
    assert loaded.kind == "file"


def test_a_saved_mask_comes_back_whole(tmp_path: Path) -> None:
    mask = equispaced_mask(40, 3, seed=5)
    mask.save(tmp_path / "mask.json")
    assert load_mask(tmp_path / "mask.json") == mask
    assert json.loads((tmp_path / "mask.json").read_text())["hash"] == mask.hash


@pytest.mark.parametrize("content", [b"", b"hello", b"\x93NUMPY", b"PK\x03\x04broken", b"{}", b"\x89HDF\r\n\x1a\n"])
def test_broken_mask_files_are_clear_errors(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mask"
    path.write_bytes(content)
    with pytest.raises(UldaError, match="mask"):
        load_mask(path)


def test_a_missing_mask_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UldaError, match=r"nothing\.npy"):
        load_mask(tmp_path / "nothing.npy")


def test_masks_that_claim_point_elsewhere_or_never_end(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "link.h5", "w") as file:
        file["mask"] = h5py.ExternalLink("other.h5", "/mask")
    with h5py.File(tmp_path / "claim.h5", "w") as file:
        file.create_dataset("mask", (10**12,), bool, chunks=(10**6,))
    np.savez_compressed(tmp_path / "bomb.npz", mask=np.zeros(10**8, bool))
    with (tmp_path / "long.npy").open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "|b1", "fortran_order": False, "shape": (10**12,)})
    (tmp_path / "lines.json").write_text('{"kind": "file", "seed": null, "n_lines": 1000000000000, "sampled": [0]}')
    (tmp_path / "deep.json").write_text('{"a":' * 10**5)
    (tmp_path / "digits.txt").write_text("1" * 5000)
    (tmp_path / "many.txt").write_text("1 " * 10**6)
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        (tmp_path / "link.h5", "is a link to another file"),
        (tmp_path / "claim.h5", "claims 1000 GB"),
        (tmp_path / "bomb.npz", "claims 100 MB"),
        (tmp_path / "long.npy", "is truncated"),
        (tmp_path / "lines.json", "a mask has 1 to 8192 lines, but it says 1000000000000"),
        (tmp_path / "deep.json", "more than 64 levels"),
        (tmp_path / "digits.txt", "cannot be read as a mask"),
        (tmp_path / "many.txt", "too much for a mask"),
        (tmp_path / "pipe", "is a device or a pipe"),
        (tmp_path / "/dev/zero", "is a device or a pipe"),
    ):
        with pytest.raises(UldaError, match=message):
            load_mask(path)
