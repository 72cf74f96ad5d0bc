"""Artificial undersampling: more training problems from the same few slices."""

from __future__ import annotations

import numpy as np

from ulda.errors import UldaError
from ulda.physics import Mask

KEPT_CENTER = 0.75
"""The fraction of the calibration lines that a further-undersampled mask keeps."""


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
