from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from ulda.data import Domain, DomainWriter, Header, Record, demo
from ulda.errors import UldaError
from ulda.evaluation import compare, save_panel
from ulda.methods import ZeroFilled
from ulda.physics import (
    CartesianMRI,
    MultiCoilMRI,
    Physics,
    cartesian_mask,
    center_crop_or_pad,
    espirit_maps,
    ifft2c,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@pytest.fixture
def knee() -> Domain:
    return demo("knee").take([3, 12, 20])


def test_scores_are_those_of_the_reconstructions(knee: Domain) -> None:
    mask = cartesian_mask(128, 0.3, seed=1)
    seen: list[tuple[int, int]] = []
    result = compare(
        {"zf": ZeroFilled()}, knee, mask, acquisition="ideal", batch_size=2, progress=lambda *at: seen.append(at)
    )
    physics = CartesianMRI(mask)
    for i in range(3):
        x = knee.image(i)
        error = physics.A_adjoint(physics.A(x)).abs() - x.abs()
        assert float(result.scores["zf"].psnr[i]) == pytest.approx(-10 * float(error.square().mean().log10()), abs=1e-3)
    assert result.summary()[0]["psnr"] == pytest.approx(float(result.scores["zf"].psnr.mean()))
    assert result.as_dict()["mask"]["hash"] == mask.hash
    assert seen == [(2, 3), (3, 3)]


def test_noise_lowers_the_score(knee: Domain) -> None:
    mask = cartesian_mask(128, 0.3, seed=1)
    clean = compare({"zf": ZeroFilled()}, knee, mask, acquisition="ideal")
    noisy = compare({"zf": ZeroFilled()}, knee, mask, acquisition="single-coil", seed=1)
    assert (noisy.scores["zf"].psnr < clean.scores["zf"].psnr).all()


def test_panel_shows_images_and_errors(knee: Domain, tmp_path: Path) -> None:
    result = compare({"zf": ZeroFilled()}, knee, cartesian_mask(128, 0.3, seed=1), acquisition="ideal")
    save_panel(result, 1, tmp_path / "panel.png", tile=128)
    with Image.open(tmp_path / "panel.png") as picture:
        pixels = np.asarray(picture)
    tile = pixels[8 + 34 : 8 + 34 + 128, 8 : 8 + 128]
    expected = torch.round(255 * result.reference[1]).numpy()
    assert np.abs(tile - expected).max() <= 1


def test_panel_shows_the_lines_along_their_axis(tmp_path: Path) -> None:
    kspace = torch.randn(1, 12, 16, dtype=torch.complex64, generator=torch.Generator().manual_seed(0)).numpy()
    path = tmp_path / "d.h5"
    with DomainWriter(path, Header("d", "kspace", "measured", phase_axis=-1)) as writer:
        writer.append(Record(kspace[0], "a"))
    mask = cartesian_mask(16, 0.5, seed=1)
    save_panel(compare({"zf": ZeroFilled()}, Domain.open(path), mask), 0, tmp_path / "panel.png", tile=12)
    with Image.open(tmp_path / "panel.png") as picture:
        pixels = np.asarray(picture)
    top = 2 * (8 + 34) + 12
    assert np.array_equal(pixels[top : top + 12, 8 : 8 + 16], np.tile(255 * np.array(mask.sampled), (12, 1)))


def test_unsuitable_domains_are_clear_errors(knee: Domain) -> None:
    with pytest.raises(UldaError, match="no slices"):
        compare({"zf": ZeroFilled()}, knee.take([]), cartesian_mask(128, 0.3))
    with pytest.raises(UldaError, match="only 2 lines around the centre"):
        compare({"zf": ZeroFilled()}, demo("brain-multicoil"), cartesian_mask(224, 0.01, center=0.01))


def test_measured_kspace_of_several_coils(tmp_path: Path) -> None:
    """The measurement is the stored k-space, the maps come from its centre lines, the reference from all lines."""
    brain = demo("brain-multicoil")
    kspace = center_crop_or_pad(brain.kspace(0), (64, 48))
    path = tmp_path / "d.h5"
    with DomainWriter(path, Header("d", "kspace", "measured")) as writer:
        writer.append(Record(kspace.numpy(), "a"))
        writer.append(Record(2 * kspace.numpy(), "b"))
    domain, mask = Domain.open(path), cartesian_mask(64, 0.4, center=0.2, seed=1)
    seen: list[tuple[Tensor, Physics]] = []

    class Spy(ZeroFilled):
        def __call__(self, y: Tensor, physics: Physics) -> Tensor:
            seen.append((y, physics))
            return super().__call__(y, physics)

    result = compare({"zf": Spy()}, domain, mask)
    peak = domain.image(0).abs().max()
    torch.testing.assert_close(result.reference[0], domain.image(0).abs() / peak)
    ((y, physics),) = seen
    sampled = torch.tensor(mask.sampled)[:, None]
    torch.testing.assert_close(y[0], kspace * sampled / peak, atol=1e-5, rtol=0)
    torch.testing.assert_close(y[1], y[0])
    assert isinstance(physics, MultiCoilMRI)
    coil_images = ifft2c(kspace * sampled / peak)
    expected = (espirit_maps(kspace * sampled, mask, kernel_size=5).conj() * coil_images).sum(0).abs()
    torch.testing.assert_close(result.reconstructions["zf"][0], expected, atol=1e-4, rtol=0)


def test_what_is_observed_and_kept_is_what_is_compared(knee: Domain) -> None:
    """A comparison that keeps few images has the same scores, and those it gives away are all of them."""
    mask, seen = cartesian_mask(128, 0.3, seed=1), list[torch.Tensor]()
    whole = compare({"zf": ZeroFilled()}, knee, mask, batch_size=2)

    def observe(first: int, reference: torch.Tensor, images: Mapping[str, torch.Tensor]) -> None:
        assert first == sum(map(len, seen))
        torch.testing.assert_close(reference, whole.reference[first : first + len(reference)], atol=0, rtol=0)
        seen.append(images["zf"])

    few = compare({"zf": ZeroFilled()}, knee, mask, batch_size=2, keep=(2, 0), observe=observe)
    torch.testing.assert_close(torch.cat(seen), whole.reconstructions["zf"], atol=0, rtol=0)
    assert few.as_dict() == whole.as_dict()
    assert few.kept == (0, 2)
    for index in few.kept:
        row = few.row_of(index)
        torch.testing.assert_close(few.reconstructions["zf"][row], whole.reconstructions["zf"][index], atol=0, rtol=0)
        torch.testing.assert_close(few.reference[row], whole.reference[index], atol=0, rtol=0)
