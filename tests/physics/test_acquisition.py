from __future__ import annotations

import math

import pytest
import torch

from ulda.data import demo
from ulda.errors import UldaError
from ulda.physics import ACQUISITIONS, Acquisition, MultiCoilMRI, acquisition_named, fft2c, ifft2c
from ulda.physics.acquisition import (
    loop_maps,
    make_mask,
    noise_std,
    normalised,
    random_field,
    random_phase,
    with_given_masks,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def knee() -> torch.Tensor:
    return torch.stack(list(demo("knee").take([8, 12]).images())).abs() + 0j


@pytest.mark.parametrize("snr", [10.0, 25.0, 40.0])
@pytest.mark.parametrize("coils", [1, 8])
def test_the_noise_has_the_ratio_that_was_asked_for(snr: float, coils: int) -> None:
    """Of the k-space of a full scan: power of the signal over power of the noise, in dB."""
    mask = make_mask("gaussian", 128, 1.0, 0.05, 0)
    for seed in range(4):
        clean = Acquisition(coils=coils).measure(knee(), seeded(seed), mask)[0]
        y = Acquisition(snr_db=(snr, snr), coils=coils).measure(knee(), seeded(seed), mask)[0]
        noise = y - clean
        # per coil, but the power of the signal is that of all coils together
        per_sample = noise.abs().square().flatten(1).mean(1)
        signal = clean.abs().square().mean((-2, -1)).reshape(2, -1).sum(1)
        assert torch.allclose(10 * (signal / per_sample).log10(), torch.full((2,), snr), atol=0.15)
        assert float(noise.mean().abs()) < 0.05 * float(noise.abs().mean())


def test_the_noise_is_kept_as_in_a_full_scan_or_known() -> None:
    acquisition, mask = Acquisition(snr_db=(15, 15)), make_mask("gaussian", 128, 1.0, 0.05, 0)
    y, physics, reference = acquisition.measure(knee(), seeded(), mask, keep_noise=True)
    assert physics.noise is None
    assert torch.allclose(physics.A(reference), y, atol=1e-5)
    y, physics, reference = acquisition.measure(knee(), seeded(), mask)
    assert torch.equal(reference, knee())
    assert physics.noise is not None
    # the ends of the readout hold some signal, too
    asked = noise_std(knee(), [15.0, 15.0])
    assert torch.all(physics.noise > 0.95 * asked)
    assert torch.all(physics.noise < 1.1 * asked)


@pytest.mark.parametrize("n_coils", [4, 16])
def test_maps_have_a_sum_of_squares_of_one(n_coils: int) -> None:
    maps = normalised(loop_maps(n_coils, (40, 56), seeded(3))[None])
    assert torch.allclose(maps.abs().square().sum(1), torch.ones(1, 40, 56), atol=1e-5)
    # each coil sees its own side best, and its phase is not constant
    assert len({int(one.abs().argmax()) for one in maps[0]}) == n_coils
    assert all(float(one.angle().std()) > 0.05 for one in maps[0])


def test_a_loop_is_two_wires() -> None:
    """The field of a wire at p is 1 / (z - p); two opposite ones far from the image nearly cancel."""
    maps = loop_maps(4, (9, 9), seeded(1))
    assert float(maps[:, 4, 4].abs().min()) > 0
    z = torch.complex(torch.linspace(-1, 1, 9).expand(9, 9), torch.linspace(-1, 1, 9)[:, None].expand(9, 9))
    # 1 / (z - p) - 1 / (z - q) = (p - q) / ((z - p) (z - q)): its inverse is a quadratic polynomial of z
    rows = torch.stack([z.flatten() ** k for k in range(3)], 1)
    for one in maps:
        fitted = torch.linalg.lstsq(rows, (1 / one).flatten()[:, None]).solution
        assert torch.allclose((rows @ fitted).flatten(), (1 / one).flatten(), rtol=1e-3)


def test_coils_shade_the_reference() -> None:
    acquisition, mask = Acquisition(coils=8), make_mask("gaussian", 128, 0.3, 0.05, 0)
    found = [acquisition.measure(knee(), seeded(seed), mask) for seed in range(6)]
    several = [(physics, x) for _, physics, x in found if isinstance(physics, MultiCoilMRI)]
    assert 0 < len(several) < 6
    for physics, x in several:
        assert 4 <= physics.maps.shape[1] <= 8
        assert torch.allclose(x.abs().amax((-2, -1)), torch.ones(2), atol=0.01)
        assert physics.norm() == pytest.approx(1, abs=1e-5)


def test_phase_statistics() -> None:
    """The global phase is uniform; the field has the correlation that it was asked for; magnitudes stay."""
    image = torch.zeros(1, 32, 32)
    image[:, 8:24, 8:24] = 1
    turned = torch.stack(
        [
            Acquisition(phase=True).measure(image + 0j, seeded(s), make_mask("gaussian", 32, 1, 0.05, 0))[2][0]
            for s in range(200)
        ]
    )
    assert torch.allclose(turned.abs(), image.expand(200, -1, -1), atol=1e-5)
    middle = turned[:, 16, 16]
    assert float(middle.mean().abs()) < 0.2
    field = random_field((256, 256), 8.0, seeded())
    assert float(field.mean().abs()) < 1e-5
    assert float(field.std()) == pytest.approx(1, abs=1e-4)
    # the filter exp(-pi^2 L^2 k^2 / 2) has the power exp(-pi^2 L^2 k^2), whose transform is exp(-d^2 / L^2)
    assert float((field * field.roll(8, 0)).mean()) == pytest.approx(math.exp(-1), abs=0.1)
    phases = torch.stack([random_phase((24, 24), seeded(s)) for s in range(100)])
    spans = phases.flatten(1).amax(1) - phases.flatten(1).amin(1)
    assert float(spans.min()) < 1.5
    assert float(spans.max()) > 4


def test_background_has_random_phase_and_complex_images_keep_theirs() -> None:
    image = torch.full((1, 64, 64), 0.01)
    image[:, 16:48, 16:48] = 1
    mask = make_mask("gaussian", 64, 1, 0.05, 0)
    x = Acquisition(phase=True).measure(image + 0j, seeded(), mask)[2][0]
    outside = x[:8].angle()
    assert float(torch.polar(torch.ones_like(outside), outside).mean().abs()) < 0.15
    own = torch.polar(torch.ones(1, 64, 64), torch.linspace(0, 2, 64).expand(1, 64, 64))
    turned = Acquisition(phase=True).measure(own, seeded(), mask)[2]
    factor = turned / own
    assert torch.allclose(factor, factor[0, 0, 0].expand_as(factor), atol=1e-5)
    maps = torch.full((1, 64, 64), 0.3)
    found = [
        Acquisition(phase=True).measure(image + 0j, seeded(s), mask, phase_maps=maps)[2][0, 20:40, 20:40]
        for s in range(8)
    ]
    flat = [float(x.angle().std()) < 1e-4 for x in found]
    assert 0 < sum(flat) < 8


def test_ideal_is_the_image_itself() -> None:
    mask = make_mask("random", 128, 0.4, 0.08, 3)
    y, physics, x = ACQUISITIONS["ideal"].measure(knee(), seeded(), mask)
    assert torch.equal(x, knee())
    assert torch.equal(y, fft2c(knee()) * mask.lines[:, None])
    assert torch.allclose(ifft2c(y), physics.A_adjoint(y))


def test_masks_of_all_families_on_both_axes() -> None:
    kinds, axes, ratios = set(), set(), set()
    for seed in range(60):
        _, physics, _ = ACQUISITIONS["scanner"].measure(torch.ones(1, 64, 48) + 0j, seeded(seed))
        kinds.add(physics.mask.kind)
        axes.add(physics.axis)
        ratios.add(round(physics.mask.ratio, 1))
        assert physics.mask.n_lines == (64 if physics.axis == -2 else 48)
    assert kinds == {"cartesian", "random", "equispaced"}
    assert axes == {-2, -1}
    assert len(ratios) >= 4
    with pytest.raises(UldaError, match="no family of masks 'spiral'"):
        make_mask("spiral", 64, 0.3, 0.05, 0)


def test_the_seed_decides() -> None:
    scanner = ACQUISITIONS["scanner"]
    first, again, other = (scanner.measure(knee(), seeded(seed)) for seed in (5, 5, 6))
    assert torch.equal(first[0], again[0])
    assert first[0].shape != other[0].shape or not torch.equal(first[0], other[0])


def test_presets_by_name() -> None:
    assert acquisition_named("scanner").coils == 16
    assert with_given_masks(acquisition_named("scanner")).masks == ()
    assert acquisition_named("single-coil").as_dict()["snr_db"] == (10, 40)
    with pytest.raises(UldaError, match="no acquisition 'scaner'; choose one of: ideal, single-coil, scanner"):
        acquisition_named("scaner")
