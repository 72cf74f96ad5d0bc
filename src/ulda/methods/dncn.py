"""DnCn: a cascade of small denoisers with data consistency in between (Schlemper et al. 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from ulda.errors import UldaError
from ulda.methods.trainable import TrainableMethod
from ulda.models.regularizer import stacked, unstacked
from ulda.physics import Physics, normalise_measurement

SLOPE = 0.01
"""Of the leaky ReLU, below zero."""


class DnCn(TrainableMethod):
    """A cascade of denoisers, each followed by data consistency; D5C5 with the default sizes.

    A cascade is ``x <- D(x + net(x))``: the network sees the real and the imaginary part as two channels and predicts
    what to add, and `data_consistency` puts the measured samples back. One set of weights serves all domains.

    Parameters
    ----------
    filters
        Channels of the inner layers.
    layers
        Convolutions per cascade.
    cascades
        The number of cascades.
    sources
        The source domains; the network is the same for all.
    seed
        Seed of the start: He initialisation; the last layer of a cascade starts at zero, so that an untrained network
        returns the zero-filled image.

    Examples
    --------
    >>> import torch
    >>> from ulda.methods import DnCn
    >>> from ulda.physics import CartesianMRI, cartesian_mask
    >>> model = DnCn()
    >>> model.n_parameters
    144650
    >>> physics = CartesianMRI(cartesian_mask(32, 0.4))
    >>> model(physics.A(torch.ones(2, 32, 32, dtype=torch.complex64)), physics).shape
    torch.Size([2, 32, 32])
    """

    name: ClassVar[str] = "dncn"
    title: ClassVar[str] = "DnCn"
    citation: ClassVar[str] = (
        "Schlemper et al. 2018, A deep cascade of convolutional neural networks for dynamic MR image reconstruction, "
        "IEEE TMI 37(2)"
    )

    def __init__(
        self, filters: int = 32, layers: int = 5, cascades: int = 5, *, sources: Sequence[str] = (), seed: int = 0
    ) -> None:
        super().__init__(sources, {"filters": filters, "layers": layers, "cascades": cascades})
        if min(filters, cascades) < 1 or layers < 2:
            raise UldaError(
                f"{self.title} needs at least 1 filter, 2 layers and 1 cascade, "
                f"but it is asked for {filters}, {layers} and {cascades}"
            )
        generator = torch.Generator().manual_seed(seed)
        self.cascades = nn.ModuleList(_denoiser(filters, layers, generator) for _ in range(cascades))

    def forward(
        self, y: Tensor, physics: Physics, domain: str | None = None, *, features: list[Tensor] | None = None
    ) -> Tensor:
        """Reconstruct measurements ``(..., H, W)`` or ``(..., coils, H, W)``; the domain makes no difference.

        The feature maps of all inner layers, ``(n, filters, H, W)``, are appended to `features`, where it is given.
        """
        scaled, x, peak = normalise_measurement(y, physics)
        for cascade in range(len(self.cascades)):
            update = self.denoise(stacked(x.reshape(-1, *x.shape[-2:])), cascade, domain, features)
            x = data_consistency(x + unstacked(update).reshape(x.shape), scaled, physics)
        return x * peak

    def denoise(self, x: Tensor, cascade: int, domain: str | None, features: list[Tensor] | None) -> Tensor:  # noqa: ARG002
        """Return what the network of one cascade adds to ``(n, 2, H, W)``; `domain` and `features` as in `forward`."""
        for layer in self.cascades[cascade]:  # type: ignore[attr-defined]
            x = layer(x)
            if features is not None and isinstance(layer, nn.LeakyReLU):
                features.append(x)
        return x


def data_consistency(x: Tensor, y: Tensor, physics: Physics) -> Tensor:
    """Return ``x - A^H (A x - y)``.

    With one coil this replaces the sampled k-space of `x` by the measurement. With several it is the step of gradient
    descent on the data fidelity that does the same where the coils' images allow it.
    """
    return x - physics.fidelity_grad(x, y)


def _denoiser(filters: int, layers: int, generator: torch.Generator) -> nn.Sequential:
    widths = [2, *[filters] * (layers - 1), 2]
    modules: list[nn.Module] = []
    for n_in, n_out in pairwise(widths):
        # skip_init: nothing is drawn from the global generator
        layer = nn.utils.skip_init(nn.Conv2d, n_in, n_out, 3, padding=1, device=torch.get_default_device())
        nn.init.kaiming_normal_(layer.weight, a=SLOPE, generator=generator)
        nn.init.zeros_(layer.bias)
        layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
        modules += [layer, nn.LeakyReLU(SLOPE, inplace=True)]
    nn.init.zeros_(layer.weight)
    return nn.Sequential(*modules[:-1])
