"""The modified efficient learnable descent algorithm.

It minimises ``phi(x) = f(x) + r(x)`` through its smoothings ``phi_eps``; section by section it is::

    z = x - alpha_t grad f(x),  x = x_t + momentum_t (x_t - x_{t-1}), without momentum where that leads uphill
    u = z - (beta_t + kappa_t S_t (I - A^H A)) grad r_eps(z),  S_t a filter of spatial frequencies and lines
        here r_eps may weigh its channels otherwise, as its learned steps want it; what follows never does
        or several such steps, one after the other, each with the momentum of the one before; fewer where the last fail
    accept u if   ||grad phi_eps(x_t)|| <= ||u - x_t|| / eta1
            and   phi_eps(u) - phi_eps(x_t) <= -eta2/2 ||u - x_t||^2
    otherwise     a = alpha_bar, v = x_t - a grad phi_eps(x_t)
                  while phi_eps(v) - phi_eps(x_t) > -eta3/eps ||v - x_t||^2:  a = rho a, recompute v
                  accept v
    if ||grad phi_eps(x_{t+1})|| < sigma gamma eps:  eps = gamma eps
    stop when sigma eps < eps_tol, or after T iterations

Every test is per sample: the result for a sample does not depend on its batch, and a sample that has stopped costs
nothing more. ``phi`` and its gradient at ``x_{t+1}`` are computed once; they serve the test of ``eps``, the next
acceptance test and the next line search.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ulda.errors import UldaError
from ulda.physics.spectrum import radial_filter
from ulda.solvers.objective import Evaluation, SmoothedObjective, square_norm
from ulda.solvers.options import Options
from ulda.solvers.trace import LINE_SEARCH, PROPOSAL, STALLED, Callback, Status, Trace


def elda(
    objective: SmoothedObjective, x0: Tensor, options: Options | None = None, callback: Callback | None = None
) -> tuple[Tensor, Trace]:
    """Minimise an objective from `x0` and return the last iterate with a record of the run.

    Limit points are Clarke stationary points of ``phi`` if ``f`` and the features of ``r`` have Lipschitz gradients and
    ``phi`` is coercive; in any case ``phi_eps(x_t) + n_pixels eps_t / 2`` never increases.

    Parameters
    ----------
    objective
        The problems of a batch.
    x0
        Where to start, ``(n, ...)``, real or complex.
    options
        The parameters of the algorithm.
    callback
        Called after each iteration; returning False ends the run, as if T had been reached.
    """
    options = options or Options()
    if x0.ndim < 2 or x0.shape[0] == 0:
        raise UldaError(f"the solver needs a batch (n, ...) with at least one sample, but got shape {tuple(x0.shape)}")
    if not torch.isfinite(torch.view_as_real(x0) if x0.is_complex() else x0).all():
        raise UldaError("the starting point holds NaN or infinite values")
    is_image = x0.is_complex() and x0.ndim > 2
    if options.spectrum is not None and not is_image:
        raise UldaError("a spectrum is one of complex images (n, ..., H, W); leave it out, or give the solver such")
    if options.lines is not None and not is_image:
        raise UldaError("lines are those of complex images (n, ..., H, W); leave them out, or give the solver such")
    options.check_batch(x0.shape[0])
    objective.check(x0)

    trace = Trace(x0.shape[0], options)
    samples = torch.arange(x0.shape[0], device=x0.device)
    result, x = x0, x0
    eps = torch.full(x0.shape[:1], options.eps_0, dtype=torch.float64, device=x0.device)
    at_x = objective.evaluate(x, eps)
    if not torch.isfinite(at_x.phi + at_x.grad_norm).all():
        raise UldaError("the objective is not finite at the starting point; scale the data, or check the weights")
    before = _Point(x, at_x.grad_f)
    for t in range(options.iterations):
        path, u = _propose(objective, t, samples, x, at_x, before, eps, options)
        at_u = objective.evaluate(u, eps)
        branch, n_learned = torch.full_like(samples, PROPOSAL), torch.full_like(samples, len(path))
        taken = _Taken(u, at_u, path[-1], branch, torch.zeros_like(samples), n_learned)
        if options.safeguard:
            taken = _safeguard(objective, x, at_x, path, taken, eps, options)
        x_next, at_next, before = taken.x, taken.at_x, taken.before
        trace.record(samples, x, at_x, x_next, at_next, eps, *taken.facts)
        status = Status(t, samples, x, x_next, at_x, at_next, u, at_u, eps, taken.branch)
        keep_going = callback is None or callback(status) is not False

        reduced = at_next.grad_norm < options.sigma * options.gamma * eps
        stopped = (options.sigma * eps < options.eps_tol) | ((taken.branch == STALLED) & ~reduced)
        result = x_next if len(samples) == len(result) else result.index_copy(0, samples, x_next)
        if not keep_going:
            trace.options = replace(options, iterations=t + 1)
        if not keep_going or stopped.all():
            break
        eps = torch.where(reduced, options.gamma * eps, eps)
        x, at_x = x_next, at_next
        if stopped.any():
            running = (~stopped).nonzero().squeeze(1)
            samples, x, at_x, eps = samples[running], x[running], at_x.take(running), eps[running]
            objective, before, reduced = objective.take(running), before.take(running), reduced[running]
        if reduced.any() and t + 1 < options.iterations:
            changed = reduced.nonzero().squeeze(1)
            at_x = at_x.replace(changed, objective.take(changed).evaluate(x[changed], eps[changed]))
    return result, trace


@dataclass(frozen=True)
class _Point:
    """Where a learned step begins, and the gradient of the data fidelity there."""

    x: Tensor
    slope: Tensor

    def take(self, index: Tensor) -> _Point:
        """Keep some samples."""
        return _Point(self.x[index], self.slope[index])

    def replace(self, index: Tensor, other: _Point) -> _Point:
        """Put the samples of `other` in the place of those at `index`."""
        return _Point(self.x.index_copy(0, index, other.x), self.slope.index_copy(0, index, other.slope))


@dataclass(frozen=True)
class _Taken:
    """Where an iteration ends, where its last step began, and how it went."""

    x: Tensor
    at_x: Evaluation
    before: _Point
    branch: Tensor
    n_searches: Tensor
    n_learned: Tensor

    @property
    def facts(self) -> tuple[Tensor, Tensor, Tensor]:
        """How it went."""
        return self.branch, self.n_searches, self.n_learned


def _propose(
    objective: SmoothedObjective,
    t: int,
    samples: Tensor,
    x: Tensor,
    at_x: Evaluation,
    before: _Point,
    eps: Tensor,
    options: Options,
) -> tuple[list[_Point], Tensor]:
    """Take the learned steps of an iteration; return where each begins, and u, where the last one ends.

    `before` is where the step that led to `x` began.
    """
    path, has_momentum = list[_Point](), is_downhill(x - before.x, at_x)
    for number in range(t * options.steps_per_phase, (t + 1) * options.steps_per_phase):
        here = _Point(x, objective.fidelity_grad(x) if path else at_x.grad_f)
        momentum = options.step("momentum", number, samples, x) * (1 if path else has_momentum)
        ahead, slope = x + momentum * (x - before.x), here.slope + momentum * (here.slope - before.slope)
        z = ahead - options.step("alpha", number, samples, x) * slope
        slope_r = objective.regularizer_grad(z, eps, options.gains("channels", number, x))
        u = z - options.step("beta", number, samples, x) * slope_r
        if options.has_extra_step:
            extra = objective.unmeasured(slope_r, options.gains("lines", number, x))
            gains = options.gains("spectrum", number, x)
            extra = extra if gains is None else radial_filter(extra, gains)
            u = u - options.step("kappa", number, samples, x) * extra
        path.append(here)
        before, x = here, u
    return path, x


def is_downhill(step: Tensor, at_x: Evaluation) -> Tensor:
    """Tell which samples still descend along their last step; the others have gone too far and lose their momentum."""
    with torch.no_grad():
        along = (step * at_x.grad.conj()).real.flatten(1).sum(1, dtype=torch.float64)
    return (along <= 0).to(step.real.dtype).reshape(-1, *(1,) * (step.ndim - 1))


def _is_sufficient(x: Tensor, at_x: Evaluation, u: Tensor, at_u: Evaluation, options: Options) -> Tensor:
    """Test both acceptance conditions of every proposal; a proposal that is not finite fails them."""
    square_step = square_norm(u - x)
    is_long_enough = at_x.grad_norm <= square_step.sqrt() / options.eta1
    descends = at_u.phi - at_x.phi <= -options.eta2 / 2 * square_step
    return is_long_enough & descends & torch.isfinite(at_u.grad_norm)


def _safeguard(
    objective: SmoothedObjective,
    x: Tensor,
    at_x: Evaluation,
    path: list[_Point],
    proposed: _Taken,
    eps: Tensor,
    options: Options,
) -> _Taken:
    """Take as many learned steps of each proposal as descend, all of them where they do; else search along a line."""
    x_next, at_next, before = proposed.x, proposed.at_x, proposed.before
    branch, n_searches, n_learned = proposed.facts
    refused = (~_is_sufficient(x, at_x, x_next, at_next, options)).nonzero().squeeze(1)
    for number in range(len(path) - 1, 0, -1):
        if len(refused) == 0:
            break
        trial = path[number].x[refused]
        at_trial = objective.take(refused).evaluate(trial, eps[refused])
        passed = _is_sufficient(x[refused], at_x.take(refused), trial, at_trial, options)
        winners, chosen = passed.nonzero().squeeze(1), refused[passed]
        x_next, at_next = x_next.index_copy(0, chosen, trial[winners]), at_next.replace(chosen, at_trial.take(winners))
        before, refused = before.replace(chosen, path[number - 1].take(chosen)), refused[~passed]
        n_learned[chosen] = number
    if len(refused):
        part = objective.take(refused), x[refused], at_x.take(refused), eps[refused]
        v, at_v, branch[refused], n_searches[refused] = _line_search(*part, options)
        n_learned[refused] = 0
        if len(refused) == len(x):
            return _Taken(v, at_v, path[0], branch, n_searches, n_learned)
        x_next, at_next = x_next.index_copy(0, refused, v), at_next.replace(refused, at_v)
        before = before.replace(refused, path[0].take(refused))
    return _Taken(x_next, at_next, before, branch, n_searches, n_learned)


def _line_search(
    objective: SmoothedObjective, x: Tensor, at_x: Evaluation, eps: Tensor, options: Options
) -> tuple[Tensor, Evaluation, Tensor, Tensor]:
    """Shorten gradient steps until each sample descends; only the samples still searching are evaluated."""
    v, at_v, gradient = x, at_x, at_x.grad
    branch, n_reductions = torch.full_like(eps, STALLED, dtype=torch.long), torch.zeros_like(eps, dtype=torch.long)
    length = torch.zeros_like(eps)
    searching, a = torch.arange(len(x), device=x.device), options.alpha_bar
    with torch.no_grad():
        for _ in range(options.max_line_search):
            trial = x[searching] - a * gradient[searching]
            at_trial = objective.take(searching).evaluate(trial, eps[searching])
            square_step = square_norm(trial - x[searching])
            found = at_trial.phi - at_x.phi[searching] <= -options.eta3 / eps[searching] * square_step
            vanished = square_step == 0  # shorter steps would be lost in rounding, too
            found &= ~vanished | (at_x.grad_norm[searching] == 0)
            done, winners = searching[found], found.nonzero().squeeze(1)
            v, at_v = v.index_copy(0, done, trial[winners]), at_v.replace(done, at_trial.take(winners))
            branch[done], length[done] = LINE_SEARCH, a
            searching, a = searching[~(found | vanished)], options.rho * a
            n_reductions[searching] += 1
            if len(searching) == 0:
                break
    if torch.is_grad_enabled():
        # the search is not differentiated; the step it found is, with its length as a constant
        is_tracked = at_x.r.requires_grad
        slope = at_x.grad if is_tracked else at_x.grad_f + objective.regularizer_grad(x, eps)
        v = x - length.to(slope.real.dtype).reshape(-1, *(1,) * (x.ndim - 1)) * slope
        at_v = objective.evaluate(v, eps) if is_tracked else replace(at_v, grad_f=objective.fidelity_grad(v))
    return v, at_v, branch, n_reductions
