from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from ulda.data import Domain, DomainWriter, Header, ImportOptions, Record, import_domain
from ulda.data.values import LARGEST, SMALLEST, check_scale, check_values
from ulda.errors import UldaError


def test_the_range_is_what_single_precision_can_square() -> None:
    edge = np.array([[LARGEST, -SMALLEST]], np.float32)
    check_values(edge, "slice 0")
    assert np.isfinite(np.square(edge)).all()
    assert (np.square(edge) > np.finfo(np.float32).tiny).all()


@pytest.mark.parametrize("value", [3e38, 3e38j, 3e38 + 3e38j, np.nan, -np.inf])
def test_positions_are_named_by_coil_row_and_column(value: complex) -> None:
    kspace = np.ones((3, 4, 5), np.complex64)
    kspace[1, 2, 3] = value
    with pytest.raises(UldaError, match=r"^slice 7 of a\.h5 holds 1 NaN, .* the first at coil 1, row 2, column 3: "):
        check_values(kspace, "slice 7 of a.h5")


def test_values_that_vanish_and_scales_that_restore_nothing() -> None:
    with pytest.raises(UldaError, match="has the peak 1e-40, too small"):
        check_values(np.full((2, 2), 1e-40), "slice 0")
    check_values(np.zeros((2, 2)), "an empty slice")
    for scale in (0.0, -1.0, np.inf, np.nan, 1e-40):
        with pytest.raises(UldaError, match="expected one from"):
            check_scale(scale, "slice 0")


@pytest.mark.parametrize("normalisation", ["slice", "volume", "none"])
def test_one_absurd_value_does_not_empty_a_slice(tmp_path: Path, normalisation: str) -> None:
    images = np.random.default_rng(0).random((4, 8, 8)).astype(np.float32)
    images[1, 6, 2] = 3e38
    np.savez(tmp_path / "a.npz", images=images)
    options = ImportOptions(normalisation=normalisation)  # type: ignore[arg-type]
    with pytest.raises(UldaError, match=r"slice 1 of a\.npz holds 1 NaN, .* row 6, column 2: 3e\+38"):
        import_domain([tmp_path / "a.npz"], tmp_path / "out.h5", options)
    assert not (tmp_path / "out.h5").exists()


def test_doubles_beyond_single_precision_are_refused_without_a_warning(tmp_path: Path) -> None:
    images = np.ones((1, 8, 8))
    images[0, 3, 4] = 1e300
    np.save(tmp_path / "a.npy", images)
    with pytest.raises(UldaError, match=r"row 3, column 4: inf"):
        import_domain([tmp_path / "a.npy"], tmp_path / "out.h5")


def test_the_writer_and_the_reader_of_domain_files_refuse_them_too(tmp_path: Path) -> None:
    image = np.ones((4, 4), np.float32)
    absurd = image * 1e20
    for record in (Record(absurd, "a"), Record(image, "a", scale=np.inf), Record(image, "a", target=absurd)):
        with (
            pytest.raises(UldaError, match=r"absurdly large|the scale inf"),
            DomainWriter(tmp_path / "a.h5", Header("a", "magnitude")) as writer,
        ):
            writer.append(record)
    with DomainWriter(tmp_path / "b.h5", Header("b", "magnitude")) as writer:
        writer.append(Record(image, "a"))
    for name, where, value in (("slices", (0, 1, 2), 3e38), ("scale", 0, np.inf)):
        with h5py.File(tmp_path / "b.h5", "r+") as file:
            before = file[name][where]
            file[name][where] = value
        with pytest.raises(UldaError, match=r"slice 0 of b\.h5"):
            list(Domain.open(tmp_path / "b.h5").images())
        with h5py.File(tmp_path / "b.h5", "r+") as file:
            file[name][where] = before
