"""Image quality: PSNR, SSIM and NMSE, and the conventions under which a number may be compared.

The metrics are pure functions of real magnitude images ``(..., H, W)``. They return one value per slice, in
the shape of the leading axes, and are differentiable. A complex image is refused rather than converted, so
that the magnitude is taken where a reader can see it.

The same reconstruction scores several dB apart under different data ranges. `evaluate` therefore takes a
`Convention`, and the `Scores` it returns carry it into every file they are written to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d

from ulda.errors import UldaError

Window = Literal["gaussian", "uniform"]
DataRange = Literal["slice peak", "volume peak"]

_WINDOW_SIZE: dict[Window, int] = {"gaussian": 11, "uniform": 7}
_GAUSSIAN_SIGMA = 1.5
_K1, _K2 = 0.01, 0.03  # the constants of Wang et al. 2004, used by every implementation


def psnr(x: Tensor, reference: Tensor, *, data_range: float | Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB, per slice.

    Identical images give ``inf``; an image that contains NaN gives NaN.

    Parameters
    ----------
    x, reference
        Real images, ``(..., H, W)``.
    data_range
        The peak of the signal: a number, or a tensor that broadcasts to the leading axes.

    Returns
    -------
        PSNR, ``(...)``.

    Examples
    --------
    >>> import torch
    >>> from ulda.metrics import psnr
    >>> reference = torch.ones(2, 16, 16)
    >>> psnr(reference - 0.1, reference, data_range=1.0)
    tensor([20.0000, 20.0000])
    """
    _check_pair(x, reference)
    peak = _as_data_range(data_range, x)
    return _decibel(peak, _mean_squared_error(x, reference, axes=(-2, -1))).to(x.dtype)


def nmse(x: Tensor, reference: Tensor) -> Tensor:
    r"""Normalised mean squared error :math:`\|x - r\|^2 / \|r\|^2`, per slice; it needs no data range.

    Identical images give 0. A reference that is zero everywhere has no scale: the result is then ``inf``, or
    NaN where `x` is zero as well.

    Parameters
    ----------
    x, reference
        Real images, ``(..., H, W)``.

    Returns
    -------
        NMSE, ``(...)``.

    Examples
    --------
    >>> import torch
    >>> from ulda.metrics import nmse
    >>> reference = torch.ones(16, 16)
    >>> nmse(1.5 * reference, reference)
    tensor(0.2500)
    """
    _check_pair(x, reference)
    return _normalised_error(x, reference, axes=(-2, -1)).to(x.dtype)


def ssim(x: Tensor, reference: Tensor, *, data_range: float | Tensor, window: Window = "gaussian") -> Tensor:
    """Structural similarity, per slice: the mean over all windows that lie inside the image.

    Computed in double precision, because the local variances are differences of nearly equal numbers, and
    returned in the precision of `x`. Identical images give 1; an image that contains NaN gives NaN.

    Parameters
    ----------
    x, reference
        Real images, ``(..., H, W)``, no side shorter than the window.
    data_range
        The peak of the signal: a number, or a tensor that broadcasts to the leading axes.
    window
        ``"gaussian"``: 11 × 11, standard deviation 1.5, population covariance (Wang et al. 2004).
        ``"uniform"``: 7 × 7, sample covariance (the default of scikit-image, used by fastMRI).

    Returns
    -------
        SSIM, ``(...)``.

    Examples
    --------
    >>> import torch
    >>> from ulda.metrics import ssim
    >>> reference = torch.linspace(0, 1, 32).expand(2, 32, 32)
    >>> ssim(reference, reference, data_range=1.0)
    tensor([1., 1.])
    """
    return ssim_map(x, reference, data_range=data_range, window=window).mean((-2, -1)).to(x.dtype)


def ssim_map(x: Tensor, reference: Tensor, *, data_range: float | Tensor, window: Window = "gaussian") -> Tensor:
    """Structural similarity of each window that lies inside the image, in double precision.

    Parameters
    ----------
    x, reference, data_range, window
        As for `ssim`, which is the mean of this map.

    Returns
    -------
        SSIM, ``(..., H - size + 1, W - size + 1)``: the value of a window stands at its first pixel.
    """
    _check_pair(x, reference)
    if window not in _WINDOW_SIZE:
        raise UldaError(f'the SSIM window must be "gaussian" or "uniform", but it is {window!r}')
    size = _WINDOW_SIZE[window]
    if min(x.shape[-2:]) < size:
        raise UldaError(
            f"SSIM with the {window} window needs images of at least {size} by {size} pixels, "
            f"but these have {x.shape[-2]} by {x.shape[-1]}"
        )
    peak = _as_data_range(data_range, x)[..., None, None]
    a, b = x.double(), reference.double()
    mean_a, mean_b, mean_aa, mean_bb, mean_ab = _local_means(torch.stack((a, b, a * a, b * b, a * b)), window)
    unbias = size**2 / (size**2 - 1) if window == "uniform" else 1.0
    variances = unbias * (mean_aa - mean_a**2 + mean_bb - mean_b**2)
    covariance = unbias * (mean_ab - mean_a * mean_b)
    c1, c2 = (_K1 * peak) ** 2, (_K2 * peak) ** 2
    luminance = (2 * mean_a * mean_b + c1) / (mean_a**2 + mean_b**2 + c1)
    structure = (2 * covariance + c2) / (variances + c2)
    return luminance * structure


@dataclass(frozen=True)
class Convention:
    """What a score means: over which pixels, relative to which peak, with which SSIM window.

    Parameters
    ----------
    name
        The name stored next to each number.
    data_range
        ``"slice peak"``: every slice is judged alone, relative to the maximum of its own reference.
        ``"volume peak"``: PSNR and NMSE are taken over all slices of a volume at once, relative to the
        maximum of the reference volume, and SSIM is averaged over its slices.
    window
        The SSIM window, see `ssim`.
    """

    name: str
    data_range: DataRange
    window: Window


PER_SLICE = Convention(name="per slice, peak 1", data_range="slice peak", window="gaussian")
"""The paper's: images normalised to peak 1 and a data range of 1. Taking the peak of each reference slice as
its data range gives the same numbers, and is also right for images in other units."""

PER_VOLUME = Convention(name="per volume, fastMRI", data_range="volume peak", window="uniform")
"""The fastMRI challenge's: numbers of this convention are comparable with that leaderboard."""


@dataclass(frozen=True)
class Scores:
    """PSNR (dB), SSIM and NMSE with the convention they were computed under.

    Each value has one element per slice, or per volume where the convention says so.
    """

    convention: Convention
    psnr: Tensor
    ssim: Tensor
    nmse: Tensor

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and strings, ready to be written; an infinite PSNR stays ``inf``."""
        return {
            "convention": asdict(self.convention),
            "psnr": self.psnr.tolist(),
            "ssim": self.ssim.tolist(),
            "nmse": self.nmse.tolist(),
        }


def joined(parts: Sequence[Scores]) -> Scores:
    """Return the scores of several batches, one after the other."""
    columns = {name: torch.cat([getattr(part, name) for part in parts]) for name in ("psnr", "ssim", "nmse")}
    return Scores(parts[0].convention, **columns)


def evaluate(x: Tensor, reference: Tensor, convention: Convention = PER_SLICE) -> Scores:
    """Score reconstructions under a named convention.

    Parameters
    ----------
    x, reference
        Real images: ``(..., H, W)``, or ``(..., slices, H, W)`` for a convention over volumes.
    convention
        `PER_SLICE` or `PER_VOLUME`.

    Returns
    -------
        The scores: shape ``(...)``, one value per slice or per volume.

    Examples
    --------
    >>> import torch
    >>> from ulda.metrics import PER_VOLUME, evaluate
    >>> reference = torch.ones(3, 16, 16)
    >>> scores = evaluate(reference - 0.1, reference)
    >>> scores.psnr
    tensor([20.0000, 20.0000, 20.0000])
    >>> scores.as_dict()["convention"]["name"]
    'per slice, peak 1'
    >>> evaluate(reference - 0.1, reference, PER_VOLUME).psnr
    tensor(20.0000)
    """
    _check_pair(x, reference)
    if convention.data_range == "slice peak":
        peak = reference.amax((-2, -1))
        return Scores(
            convention=convention,
            psnr=psnr(x, reference, data_range=peak),
            ssim=ssim(x, reference, data_range=peak, window=convention.window),
            nmse=nmse(x, reference),
        )
    if x.ndim < 3:
        raise UldaError(
            f'the convention "{convention.name}" scores volumes (..., slices, H, W), '
            f"but the image has shape {tuple(x.shape)}"
        )
    volume = (-3, -2, -1)
    peak = _as_data_range(reference.amax(volume), x)
    slices = ssim(x, reference, data_range=peak[..., None], window=convention.window)
    return Scores(
        convention=convention,
        psnr=_decibel(peak, _mean_squared_error(x, reference, axes=volume)).to(x.dtype),
        ssim=slices.mean(-1),
        nmse=_normalised_error(x, reference, axes=volume).to(x.dtype),
    )


def _check_pair(x: Tensor, reference: Tensor) -> None:
    """Refuse what the metrics are not defined for."""
    for image in (x, reference):
        if image.is_complex():
            raise UldaError("the metrics compare magnitudes, but an image is complex; take its .abs() first")
        if not image.is_floating_point():
            raise UldaError(f"the metrics need floating-point images, but one is {image.dtype}; call .float() first")
    if x.shape != reference.shape or x.ndim < 2:
        raise UldaError(
            "the image and its reference must have one shape (..., H, W), "
            f"but they have {tuple(x.shape)} and {tuple(reference.shape)}"
        )


def _as_data_range(data_range: float | Tensor, x: Tensor) -> Tensor:
    """Return the data range in double precision, checked to be positive."""
    peak = torch.as_tensor(data_range, dtype=torch.float64, device=x.device)
    if (peak <= 0).any():
        raise UldaError("the data range must be positive; is the reference image zero everywhere?")
    return peak


def _decibel(peak: Tensor, mean_squared_error: Tensor) -> Tensor:
    return 10 * torch.log10(peak**2 / mean_squared_error)


def _mean_squared_error(x: Tensor, reference: Tensor, axes: tuple[int, ...]) -> Tensor:
    return (x.double() - reference.double()).square().mean(axes)


def _normalised_error(x: Tensor, reference: Tensor, axes: tuple[int, ...]) -> Tensor:
    return _mean_squared_error(x, reference, axes) / reference.double().square().mean(axes)


def _local_means(maps: Tensor, window: Window) -> Tensor:
    """Average over every window inside the image: a side of H pixels becomes H - size + 1 means."""
    size = _WINDOW_SIZE[window]
    batch = maps.reshape(-1, 1, *maps.shape[-2:])
    if window == "uniform":
        means = avg_pool2d(batch, size, stride=1)
    else:
        offset = torch.arange(size, dtype=maps.dtype, device=maps.device) - size // 2
        weights = torch.exp(-0.5 * (offset / _GAUSSIAN_SIGMA) ** 2)
        weights = weights / weights.sum()
        means = conv2d(conv2d(batch, weights.view(1, 1, -1, 1)), weights.view(1, 1, 1, -1))
    return means.reshape(*maps.shape[:-2], *means.shape[-2:])
