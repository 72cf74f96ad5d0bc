from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from tests.methods.test_dncn import centred_fft, knee_task
from tests.methods.test_dncn import small as small_dncn
from tests.methods.test_methods import images
from ulda.errors import UldaError
from ulda.methods import DnCn
from ulda.methods.umri import ASPIN, UMRI, attention_map, distillation_loss, distilled_loss
from ulda.physics import CartesianMRI, cartesian_mask
from ulda.training.history import Progress
from ulda.training.settings import Settings
from ulda.training.supervised import supervised_loss
from ulda.training.tasks import Batch, Task

SIZES: dict[str, Any] = {"filters": 6, "layers": 3, "cascades": 2}
BATCH = Batch(0, (0, 1), 0)


def small(**changes: Any) -> UMRI:
    """Return a network whose parameters are not those of the start, so that it does something in every domain."""
    model = UMRI(**{**SIZES, "sources": ["brain", "knee"], **changes})
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def tasks(size: int = 32) -> list[Task]:
    return [replace(knee_task(2, size), domain="brain"), knee_task(2, size)]


def normalised(x: NDArray[Any], scale: NDArray[Any], shift: NDArray[Any]) -> NDArray[Any]:
    """Normalise ``(filters, H, W)`` channel by channel."""
    result = [
        weight * (channel - channel.mean()) / np.sqrt(channel.var() + 1e-5) + offset
        for channel, weight, offset in zip(x, scale, shift, strict=True)
    ]
    return np.stack(result)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_aspin_normalises_each_channel_of_each_slice(memory_format: torch.memory_format) -> None:
    generator = torch.Generator().manual_seed(1)
    aspin = ASPIN(3, 4)
    with torch.no_grad():
        for parameter in aspin.parameters():
            parameter.add_(torch.randn(3, 4, generator=generator))
    # one channel is so weak that eps has its say
    strength = torch.tensor([1.0, 50.0, 0.003, 0.1])[:, None, None]
    x = strength * (torch.randn(2, 4, 7, 5, generator=generator) + 1).contiguous(memory_format=memory_format)
    scale, shift = aspin.scale[1].detach().double().numpy(), aspin.shift[1].detach().double().numpy()
    expected = np.stack([normalised(one, scale, shift) for one in x.double().numpy()])
    np.testing.assert_allclose(aspin(x, 1).detach().numpy(), expected, atol=2e-5)


def test_the_network_against_numpy() -> None:
    model, physics = small(), CartesianMRI(cartesian_mask(16, 0.4, seed=3))
    y = physics.A(images(1, 16, 14)) * 7.0
    sampled = np.array(physics.mask.sampled)[:, None]
    weights = {name: p.detach().double().numpy() for name, p in model.named_parameters()}
    zero_filled = centred_fft(y[0].numpy(), inverse=True)
    peak = np.abs(zero_filled).max()
    x, measured = zero_filled / peak, y[0].numpy() / peak
    expected_features = []
    for cascade in range(2):
        channels = np.stack([x.real, x.imag])
        for layer in range(3):
            padded = np.pad(channels, ((0, 0), (1, 1), (1, 1)))
            shifts = np.stack([[padded[:, i : i + 16, j : j + 14] for j in range(3)] for i in range(3)])
            channels = np.einsum("ocij,ijchw->ohw", weights[f"cascades.{cascade}.{2 * layer}.weight"], shifts)
            if layer < 2:
                number = 2 * cascade + layer
                channels = normalised(
                    channels, weights["aspin.knee.scale"][number], weights["aspin.knee.shift"][number]
                )
                channels = np.where(channels > 0, channels, 0.01 * channels)
                expected_features.append(channels)
        channels = channels + weights[f"cascades.{cascade}.4.bias"][:, None, None]
        x = x + channels[0] + 1j * channels[1]
        x = centred_fft(np.where(sampled, measured, centred_fft(x)), inverse=True)
    features: list[Tensor] = []
    found = model(y, physics, "knee", features=features)
    np.testing.assert_allclose(found[0].detach().numpy(), x * peak, atol=2e-4)
    for own, expected in zip(features, expected_features, strict=True):
        np.testing.assert_allclose(own[0].detach().numpy(), expected, atol=2e-4)


def test_the_features_of_dncn_are_those_of_its_inner_layers() -> None:
    model, physics = small_dncn(), CartesianMRI(cartesian_mask(16, 0.4, seed=3))
    y, features = physics.A(images(1, 16, 14)), list[Tensor]()
    without = model(y, physics)
    assert torch.equal(model(y, physics, features=features), without)
    assert [tuple(feature.shape) for feature in features] == [(1, 6, 16, 14)] * 4
    zero_filled = physics.A_adjoint(y)
    scaled = torch.view_as_real(zero_filled / zero_filled.abs().max()).permute(0, 3, 1, 2)
    weight, bias = list(model.parameters())[:2]
    torch.testing.assert_close(features[0], F.leaky_relu(F.conv2d(scaled, weight, bias, padding=1), 0.01))


def numpy_map(features: NDArray[Any]) -> NDArray[Any]:
    summed = np.abs(features).sum(axis=1)
    return np.stack([one / np.sqrt((one**2).sum()) for one in summed])


def test_attention_maps_and_their_difference() -> None:
    generator = torch.Generator().manual_seed(2)
    own, other = ([torch.randn(2, 5, 6, 4, generator=generator) * 3 for _ in range(3)] for _ in range(2))
    np.testing.assert_allclose(attention_map(own[0]).numpy(), numpy_map(own[0].numpy()), rtol=1e-5)
    differences = [np.abs(numpy_map(a.numpy()) - numpy_map(b.numpy())) for a, b in zip(own, other, strict=True)]
    assert distillation_loss(own, other).item() == pytest.approx(sum(d.mean() for d in differences), rel=1e-5)
    assert distillation_loss(own, [7 * feature for feature in own]).item() == pytest.approx(0, abs=1e-6)
    assert attention_map(torch.zeros(1, 3, 4, 4)).abs().max() == 0


def test_the_second_half_adds_the_distillation_from_the_teacher_of_the_domain() -> None:
    model, task = small(distill_weight=0.5), tasks()[1]
    teachers = {name: small_dncn(seed) for seed, name in enumerate(model.sources)}
    settings = Settings(steps=10)
    plain, x = supervised_loss(model, task, BATCH, settings, 0)
    physics = CartesianMRI(task.masks[0])
    own, taught = list[Tensor](), list[Tensor]()
    with torch.no_grad():
        model(physics.A(task.images), physics, "knee", features=own)
        teachers["knee"](physics.A(task.images), physics, features=taught)
    maps = [(numpy_map(a.numpy()), numpy_map(b.numpy())) for a, b in zip(own, taught, strict=True)]
    distance = sum(np.abs(a - b).mean() for a, b in maps)
    assert distance > 0.01
    for step, expected in [(0, 0.0), (4, 0.0), (5, 0.5 * distance), (9, 0.5 * distance)]:
        found, images_found = distilled_loss(model, task, BATCH, settings, step, teachers=teachers)
        assert (found - plain).item() == pytest.approx(expected, rel=1e-4, abs=1e-9)
        assert torch.equal(images_found, x)


def test_the_teacher_sees_the_slices_that_the_network_sees() -> None:
    """Also where they are warped."""
    model, task = small(distill_weight=0.5), tasks()[1]
    teachers = {name: small_dncn(seed) for seed, name in enumerate(model.sources)}
    warped = replace(BATCH, warp=1.0, seed=3)
    turned = replace(task, images=task.images_of(warped))
    settings = Settings(steps=10)
    found, _ = distilled_loss(model, task, warped, settings, 9, teachers=teachers)
    expected, _ = distilled_loss(
        model, turned, replace(BATCH, index=tuple(range(len(BATCH.index)))), settings, 9, teachers=teachers
    )
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)


def test_the_distillation_reaches_the_network_and_not_the_teachers() -> None:
    model, teachers = small(), {"knee": small_dncn()}
    settings = Settings(steps=2)
    gradients = []
    for step in (0, 1):
        model.zero_grad()
        distilled_loss(model, tasks()[1], BATCH, settings, step, teachers=teachers)[0].backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert all(parameter.grad is None for parameter in teachers["knee"].parameters())
    changed = {name for name, value in gradients[0].items() if not torch.equal(value, gradients[1][name])}
    assert {"cascades.0.0.weight", "cascades.1.2.weight", "aspin.knee.scale", "aspin.knee.shift"} <= changed
    assert not any(name.startswith("aspin.brain") for name in gradients[1])


def trained(folder: Path | None = None, stop_after: int | None = None, **changes: Any) -> tuple[UMRI, dict[str, int]]:
    model = UMRI(**{**SIZES, "sources": ["brain", "knee"], **changes})

    def report(progress: Progress) -> None:
        if progress.step == stop_after:
            raise RuntimeError("the power went out")

    settings = Settings(steps=6, batch_size=2, checkpoint_every=1)
    training = model.fit(tasks(), settings, folder=folder, report=report)
    return model, training.spent.extra_steps


def test_the_teachers_are_independent_models_of_their_domain(tmp_path: Path) -> None:
    """Each is a DnCn that is trained by itself, for its part of the steps, and has no place in the network."""
    model, extra_steps = trained(tmp_path)
    assert extra_steps == {"teachers": 6}
    assert model.n_parameters == UMRI(**SIZES, sources=["brain", "knee"]).n_parameters
    model.save(tmp_path / "saved")
    assert UMRI.load(tmp_path / "saved").n_parameters == model.n_parameters
    alone = DnCn(**SIZES, sources=["brain"], seed=0)
    alone.fit(tasks()[:1], Settings(steps=3, batch_size=2), folder=tmp_path / "alone")
    checkpoints = [tmp_path / place / "checkpoint.safetensors" for place in ("alone", "teachers/brain")]
    first, second = (_parameters(path) for path in checkpoints)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def _parameters(path: Path) -> dict[str, Tensor]:
    return {name: value for name, value in load_file(path).items() if name.startswith("parameter/")}


@pytest.mark.parametrize("stop_after", [2, 5, 8, 11], ids=["teacher", "other teacher", "first half", "second half"])
def test_an_interrupted_training_is_continued_bit_by_bit(stop_after: int, tmp_path: Path) -> None:
    whole, _ = trained(distill_weight=1.0)
    with pytest.raises(RuntimeError, match="power"):
        trained(tmp_path, stop_after, distill_weight=1.0)
    continued, extra_steps = trained(tmp_path, distill_weight=1.0)
    assert extra_steps == {"teachers": 6}
    for name, parameter in whole.named_parameters():
        assert torch.equal(parameter, continued.get_parameter(name)), name


def test_distillation_changes_what_is_learned() -> None:
    with_teachers, without = trained(distill_weight=1.0)[0], trained(distill_weight=0.0)[0]
    name = "aspin.knee.scale"
    assert not torch.equal(with_teachers.get_parameter(name), without.get_parameter(name))


def test_the_time_and_the_report_count_the_teachers() -> None:
    model, seen = UMRI(**SIZES, sources=["brain", "knee"]), list[Progress]()
    training = model.fit(tasks(), Settings(steps=6, batch_size=2), report=seen.append)
    assert [(row.step, row.steps) for row in seen] == [(step, 12) for step in range(1, 13)]
    teachers, own = seen[2].seconds + seen[5].seconds, seen[-1].seconds
    assert training.spent.steps == 6
    assert training.spent.seconds == pytest.approx(teachers + own, abs=0.02)


def test_parameter_count() -> None:
    """The convolutions of DnCn without the 20 x 32 biases before a normalisation, and 4 x 5 scales and shifts."""
    assert [UMRI(sources="abc"[:n]).n_parameters for n in range(3)] == [144_010, 145_290, 146_570]
    assert UMRI(sources=["brain"]).n_trainable(adapt=True) == 2 * 32 * 4 * 5 == 1280


def test_a_new_domain_starts_from_the_mean_and_is_all_that_learns() -> None:
    model = small()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    expected = (before["aspin.brain.scale"] + before["aspin.knee.scale"]) / 2
    model.add_domain("hip")
    torch.testing.assert_close(model.get_parameter("aspin.hip.scale"), expected)
    model.adapt(replace(tasks()[1], domain="hip"), Settings(steps=2, batch_size=2))
    assert model.domains == ("brain", "knee", "hip")
    assert all(torch.equal(model.get_parameter(name), value) for name, value in before.items())
    assert not torch.allclose(model.get_parameter("aspin.hip.scale"), expected, atol=1e-5)


def test_the_domain_decides() -> None:
    model, physics = small(), CartesianMRI(cartesian_mask(32, 0.4))
    y = physics.A(images(1, 32, 32))
    knee = model(y, physics, "knee")
    assert (model(y, physics, "brain") - knee).norm() > 0.01 * knee.norm()
    with pytest.raises(UldaError, match="name a domain; this U-MRI has normalisations for: brain, knee"):
        model(y, physics)
    with pytest.raises(UldaError, match="no normalisations for the domain 'hip'; it has: brain, knee"):
        model(y, physics, "hip")
    model.domain = "knee"
    assert torch.equal(model(y, physics), knee)


def test_impossible_arguments() -> None:
    with pytest.raises(UldaError, match="U-MRI needs at least 1 filter, 2 layers and 1 cascade"):
        UMRI(layers=1)
    with pytest.raises(UldaError, match="weight of the distillation must be at least 0, but it is -1"):
        UMRI(distill_weight=-1.0)
    with pytest.raises(UldaError, match="a name without dots"):
        UMRI(sources=["a.b"])
