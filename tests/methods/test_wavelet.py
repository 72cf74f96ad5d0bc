from __future__ import annotations

import pytest
import torch

from ulda.errors import UldaError
from ulda.methods import Wavelet
from ulda.methods._wavelet_transform import WaveletName, dwt2, idwt2
from ulda.physics import CartesianMRI, cartesian_mask


def random_image(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, dtype=torch.complex128, generator=generator).cumsum(-1).cumsum(-2)


@pytest.mark.parametrize("wavelet", ["haar", "db2", "db4"])
def test_denoising_is_a_soft_threshold(wavelet: WaveletName) -> None:
    """With every line sampled and a fixed transform the minimiser is explicit."""
    image = random_image(32, 16)
    physics = CartesianMRI(cartesian_mask(32, 1.0))
    method = Wavelet(weight=0.02, iterations=1, wavelet=wavelet, levels=3, random_shifts=False)
    approximation, details = dwt2(image, wavelet, 3)
    threshold = 0.02 * image.abs().max()
    shrunk = [torch.polar((b.abs() - threshold).clamp_min(0), b.angle()) for b in details]
    expected = idwt2(approximation, shrunk, wavelet)
    assert sum(int((b == 0).sum()) for b in shrunk) > 10
    torch.testing.assert_close(method(physics.A(image), physics), expected, atol=1e-9, rtol=1e-9)


def test_objective_reaches_its_minimum() -> None:
    image = random_image(32, 32)
    physics = CartesianMRI(cartesian_mask(32, 0.4))
    y = physics.A(image)
    strength = 0.01 * physics.A_adjoint(y).abs().max()

    def objective(iterations: int) -> float:
        method = Wavelet(weight=0.01, iterations=iterations, wavelet="haar", levels=3, random_shifts=False)
        x = method(y, physics)
        details = dwt2(x, "haar", 3)[1]
        return float(physics.fidelity(x, y) + strength * sum(b.abs().sum() for b in details))

    values = [objective(n) for n in (1, 10, 100, 800, 2000)]
    assert values[0] > values[1] > values[2]
    assert values[2] == pytest.approx(values[4], rel=1e-2)
    assert values[3] == pytest.approx(values[4], rel=1e-5)


def test_optimality_of_the_extended_problem() -> None:
    """For sides that are not divisible, the long run satisfies the problem that the docstring states."""
    image = random_image(18, 21)
    physics = CartesianMRI(cartesian_mask(18, 1.0))
    method = Wavelet(weight=0.01, iterations=1500, wavelet="db2", levels=2, random_shifts=False)
    x = method(physics.A(image), physics)
    residual = torch.zeros(20, 24, dtype=torch.complex128)
    residual[:18, :21] = image - x
    approximation, details = dwt2(residual / (0.01 * image.abs().max()), "db2", 2)
    assert approximation.abs().max() < 1e-4
    assert max(b.abs().max().item() for b in details) < 1 + 1e-4


def test_shifts_are_seeded() -> None:
    image = random_image(32, 32)
    physics = CartesianMRI(cartesian_mask(32, 0.4))
    y = physics.A(image)
    first, again, other = (Wavelet(iterations=5, weight=0.01, seed=s)(y, physics) for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


def test_shifts_remove_the_preference_for_a_grid() -> None:
    """A step off the dyadic grid costs a fixed Haar transform more than a shifted one."""
    image = torch.zeros(64, 64, dtype=torch.complex128)
    image[13:39, 11:45] = 1
    physics = CartesianMRI(cartesian_mask(64, 0.2))
    y = physics.A(image)
    shifted, fixed = (
        (Wavelet(weight=0.002, wavelet="haar", random_shifts=on)(y, physics) - image).norm() for on in (True, False)
    )
    assert shifted < 0.7 * fixed


def test_progress_counts_iterations() -> None:
    done: list[int] = []
    physics = CartesianMRI(cartesian_mask(32, 0.4))
    Wavelet(iterations=4, progress=done.append)(physics.A(random_image(32, 32)), physics)
    assert done == [1, 2, 3, 4]


def test_unknown_wavelet() -> None:
    with pytest.raises(UldaError, match="haar, db2, db4"):
        Wavelet(wavelet="sym8")  # type: ignore[arg-type]


def test_without_levels() -> None:
    with pytest.raises(UldaError, match="at least 1 level"):
        Wavelet(levels=0)
