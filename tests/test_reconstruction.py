from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch

import ulda
from ulda.data import demo
from ulda.errors import UldaError
from ulda.methods import ULDA
from ulda.models.bundled import bundled_names, model_folder
from ulda.physics import ACQUISITIONS, CartesianMRI, MultiCoilMRI, Physics, cartesian_mask, espirit_maps
from ulda.solvers import load_run

SMALL: dict[str, Any] = {"width": 3, "depth": 2, "phases": 3}


@pytest.fixture(scope="module")
def model() -> ULDA:
    network = ULDA(sources=["brain"], **SMALL)
    network.domain = "brain"
    return network


def knee(n: int, height: int = 64, width: int = 64) -> torch.Tensor:
    return torch.stack(list(demo("knee").take(range(6, 6 + n)).images()))[:, :height, :width]


def test_the_package_is_imported_without_pytorch() -> None:
    code = "import ulda, sys; print('torch' in sys.modules, 'load' in dir(ulda), ulda.load.__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "ulda.reconstruction"]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ulda.nothing


def test_a_base_without_an_adapter_uses_the_mean_of_its_sources(tmp_path: Path) -> None:
    written = ULDA(sources=["brain", "prostate"], seed=4, **SMALL)
    written.save(tmp_path / "base")
    model = ulda.load(tmp_path / "base")
    assert model.domain == "unadapted"
    assert model.sources == ("brain", "prostate")
    first, second = (written.prior.adapters[name].get_parameter("layer.real") for name in written.sources)
    mean = model.prior.adapters["unadapted"].get_parameter("layer.real")
    torch.testing.assert_close(mean, (first + second) / 2)


def test_an_adapter_is_the_active_domain(tmp_path: Path) -> None:
    written = ULDA(sources=["brain"], seed=4, **SMALL)
    written.save(tmp_path / "base")
    written.add_domain("knee")
    with torch.no_grad():
        written.prior.adapters["knee"].get_parameter("layer.real").mul_(3)
    written.save_adapter("knee", tmp_path / "knee")
    model = ulda.load(str(tmp_path / "base"), tmp_path / "knee")
    assert model.domain == "knee"
    physics = CartesianMRI(cartesian_mask(64, 0.3))
    y = physics.A(knee(1))
    expected = written(y, physics, domain="knee")
    torch.testing.assert_close(ulda.reconstruct(model, y, physics).image, expected.detach())
    assert not torch.allclose(ulda.reconstruct(model, y, physics, domain="brain").image, expected, rtol=1e-3)
    ULDA(sources=["brain"], seed=5, **SMALL).save(tmp_path / "other")
    with pytest.raises(UldaError, match="load it on the base it was trained on"):
        ulda.load(tmp_path / "other", tmp_path / "knee")
    with pytest.raises(UldaError, match="holds an adapter, but a base was asked for"):
        ulda.load(tmp_path / "knee")
    with pytest.raises(UldaError, match=r"holds no base: it has no model\.json"):
        ulda.load(tmp_path)


def test_an_unknown_name_lists_the_bundled_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UldaError, match="no bundled base 'bse' and no such folder") as raised:
        ulda.load("bse")
    assert str(raised.value).endswith(", ".join(bundled_names()) or "none")
    monkeypatch.setattr("ulda.models.bundled.FOLDER", tmp_path)
    ULDA(sources=["brain"], **SMALL).save(tmp_path / "tiny")
    assert bundled_names() == ["tiny"]
    assert model_folder("tiny") == tmp_path / "tiny"
    with pytest.raises(UldaError, match="bundled are: tiny"):
        ulda.load("bse")
    assert ulda.load("tiny").sources == ("brain",)


def test_the_certificate_is_verified_and_the_image_is_the_networks(model: ULDA) -> None:
    physics = CartesianMRI(cartesian_mask(64, 0.25, seed=1))
    y = physics.A(knee(2)) * 7
    result = ulda.reconstruct(model, y, physics)
    torch.testing.assert_close(result.image, model(y, physics).detach())
    assert not result.image.requires_grad
    assert result.verify().ok
    assert result.trace.options.safeguard
    assert [len(sample["iterations"]) for sample in result.certificate["samples"]] == [3, 3]
    peak = physics.A_adjoint(y).abs().amax((-2, -1))
    torch.testing.assert_close(result.scale, peak)
    longer = ulda.reconstruct(model, y, physics, iterations=5)
    assert len(longer.certificate["samples"][0]["iterations"]) == 5


def test_a_domain_with_a_low_rank_update_is_certified_with_the_kernels_it_has(tmp_path: Path) -> None:
    model = ULDA(sources=["brain"], **SMALL)
    model.add_domain("knee")
    plain = model.regularizer("knee").materialize()
    model.add_domain("knee", rank=2)
    with torch.no_grad():
        for parameter in model.prior.updates["knee"].parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    physics = CartesianMRI(cartesian_mask(64, 0.3))
    result = ulda.reconstruct(model, physics.A(knee(2)), physics, domain="knee")
    assert result.verify().ok
    used = dict(result.regularizer.named_parameters())
    assert used.keys() == dict(plain.named_parameters()).keys()
    derived = model.regularizer("knee")
    for kept, layer in zip(result.regularizer.extractor.layers, derived.extractor.layers, strict=True):
        assert torch.equal(kept.kernel(), layer.kernel())  # type: ignore[operator]
    assert not torch.equal(used["extractor.layers.0.real"], plain.get_parameter("extractor.layers.0.real"))
    result.save(tmp_path / "run.h5")
    assert load_run(tmp_path / "run.h5").verify().ok


def test_batch_and_single_agree(model: ULDA) -> None:
    physics = CartesianMRI(cartesian_mask(64, 0.25, seed=1))
    y = physics.A(knee(3)) * torch.tensor([1.0, 0.01, 300.0])[:, None, None]
    together = ulda.reconstruct(model, y, physics)
    assert together.image.shape == (3, 64, 64)
    for i in range(3):
        alone = ulda.reconstruct(model, y[i], physics)
        assert alone.image.shape == (64, 64)
        torch.testing.assert_close(alone.image, together.image[i], rtol=1e-4, atol=1e-5 * float(together.scale[i]))


def test_the_scale_of_the_measurement_is_that_of_the_image(model: ULDA) -> None:
    physics = CartesianMRI(cartesian_mask(64, 0.25, seed=1))
    y = physics.A(knee(1))
    once, often = ulda.reconstruct(model, y, physics), ulda.reconstruct(model, 1000 * y, physics)
    torch.testing.assert_close(often.image, 1000 * once.image, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(("height", "width", "axis"), [(64, 64, -1), (57, 43, -2), (33, 96, -1), (128, 128, -2)])
def test_any_size_is_reconstructed(model: ULDA, height: int, width: int, axis: int) -> None:
    physics = CartesianMRI(cartesian_mask(height if axis == -2 else width, 0.4, seed=1), axis)
    truth = knee(1, height, width)
    result = ulda.reconstruct(model, physics.A(truth), physics)
    assert result.image.shape == truth.shape
    assert result.verify().ok
    assert all(step.phi <= step.phi_before for step in result.trace.steps(0))


def test_several_coils(model: ULDA, tmp_path: Path) -> None:
    kspace = demo("brain-multicoil").kspace(0)[:, 64:160, 64:160]
    mask = cartesian_mask(96, 0.4, center=0.15)
    y = kspace * mask.lines[:, None]
    physics = MultiCoilMRI(mask, espirit_maps(y, mask))
    result = ulda.reconstruct(model, y, physics)
    assert result.image.shape == (96, 96)
    assert result.verify().ok
    full = MultiCoilMRI(cartesian_mask(96, 1.0), physics.maps).A_adjoint(kspace)
    error, before = ((image - full).norm() for image in (result.image, physics.A_adjoint(y)))
    assert error < before
    batch = ulda.reconstruct(model, torch.stack([y, 2 * y]), physics)
    assert batch.image.shape == (2, 96, 96)
    result.save(tmp_path / "run.h5")
    assert load_run(tmp_path / "run.h5").verify().ok


def test_a_saved_result_holds_the_image_in_the_units_of_the_measurement(model: ULDA, tmp_path: Path) -> None:
    physics = CartesianMRI(cartesian_mask(64, 0.25, seed=1))
    result = ulda.reconstruct(model, 12345 * physics.A(knee(2)), physics)
    result.save(tmp_path / "run.h5")
    with h5py.File(tmp_path / "run.h5") as file:
        stored = torch.from_numpy(file["image"][()])
        again = torch.from_numpy(file["runs/0/x"][()] * file["scale"][()][:, None, None])
    torch.testing.assert_close(stored, result.image, rtol=0, atol=0)
    torch.testing.assert_close(again, result.image)
    with pytest.raises(UldaError, match="--force"):
        result.save(tmp_path / "run.h5")
    result.save(tmp_path / "run.h5", overwrite=True)


def test_a_result_stays_what_it_was_when_the_model_learns_on(tmp_path: Path) -> None:
    network = ULDA(sources=["brain"], **SMALL)
    physics = CartesianMRI(cartesian_mask(64, 0.25, seed=1))
    result = ulda.reconstruct(network, physics.A(knee(1)), physics, domain="brain")
    with torch.no_grad():
        network.prior.adapters["brain"].get_parameter("layer.real").mul_(2)
    result.save(tmp_path / "run.h5")
    assert load_run(tmp_path / "run.h5").verify().ok


def test_an_empty_slice_stays_empty(model: ULDA) -> None:
    physics = CartesianMRI(cartesian_mask(64, 0.25))
    y = physics.A(torch.cat([knee(1), torch.zeros(1, 64, 64)]))
    result = ulda.reconstruct(model, y, physics)
    assert result.image[0].abs().max() > 0.1
    assert result.image[1].abs().max() == 0
    assert result.verify().ok


def test_double_precision_measurements_are_converted(model: ULDA) -> None:
    physics = CartesianMRI(cartesian_mask(64, 0.25))
    y = physics.A(knee(1))
    result = ulda.reconstruct(model, y.to(torch.complex128), physics)
    torch.testing.assert_close(result.image, ulda.reconstruct(model, y, physics).image)
    maps = torch.ones(2, 64, 64, dtype=torch.complex128) / math.sqrt(2)
    with pytest.raises(UldaError, match="bring both to one precision"):
        ulda.reconstruct(model, torch.stack([y[0], y[0]]), MultiCoilMRI(physics.mask, maps))


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (torch.zeros(64, dtype=torch.complex64), r"must be \(H, W\), or a batch"),
        (torch.zeros(1, 1, 64, 64, dtype=torch.complex64), r"must be \(H, W\), or a batch"),
        (torch.zeros(64, 64), "must be complex k-space"),
        (torch.full((64, 64), complex("nan")), "NaN"),
        (torch.zeros(0, 64, 64, dtype=torch.complex64), "empty"),
        (torch.zeros(32, 64, dtype=torch.complex64), "the mask has 64 lines"),
    ],
)
def test_wrong_measurements_are_one_clear_sentence(model: ULDA, y: torch.Tensor, message: str) -> None:
    with pytest.raises(UldaError, match=message):
        ulda.reconstruct(model, y, CartesianMRI(cartesian_mask(64, 0.25)))


SCANNER: dict[str, Any] = SMALL | {"phase_lines": 16, "noise_aware": True}


@pytest.mark.parametrize("lines", [1, 16])
@pytest.mark.parametrize("n_coils", [1, 3])
def test_a_global_phase_changes_nothing(lines: int, n_coils: int) -> None:
    network = ULDA(sources=["brain"], **SMALL, phase_lines=lines)
    network.domain, mask = "brain", cartesian_mask(64, 0.3, seed=1)
    x = knee(2) * torch.polar(torch.ones(64, 64), 3 * torch.rand(64, 64, generator=torch.Generator().manual_seed(1)))
    physics: Physics = CartesianMRI(mask)
    if n_coils > 1:
        maps = torch.randn(n_coils, 64, 64, dtype=torch.complex64, generator=torch.Generator().manual_seed(2))
        physics = MultiCoilMRI(mask, maps / maps.abs().square().sum(0).sqrt())
    y = physics.A(x)
    plain = ulda.reconstruct(network, y, physics).image
    for angle in (0.3, 1.5, 3.1):
        turn = torch.polar(torch.ones(()), torch.tensor(angle))
        turned = ulda.reconstruct(network, y * turn, physics).image
        assert float((turned - turn * plain).norm() / plain.norm()) < 1e-4
        assert torch.allclose(network(y * turn, physics), turned, atol=1e-5)


def test_a_run_keeps_its_phase_and_noise_and_replays(tmp_path: Path) -> None:
    network = ULDA(sources=["brain"], **SCANNER)
    network.domain = "brain"
    generator = torch.Generator().manual_seed(3)
    y, physics, _ = ACQUISITIONS["scanner"].measure(knee(2).abs() + 0j, generator, cartesian_mask(64, 0.4, seed=1))
    result = ulda.reconstruct(network, y, physics)
    result.save(tmp_path / "run.h5")
    run = load_run(tmp_path / "run.h5")
    assert run.verify().ok, run.verify().problems
    assert run.physics.phase is not None
    assert run.physics.noise is not None
    assert physics.noise is not None
    assert torch.allclose(run.physics.noise * result.scale, physics.noise)
    image = result.solution * run.physics.phase * result.scale[:, None, None]
    assert torch.allclose(result.image, image, rtol=1e-5)
    with h5py.File(tmp_path / "run.h5", "r+") as file:
        file["runs/0/noise"][0] *= 2
    assert any("operator" in problem for problem in load_run(tmp_path / "run.h5").verify().problems)
    with h5py.File(tmp_path / "run.h5", "r+") as file:
        file["runs/0/noise"][0] /= 2
        file["runs/0/phase"][0, 3, 4] *= -1
    assert not load_run(tmp_path / "run.h5").verify().ok
    with h5py.File(tmp_path / "run.h5", "r+") as file:
        file["runs/0/phase"][0, 3, 4] *= 2
    with pytest.raises(UldaError, match="its phase does not have absolute value 1"):
        load_run(tmp_path / "run.h5")


def test_noise_that_is_to_be_removed_makes_the_regulariser_stronger() -> None:
    network = ULDA(sources=["brain"], **SCANNER)
    network.domain = "brain"
    physics = CartesianMRI(cartesian_mask(64, 0.4, seed=1))
    noise = torch.randn(1, 64, 64, generator=torch.Generator().manual_seed(1), dtype=torch.complex64)
    y = physics.A(knee(1) + 0.05 * 2**0.5 * noise)
    kept = ulda.reconstruct(network, y, physics)
    removed = ulda.reconstruct(network, y, physics.with_knowledge(noise=torch.tensor([0.05])))
    strength = network.regularizer("brain").strength(torch.tensor([0.05]) / kept.scale)
    assert strength is not None
    assert strength.item() == pytest.approx(math.hypot(1, 0.05 / float(kept.scale) / 0.02), rel=1e-4)
    roughness = [float((r.image[..., 1:, :] - r.image[..., :-1, :]).abs().sum()) for r in (kept, removed)]
    assert roughness[1] < 0.98 * roughness[0]
