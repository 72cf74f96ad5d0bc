"""Sparse wavelet reconstruction by FISTA."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, ClassVar

import torch
from torch.nn.functional import pad

from ulda.methods._wavelet_transform import WaveletName, check_wavelet, dwt2, idwt2
from ulda.methods.base import Method, Progress, check_settings
from ulda.physics import normalise_measurement

if TYPE_CHECKING:
    from torch import Tensor

    from ulda.physics import Physics


@dataclass(frozen=True)
class Wavelet(Method):
    r"""Minimise :math:`\tfrac12\|Ax - y\|^2 + \lambda \|(Wx)_\text{detail}\|_1` over complex images.

    :math:`W` is an orthonormal periodised wavelet transform; its approximation band is not penalised.
    :math:`\lambda` is `weight` times :math:`\max|A^H y|` of each slice, so that the weight means the same in
    any unit and the result scales with the measurement.

    FISTA (Beck and Teboulle 2009) with the step :math:`1/\|A\|^2` converges for a fixed transform, the
    objective within :math:`O(1/k^2)` of its minimum. With `random_shifts`, every iteration thresholds the
    coefficients of a cyclically shifted image, as BART does: no grid of the transform is preferred, which
    removes block artefacts, and the iterates settle near, not at, a point.

    Sides that ``2**levels`` does not divide are extended at their end to the next multiple. The extended
    image is the unknown and the measurement sees its original part, so that this is still a minimisation
    problem of the kind above; the result is cut back.

    The defaults of `weight`, `wavelet` and `levels` are the best of ``benchmarks/classical_weights.py``.

    Parameters
    ----------
    weight
        Strength of the regularisation, relative to the peak of the zero-filled image.
    iterations
        Number of iterations.
    wavelet
        ``"haar"``, ``"db2"`` or ``"db4"``.
    levels
        Levels of the transform.
    random_shifts
        Whether to shift the transform at random in every iteration.
    seed
        Of the random shifts; all slices share them.
    progress
        Called with the number of iterations done.

    Examples
    --------
    >>> import torch
    >>> from ulda.methods import Wavelet
    >>> from ulda.physics import CartesianMRI, cartesian_mask
    >>> image = torch.zeros(64, 64, dtype=torch.complex64)
    >>> image[16:48, 16:48] = 1
    >>> physics = CartesianMRI(cartesian_mask(64, 0.4))
    >>> x_hat = Wavelet(weight=0.002)(physics.A(image), physics)
    >>> bool((x_hat - image).norm() < 0.5 * (physics.A_adjoint(physics.A(image)) - image).norm())
    True
    """

    name: ClassVar[str] = "wavelet"

    weight: float = 0.001
    iterations: int = 100
    wavelet: WaveletName = "haar"
    levels: int = 5
    random_shifts: bool = True
    seed: int = 0
    progress: Progress | None = None

    def __post_init__(self) -> None:
        check_settings(self.name, self.weight, self.iterations)
        check_wavelet(self.wavelet, self.levels)

    @torch.no_grad()
    def __call__(self, y: Tensor, physics: Physics) -> Tensor:
        """Reconstruct; see `Method` for the shapes."""
        _, zero_filled, peak = normalise_measurement(y, physics)
        normal, x = physics.normal_operator(), zero_filled
        height, width = x.shape[-2:]
        extend_h, extend_w = -height % 2**self.levels, -width % 2**self.levels
        x = pad(x, (0, extend_w, 0, extend_h))
        step = 1 / (physics.norm() ** 2 or 1.0)
        generator = torch.Generator().manual_seed(self.seed)
        z, t = x, 1.0
        for iteration in range(1, self.iterations + 1):
            gradient = normal(z[..., :height, :width]) - zero_filled
            x_new = self._shrink(z - step * pad(gradient, (0, extend_w, 0, extend_h)), step, generator)
            t_new = (1 + sqrt(1 + 4 * t**2)) / 2
            z = x_new + ((t - 1) / t_new) * (x_new - x)
            x, t = x_new, t_new
            if self.progress is not None:
                self.progress(iteration)
        return x[..., :height, :width] * peak

    def _shrink(self, x: Tensor, step: float, generator: torch.Generator) -> Tensor:
        """Soft-threshold the detail coefficients of `x`: the proximal map of the penalty."""
        if self.random_shifts:
            period = 2**self.levels  # the transform is equivariant to shifts by whole periods
            shift = torch.randint(period, (2,), generator=generator).tolist()
        else:
            shift = [0, 0]
        approximation, details = dwt2(x.roll(shift, (-2, -1)), self.wavelet, self.levels)
        shrunk = [soft_threshold(bands, step * self.weight) for bands in details]
        return idwt2(approximation, shrunk, self.wavelet).roll([-s for s in shift], (-2, -1))


def soft_threshold(x: Tensor, threshold: float) -> Tensor:
    """Shrink every real or complex number by `threshold`, at most to 0.

    Examples
    --------
    >>> import torch
    >>> from ulda.methods.wavelet import soft_threshold
    >>> soft_threshold(torch.tensor([-3.0, 0.5, 2.0]), 1.0)
    tensor([-2.,  0.,  1.])
    """
    size = (x.real.square() + x.imag.square()).sqrt() if x.is_complex() else x.abs()  # faster than abs
    return x * ((size - threshold).clamp_min(0) / size.clamp_min(torch.finfo(x.dtype).tiny))
