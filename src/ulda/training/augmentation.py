"""More training problems from the same few slices: other masks, and slices that are turned, scaled and sheared."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ulda.errors import UldaError
from ulda.physics import Mask

KEPT_CENTER = 0.75
"""The fraction of the calibration lines that a further-undersampled mask keeps."""

MOST_TURNED, MOST_SCALED, MOST_SHEARED = 15.0, 0.15, 0.1
"""How far `warped` goes: degrees, the logarithm of the scale, and pixels to the side per pixel."""


def warped(images: Tensor, share: float, seed: int) -> Tensor:
    """Turn, scale and shear some of complex slices ``(n, H, W)``, each by chance; their peaks are at 1 then.

    They stay slices of their kind, but few slices are not overfitted. What comes in from outside of the
    field of view is zero.

    Parameters
    ----------
    images
        The slices.
    share
        The probability of each slice to be warped; the others stay as they are.
    seed
        Seed of the chance.

    Examples
    --------
    >>> image = torch.zeros(1, 16, 16, dtype=torch.complex64)
    >>> image[0, 4:12, 6:10] = 1j
    >>> other = warped(image, 1.0, seed=1)
    >>> other.shape == image.shape, bool((other - image).abs().max() > 0.1), round(other.abs().max().item(), 3)
    (True, True, 1.0)
    >>> torch.equal(warped(image, 0.0, seed=1), image)
    True
    """
    n = len(images)
    generator = torch.Generator().manual_seed(seed)
    is_warped = torch.rand(n, generator=generator) < share
    chance = 2 * torch.rand(3, n, generator=generator) - 1
    turned, scale, sheared = chance[0] * math.radians(MOST_TURNED), (chance[1] * MOST_SCALED).exp(), chance[2]
    height, width = images.shape[-2:]
    sideways, downwards = -turned.sin() * scale + sheared * MOST_SHEARED, turned.sin() * scale
    # rows that say where in the slice, in halves of its sides, each pixel is taken from; nothing is shifted
    across = torch.stack([turned.cos() * scale, sideways * (height / width)], 1)
    down = torch.stack([downwards * (width / height), turned.cos() * scale], 1)
    places = F.pad(torch.stack([across, down], 1), (0, 1)).to(images.real)
    parts = torch.view_as_real(images).movedim(-1, 1)
    grid = F.affine_grid(places, list(parts.shape), align_corners=False)
    found = F.grid_sample(parts, grid, mode="bicubic", align_corners=False).movedim(1, -1)
    others = torch.view_as_complex(found.contiguous())
    others = others / others.abs().amax((-2, -1), keepdim=True).clamp_min(torch.finfo(others.real.dtype).tiny)
    return torch.where(is_warped.to(images.device)[:, None, None], others, images)


def artificial_masks(mask: Mask, seed: int = 0) -> tuple[Mask, Mask]:
    """Split the lines of a mask into two masks with half of the lines each.

    Both keep most of the contiguous centre, as the lowest frequencies carry most of the image; the other lines are
    dealt out, so that no outer line is in both as long as there are enough.

    Examples
    --------
    >>> from ulda.physics import cartesian_mask
    >>> mask = cartesian_mask(64, 0.25)
    >>> first, second = artificial_masks(mask)
    >>> mask.n_sampled, first.n_sampled, second.n_sampled
    (16, 8, 8)
    """
    lines = np.flatnonzero(mask.sampled)
    n_half = len(lines) // 2
    if n_half < 1:
        raise UldaError(f"a mask of {len(lines)} line cannot be undersampled further")
    distance = np.abs(lines - mask.n_lines // 2)
    by_distance = lines[np.argsort(distance, kind="stable")]
    n_center = min(n_half, max(1, round(KEPT_CENTER * mask.n_center)))
    center, outer = by_distance[:n_center], by_distance[n_center:]
    shuffled = np.random.default_rng(seed).permutation(outer)
    n_outer = n_half - n_center
    halves = shuffled[:n_outer], shuffled[::-1][:n_outer]
    first, second = (_mask(mask, np.concatenate([center, half]), seed) for half in halves)
    return first, second


def _mask(mask: Mask, lines: np.ndarray[tuple[int, ...], np.dtype[np.int64]], seed: int) -> Mask:
    sampled = np.zeros(mask.n_lines, dtype=bool)
    sampled[lines] = True
    return Mask(tuple(sampled.tolist()), kind=f"artificial, of {mask.hash}", seed=seed)
