from __future__ import annotations

import h5py
import pytest
import torch

from tests.linear_checks import complex_normal
from tests.shared_data import shared_data_file
from ulda.errors import UldaError
from ulda.physics import (
    CartesianMRI,
    Mask,
    MultiCoilMRI,
    cartesian_mask,
    coil_combine,
    compress_coils,
    espirit_maps,
    fft2c,
    ifft2c,
    root_sum_of_squares,
)


def smooth_coils(n_coils: int, height: int, width: int) -> torch.Tensor:
    """Return smooth complex sensitivities with unit sum of squares, known in closed form."""
    rows = torch.linspace(-1, 1, height, dtype=torch.float64)[:, None]
    columns = torch.linspace(-1, 1, width, dtype=torch.float64)[None, :]
    maps = []
    for c in range(n_coils):
        angle = torch.tensor(2 * torch.pi * c / n_coils, dtype=torch.float64)
        distance = (rows - 1.2 * torch.sin(angle)) ** 2 + (columns - 1.2 * torch.cos(angle)) ** 2
        maps.append(torch.polar(torch.exp(-distance / 3), rows * torch.cos(angle) + columns * torch.sin(angle)))
    stacked = torch.stack(maps)
    return stacked / root_sum_of_squares(stacked)


def disc(height: int, width: int) -> torch.Tensor:
    rows = torch.linspace(-1, 1, height, dtype=torch.float64)[:, None]
    columns = torch.linspace(-1, 1, width, dtype=torch.float64)[None, :]
    return ((rows**2 + columns**2) < 0.6).to(torch.complex128)


@pytest.mark.parametrize("shape", [(64, 64), (48, 61)])
def test_espirit_recovers_known_sensitivities(shape: tuple[int, int]) -> None:
    true, image = smooth_coils(5, *shape), disc(*shape)
    kspace = fft2c(true * image)
    mask = cartesian_mask(shape[0], 0.5, center=0.4, seed=1)
    maps = espirit_maps(kspace * mask.lines[:, None], mask)
    inside = image.real > 0
    overlap = (maps.conj() * true).sum(0).abs()[inside]
    assert float(overlap.min()) > 0.99
    assert float(overlap.mean()) > 0.9995
    power = root_sum_of_squares(maps)
    assert float(power[inside].min()) == pytest.approx(1, abs=1e-9)
    assert float(power.max()) <= 1 + 1e-9


def test_calibration_never_takes_a_line_that_was_not_sampled() -> None:
    """Sampled lines that continue the centre on one side only do not widen the calibration region."""
    shape = (64, 64)
    true, image = smooth_coils(5, *shape), disc(*shape)
    mask = Mask(tuple(22 <= line < 55 for line in range(64)))
    maps = espirit_maps(fft2c(true * image) * mask.lines[:, None], mask, max_calibration=64)
    overlap = (maps.conj() * true).sum(0).abs()[image.real > 0]
    assert mask.n_center == 21
    assert float(overlap.mean()) > 0.9995


def test_espirit_handles_batches_and_either_axis() -> None:
    kspace = fft2c(smooth_coils(3, 32, 32) * disc(32, 32))
    mask = cartesian_mask(32, 0.6, center=0.5)
    batch = espirit_maps(torch.stack([kspace, 2 * kspace]), mask)
    assert torch.allclose(batch[0], batch[1], atol=1e-8)
    across = espirit_maps(kspace.transpose(-1, -2), mask, axis=-1)
    agreement = (across.transpose(-1, -2).conj() * batch[0]).sum(0).abs()[disc(32, 32).real > 0]
    assert float(agreement.min()) > 1 - 1e-6


def test_several_coils_determine_the_image_from_half_of_the_lines() -> None:
    maps, image = smooth_coils(6, 12, 12), disc(12, 12)
    physics = MultiCoilMRI(Mask((True, False) * 6), maps)
    basis = torch.eye(144, dtype=torch.complex128).reshape(144, 12, 12)
    matrix = physics.A(basis).reshape(144, -1).T
    solution = torch.linalg.lstsq(matrix, physics.A(image).reshape(-1, 1)).solution
    assert torch.allclose(solution.reshape(12, 12), image, atol=1e-8)


def test_one_uniform_coil_is_the_single_coil_operator() -> None:
    mask = cartesian_mask(16, 0.5)
    x = complex_normal(16, 16, dtype=torch.complex128)
    single, multi = CartesianMRI(mask), MultiCoilMRI(mask, torch.ones(1, 16, 16, dtype=torch.complex128))
    assert torch.allclose(multi.A(x)[0], single.A(x))
    assert torch.allclose(multi.A_adjoint(single.A(x)[None]), single.A_adjoint(single.A(x)))


def test_compression_of_dependent_coils_loses_nothing() -> None:
    mixing = complex_normal(7, 3, dtype=torch.complex128)
    few = complex_normal(3, 12, 12, dtype=torch.complex128, seed=1)
    kspace = torch.einsum("cv,vhw->chw", mixing, few)
    compressed = compress_coils(kspace, 3)
    assert torch.allclose(root_sum_of_squares(ifft2c(compressed)), root_sum_of_squares(ifft2c(kspace)))
    energies = compressed.abs().square().sum((-2, -1))
    assert torch.equal(energies, energies.sort(descending=True).values)


def test_real_brain_is_explained_by_its_maps() -> None:
    with h5py.File(shared_data_file("multicoil_brain.h5")) as file:
        kspace = torch.from_numpy(file["kspace"][0])
        target = torch.from_numpy(file["reconstruction_rss"][0])
    kspace = compress_coils(kspace, 6)
    coils = ifft2c(kspace)
    maps = espirit_maps(kspace)
    inside = (root_sum_of_squares(maps) > 0.5) & (target > 0.1 * target.max())
    residual = (coils - maps * coil_combine(coils, maps))[:, inside]
    assert float(residual.norm() / coils[:, inside].norm()) < 0.1


@pytest.mark.parametrize(
    ("kspace", "options", "message"),
    [
        (torch.zeros(8, 8, dtype=torch.complex64), {}, "coils, H, W"),
        (torch.zeros(2, 32, 32), {}, "complex"),
        (
            torch.ones(2, 32, 32, dtype=torch.complex64),
            {"mask": cartesian_mask(32, 0.1)},
            "calibration region is",
        ),
        (torch.ones(2, 8, 8, dtype=torch.complex64), {}, "too small"),
    ],
)
def test_bad_calibration_data_is_a_clear_error(kspace: torch.Tensor, options: dict[str, object], message: str) -> None:
    with pytest.raises(UldaError, match=message):
        espirit_maps(kspace, **options)  # type: ignore[arg-type]


def test_compression_to_too_many_coils_is_refused() -> None:
    with pytest.raises(UldaError, match="compress 2 coils to 3"):
        compress_coils(torch.zeros(2, 4, 4, dtype=torch.complex64), 3)
