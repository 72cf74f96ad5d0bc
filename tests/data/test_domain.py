from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
import torch

from tests.linear_checks import complex_normal
from ulda.data import Domain, DomainWriter, Header, Record, demo, demo_names
from ulda.errors import UldaError
from ulda.physics import fft2c, ifft2c, root_sum_of_squares

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def image(seed: int) -> Any:
    return np.random.default_rng(seed).random((6, 5), dtype=np.float32)


def write(path: Path, records: list[Record], **header: Any) -> Domain:
    with DomainWriter(path, Header("test", **({"kind": "magnitude"} | header))) as writer:
        for record in records:
            writer.append(record)
    return Domain.open(path)


def test_round_trip(tmp_path: Path) -> None:
    records = [
        Record(
            image(i),
            f"subject-{i // 2}",
            "T1",
            "train" if i < 2 else "test",
            f"v{i // 2}",
            "file.npy",
            0.5 + i,
        )
        for i in range(4)
    ]
    domain = write(tmp_path / "d.h5", records, licence="CC0", note="für alle", normalisation="volume")
    assert len(domain) == 4
    assert domain.shape == (6, 5)
    assert domain.header == Header("test", "magnitude", licence="CC0", note="für alle", normalisation="volume")
    for stored, record in zip(domain.records(), records, strict=True):
        assert np.array_equal(stored.array, record.array)
        assert (stored.subject, stored.split, stored.volume, stored.scale) == (
            record.subject,
            record.split,
            record.volume,
            record.scale,
        )
    test = domain.select(split="test")
    assert test.subjects == ("subject-1", "subject-1")
    assert torch.equal(test.image(1), torch.from_numpy(records[3].array).to(torch.complex64))
    assert test.take([1]).indices == (3,)
    assert test.fingerprint() != domain.fingerprint() == Domain.open(tmp_path / "d.h5").fingerprint()


def test_kspace_becomes_an_image(tmp_path: Path) -> None:
    x = complex_normal(6, 5)
    domain = write(tmp_path / "d.h5", [Record(fft2c(x).numpy(), "s")], kind="kspace", kspace_origin="measured")
    assert torch.allclose(domain.image(0), x, atol=1e-6)
    assert torch.allclose(domain.kspace(0), fft2c(x), atol=1e-6)
    assert domain.mask(0) is None


def test_undersampled_kspace_knows_its_mask(tmp_path: Path) -> None:
    lines = np.array([True, False, True, True, False, True])
    record = Record(fft2c(complex_normal(6, 5)).numpy(), "s", lines=lines, target=image(0))
    domain = write(tmp_path / "d.h5", [record], kind="kspace")
    mask = domain.mask(0)
    assert mask is not None
    assert mask.sampled == tuple(lines)
    stored = domain.record(0).target
    assert stored is not None
    assert np.array_equal(stored, image(0))


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "no slices"),
        ([Record(image(0), "a"), Record(image(1)[:4], "a", source="b.png")], r"b\.png has \(4, 5\).*--size"),
        ([Record(np.full((3, 3), np.nan, np.float32), "a", source="b.png")], r"b\.png.* holds 9 NaN"),
        (
            [Record(image(0), "a", split="train"), Record(image(1), "a", split="test")],
            "subject a is in the splits",
        ),
        ([Record(image(0), "a", target=image(1)), Record(image(1), "a")], "some have none"),
        (
            [Record(image(0), "a", target=image(1)), Record(image(1), "a", target=image(0)[:4])],
            "targets have different",
        ),
        ([Record(image(0), "a", split="trian")], "'trian'"),
    ],
)
def test_bad_slices_are_refused(tmp_path: Path, records: list[Record], message: str) -> None:
    with pytest.raises(UldaError, match=message):
        write(tmp_path / "d.h5", records)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.h5"
    with pytest.raises(UldaError, match="no file"):
        Domain.open(path)
    path.write_text("no HDF5")
    with pytest.raises(UldaError, match=r"d\.h5 cannot be read"):
        Domain.open(path)
    with h5py.File(path, "w") as file:
        file["kspace"] = np.zeros(3)
    with pytest.raises(UldaError, match=r"ulda data import d\.h5"):
        Domain.open(path)
    write(path, [Record(image(0), "a")])
    with h5py.File(path, "r+") as file:
        file.attrs["version"] = 99
    with pytest.raises(UldaError, match="newer version"):
        Domain.open(path)


def _without_slices(file: Any) -> None:
    del file["slices"]


def _numeric_labels(file: Any) -> None:
    del file["subject"]
    file["subject"] = np.zeros(1)


def _too_few_labels(file: Any) -> None:
    file["split"].resize(0, axis=0)


def _unknown_kind(file: Any) -> None:
    file.attrs["kind"] = "banana"


def _unknown_axis(file: Any) -> None:
    file.attrs["phase_axis"] = 7


def _wordy_version(file: Any) -> None:
    file.attrs["version"] = "first"


def _wrong_rank(file: Any) -> None:
    del file["slices"]
    file["slices"] = np.zeros((1, 6))


@pytest.mark.parametrize(
    "spoil",
    [_without_slices, _numeric_labels, _too_few_labels, _unknown_kind, _unknown_axis, _wordy_version, _wrong_rank],
)
def test_an_inconsistent_file_is_a_clear_error(tmp_path: Path, spoil: Callable[[Any], None]) -> None:
    path = tmp_path / "d.h5"
    write(path, [Record(image(0), "a")])
    with h5py.File(path, "r+") as file:
        spoil(file)
    with pytest.raises(UldaError, match=r"d\.h5 cannot be read as a domain file"):
        Domain.open(path)


def test_a_damaged_file_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "d.h5"
    write(path, [Record(np.random.default_rng(i).random((64, 64), np.float32), "a") for i in range(20)])
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 6000] = bytes(6000)
    path.write_bytes(content)
    with pytest.raises(UldaError, match=r"d\.h5"):
        list(Domain.open(path).records())


def test_images_have_no_measured_kspace(tmp_path: Path) -> None:
    with pytest.raises(UldaError, match="holds images"):
        write(tmp_path / "d.h5", [Record(image(0), "a")]).kspace(0)


def test_embedded_data_is_real_small_and_licensed() -> None:
    total = 0
    for name in demo_names():
        domain = demo(name)
        total += domain.path.stat().st_size
        assert domain.header.licence
        (licence,) = domain.path.parent.glob(domain.header.licence.split("see ")[1])
        assert "permission" in licence.read_text().lower()
        for x in domain.images():
            assert torch.isfinite(x.abs()).all()
            assert float(x.abs().max()) > 0.3
    assert demo_names() == ["brain-multicoil", "kidney", "knee"]
    assert total < 3e6


def test_the_embedded_brain_is_explained_by_its_coils() -> None:
    brain = demo("brain-multicoil")
    rss = root_sum_of_squares(ifft2c(brain.kspace(0)))
    combined = brain.image(0).abs()
    bright = rss > 0.1
    assert float((combined - rss)[bright].norm() / rss[bright].norm()) < 0.05


def test_unknown_embedded_data_names_the_known() -> None:
    with pytest.raises(UldaError, match="kidney, knee"):
        demo("heart")
