"""L-BFGS on the log of a loss."""

import dataclasses
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tff_mf.losses import max_loss, rms_loss
from tff_mf.optimize._result import MechanismT, OptimizationResult

# In units of the log of the loss.
_WALL = 10.0

# A search has converged if no entry of the gradient of log(loss) is larger; one that ended by itself, because
# iterations gained nothing any more, may have larger ones.
_STATIONARY = 1e-4
_STATIONARY_IF_ENDED = 1e-3


class Value(NamedTuple):
    """A value and its gradient."""

    value: float
    gradient: np.ndarray


class Descent(NamedTuple):
    """How a search ended: `ended` says that it did so by itself, and `history` has the loss after each iteration."""

    variables: np.ndarray
    log_loss: float
    gradient_norm: float
    iterations: int
    ended: bool
    ending: str
    history: tuple[float, ...]


def descend(
    loss: Callable[[np.ndarray], Value],
    start: np.ndarray,
    *,
    iterations: int,
    tolerance: float = 1e-11,
    memory: int = 20,
    on_iteration: Callable[[int, float], None] = lambda iteration, loss: None,
) -> Descent:
    """Minimizes the log of a loss by L-BFGS from `start`.

    Args:
        loss: Returns the log of the loss and its gradient.
        start: Where to start, float64 `[variables]`.
        iterations: Largest number of them.
        tolerance: The search ends where an iteration lowers the loss by less than this, relatively.
        memory: Number of earlier steps that the next one is made from.
        on_iteration: Is told the number and the loss of each iteration.
    """
    # Imported here: it would double the time of `import tff_mf`.
    import scipy.optimize

    if not len(start):
        value = float(loss(start).value)
        return Descent(
            start, value, gradient_norm=0.0, iterations=0, ended=True, ending="nothing to choose", history=()
        )
    last: list[float] = []
    history: list[float] = []

    def evaluate(variables: np.ndarray) -> tuple[float, np.ndarray]:
        with np.errstate(all="ignore"):
            value, gradient = loss(variables)
        if not np.isfinite(value) or not np.all(np.isfinite(gradient)):
            # Finite, or the line search would compute a step of NaN; so much above the rest that it goes back.
            return last[0] + _WALL, np.zeros_like(variables)
        last[:] = [float(value)]
        return value, gradient

    def advance(_: np.ndarray) -> None:
        history.append(float(np.exp(last[0])))
        on_iteration(len(history), history[-1])

    found = scipy.optimize.minimize(
        evaluate,
        start,
        jac=True,
        method="L-BFGS-B",
        callback=advance,
        options={"maxcor": memory, "maxiter": iterations, "maxfun": 2 * iterations, "ftol": tolerance, "gtol": 1e-9},
    )
    return Descent(
        variables=found.x,
        log_loss=float(found.fun),
        gradient_norm=float(np.abs(found.jac).max()),
        iterations=int(found.nit),
        ended=bool(found.success),
        ending=str(found.message),
        history=tuple(history),
    )


def finish(mechanism: MechanismT, found: Descent, objective: str, began: float) -> OptimizationResult[MechanismT]:
    """Returns the result of a search, with the loss recomputed from the parameters of the mechanism."""
    optimized_for = mechanism.optimized_for
    assert optimized_for is not None
    loss = max_loss if objective == "max" else rms_loss
    converged = found.gradient_norm <= (_STATIONARY_IF_ENDED if found.ended else _STATIONARY)
    mechanism = dataclasses.replace(mechanism, optimized_for=dataclasses.replace(optimized_for, converged=converged))
    return OptimizationResult(
        mechanism=mechanism,
        objective=objective,
        loss=loss(mechanism, optimized_for.rounds, optimized_for.participation, optimized_for.workload),
        converged=converged,
        message=f"{'Stationary' if converged else 'Not at a stationary point'}: {found.ending}",
        iterations=found.iterations,
        seconds=time.perf_counter() - began,
        gradient_norm=found.gradient_norm,
        history=found.history,
    )
