"""Optimizer of BLTs: buffers are added one by one, each where it lowers the loss most."""

import functools
import time
from collections.abc import Callable

import numpy as np

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import BLT, OptimizedFor
from tff_mf.optimize._blt_loss import BLTLoss
from tff_mf.optimize._descent import Descent, descend, with_status
from tff_mf.problem.participation import Participation

# A new buffer starts as a pair θ > θ̂. Its width, and the distance between the places that are tried, are in the
# logarithm of the time scale. The search follows `_PLACES_FOLLOWED` places with the least loss among their neighbors,
# and the fastest one, for `_FOLLOWED_FOR` iterations each, and the best of these to the end. In 160 random settings
# with up to 5 buffers each, 2 of the 800 losses were more than 1e-5 above the best that 8 places and 60 iterations
# find, the worse of them by 0.035 %.
_PAIR_WIDTH = 0.2
_PLACE_STEP = 0.5
_PLACES_FOLLOWED = 2
_FOLLOWED_FOR = 25
_ITERATIONS = 1000

# No exponential in the loss overflows if the largest exponent of a decay is at most this.
_LARGEST_EXPONENT = 300.0


def _with_one_more_buffer(loss_of: Callable[[int], BLTLoss], rounds: int, optimum: Descent) -> Descent:
    """Returns the optimum with one more buffer; its iterations are those spent on this buffer.

    Args:
        loss_of: The loss with a number of buffers.
        rounds: Number of rounds n, which bounds the time scales that are tried.
        optimum: The optimum with one buffer less.
    """
    buffers = len(optimum.variables) // 2 + 1
    loss = loss_of(buffers)
    exponents = np.cumsum(np.exp(optimum.variables))
    pair = np.exp([-_PAIR_WIDTH / 2, _PAIR_WIDTH / 2])
    places = np.exp(np.arange(-np.log(5.0 * rounds), np.log(3.0), _PLACE_STEP))
    limits = increment_limits(rounds, buffers)
    starts = [np.log(np.clip(np.diff(np.sort([0.0, *exponents, *(place * pair)])), *limits)) for place in places]

    scores = np.array([loss(start)[0] for start in starts])
    around = np.pad(scores, 1, constant_values=np.inf)
    valleys = np.flatnonzero((scores <= around[:-2]) & (scores <= around[2:]))
    chosen = {*valleys[np.argsort(scores[valleys])][:_PLACES_FOLLOWED], len(places) - 1}

    lowest, highest = np.log(limits)
    to_the_end = functools.partial(descend, loss, tolerance=1e-13, memory=30, limits=(lowest, highest))
    followed = [to_the_end(starts[place], iterations=_FOLLOWED_FOR) for place in sorted(chosen)]
    best = min(followed, key=lambda candidate: candidate.log_loss)
    finished = to_the_end(best.variables, iterations=_ITERATIONS)
    return finished._replace(iterations=finished.iterations + sum(candidate.iterations for candidate in followed))


def increment_limits(rounds: int, buffers: int) -> tuple[float, float]:
    """Returns the range of increments of exponents: decays coincide below it, exponentials overflow above it."""
    return np.exp(-30.0) / rounds, _LARGEST_EXPONENT / (2 * buffers)


# A buffer that lowers the loss by less than this relative amount is not worth its memory.
_DEAD = 1e-6

# Least relative gain of a buffer where the number of buffers is chosen here.
_WORTHWHILE = 1e-3

# A search has converged where the gradient of log(loss) by the logarithms of time scales has no larger entry.
_STATIONARY = 1e-5

_MOST_ROUNDS = 10**12
_MOST_PARTICIPATIONS = 10**6

# The smallest normal float32: a faster decay would become 0, which a BLT may not have, in the cast to float32.
FASTEST_DECAY = float(np.finfo(np.float32).tiny)


def optimize_blt(
    *, rounds: int, participation: Participation, buffers: int | None = None, objective: str = "max"
) -> BLT:
    """Returns the BLT with the least MaxLoss or RmsLoss for prefix sums.

    Loss and gradient are exact and cost the same for 10³ and 10⁹ rounds, O(k·d²) for k participations and d buffers.
    They are minimized by L-BFGS in variables all of whose values are valid BLTs. Buffers are added one at a time, so
    that more buffers never give a larger loss; a buffer that would lower it by less than a relative 1e-6 is left out,
    and `message` says so. With `buffers=None` they are added as long as each lowers the loss by at least 0.1 %.

    The `history` in `optimized_for.search` has the least loss for 1, 2, … buffers. Its `loss` is recomputed from the
    parameters of the mechanism.

    Args:
        rounds: Number of rounds n.
        participation: The participation schema.
        buffers: Number of buffers, or `None` to choose it.
        objective: "max" for MaxLoss, "rms" for RmsLoss.

    Source: McMahan et al. (2024), section 3 and appendix D, for what is minimized.

    Example:
        >>> from tff_mf import MinSep
        >>> participation = MinSep(min_sep=342, max_participations=6)
        >>> mechanism = optimize_blt(rounds=2052, participation=participation, buffers=4)
        >>> mechanism.buffers, mechanism.optimized_for.converged, round(mechanism.optimized_for.search.loss, 3)
        (4, True, 10.734)

    Raises:
        InputValueError: If the participations do not fit in `rounds`.
    """
    began = time.perf_counter()
    optimized_for = OptimizedFor(rounds=rounds, participation=participation)
    limit = None if buffers is None else validation.whole("buffers", buffers)
    objective = validation.one_of("objective", objective, ("max", "rms"))
    _check_size(optimized_for)

    def loss_of(count: int) -> BLTLoss:
        return BLTLoss(optimized_for, objective, count)

    # Of C = I.
    optimum = descend(loss_of(0), np.zeros(0), iterations=0)
    smallest_gain = _WORTHWHILE if limit is None else _DEAD
    history: list[float] = []
    iterations = 0
    gain_left_out = None
    while limit is None or len(history) < limit:
        candidate = _with_one_more_buffer(loss_of, optimized_for.rounds, optimum)
        iterations += candidate.iterations
        gain = optimum.log_loss - candidate.log_loss
        if gain < smallest_gain:
            gain_left_out = gain
            break
        optimum = candidate
        history.append(float(np.exp(optimum.log_loss)))

    return with_status(
        _mechanism(optimized_for, objective, optimum),
        objective=objective,
        converged=optimum.gradient_norm <= _STATIONARY,
        message=_message(optimum, limit, gain_left_out),
        iterations=iterations,
        began=began,
        gradient_norm=optimum.gradient_norm,
        history=tuple(history),
    )


def _check_size(optimized_for: OptimizedFor) -> None:
    if optimized_for.rounds > _MOST_ROUNDS:
        raise InputValueError(
            f"rounds={optimized_for.rounds} exceeds {_MOST_ROUNDS}: beyond it float64 cannot tell the decays needed "
            "from 1."
        )
    if optimized_for.participation.max_participations > _MOST_PARTICIPATIONS:
        raise InputValueError(
            f"max_participations={optimized_for.participation.max_participations} exceeds {_MOST_PARTICIPATIONS}: the "
            "loss is a sum with one term per participation."
        )


def _mechanism(optimized_for: OptimizedFor, objective: str, optimum: Descent) -> BLT:
    buffers = len(optimum.variables) // 2
    if not buffers:
        return BLT(theta=(0.5,), omega=(0.0,), optimized_for=optimized_for)
    theta, omega = BLTLoss(optimized_for, objective, buffers).parameters(optimum.variables)
    return BLT(theta=np.maximum(theta, FASTEST_DECAY).tolist(), omega=omega.tolist(), optimized_for=optimized_for)


def _message(optimum: Descent, limit: int | None, gain_left_out: float | None) -> str:
    buffers = len(optimum.variables) // 2
    target = buffers if limit is None else limit
    message = f"{buffers} of {target}" if target > buffers else f"{target}"
    message += " buffer" if target == 1 else " buffers"
    if gain_left_out is not None:
        message += f": one more would lower the loss by a relative {max(gain_left_out, 0.0):.1e}"
    if optimum.gradient_norm > _STATIONARY:
        message += f". Not at a stationary point: {optimum.ending}"
    return f"{message}."
