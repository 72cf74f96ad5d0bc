from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from skimage.color import rgb2lab

from tests.evaluation.report_examples import HEIGHT, WIDTH, embedded, example, grey
from ulda.data import demo
from ulda.errors import UldaError
from ulda.evaluation.report import (
    Report,
    Slice,
    render,
    write_report,
)
from ulda.evaluation.report.colours import error_colours
from ulda.evaluation.report.images import (
    BUDGET,
    MOST_WHITE,
    decode,
    encode,
    encode_report,
    error_scale,
    kspace_picture,
    spectrum_picture,
    to_grey,
)
from ulda.physics import CartesianMRI, cartesian_mask


def test_images_are_stored_without_loss() -> None:
    report = example()
    page = embedded(render([report]))["sources"][0]
    assert page["size"] == [HEIGHT, WIDTH]
    assert page["planes"] == [None, 0, 1, 2]
    for i in range(5):
        planes = decode(page["pictures"][i], 5, packed=page["channels"] is not None)
        for seed in range(4):
            assert np.array_equal(planes[seed], grey(seed)[i])
        assert np.array_equal(planes[4], kspace_picture(report.all_images()[""][i]))


def test_rounding_to_grey_levels() -> None:
    values = np.array([[[-1.0, 0.0, 0.1, 0.998, 1.0, 7.0, np.nan, np.inf]]], np.float32)
    assert to_grey(values).ravel().tolist() == [0, 0, 26, 254, 255, 255, 0, 255]


def test_errors_above_the_peak_of_the_reference_are_kept() -> None:
    reference = np.full((2, 16, 16), 0.5, np.float32)
    reference[:, 3, 3] = 1.0
    brighter = reference.copy()
    brighter[1, 3, 3] = 1.2
    broken = reference.copy()
    broken[0, 5, 5] = np.inf
    report = Report("", "", (Slice("a", "0"), Slice("a", "1")), {"ours": brighter, "theirs": reference}, reference)
    found = encode_report(report)
    assert found.whites == (1.0, 1.2)
    planes = decode(found.slices[1], found.n_planes, packed=found.packed).astype(float) * found.whites[1] / 255
    assert planes[1, 3, 3] - planes[0, 3, 3] == pytest.approx(0.2, abs=0.005)
    assert "brightest image of a slice" in found.precision
    assert encode_report(replace(report, images={"ours": broken, "theirs": reference})).whites == (MOST_WHITE, 1.0)


def test_what_does_not_fit_is_compressed_with_a_stated_loss() -> None:
    ramp = np.add.outer(np.arange(64), np.arange(64)).astype(np.uint8)
    noise = np.random.default_rng(0).integers(0, 20, (6, 4, 64, 64)).astype(np.uint8)
    planes = [ramp + one for one in noise]
    exact = encode(6, planes.__getitem__)
    assert (exact.mime, exact.packed) == ("image/webp", True)
    size = sum(map(len, exact.slices))
    lossy = encode(6, planes.__getitem__, budget=size // 2)
    assert lossy.mime == "image/jpeg"
    assert sum(map(len, lossy.slices)) <= size // 2
    stated = re.search(r"99 % of the pixels are at most (\d+) wrong", lossy.precision)
    assert stated is not None
    wrong = [np.abs(decode(p, 4, packed=False).astype(int) - planes[i])[:-1] for i, p in enumerate(lossy.slices)]
    assert 0 < np.percentile(wrong, 99) <= int(stated.group(1)) < 20
    with pytest.raises(UldaError, match="do not fit into a page"):
        encode(6, planes.__getitem__, budget=1000)


def test_200_slices_of_8_methods_stay_below_30_megabytes(tmp_path: Path) -> None:
    images = torch.stack(list(demo("knee").images())).abs()
    images = images / images.amax((-2, -1), keepdim=True)
    physics = CartesianMRI(cartesian_mask(128, 0.2, seed=0))
    artefacts = physics.A_adjoint(physics.A(images.to(torch.complex64))).abs() - images
    rng = np.random.default_rng(0)
    which = np.arange(200) % len(images)
    reference, errors = images.numpy()[which], artefacts.numpy()[which]
    noise = 0.01 * rng.standard_normal(errors.shape, dtype=np.float32)
    methods = {
        f"method {i}": reference + weight * errors + np.roll(noise, i, axis=0)
        for i, weight in enumerate(np.linspace(0.1, 1, 8, dtype=np.float32))
    }
    slices = tuple(Slice(f"subject {i // 20}", f"slice {i}") for i in range(200))
    scores = {name: {"psnr": rng.normal(30, 1, 200)} for name in methods}
    steps = example().traces["adapted"][0] * 3
    report = Report("large", "", slices, methods, reference, scores=scores, traces={"method 0": (steps,) * 200})
    n_bytes = write_report([report], tmp_path / "report.html")
    assert n_bytes == (tmp_path / "report.html").stat().st_size < 30_000_000
    page = embedded((tmp_path / "report.html").read_text())["sources"][0]
    assert page["mime"] == "image/webp"
    assert np.array_equal(
        decode(page["pictures"][199], 10, packed=True)[8], to_grey(methods["method 7"][199] / page["whites"][199])
    )


def test_slices_of_256_pixels_stay_below_28_megabytes() -> None:
    """A tenth of 200 slices in a tenth of the budget: 8 methods, a reference and k-space, with noise and artefacts."""
    small = torch.stack(list(demo("knee").take(range(20)).images())).abs()
    images = torch.nn.functional.interpolate(small[:, None], size=(256, 256), mode="bicubic")[:, 0].clamp(min=0)
    images = images / images.amax((-2, -1), keepdim=True)
    physics = CartesianMRI(cartesian_mask(256, 0.2, seed=0))
    artefacts = (physics.A_adjoint(physics.A(images.to(torch.complex64))).abs() - images).numpy()
    noise = 0.01 * np.random.default_rng(0).standard_normal((9, *images.shape), dtype=np.float32)
    reference = images.numpy() + noise[8]
    methods = {f"method {i}": reference + (i + 1) / 8 * artefacts + noise[i] for i in range(8)}
    slices = tuple(Slice("", f"slice {i}") for i in range(20))
    report = Report("large", "", slices, methods, reference)
    found = encode_report(report, BUDGET // 10)
    assert sum(map(len, found.slices)) <= BUDGET // 10
    stated = re.search(r"99 % of the pixels are at most (\d+) wrong", found.precision)
    assert stated is not None
    # the error maps stay readable: what is lost is a small part of their scale
    assert int(stated.group(1)) <= 255 * error_scale(report) / 4
    planes = decode(found.slices[7], found.n_planes, packed=False)
    wrong = np.abs(planes[4].astype(int) - to_grey(methods["method 3"][7] / found.whites[7]))
    assert np.percentile(wrong, 99) <= int(stated.group(1))


def test_the_budget_holds_where_the_sample_foretells_too_little() -> None:
    """Of 200 slices 24 are tried; here these alone are black, and the others noise."""
    tried = {round(i) for i in np.linspace(0, 199, 24)}
    noise = np.random.default_rng(0).integers(0, 256, (3, 32, 32)).astype(np.uint8)
    dark = np.zeros_like(noise)
    exact = encode(200, lambda i: dark if i in tried else noise)
    size = sum(map(len, exact.slices))
    smaller = encode(200, lambda i: dark if i in tried else noise, budget=size // 2)
    assert sum(map(len, smaller.slices)) <= size // 2


def test_kspace_of_a_wave() -> None:
    rows = np.arange(32)[:, None]
    wave = (0.5 + 0.5 * np.cos(2 * np.pi * 5 * rows / 32) * np.ones((1, 16))).astype(np.float32)
    picture = kspace_picture(wave)
    assert picture[16, 8] == 255
    # half the amplitude of the mean, -6 dB of 80, in one of 64 levels
    assert picture[11, 8] == picture[21, 8] == round(round(63 * (1 - 6.02 / 80)) * 255 / 63)
    picture[[11, 16, 21], 8] = 0
    assert picture.max() == 0


def test_kspace_that_is_known_is_shown() -> None:
    kspace = np.zeros((5, HEIGHT, WIDTH), np.float32)
    kspace[:, HEIGHT // 2, WIDTH // 2], kspace[:, 3, 4] = 50.0, 5.0
    page = embedded(render([replace(example(), kspace=kspace)]))["sources"][0]
    assert page["hasKspace"]
    plane = decode(page["pictures"][2], 5, packed=True)[4]
    # a tenth of the largest is 20 of 80 decibels below it
    assert plane[HEIGHT // 2, WIDTH // 2] == 255
    assert plane[3, 4] == round(round(63 * 0.75) * 255 / 63)
    assert np.count_nonzero(plane) == 2
    assert np.array_equal(plane, spectrum_picture(kspace[0]))


@pytest.mark.parametrize(("error", "scale"), [(0.07, 0.1), (0.1, 0.1), (0.15, 0.2), (0.3, 0.5), (0.9, 1.0), (0.0, 1.0)])
def test_the_scale_of_errors_is_round(error: float, scale: float) -> None:
    report = Report(
        "t", "", (Slice("", "0"),), {"m": np.full((1, 8, 8), error, np.float32)}, np.zeros((1, 8, 8), np.float32)
    )
    assert error_scale(report) == pytest.approx(scale)


def test_the_colours_of_errors() -> None:
    lab = rgb2lab(error_colours()[None] / 255)[0]
    assert (np.diff(lab[::8, 0]) > 1).all()
    travelled = np.linalg.norm(np.diff(lab[::5], axis=0), axis=1)
    lengths = travelled[:48].reshape(6, 8).sum(1)
    assert lengths.max() / lengths.min() < 1.1
    # no red against green: between colours of one lightness only blue and yellow differ
    assert np.abs(lab[:, 1]).max() < 12
    assert np.ptp(lab[:, 2]) > 80
