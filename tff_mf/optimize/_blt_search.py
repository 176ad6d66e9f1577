"""Search for BLTs: a buffer is added where it lowers a loss most, and all of them are improved together."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

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


class Optimum(NamedTuple):
    """Variables of the least loss that was found, and how the search for it ended."""

    log_loss: float
    variables: np.ndarray
    gradient_norm: float
    iterations: int
    ending: str

    @property
    def buffers(self) -> int:
        """Number of buffers."""
        return len(self.variables) // 2


LossOf = Callable[[int], Callable[[np.ndarray], tuple[float, np.ndarray]]]


def without_buffers(loss_of: LossOf) -> Optimum:
    """Returns the loss of C = I, which has nothing to choose."""
    none = np.zeros(0)
    log_loss, _ = loss_of(0)(none)
    return Optimum(log_loss=log_loss, variables=none, gradient_norm=0.0, iterations=0, ending="No buffers")


def with_one_more_buffer(loss_of: LossOf, rounds: int, optimum: Optimum) -> Optimum:
    """Returns the optimum with one more buffer; its iterations are those spent on this buffer.

    Args:
        loss_of: The log of the loss with a number of buffers, and its gradient, in the variables of `BLTLoss`.
        rounds: Number of rounds n, which bounds the time scales that are tried.
        optimum: The optimum with one buffer less.
    """
    loss = loss_of(optimum.buffers + 1)
    exponents = np.cumsum(np.exp(optimum.variables))
    pair = np.exp([-_PAIR_WIDTH / 2, _PAIR_WIDTH / 2])
    places = np.exp(np.arange(-np.log(5.0 * rounds), np.log(3.0), _PLACE_STEP))
    limits = increment_limits(rounds, optimum.buffers + 1)
    starts = [np.log(np.clip(np.diff(np.sort([0.0, *exponents, *(place * pair)])), *limits)) for place in places]

    scores = np.array([loss(start)[0] for start in starts])
    around = np.pad(scores, 1, constant_values=np.inf)
    valleys = np.flatnonzero((scores <= around[:-2]) & (scores <= around[2:]))
    chosen = {*valleys[np.argsort(scores[valleys])][:_PLACES_FOLLOWED], len(places) - 1}

    followed = [descend(loss, starts[place], limits, _FOLLOWED_FOR) for place in sorted(chosen)]
    best = min(followed, key=lambda candidate: candidate.log_loss)
    finished = descend(loss, best.variables, limits)
    return finished._replace(iterations=finished.iterations + sum(candidate.iterations for candidate in followed))


def increment_limits(rounds: int, buffers: int) -> tuple[float, float]:
    """Returns the range of increments of exponents: decays coincide below it, exponentials overflow above it."""
    return np.exp(-30.0) / rounds, _LARGEST_EXPONENT / (2 * buffers)


def descend(
    loss: Callable[[np.ndarray], tuple[float, np.ndarray]],
    start: np.ndarray,
    limits: tuple[float, float],
    iterations: int = _ITERATIONS,
) -> Optimum:
    """Returns where L-BFGS ends from `start`, within the limits of increments."""
    # Imported here: it would double the time of `import tff_mf`.
    import scipy.optimize

    found = scipy.optimize.minimize(
        loss,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=[tuple(np.log(limits))] * len(start),
        options={"maxcor": 30, "maxiter": iterations, "ftol": 1e-13, "gtol": 1e-8},
    )
    return Optimum(
        log_loss=float(found.fun),
        variables=found.x,
        gradient_norm=float(np.abs(found.jac).max()),
        iterations=int(found.nit),
        ending=str(found.message),
    )
