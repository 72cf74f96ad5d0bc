from __future__ import annotations

import io
import os
import tempfile
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.shared_data import shared_data_file
from ulda.data.readers import find_reader
from ulda.data.readers.numpy_files import NpyReader, NpzReader
from ulda.errors import UldaError

REAL_TYPES = ["<u2", ">u2", "i1", "<i4", "<f4", ">f4", "<f8", "?"]


@st.composite
def stacks(draw: st.DrawFn) -> np.ndarray[Any, np.dtype[np.generic]]:
    dtype = np.dtype(draw(st.sampled_from(REAL_TYPES)))
    shape = draw(hnp.array_shapes(min_dims=2, max_dims=3, max_side=5))
    values = draw(hnp.arrays(np.int8, shape, elements=st.integers(0, 1 if dtype.kind == "b" else 100)))
    array = values.astype(dtype)
    return np.asfortranarray(array) if draw(st.booleans()) else array


@given(stacks())
def test_npy_round_trip(array: np.ndarray[Any, np.dtype[np.generic]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.npy"
        np.save(path, array)
        slices = list(find_reader(path).slices(path))
        expected = array.reshape(-1, *array.shape[-2:]).astype(np.float32)
        np.testing.assert_array_equal(np.stack([item.array for item in slices]), expected)
        assert {item.array.dtype for item in slices} == {np.dtype(np.float32)}
        assert {item.kind for item in slices} == {"magnitude"}


@given(stacks(), st.booleans())
def test_npz_round_trip(array: np.ndarray[Any, np.dtype[np.generic]], compressed: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.npz"
        (np.savez_compressed if compressed else np.savez)(path, images=np.array(array, order="C"))
        slices = list(find_reader(path).slices(path))
        expected = array.reshape(-1, *array.shape[-2:]).astype(np.float32)
        np.testing.assert_array_equal(np.stack([item.array for item in slices]), expected)
        assert find_reader(path).describe(path).n_slices == len(slices)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_multicoil_kspace_and_its_missing_lines(tmp_path: Path, suffix: str) -> None:
    rng = np.random.default_rng(1)
    kspace = rng.normal(size=(2, 3, 8, 6)) + 1j * rng.normal(size=(2, 3, 8, 6))
    kspace[..., [1, 4]] = 0
    path = tmp_path / f"a{suffix}"
    if suffix == ".npy":
        np.save(path, kspace)
    else:
        np.savez(path, kspace=kspace)
    first, second = find_reader(path).slices(path)
    np.testing.assert_array_equal(second.array, kspace[1].astype(np.complex64))
    assert first.kind == "kspace"
    assert first.phase_axis == -1
    assert first.lines is not None
    assert np.flatnonzero(~first.lines).tolist() == [1, 4]


def test_labels_belong_to_their_slices(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    np.savez(
        path,
        images=np.arange(12, dtype=np.uint16).reshape(3, 2, 2),
        subject=np.array(["a", "a", "b"]),
        contrast=np.array([b"T1", b"T2", b"T1"]),
        split=np.array(["train", "train", "test"]),
    )
    slices = list(NpzReader().slices(path))
    assert [(item.subject, item.contrast, item.split) for item in slices] == [
        ("a", "T1", "train"),
        ("a", "T2", "train"),
        ("b", "T1", "test"),
    ]
    assert [item.volume for item in slices] == ["set-a-T1", "set-a-T2", "set-b-T1"]


def test_explicit_kind_wins(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.full((4, 4), 3 + 4j))
    (magnitude,) = NpyReader().slices(path, "magnitude")
    assert (magnitude.array == 5).all()
    (kspace,) = NpyReader().slices(path, "kspace")
    assert kspace.kind == "kspace"
    np.save(path, np.ones((4, 4)))
    with pytest.raises(UldaError, match="holds real numbers"):
        list(NpyReader().slices(path, "kspace"))


@pytest.mark.parametrize("shape", [(5,), (2, 2, 2, 2, 2), (0, 4, 4)])
def test_wrong_rank_names_the_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros(shape))
    with pytest.raises(UldaError, match=str(shape).replace("(", r"\(").replace(")", r"\)")):
        list(NpyReader().slices(path))


def test_four_dimensional_images_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((2, 3, 4, 4)))
    with pytest.raises(UldaError, match="4-D"):
        list(NpyReader().slices(path))


def test_slice_axis_last_is_pointed_out(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((16, 16, 3)))
    assert "move the last axis to the front" in NpyReader().describe(path).notes[0]


def test_truncated_npy(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((4, 16, 16)))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UldaError, match=r"a\.npy is truncated"):
        list(find_reader(path).slices(path))


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    plain, archive = tmp_path / "a.npy", tmp_path / "a.npz"
    objects = np.array([[{}, 1], [2, 3]], dtype=object)
    np.save(plain, objects, allow_pickle=True)
    np.savez(archive, images=objects)
    for path in (plain, archive):
        with pytest.raises(UldaError, match="pickled Python objects"):
            list(find_reader(path).slices(path))


def test_zip_bomb_is_refused_without_expanding_it(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (100, 1024, 1024)})
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("images.npy", "w") as member,
    ):
        member.write(header.getvalue())
        for _ in range(100):
            member.write(bytes(2**20))
    assert path.stat().st_size < 2**20
    for call in (lambda: list(NpzReader().slices(path)), lambda: NpzReader().describe(path)):
        with pytest.raises(UldaError, match="possible decompression bomb"):
            call()


def test_header_that_does_not_fit_the_member(tmp_path: Path) -> None:
    path = tmp_path / "lie.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (10**6, 10**4, 10**4)}
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", header.getvalue() + bytes(64))
    with pytest.raises(UldaError, match="is inconsistent"):
        list(NpzReader().slices(path))


def test_corrupted_and_truncated_npz(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, images=np.ones((4, 32, 32)))
    whole = bytearray(path.read_bytes())
    whole[5000] ^= 0xFF
    path.write_bytes(whole)
    with pytest.raises(UldaError, match="truncated or damaged"):
        list(find_reader(path).slices(path))
    path.write_bytes(whole[:6000])
    with pytest.raises(UldaError, match="truncated or damaged"):
        list(find_reader(path).slices(path))


def test_ambiguous_npz_lists_its_arrays(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, first=np.ones((2, 2)), second=np.ones((3, 3)), scale=np.ones(3))
    with pytest.raises(UldaError, match=r"first \(2, 2\), second \(3, 3\)"):
        list(NpzReader().slices(path))


def test_single_other_array_is_found_and_fortran_planes_are_right(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    plane = np.arange(6.0).reshape(2, 3)
    np.savez(path, anything=np.asfortranarray(plane), scale=np.ones(3))
    (item,) = NpzReader().slices(path)
    np.testing.assert_array_equal(item.array, plane)
    np.savez(path, images=np.asfortranarray(np.ones((2, 3, 4))))
    with pytest.raises(UldaError, match="ascontiguousarray"):
        list(NpzReader().slices(path))


def test_labels_of_another_length_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, images=np.ones((3, 4, 4)), subject=np.array(["a", "b"]))
    with pytest.raises(UldaError, match=r"'subject' of shape \(2,\); expected \(3,\)"):
        list(NpzReader().slices(path))


def test_npz_is_streamed_with_flat_memory(tmp_path: Path) -> None:
    path = tmp_path / "big.npz"
    rng = np.random.default_rng(0)
    np.savez_compressed(path, images=rng.integers(0, 4096, (64, 256, 256), np.uint16))
    tracemalloc.start()
    count = sum(1 for _ in NpzReader().slices(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 64
    assert peak < 2 * 2**20  # the whole member has 8 MiB


def test_real_domain_has_its_slices_subjects_and_splits() -> None:
    path = shared_data_file("knee.npz")
    with np.load(path) as archive:
        images, splits = archive["images"], archive["split"]
    slices = list(find_reader(path).slices(path))
    assert [item.split for item in slices] == splits.tolist()
    assert [item.split for item in slices].count("train") == 42
    np.testing.assert_array_equal(slices[5].array, images[5].astype(np.float32))
    assert os.path.basename(path) == slices[0].source  # noqa: PTH119 - an independent way to name it
