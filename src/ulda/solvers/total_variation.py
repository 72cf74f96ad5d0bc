"""Total variation by a primal-dual iteration, from the normal operator of a measurement alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

if TYPE_CHECKING:
    from torch import Tensor

_GRADIENT_NORM_SQUARED = 8.0  # of the forward differences along two axes (Chambolle 2004)
_RELAXATION = 1.9  # any value below 2 converges; near 2 is fastest in practice
_DATA_SHARE = 0.2  # of the step-size condition, against the share of the gradient
_PRIMAL_STEP = 0.03  # times 1/weight: balances images of peak 1 with dual variables of the size of the weight
_LARGE_WEIGHT = 0.005  # from here on the primal step shrinks faster: much noise makes large dual variables
_SMALLEST_STEP = 0.07  # of images of peak 1
_SMALLEST_WEIGHT = 1e-6  # keeps the primal step finite without regularisation


@torch.no_grad()
def total_variation(
    normal: Callable[[Tensor], Tensor],
    zero_filled: Tensor,
    weight: float,
    iterations: int,
    *,
    tolerance: float = 0.0,
    norm: float = 1.0,
    progress: Callable[[int], object] | None = None,
) -> Tensor:
    r"""Minimise :math:`\tfrac12\|Ax - y\|^2 + \lambda \sum_i \|(\nabla x)_i\|_2` over complex images ``(..., H, W)``.

    The iteration is the primal-dual method of Chambolle and Pock with over-relaxation. With :math:`v` and
    :math:`u` the dual variables of :math:`Ax` and :math:`\nabla x`, of which :math:`q = A^H v` is kept,

    .. math::
        x^+ &= x - \tau\,(q + \nabla^H u), \qquad \bar x = 2x^+ - x \\
        q^+ &= (q + \sigma_A (A^H A\bar x - A^H y)) / (1 + \sigma_A) \\
        u^+ &= P_\lambda\,(u + \sigma_\nabla \nabla\bar x)

    where :math:`P_\lambda` projects the pair of differences of every pixel to norm at most :math:`\lambda`,
    and all three variables move by :math:`\rho = 1.9` times their change. It converges to a minimiser for
    :math:`\tau(\sigma_A\|A\|^2 + \sigma_\nabla\|\nabla\|^2) \le 1` and :math:`\rho < 2` (Condat 2013, theorem
    3.3); the steps here meet the condition with equality, :math:`\|\nabla\|^2 \le 8`. Since the data term is
    handled through its dual, :math:`\tau` may exceed :math:`2/\|A\|^2`: for the small weights of MRI, forward
    steps on the data term would need thousands of iterations to fill the missing lines. The step of :math:`v` is
    affine in :math:`A\bar x` and :math:`y`, so that it needs no k-space: an iteration applies :math:`A^H A` once.

    Parameters
    ----------
    normal
        The map ``x -> A^H A x``.
    zero_filled
        ``A^H y``, with peaks of about 1: the start.
    weight, iterations, tolerance, progress
        As in `ulda.methods.TotalVariation`.
    norm
        An upper bound of the norm of A.
    """
    norm_squared = norm**2 or 1.0
    tau = _PRIMAL_STEP / max(weight, _SMALLEST_WEIGHT) / max(1.0, weight / _LARGE_WEIGHT) ** 0.5
    tau = max(tau, _SMALLEST_STEP)
    sigma_data = _DATA_SHARE / (tau * norm_squared)
    sigma_gradient = (1 - _DATA_SHARE) / (tau * _GRADIENT_NORM_SQUARED)
    x = zero_filled
    q, u = torch.zeros_like(x), torch.zeros_like(gradient(x))
    result, unfinished = x, torch.ones_like(x[..., :1, :1].real, dtype=torch.bool)
    for iteration in range(1, iterations + 1):
        dx = (q + gradient_adjoint(u)).mul_(-tau)
        x_bar = x + 2 * dx
        dq = (normal(x_bar) - zero_filled).sub_(q).mul_(sigma_data / (1 + sigma_data))
        du = _project(gradient(x_bar).mul_(sigma_gradient).add_(u), weight).sub_(u)
        x = x + _RELAXATION * dx
        q.add_(dq, alpha=_RELAXATION)
        u.add_(du, alpha=_RELAXATION)
        result = torch.where(unfinished, x, result)
        if progress is not None:
            progress(iteration)
        if tolerance > 0 and iteration > 1:  # the first only sets the dual variables
            unfinished = unfinished & (_norm(dx) > tolerance * _norm(x))
            if not unfinished.any():
                break
    return result


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
    >>> from ulda.solvers.total_variation import gradient
    >>> gradient(torch.tensor([[0.0, 1.0], [5.0, 5.0]]))
    tensor([[[5., 4.],
             [0., 0.]],
    <BLANKLINE>
            [[1., 0.],
             [0., 0.]]])
    """
    differences = torch.empty((2, *x.shape), dtype=x.dtype, device=x.device)
    torch.sub(x[..., 1:, :], x[..., :-1, :], out=differences[0, ..., :-1, :])
    torch.sub(x[..., 1:], x[..., :-1], out=differences[1, ..., :-1])
    differences[0, ..., -1, :] = 0
    differences[1, ..., -1] = 0
    return differences


def gradient_adjoint(u: Tensor) -> Tensor:
    """Adjoint of `gradient`, the negative divergence: ``(2, ..., H, W) -> (..., H, W)``.

    Examples
    --------
    >>> import torch
    >>> from ulda.solvers.total_variation import gradient, gradient_adjoint
    >>> gradient_adjoint(gradient(torch.tensor([[0.0, 3.0, 0.0]])))
    tensor([[-3.,  6., -3.]])
    """
    rows, columns = u[0, ..., :-1, :], u[1, ..., :, :-1]
    return -pad(rows, (0, 0, 1, 1)).diff(dim=-2) - pad(columns, (1, 1)).diff(dim=-1)


def _project(u: Tensor, radius: float) -> Tensor:
    """Bring a field, in place, to the nearest one whose two components have at most the norm `radius` at each pixel."""
    length = _squares(u).sum(0).sqrt_()  # much faster than a norm of complex numbers
    return u.mul_(radius / length.clamp_min_(max(radius, torch.finfo(u.dtype).tiny)))


def _norm(x: Tensor) -> Tensor:
    return _squares(x).sum((-2, -1), keepdim=True).sqrt_()


def _squares(x: Tensor) -> Tensor:
    return x.real.square() + x.imag.square() if x.is_complex() else x.square()
