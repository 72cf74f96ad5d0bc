"""The learned regulariser ``r_eps``, its gradient, and the derivative of its gradient.

``r_eps(x)`` sums over all pixels the smoothed length of the feature vector ``q_k``, ``q = h(g(x))``: it is
``||q_k||^2 / (2 eps)`` up to ``eps`` and ``||q_k|| - eps / 2`` beyond. Its gradient is
``J^T (q_k / max(||q_k||, eps))``, written out here with transposed convolutions on the same kernels.

Training differentiates that gradient. Since the Hessian is symmetric, this takes no double backward: one pass
forward along the incoming direction (dots below) and one pass back give everything, from two tensors per layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ulda.errors import UldaError
from ulda.models.adapter import Adapter
from ulda.models.extractor import FeatureExtractor
from ulda.models.layers import SmoothedReLU, convolve, convolve_adjoint, kernel_gradient


class Regularizer(nn.Module):
    """``r_eps(x)`` of complex images ``(..., H, W)``, with one value and one ``eps`` per image.

    Parameters
    ----------
    extractor
        g, shared by all domains.
    adapter
        h of one domain; None for ``q = g`` (the initialisation of the training).
    recompute
        Keep no features for the backward pass and compute them again there: less memory for more time.

    Examples
    --------
    >>> import torch
    >>> r = Regularizer(FeatureExtractor(), Adapter())
    >>> x = torch.ones(2, 16, 16, dtype=torch.complex64, requires_grad=True)
    >>> (expected,) = torch.autograd.grad(r.value(x, 0.01).sum(), x)
    >>> torch.allclose(r.grad(x, 0.01), expected, atol=1e-5)
    True
    """

    has_true_gradient: ClassVar[bool] = True
    """Whether `grad` is the gradient of `value`, without which nothing can be certified."""

    def __init__(self, extractor: FeatureExtractor, adapter: Adapter | None = None, *, recompute: bool = False) -> None:
        super().__init__()
        if adapter is not None and adapter.width != extractor.width:
            raise UldaError(
                f"the adapter has {adapter.width} channels and the feature extractor {extractor.width}; "
                "they must be equal"
            )
        self.extractor, self.adapter, self.recompute = extractor, adapter, recompute

    def materialize(self) -> Regularizer:
        """Return a copy that has all its kernels, as they are now, for its own, also those it computes from others."""
        return Regularizer(
            self.extractor.materialize(), self.adapter and self.adapter.materialize(), recompute=self.recompute
        )

    def strength(self, noise: Tensor | None) -> Tensor | None:
        """Return by what the noise of each measurement ``(n,)`` multiplies the regulariser; None for 1."""
        return None if noise is None or self.adapter is None else self.adapter.strength(noise)

    def features(self, x: Tensor) -> Tensor:
        """Return ``q(x)`` with stacked channels, ``(N, 2 width, H, W)``, for images ``(N, H, W)``."""
        q = self.extractor(stacked(x))
        return q if self.adapter is None else self.adapter(q)

    def value(self, x: Tensor, eps: float | Tensor) -> Tensor:
        """Return ``r_eps(x)`` in double precision, in the shape of the leading axes.

        Plain PyTorch, differentiable as often as wanted; where the gradient is needed, `value_and_grad` is the way.
        """
        images, eps = self._batch(x, eps)
        squares = self.features(images).square().sum(1)
        return _smoothed_length(squares, eps)[0].reshape(x.shape[:-2])

    def grad(self, x: Tensor, eps: float | Tensor) -> Tensor:
        """Return the gradient of `value`, with the shape of `x`; differentiable once."""
        return self.value_and_grad(x, eps)[1]

    def value_and_grad(self, x: Tensor, eps: float | Tensor) -> tuple[Tensor, Tensor]:
        """Return `value` and `grad` from one pass; both are differentiable once, with `eps` as a constant."""
        images, eps = self._batch(x, eps)
        layers = [layer.kernel() for layer in self.extractor.layers]  # type: ignore[operator]
        if self.adapter is not None:
            layers.append(self.adapter.layer.kernel())
        arguments = (stacked(images), eps, self.extractor.activation, self.extractor.depth, self.recompute)
        value, gradient = _ValueAndGrad.apply(*arguments, *layers)  # type: ignore[no-untyped-call]
        return value.reshape(x.shape[:-2]), unstacked(gradient).reshape(x.shape)

    def _batch(self, x: Tensor, eps: float | Tensor) -> tuple[Tensor, Tensor]:
        """Check the input and bring it into the shapes ``(n, H, W)`` and ``(n, 1, 1)``."""
        if x.ndim < 2 or not x.is_complex() or x.numel() == 0:
            raise UldaError(f"the regulariser needs complex images (..., H, W), but got {x.dtype} {tuple(x.shape)}")
        precision = next(self.parameters()).dtype
        if x.real.dtype != precision:
            raise UldaError(f"the images are {x.dtype} and the weights {precision}; bring both to one precision")
        images = x.resolve_conj().reshape(-1, *x.shape[-2:]).contiguous()
        eps = torch.as_tensor(eps, dtype=precision, device=x.device)
        if not bool((eps > 0).all()):
            raise UldaError(f"the smoothing eps must be positive, but its smallest value is {eps.min().item():g}")
        try:
            return images, eps.expand(x.shape[:-2]).reshape(-1, 1, 1)
        except RuntimeError as error:
            raise UldaError(
                f"eps has shape {tuple(eps.shape)}, but the images {tuple(x.shape)}; give one eps, or one per image"
            ) from error


def stacked(x: Tensor) -> Tensor:
    """View complex images ``(..., H, W)`` as real ones ``(..., 2, H, W)``, channels-last in memory already."""
    return torch.view_as_real(x).movedim(-1, -3)


def unstacked(x: Tensor) -> Tensor:
    """Turn real images ``(..., 2, H, W)`` back into complex ones ``(..., H, W)``."""
    return torch.view_as_complex(x.movedim(-3, -1).contiguous())


def _smoothed_length(squares: Tensor, eps: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of the smoothed lengths per image, and ``max(length, eps)`` per pixel ``(N, H, W)``.

    Sums are in double precision: the solver compares values that agree in most of their digits.
    """
    # the square root of zero has no derivative; below the smallest normal number eps decides anyway
    length = squares.clamp_min(torch.finfo(squares.dtype).tiny).sqrt()
    value = torch.where(length <= eps, squares / (2 * eps), length - eps / 2)
    return value.sum((-2, -1), dtype=torch.float64), torch.maximum(length, eps)


@dataclass
class _Pass:
    """What one evaluation leaves for its derivative.

    Attributes
    ----------
    z
        ``relu(a_i + delta)`` of the pre-activations of each activated layer: gives its output and derivatives.
    h
        The gradient with respect to the output of each activated layer.
    q
        The features.
    """

    z: list[Tensor]
    h: list[Tensor]
    q: Tensor


def _evaluate(
    x: Tensor, eps: Tensor, kernels: tuple[Tensor, ...], activation: SmoothedReLU, n_activated: int
) -> tuple[Tensor, Tensor, _Pass]:
    """Return value, gradient and what the derivative of the gradient needs.

    What is not kept goes through one scratch tensor: the memory of many short-lived tensors between kept ones is
    rarely found again by the allocator.
    """
    z: list[Tensor] = []
    s, scratch = x, None
    for i, kernel in enumerate(kernels):
        if i < n_activated:
            shift = torch.full(kernel.shape[:1], activation.delta, dtype=kernel.dtype, device=kernel.device)
            z.append(convolve(s, kernel, shift).relu_())
            is_last = i + 1 == len(kernels)
            scratch = torch.empty_like(z[0]) if scratch is None or is_last else scratch
            s = activation.from_shifted(z[i], out=scratch)
        else:
            s = convolve(s, kernel)
    q = s
    scratch = torch.empty_like(q) if scratch is None or scratch is q else scratch
    value, length = _smoothed_length(torch.square(q, out=scratch).sum(1), eps)
    h: list[Tensor] = []
    g = torch.div(q, length[:, None], out=scratch if n_activated < len(kernels) else None)
    for i in reversed(range(len(kernels))):
        if i < n_activated:
            h.append(g)
            g = activation.derivative_from_shifted(z[i], out=scratch).mul_(g)
        g = convolve_adjoint(g, kernels[i])
    return value, g, _Pass(z, h[::-1], q)


class _ValueAndGrad(torch.autograd.Function):
    """Value and gradient of ``r_eps`` with their derivatives with respect to the image and the kernels."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        eps: Tensor,
        activation: SmoothedReLU,
        n_activated: int,
        recompute: bool,
        *kernels: Tensor,
    ) -> tuple[Tensor, Tensor]:
        value, gradient, kept = _evaluate(x, eps, kernels, activation, n_activated)
        ctx.activation, ctx.n_activated, ctx.recompute = activation, n_activated, recompute
        ctx.set_materialize_grads(False)
        if any(ctx.needs_input_grad):
            features = () if recompute else (*kept.z, *kept.h, kept.q)
            ctx.save_for_backward(x, eps, gradient, *kernels, *features)
        return value, gradient

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_value: Tensor | None, d_gradient: Tensor | None) -> tuple[Any, ...]:
        n_fixed, n_activated = 5, ctx.n_activated
        n_kernels = len(ctx.needs_input_grad) - n_fixed
        x, eps, gradient, *rest = ctx.saved_tensors
        kernels, features = tuple(rest[:n_kernels]), rest[n_kernels:]
        if d_value is None and d_gradient is None:
            return (None,) * (n_fixed + n_kernels)
        if ctx.recompute:
            _, _, kept = _evaluate(x, eps, kernels, ctx.activation, n_activated)
        else:
            kept = _Pass(features[:n_activated], features[n_activated : 2 * n_activated], features[-1])
        weight = None if d_value is None else d_value.to(x.dtype).reshape(-1, 1, 1, 1)
        wanted = ctx.needs_input_grad[n_fixed:]
        if d_gradient is None:
            assert weight is not None
            d_x = weight * gradient
            d_kernels = _first_order(x, eps, kernels, ctx.activation, kept, weight, wanted)
        else:
            d_x, d_kernels = _second_order(x, eps, kernels, ctx.activation, kept, d_gradient, weight, wanted)
            if weight is not None:
                d_x = d_x + weight * gradient
        return (d_x, None, None, None, None, *d_kernels)


def _first_order(
    x: Tensor,
    eps: Tensor,
    kernels: tuple[Tensor, ...],
    activation: SmoothedReLU,
    kept: _Pass,
    weight: Tensor,
    wanted: tuple[bool, ...],
) -> list[Tensor | None]:
    """Differentiate ``weight * r_eps(x)`` by the kernels."""
    d_kernels: list[Tensor | None] = [None] * len(kernels)
    for i in range(len(kernels)):
        if wanted[i]:
            if i < len(kept.z):
                g = activation.derivative_from_shifted(kept.z[i]).mul_(kept.h[i])
            else:
                g = kept.q / _smoothed_length(kept.q.square().sum(1), eps)[1][:, None]
            source = x if i == 0 else activation.from_shifted(kept.z[i - 1])
            d_kernels[i] = kernel_gradient(source, g.mul_(weight), kernels[i].shape[-1])
    return d_kernels


def _second_order(
    x: Tensor,
    eps: Tensor,
    kernels: tuple[Tensor, ...],
    activation: SmoothedReLU,
    kept: _Pass,
    direction: Tensor,
    weight: Tensor | None,
    wanted: tuple[bool, ...],
) -> tuple[Tensor, list[Tensor | None]]:
    """Differentiate ``<direction, grad r_eps(x)> + weight * r_eps(x)`` by `x` (first term only) and by the kernels.

    A dot is the derivative along `direction`. Only the pre-activations' dots are stored; what else the way back needs
    is pointwise, and computing it again there costs less than the memory.
    """
    z, n_activated = kept.z, len(kept.z)
    a_dot: list[Tensor] = []
    slope, source, source_dot = (torch.empty_like(kept.q) for _ in range(3))
    s_dot = direction
    for i, kernel in enumerate(kernels):
        s_dot = convolve(s_dot, kernel)
        if i < n_activated:
            a_dot.append(s_dot)
            s_dot = torch.mul(activation.derivative_from_shifted(z[i], out=slope), s_dot, out=source_dot)
    q, q_dot = kept.q, s_dot
    length = _smoothed_length(torch.square(q, out=source).sum(1), eps)[1][:, None]
    g = q / length
    along = torch.where(length > eps[:, None], torch.mul(g, q_dot, out=source).sum(1, keepdim=True), 0.0)
    g_dot = torch.addcmul(q_dot, g, along, value=-1).div_(length)
    d_kernels: list[Tensor | None] = [None] * len(kernels)
    # `slope` holds the derivative of the last activation by now; on the way back, of the one that comes next
    for i in reversed(range(len(kernels))):
        if i < n_activated:
            curved = activation.keep_inside_parabola_(z[i], a_dot.pop())
            g_dot.mul_(slope).addcmul_(curved, kept.h[i], value=activation.curvature)
            g = torch.mul(slope, kept.h[i], out=curved)
            if i > 0:
                activation.derivative_from_shifted(z[i - 1], out=slope)
        above, g_dot = g_dot, convolve_adjoint(g_dot, kernels[i])
        if wanted[i]:
            if i == 0:
                source, source_dot = x, direction
            else:
                activation.from_shifted(z[i - 1], out=source)
                torch.mul(slope, a_dot[i - 1], out=source_dot)
            if weight is not None:
                source_dot = torch.addcmul(source_dot, weight, source)
            size = kernels[i].shape[-1]
            d_kernels[i] = kernel_gradient(source, above, size).add_(kernel_gradient(source_dot, g, size))
    return g_dot, d_kernels
