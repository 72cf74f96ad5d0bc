"""Pictures of reconstructions side by side, with their errors on one scale."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from ulda.evaluation.comparison import Comparison
from ulda.io.atomic import atomic_output

_GAP = 8
_CAPTION = 34
_FONT_SIZE = 13


def save_panel(comparison: Comparison, index: int, path: str | Path, *, tile: int = 256) -> None:
    """Write one slice as a PNG: the images above, their absolute errors below.

    All errors of the slice share one scale, from 0 to the 99.5th percentile of the largest of them.

    Parameters
    ----------
    comparison
        Reconstructions of several methods.
    index
        The slice.
    path
        The PNG to write.
    tile
        The least height of a tile in pixels; images are enlarged by whole factors.
    """
    row = comparison.row_of(index)
    reference = comparison.reference[row].numpy()
    images = {name: x[row].numpy() for name, x in comparison.reconstructions.items()}
    errors = {name: np.abs(image - reference) for name, image in images.items()}
    error_peak = max(float(np.percentile(error, 99.5)) for error in errors.values()) or 1.0

    zoom = max(1, -(-tile // reference.shape[0]))
    height, width = (n * zoom for n in reference.shape)
    canvas = Image.new(
        "L", (_GAP + (len(images) + 1) * (width + _GAP), 2 * (height + _GAP) + 2 * _CAPTION + _GAP), color=255
    )
    draw = ImageDraw.Draw(canvas)
    font = ImageFont.load_default(_FONT_SIZE)

    def place(column: int, row: int, array: NDArray[np.float32], caption: str) -> None:
        left = _GAP + column * (width + _GAP)
        top = _GAP + row * (height + _CAPTION + _GAP)
        draw.multiline_text((left, top), caption, fill=0, font=font, spacing=1)
        canvas.paste(_grey(array).resize((width, height), Image.Resampling.NEAREST), (left, top + _CAPTION))

    place(0, 0, reference, "reference")
    pattern = comparison.mask.along(comparison.phase_axis).float().numpy()
    place(0, 1, np.broadcast_to(pattern, reference.shape), f"sampled lines\n{100 * comparison.mask.ratio:.1f} %")
    for column, (name, image) in enumerate(images.items(), start=1):
        scores = comparison.scores[name]
        place(
            column,
            0,
            image,
            f"{name}\n{float(scores.psnr[index]):.2f} dB, SSIM {float(scores.ssim[index]):.3f}",
        )
        place(column, 1, errors[name] / error_peak, f"absolute error\n0 to {error_peak:.3f}")
    with atomic_output(path, overwrite=True) as temporary:
        canvas.save(temporary, format="PNG")


def _grey(array: NDArray[np.float32]) -> Image.Image:
    return Image.fromarray(np.round(255 * np.clip(array, 0, 1)).astype(np.uint8))
