from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ulda.data import demo
from ulda.errors import UldaError
from ulda.methods import ULDA, DnCn
from ulda.physics import CartesianMRI, cartesian_mask
from ulda.training.loop import fit
from ulda.training.losses import reconstruction_loss
from ulda.training.settings import Settings
from ulda.training.supervised import supervised_loss
from ulda.training.tasks import Batch, Task
from ulda.training.unrolled import unrolled_loss

SETTINGS = Settings(steps=6, batch_size=2, learning_rate=3e-3, validate_every=3, checkpoint_every=2)


def task() -> Task:
    images = torch.stack(list(demo("knee").take([4, 5, 6, 18]).images()))[:, 32:72, 32:72]
    images = images / images.abs().amax((-2, -1), keepdim=True)
    return Task("knee", images[:3], [cartesian_mask(40, ratio, seed=1) for ratio in (0.3, 0.4)], images[3:])


def network() -> DnCn:
    return DnCn(filters=8, layers=3, cascades=2)


def test_the_loop_trains_it() -> None:
    model = network()
    history = fit(model, [task()], SETTINGS.changed(steps=60, validate_every=20), supervised_loss)
    scores = [entry.validation["knee"]["psnr"] for entry in history if entry.validation]
    assert scores[-1] > scores[0] + 0.3


def test_a_stopped_training_continues_where_it_was(tmp_path: Path) -> None:
    whole, stopped, resumed = network(), network(), network()
    fit(whole, [task()], SETTINGS, supervised_loss)

    def stop(progress: object) -> None:
        if getattr(progress, "step", 0) == 4:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fit(stopped, [task()], SETTINGS, supervised_loss, folder=tmp_path, report=stop)
    fit(resumed, [task()], SETTINGS, supervised_loss, folder=tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_it_is_the_loss_of_the_unrolled_network_without_its_extras() -> None:
    """The same model, data and mask give the same loss through either function."""
    model, batch = ULDA(sources=["knee"], width=3, depth=2, phases=3), Batch(0, (0, 2), 1)
    ours, x = supervised_loss(model, task(), batch, SETTINGS, 0)
    theirs, _ = unrolled_loss(model, task(), batch, SETTINGS, 0)
    torch.testing.assert_close(ours, theirs)
    images = task().images[[0, 2]]
    torch.testing.assert_close(ours, reconstruction_loss(x, images, SETTINGS.ssim_weight).mean())
    physics = CartesianMRI(task().masks[1])
    torch.testing.assert_close(x, model(physics.A(images), physics, "knee").detach())


def test_there_is_no_lower_level_to_keep() -> None:
    with pytest.raises(UldaError, match="leave out equilibrium"):
        fit(network(), [task()], SETTINGS.changed(equilibrium={}), supervised_loss)
