"""Algorithm 1 of the paper, the modified efficient learnable descent algorithm; comments carry its line numbers.

Every test is per sample: the result for a sample does not depend on its batch, and a sample that has stopped costs
nothing more. ``phi`` and its gradient at ``x_{t+1}`` are computed once; they serve the test of ``eps``, the next
acceptance test and the next line search. `ulda.solvers.batch` does the bookkeeping.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ulda.solvers.batch import LINE_SEARCH, STALLED, Batch, Outcome
from ulda.solvers.objective import SmoothedObjective, square_norm
from ulda.solvers.options import Options
from ulda.solvers.proposals import Candidate, GradientProposal, Memory, Proposal
from ulda.solvers.trace import Callback, Status, Trace


def elda(
    objective: SmoothedObjective,
    x0: Tensor,
    proposal: Proposal | None = None,
    options: Options | None = None,
    callback: Callback | None = None,
) -> tuple[Tensor, Trace]:
    """Minimise ``phi(x) = f(x) + r(x)`` from `x0`; return the last iterate and a record of the run.

    Limit points are Clarke stationary points of ``phi`` if ``f`` and the features of ``r`` have Lipschitz gradients and
    ``phi`` is coercive; in any case ``phi_eps(x_t) + n_pixels eps_t / 2`` never increases, whatever proposes.

    Parameters
    ----------
    objective
        The problems of a batch.
    x0
        Where to start, ``(n, ...)``, real or complex.
    proposal
        What proposes u; by default `GradientProposal`, which is that of the paper.
    options
        The parameters of the algorithm.
    callback
        Called after each iteration; returning False ends the run, as if T had been reached.
    """
    proposal, options = GradientProposal() if proposal is None else proposal, options or Options()
    batch, result = Batch.start(objective, x0, proposal, options), x0
    trace = Trace(len(x0), options, proposal)
    for t in range(options.iterations):  # line 1
        candidates = proposal(batch.objective, batch.x, batch.at_x, batch.eps, t, batch.memory)  # lines 2 and 3
        u = batch.proposed(candidates[0], len(candidates))
        after = _accept_or_search(batch, candidates, u, options) if options.safeguard else u  # lines 4 to 14
        trace.record(batch, after)
        result = batch.write(result, after.x)
        keep_going = callback is None or callback(Status.of(t, batch, u, after)) is not False
        reduced = after.at_x.grad_norm < options.sigma * options.gamma * batch.eps  # line 15
        eps = torch.where(reduced, options.gamma * batch.eps, batch.eps)  # line 16
        # where no step descends in finite precision, only another eps could help
        stopped = (options.sigma * batch.eps < options.eps_tol) | ((after.branch == STALLED) & ~reduced)  # line 18
        if not keep_going:
            trace.options = replace(options, iterations=t + 1)
        if not keep_going or stopped.all():
            break  # line 19
        batch = batch.advance(after, stopped, eps, is_last=t + 1 == options.iterations)
    return result, trace  # line 22


def _accept_or_search(batch: Batch, candidates: list[Candidate], u: Outcome, options: Options) -> Outcome:
    """Take for each sample the first candidate that descends, u if it does; search along a line where none does."""
    after, refused = u, (~is_accepted(batch, u, options)).nonzero().squeeze(1)  # line 4
    for place, candidate in enumerate(candidates[1:], 1):
        if len(refused):
            rest = batch.take(refused)
            other = rest.proposed(candidate.take(refused), len(candidates) - place)
            passed = is_accepted(rest, other, options)
            after = after.replace(refused[passed], other.take(passed.nonzero().squeeze(1)))  # line 5
            refused = refused[~passed]
    if len(refused):  # line 6
        memory = candidates[-1].take(refused).memory
        after = after.replace(refused, _line_search(batch.take(refused), memory, options))
    return after


def is_accepted(batch: Batch, u: Outcome, options: Options) -> Tensor:
    """Test both conditions on the proposal of every sample; one that is not finite fails them."""
    square_step = square_norm(u.x - batch.x)
    is_long_enough = batch.at_x.grad_norm <= square_step.sqrt() / options.eta1
    descends = u.at_x.phi - batch.at_x.phi <= -options.eta2 / 2 * square_step
    return is_long_enough & descends & torch.isfinite(u.at_x.grad_norm)


def _line_search(batch: Batch, memory: Memory, options: Options) -> Outcome:
    """Shorten gradient steps until each sample descends; only the samples still searching are evaluated."""
    objective, x, at_x, eps = batch.objective, batch.x, batch.at_x, batch.eps
    v, at_v, gradient, length = x, at_x, at_x.grad, torch.zeros_like(eps)
    branch, n_reductions = torch.full_like(batch.samples, STALLED), torch.zeros_like(batch.samples)
    with torch.no_grad():
        searching, a = torch.arange(len(x), device=x.device), options.alpha_bar  # line 7
        for _ in range(options.max_line_search):
            trial = x[searching] - a * gradient[searching]  # line 8
            at_trial = objective.take(searching).evaluate(trial, eps[searching])
            square_step = square_norm(trial - x[searching])
            found = at_trial.phi - at_x.phi[searching] <= -options.eta3 / eps[searching] * square_step  # line 9
            vanished = square_step == 0  # shorter steps would be lost in rounding, too
            found &= ~vanished | (at_x.grad_norm[searching] == 0)
            done, winners = searching[found], found.nonzero().squeeze(1)
            v, at_v = v.index_copy(0, done, trial[winners]), at_v.replace(done, at_trial.take(winners))  # line 10
            branch[done], length[done] = LINE_SEARCH, a
            searching, a = searching[~(found | vanished)], options.rho * a  # line 12
            n_reductions[searching] += 1
            if len(searching) == 0:
                break
    if torch.is_grad_enabled():
        # the search is not differentiated; the step it found is, with its length as a constant
        is_tracked = at_x.r.requires_grad
        slope = at_x.grad if is_tracked else at_x.grad_f + objective.regularizer_grad(x, eps)
        v = x - length.to(slope.real.dtype).reshape(-1, *(1,) * (x.ndim - 1)) * slope
        at_v = objective.evaluate(v, eps) if is_tracked else replace(at_v, grad_f=objective.fidelity_grad(v))
    return Outcome(v, at_v, memory, branch, n_reductions, torch.zeros_like(branch))
