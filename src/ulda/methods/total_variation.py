"""Total variation reconstruction by a primal-dual method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch.nn.functional import pad

from ulda.methods.base import Method, Progress, check_settings
from ulda.physics import normalise_measurement

if TYPE_CHECKING:
    from torch import Tensor

    from ulda.physics import Physics

_GRADIENT_NORM_SQUARED = 8.0  # of the forward differences along two axes (Chambolle 2004)
_RELAXATION = 1.9  # any value below 2 converges; near 2 is fastest in practice
_DATA_SHARE = 0.2  # of the step-size condition, against the share of the gradient
_PRIMAL_STEP = 0.03  # times 1/weight: balances images of peak 1 with dual variables of the size of the weight
_SMALLEST_WEIGHT = 1e-6  # keeps the primal step finite without regularisation


@dataclass(frozen=True)
class TotalVariation(Method):
    r"""Minimise :math:`\tfrac12\|Ax - y\|^2 + \lambda \sum_i \|(\nabla x)_i\|_2` over complex images.

    :math:`\lambda` is `weight` times :math:`\max|A^H y|` of each slice, so that the weight means the same in
    any unit and the result scales with the measurement.

    The iteration is the primal-dual method of Chambolle and Pock with over-relaxation. With :math:`v` and
    :math:`u` the dual variables of :math:`Ax` and :math:`\nabla x`,

    .. math::
        x^+ &= x - \tau\,(A^H v + \nabla^H u), \qquad \bar x = 2x^+ - x \\
        v^+ &= (v + \sigma_A (A\bar x - y)) / (1 + \sigma_A) \\
        u^+ &= P_\lambda\,(u + \sigma_\nabla \nabla\bar x)

    where :math:`P_\lambda` projects the pair of differences of every pixel to norm at most :math:`\lambda`,
    and all three variables move by :math:`\rho = 1.9` times their change. It converges to a minimiser for
    :math:`\tau(\sigma_A\|A\|^2 + \sigma_\nabla\|\nabla\|^2) \le 1` and :math:`\rho < 2` (Condat 2013, theorem
    3.3); the steps here meet the condition with equality, :math:`\|\nabla\|^2 \le 8`. Since the data term is
    handled through its dual, :math:`\tau` may exceed :math:`2/\|A\|^2`: for the small weights of MRI, forward
    steps on the data term would need thousands of iterations to fill the missing lines.

    Parameters
    ----------
    weight
        Strength of the regularisation, relative to the peak of the zero-filled image. The default is the best
        of ``benchmarks/classical_weights.py``, where 0.0003 to 0.004 are within 0.03 dB of each other.
    iterations
        The largest number of iterations.
    tolerance
        A slice is finished, on its own, when an iteration changes it by less than this fraction of its norm;
        0 always runs all iterations.
    progress
        Called with the number of iterations done.

    Examples
    --------
    >>> import torch
    >>> from ulda.methods import TotalVariation
    >>> from ulda.physics import CartesianMRI, cartesian_mask
    >>> image = torch.zeros(64, 64, dtype=torch.complex64)
    >>> image[16:48, 16:48] = 1
    >>> physics = CartesianMRI(cartesian_mask(64, 0.4))
    >>> x_hat = TotalVariation(weight=0.002)(physics.A(image), physics)
    >>> bool((x_hat - image).norm() < 0.2 * (physics.A_adjoint(physics.A(image)) - image).norm())
    True
    """

    name: ClassVar[str] = "total variation"

    weight: float = 0.002
    iterations: int = 150
    tolerance: float = 0.0
    progress: Progress | None = None

    def __post_init__(self) -> None:
        check_settings(self.name, self.weight, self.iterations)

    @torch.no_grad()
    def __call__(self, y: Tensor, physics: Physics) -> Tensor:
        """Reconstruct; see `Method` for the shapes."""
        y, x, peak = normalise_measurement(y, physics)
        norm_squared = physics.norm() ** 2 or 1.0
        tau = _PRIMAL_STEP / max(self.weight, _SMALLEST_WEIGHT)
        sigma_data = _DATA_SHARE / (tau * norm_squared)
        sigma_gradient = (1 - _DATA_SHARE) / (tau * _GRADIENT_NORM_SQUARED)
        v, u = torch.zeros_like(y), torch.zeros_like(gradient(x))
        result, unfinished = x, torch.ones_like(peak, dtype=torch.bool)
        for iteration in range(1, self.iterations + 1):
            dx = -tau * (physics.A_adjoint(v) + gradient_adjoint(u))
            x_bar = x + 2 * dx
            dv = (v + sigma_data * (physics.A(x_bar) - y)) / (1 + sigma_data) - v
            du = _project(u + sigma_gradient * gradient(x_bar), self.weight) - u
            x, v, u = x + _RELAXATION * dx, v + _RELAXATION * dv, u + _RELAXATION * du
            result = torch.where(unfinished, x, result)
            if self.progress is not None:
                self.progress(iteration)
            if self.tolerance > 0 and iteration > 1:  # the first only sets the dual variables
                unfinished = unfinished & (_norm(dx) > self.tolerance * _norm(x))
                if not unfinished.any():
                    break
        return result * peak


def gradient(x: Tensor) -> Tensor:
    """Forward differences along the last two axes, zero across the border.

    Parameters
    ----------
    x
        Images, ``(..., H, W)``.

    Returns
    -------
        The differences along H and along W, ``(2, ..., H, W)``.

    Examples
    --------
    >>> import torch
    >>> from ulda.methods.total_variation import gradient
    >>> gradient(torch.tensor([[0.0, 1.0], [5.0, 5.0]]))
    tensor([[[5., 4.],
             [0., 0.]],
    <BLANKLINE>
            [[1., 0.],
             [0., 0.]]])
    """
    return torch.stack((pad(x.diff(dim=-2), (0, 0, 0, 1)), pad(x.diff(dim=-1), (0, 1))))


def gradient_adjoint(u: Tensor) -> Tensor:
    """Adjoint of `gradient`, the negative divergence: ``(2, ..., H, W) -> (..., H, W)``.

    Examples
    --------
    >>> import torch
    >>> from ulda.methods.total_variation import gradient, gradient_adjoint
    >>> gradient_adjoint(gradient(torch.tensor([[0.0, 3.0, 0.0]])))
    tensor([[-3.,  6., -3.]])
    """
    rows, columns = u[0, ..., :-1, :], u[1, ..., :, :-1]
    return -pad(rows, (0, 0, 1, 1)).diff(dim=-2) - pad(columns, (1, 1)).diff(dim=-1)


def _project(u: Tensor, radius: float) -> Tensor:
    """Return the nearest field whose two components have at most the norm `radius` at every pixel."""
    length: Tensor = torch.linalg.vector_norm(u, dim=0)
    return u * (radius / length.clamp_min(max(radius, torch.finfo(u.dtype).tiny)))


def _norm(x: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True)
    return norm
