"""HUMUS-Net: unrolled data consistency with a hybrid of convolutions and a multi-scale transformer (Fabian 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ulda.errors import UldaError
from ulda.methods.swin import PatchExpanding, PatchMerging, ResidualSwinBlock, drawn
from ulda.methods.trainable import TrainableMethod
from ulda.models.regularizer import stacked, unstacked
from ulda.physics import Physics, normalise_measurement

PUBLISHED: dict[str, Any] = {
    "cascades": 8,
    "embed": 66,
    "depths": (2, 2, 2),
    "heads": (3, 6, 12),
    "bottleneck_depth": 2,
    "bottleneck_heads": 24,
    "window": 8,
    "mlp_ratio": 2.0,
}
"""The sizes of the paper, for a GPU."""

_SLOPE = 0.2  # of the leaky ReLU, below zero
_START = 0.1  # the last convolution is this much smaller than usual, so that a new network changes its input little


class HUMUSNet(TrainableMethod):
    """Cascades of a data-consistency step and a hybrid block; by default a small one, for a CPU.

    A cascade is ``x <- x - eta A^H (A x - y) + s block((x - m) / s)`` with a learned step ``eta`` and the mean ``m``
    and the spread ``s`` of each slice, so that scale makes no difference to a block. One set of weights serves all
    domains.

    Beside its size it differs from the published network in what surrounds the blocks. The paper feeds in three
    adjacent slices, here a block sees one complex slice as two channels. The paper estimates the coil sensitivities
    with a further network, here `physics` has them; with them known, a step in k-space and one on the image are the
    same. The paper's block gives an image that is subtracted, here it gives what is to be added, which is the same up
    to what its last convolution has to learn. There is no stochastic depth (0.1 in the paper), so that training is
    deterministic.

    Adapting to a domain fine-tunes everything. The paper of ULDA does so at 1e-5 in 50 epochs; in the few hundred steps
    of a short adaptation that rate would leave the network where it is, so it is 1e-3 here.

    Parameters
    ----------
    cascades
        The number of cascades.
    embed
        Channels of the transformer at its finest level; they double from level to level. Even.
    depths, heads
        Swin layers and attention heads of each level, finest first.
    bottleneck_depth, bottleneck_heads
        The same of the coarsest features, below the last level.
    window
        Side of the attention windows.
    mlp_ratio
        Inner width of the linear layers of the transformer, relative to its channels.
    sources
        The source domains; the network is the same for all.
    seed
        Seed of the start, from which the network returns nearly the zero-filled image.

    Examples
    --------
    >>> import torch
    >>> from ulda.methods.humus import PUBLISHED, HUMUSNet
    >>> from ulda.physics import CartesianMRI, cartesian_mask
    >>> model = HUMUSNet()
    >>> physics = CartesianMRI(cartesian_mask(33, 0.4))
    >>> model(physics.A(torch.ones(2, 33, 27, dtype=torch.complex64)), physics).shape
    torch.Size([2, 33, 27])
    >>> with torch.device("meta"):  # nothing is allocated
    ...     f"{HUMUSNet(**PUBLISHED).n_parameters:,}"
    '107,310,744'
    """

    name: ClassVar[str] = "humus"
    title: ClassVar[str] = "HUMUS-Net"
    citation: ClassVar[str] = (
        "Fabian, Tinaz and Soltanolkotabi 2022, HUMUS-Net: hybrid unrolled multi-scale network architecture for "
        "accelerated MRI reconstruction, NeurIPS"
    )

    def __init__(
        self,
        *,
        cascades: int = 2,
        embed: int = 24,
        depths: Sequence[int] = (2, 2, 2),
        heads: Sequence[int] = (3, 6, 12),
        bottleneck_depth: int = 2,
        bottleneck_heads: int = 24,
        window: int = 8,
        mlp_ratio: float = 2.0,
        sources: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        if min(cascades, *depths, *heads, bottleneck_depth, bottleneck_heads) < 1 or len(depths) != len(heads):
            raise UldaError(
                "HUMUS-Net needs at least 1 cascade, and layers and heads for each of its levels, but it is asked for "
                f"{cascades} cascades with {list(depths)} layers and {list(heads)} heads"
            )
        if embed < 2 or embed % 2 or window < 2:
            raise UldaError(
                "HUMUS-Net needs an even number of channels and windows of at least 2 pixels, "
                f"but it is asked for {embed} channels and windows of {window}"
            )
        block_sizes: dict[str, Any] = {
            "embed": embed,
            "depths": list(depths),
            "heads": list(heads),
            "bottleneck_depth": bottleneck_depth,
            "bottleneck_heads": bottleneck_heads,
            "window": window,
            "mlp_ratio": mlp_ratio,
        }
        super().__init__(sources, {"cascades": cascades, **block_sizes})
        generator = torch.Generator().manual_seed(seed)
        self.cascades = nn.ModuleList(Cascade(generator=generator, **block_sizes) for _ in range(cascades))

    def forward(self, y: Tensor, physics: Physics, domain: str | None = None) -> Tensor:  # noqa: ARG002
        """Reconstruct measurements ``(n, H, W)`` or ``(n, coils, H, W)``; the domain makes no difference."""
        scaled, x, peak = normalise_measurement(y, physics)
        for cascade in self.cascades:
            x = cascade(x, scaled, physics)
        return x * peak


class Cascade(nn.Module):
    """A data-consistency step, and what the hybrid block adds to the same image.

    Parameters
    ----------
    generator, sizes
        See `HybridBlock`.
    """

    def __init__(self, *, generator: torch.Generator, **sizes: Any) -> None:
        super().__init__()
        self.step = nn.Parameter(torch.ones(()))
        self.block = HybridBlock(generator=generator, **sizes)

    def forward(self, x: Tensor, y: Tensor, physics: Physics) -> Tensor:
        """Return the next image, ``(..., H, W)``."""
        channels = stacked(x.reshape(-1, *x.shape[-2:]))
        mean = channels.mean((-2, -1), keepdim=True)
        variance = (channels - mean).square().mean((-3, -2, -1), keepdim=True)
        flat = variance == 0  # nothing to improve, and the square root has no derivative there
        spread = torch.where(flat, 1.0, variance).sqrt()
        update = self.block((channels - mean) / spread) * spread
        update = unstacked(torch.where(flat, 0.0, update)).reshape(x.shape)
        return x - self.step * physics.fidelity_grad(x, y) + update


class HybridBlock(nn.Module):
    """Convolutions at the full size of the image, and a transformer on features of half that size.

    Images are padded by reflection until each level of the transformer has a whole number of pixels, and the result is
    cropped; windows at the border that are not full are left to the attention itself. A size that is a multiple of
    ``window * 2 ** (levels + 1)``, such as the 384 of the paper, needs neither.

    Parameters
    ----------
    embed, depths, heads, bottleneck_depth, bottleneck_heads, window, mlp_ratio
        See `HUMUSNet`.
    generator
        Source of the weights.
    """

    def __init__(self, *, embed: int, depths: Sequence[int], generator: torch.Generator, **sizes: Any) -> None:
        super().__init__()
        narrow = embed // 2
        self.multiple = 2 ** (len(depths) + 1)
        self.first = drawn(nn.Conv2d, 2, narrow, 3, padding=1, generator=generator)
        self.down = nn.Sequential(
            *_convolutions(narrow, embed, generator),
            drawn(nn.Conv2d, embed, embed, 2, stride=2, bias=False, generator=generator),
            nn.InstanceNorm2d(embed),
            nn.LeakyReLU(_SLOPE),
        )
        self.transformer = MultiScaleTransformer(embed=embed, depths=depths, generator=generator, **sizes)
        self.body = drawn(nn.Conv2d, embed, embed, 3, padding=1, generator=generator)
        self.up = nn.Sequential(
            drawn(nn.ConvTranspose2d, embed, narrow, 2, stride=2, bias=False, generator=generator),
            nn.InstanceNorm2d(narrow),
            nn.LeakyReLU(_SLOPE),
        )
        self.synthesis = nn.Sequential(*_convolutions(embed, narrow, generator))
        self.last = drawn(nn.Conv2d, narrow, 2, 3, padding=1, generator=generator)
        with torch.no_grad():
            self.last.weight.mul_(_START)

    def forward(self, x: Tensor) -> Tensor:
        """Return what to add to normalised images ``(n, 2, H, W)`` of any size."""
        height, width = x.shape[-2:]
        extra_rows, extra_columns = -height % self.multiple, -width % self.multiple
        above, left = extra_rows // 2, extra_columns // 2
        sides = (left, extra_columns - left, above, extra_rows - above)
        can_reflect = max(sides[:2]) < width and max(sides[2:]) < height
        fine = self.first(functional.pad(x, sides, mode="reflect" if can_reflect else "replicate"))
        coarse = self.down(fine).permute(0, 2, 3, 1)
        coarse = self.body(self.transformer(coarse).permute(0, 3, 1, 2))
        added: Tensor = self.last(self.synthesis(torch.cat([self.up(coarse), fine], dim=1)))
        return added[..., above : above + height, left : left + width]


class MultiScaleTransformer(nn.Module):
    """A U-shaped network of residual Swin blocks, with merged patches down and expanded ones up.

    Parameters
    ----------
    embed, depths, heads, bottleneck_depth, bottleneck_heads, window, mlp_ratio
        See `HUMUSNet`.
    generator
        Source of the weights.
    """

    def __init__(
        self,
        *,
        embed: int,
        depths: Sequence[int],
        heads: Sequence[int],
        bottleneck_depth: int,
        bottleneck_heads: int,
        window: int,
        mlp_ratio: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        widths = [embed * 2**level for level in range(len(depths) + 1)]
        levels = list(zip(widths, depths, heads, strict=False))  # the last width is that of the bottleneck

        def block(width: int, depth: int, n_heads: int) -> ResidualSwinBlock:
            return ResidualSwinBlock(width, depth, n_heads, window, mlp_ratio=mlp_ratio, generator=generator)

        self.norm_in = nn.LayerNorm(embed)
        self.encoder = nn.ModuleList(block(*level) for level in levels)
        self.merging = nn.ModuleList(PatchMerging(width, generator=generator) for width in widths[:-1])
        self.norm_coarsest = nn.LayerNorm(widths[-1])
        self.bottleneck = block(widths[-1], bottleneck_depth, bottleneck_heads)
        self.expanding = nn.ModuleList(PatchExpanding(width, generator=generator) for width in reversed(widths[:-1]))
        self.decoder = nn.ModuleList(block(*level) for level in reversed(levels))
        self.norm_out = nn.LayerNorm(embed)

    def forward(self, x: Tensor) -> Tensor:
        """Return features like the given ones, ``(n, H, W, embed)``; H and W are multiples of ``2 ** levels``."""
        x = self.norm_in(x)
        skips = []
        for encode, merge in zip(self.encoder, self.merging, strict=True):
            skips.append(encode(x))
            x = merge(skips[-1])
        x = self.bottleneck(self.norm_coarsest(x))
        for expand, decode in zip(self.expanding, self.decoder, strict=True):
            x = decode(expand(x, skips.pop()))
        normalised: Tensor = self.norm_out(x)
        return normalised


def _convolutions(n_in: int, n_out: int, generator: torch.Generator) -> list[nn.Module]:
    """Return two convolutions, each with instance normalisation and a leaky ReLU."""
    modules: list[nn.Module] = []
    for n in (n_in, n_out):
        modules += [
            drawn(nn.Conv2d, n, n_out, 3, padding=1, bias=False, generator=generator),
            nn.InstanceNorm2d(n_out),
            nn.LeakyReLU(_SLOPE),
        ]
    return modules
