from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
import torch

from tests.shared_data import SHARED_DATA, shared_data_file
from ulda.data import inspect
from ulda.physics import center_crop_or_pad, fft2c

if TYPE_CHECKING:
    from pathlib import Path


def smooth_image(n: int = 32) -> torch.Tensor:
    position = torch.linspace(-2, 2, n)
    noise = 0.01 * torch.randn(n, n, generator=torch.Generator().manual_seed(0))
    return torch.exp(-(position[:, None] ** 2) - position[None, :] ** 2) + noise + 0j


def write_kspace(path: Path, kspace: Any, **extra: Any) -> Path:
    with h5py.File(path, "w") as file:
        file["kspace"] = np.asarray(kspace)
        for name, value in extra.items():
            file[name] = value
    return path


def messages(path: Path, severity: str) -> str:
    return " | ".join(f.message for result in inspect(path) for f in result.findings if f.severity == severity)


def test_healthy_kspace_has_no_complaint(tmp_path: Path) -> None:
    (result,) = inspect(write_kspace(tmp_path / "a.h5", fft2c(smooth_image())[None]))
    assert result.ok
    assert result.center == (16, 16)
    assert not [f for f in result.findings if f.severity != "info"]


def test_uncentred_kspace_is_an_error(tmp_path: Path) -> None:
    path = write_kspace(tmp_path / "a.h5", torch.fft.fft2(smooth_image())[None])
    assert "not centred" in messages(path, "error")
    assert not inspect(path)[0].ok


def test_a_shifted_centre_is_a_warning(tmp_path: Path) -> None:
    path = write_kspace(tmp_path / "a.h5", fft2c(smooth_image()).roll(3, 0)[None])
    assert "centre is at (19, 16), expected (16, 16)" in messages(path, "warning")


def test_something_else_than_kspace_is_an_error(tmp_path: Path) -> None:
    kspace = torch.zeros(1, 32, 32, dtype=torch.complex64)
    kspace[0, 5, 20] = 1
    assert "far from the centre" in messages(write_kspace(tmp_path / "a.h5", kspace), "error")


def test_zero_filled_borders_are_counted(tmp_path: Path) -> None:
    full = torch.randn(1, 32, 32, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    full[0, 16, 16] = 100
    path = write_kspace(tmp_path / "a.h5", center_crop_or_pad(center_crop_or_pad(full, (32, 20)), (32, 32)))
    assert inspect(path)[0].zero_borders == (0, 0, 6, 6)
    assert "6 columns at the left, 6 at the right" in messages(path, "warning")


def test_nan_and_inf_are_counted(tmp_path: Path) -> None:
    kspace = fft2c(smooth_image())[None].repeat(3, 1, 1)
    kspace[0, 3, 4] = torch.nan
    kspace[2, 0, 0] = torch.inf
    kspace[2, 0, 1] = torch.inf
    path = write_kspace(tmp_path / "a.h5", kspace)
    assert inspect(path)[0].n_nonfinite == 3
    assert "3 values in 2 slices are NaN or infinite" in messages(path, "error")


def test_images_are_checked_too(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((4, 8, 8))
    x[0], x[1], x[2, 0, 0] = 0, 5, -1
    np.savez(
        tmp_path / "a.npz",
        images=x,
        subject=np.array(["a"] * 4),
        split=np.array(["train"] * 2 + ["test"] * 2),
    )
    warning, error = messages(tmp_path / "a.npz", "warning"), messages(tmp_path / "a.npz", "error")
    assert "1 slices are zero everywhere" in warning
    assert "same value in every pixel" in warning
    assert "negative" in warning
    assert "subject a is in the splits" in error
    assert "conjugate-symmetric" in messages(tmp_path / "a.npz", "info")


def test_undersampled_kspace_says_so(tmp_path: Path) -> None:
    lines = np.ones(32, bool)
    lines[::3] = False
    lines[16] = True
    path = write_kspace(tmp_path / "a.h5", fft2c(smooth_image())[None] * torch.from_numpy(lines), mask=lines)
    assert "arrived undersampled" in messages(path, "info")
    assert "zero-filled" not in messages(path, "warning")


def test_zero_filled_borders_are_no_undersampling(tmp_path: Path) -> None:
    kspace = center_crop_or_pad(center_crop_or_pad(fft2c(smooth_image()), (20, 32)), (32, 32))
    np.save(tmp_path / "a.npy", kspace.numpy())
    assert "6 rows at the top, 6 at the bottom" in messages(tmp_path / "a.npy", "warning")
    assert "undersampled" not in messages(tmp_path / "a.npy", "info")


@pytest.mark.parametrize("shape", [(40, 30, 12), (40, 40, 12), (20, 20, 3, 2)])
def test_an_axis_order_of_matlab_is_pointed_out(tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.savez(tmp_path / "a.npz", kspace=np.random.default_rng(0).random(shape) + 1j)
    assert f"read as {shape[0]} slices" in messages(tmp_path / "a.npz", "info")


def test_an_unreadable_file_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_text("just text")
    (result,) = inspect(tmp_path / "a.h5")
    assert not result.ok
    assert result.as_dict()["findings"][0]["severity"] == "error"


@pytest.mark.parametrize(
    ("name", "kind", "n_slices"),
    [("brain.npz", "magnitude", 393), ("multicoil_brain.h5", "kspace", 3), ("natural.npz", "magnitude", 63)],
)
def test_shared_files_are_sound(name: str, kind: str, n_slices: int) -> None:
    (result,) = inspect(shared_data_file(name))
    assert result.ok
    assert result.description is not None
    assert (result.description.kind, result.description.n_slices) == (kind, n_slices)


def test_every_shared_lowfield_file_is_inspected() -> None:
    shared_data_file("lowfield_brain/patient0_FLAIR.h5")
    results = inspect(SHARED_DATA / "lowfield_brain")
    assert len(results) == 15
    assert all(result.ok for result in results)
    flair = next(result for result in results if result.path.endswith("patient0_FLAIR.h5"))
    assert flair.center == (66, 63)
    assert flair.zero_borders == (0, 0, 5, 4)
