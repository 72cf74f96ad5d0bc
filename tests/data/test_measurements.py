from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from ulda.data import DomainWriter, Header, Record, demo
from ulda.data.measurements import Undersampling, count_slices, measurements
from ulda.errors import UldaError
from ulda.physics import MultiCoilMRI, cartesian_mask, espirit_maps, fft2c

HALF = Undersampling(ratio=0.5, seed=3)


def write_fastmri(path: Path, kspace: torch.Tensor, lines: torch.Tensor | None = None) -> Path:
    with h5py.File(path, "w") as file:
        file["kspace"] = (kspace if lines is None else kspace * lines).numpy()
        if lines is not None:
            file["mask"] = lines.numpy()
    return path


def knee(n: int = 5) -> torch.Tensor:
    return torch.stack(list(demo("knee").take(range(n)).images()))[:, 32:96, 40:88]


def test_images_are_undersampled_in_k_space(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", knee().abs().numpy())
    assert count_slices(tmp_path / "a.npy") == 5
    batches = list(measurements(tmp_path / "a.npy", HALF, batch_size=2))
    assert [len(batch.y) for batch in batches] == [2, 2, 1]
    lines = cartesian_mask(64, 0.5, seed=3).lines
    expected = fft2c(knee().abs().to(torch.complex64)) * lines[:, None]
    torch.testing.assert_close(torch.cat([batch.y for batch in batches]), expected)


def test_lines_that_arrive_are_kept(tmp_path: Path) -> None:
    lines = cartesian_mask(48, 0.4, seed=1).lines
    path = write_fastmri(tmp_path / "a.h5", fft2c(knee()), lines)
    batch = next(measurements(path, Undersampling()))
    assert batch.physics.axis == -1
    assert list(batch.physics.mask.sampled) == lines.tolist()
    torch.testing.assert_close(batch.y, fft2c(knee(4)) * lines)
    with pytest.raises(UldaError, match="undersampled already"):
        next(measurements(path, HALF))


def test_fully_sampled_data_need_a_mask(tmp_path: Path) -> None:
    path = write_fastmri(tmp_path / "a.h5", fft2c(knee()))
    with pytest.raises(
        UldaError, match=r"fully sampled, so there is nothing to reconstruct; .* --ratio 0\.2 or --mask"
    ):
        next(measurements(path, Undersampling()))
    mask = cartesian_mask(48, 0.3, seed=9)
    mask.save(tmp_path / "mask.json")
    batch = next(measurements(path, Undersampling(mask=tmp_path / "mask.json")))
    assert batch.physics.mask == mask
    cartesian_mask(64, 0.3).save(tmp_path / "mask.json")
    with pytest.raises(UldaError, match=r"mask\.json has 64 lines, but the slices have 48"):
        next(measurements(path, Undersampling(mask=tmp_path / "mask.json")))
    with pytest.raises(UldaError, match="not both"):
        Undersampling(ratio=0.2, mask=tmp_path / "mask.json")


def test_slices_with_other_lines_come_apart_and_in_the_units_of_the_source(tmp_path: Path) -> None:
    first, second = (cartesian_mask(64, 0.4, seed=seed).lines for seed in (1, 2))
    kspace = fft2c(knee(4))
    with DomainWriter(tmp_path / "a.h5", Header("knee", "kspace", "measured")) as writer:
        for i, lines in enumerate((first, first, second, first)):
            array = (kspace[i] * lines[:, None]).numpy()
            writer.append(Record(array, f"s{i}", scale=10.0 + i, lines=lines.numpy()))
    batches = list(measurements(tmp_path / "a.h5", Undersampling()))
    assert [len(batch.y) for batch in batches] == [2, 1, 1]
    torch.testing.assert_close(batches[1].y[0], 12 * kspace[2] * second[:, None])


def test_coil_sensitivities_come_from_the_sampled_lines_of_each_slice(tmp_path: Path) -> None:
    kspace = demo("brain-multicoil").kspace(0)[:, 64:160, 64:160]
    path = write_fastmri(tmp_path / "a.h5", torch.stack([kspace, 1j * kspace.flip(0)]))
    (batch,) = measurements(path, Undersampling(ratio=0.4, seed=1))
    assert isinstance(batch.physics, MultiCoilMRI)
    assert batch.physics.maps.shape == (2, 4, 96, 96)
    n_center = batch.physics.mask.n_center
    maps = espirit_maps(batch.y[1], batch.physics.mask, -1, kernel_size=min(6, n_center // 3 + 1))
    torch.testing.assert_close(batch.physics.maps[1], maps)
    np.savetxt(tmp_path / "mask.txt", np.arange(96) % 2, fmt="%d")
    with pytest.raises(UldaError, match="coil sensitivities need 3; sample more"):
        next(measurements(path, Undersampling(mask=tmp_path / "mask.txt")))


def test_a_folder_of_several_files_is_refused(tmp_path: Path) -> None:
    for name in ("a.npy", "b.npy"):
        np.save(tmp_path / name, knee(1).abs().numpy())
    with pytest.raises(UldaError, match="holds 2 data files; reconstruct them one at a time"):
        count_slices(tmp_path)
