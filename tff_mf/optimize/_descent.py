"""Descent for all optimizers: L-BFGS, how a search went and how it ended."""

import dataclasses
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from tff_mf.mechanisms import Mechanism, SearchStatus
from tff_mf.sensitivities.losses import max_loss, rms_loss


class Progress(NamedTuple):
    """The state of a running search.

    Attributes:
        rounds: Number of rounds of the problem being solved; the last problem has all rounds.
        iteration: Iterations so far, over all problems.
        error: RmsError of that problem, at a sensitivity of √k for k participations.
    """

    rounds: int
    iteration: int
    error: float


MechanismT = TypeVar("MechanismT", bound=Mechanism)


def with_status(
    mechanism: MechanismT,
    *,
    objective: str,
    converged: bool,
    message: str,
    iterations: int,
    began: float,
    gradient_norm: float,
    history: tuple[float, ...],
    duality_gap: float | None = None,
) -> MechanismT:
    """Returns the mechanism with the status of the search that found it in `optimized_for`.

    Args:
        mechanism: The best mechanism of the search, with `optimized_for` set.
        objective: The loss that was minimized, "max" or "rms".
        converged: Whether the search converged.
        message: How the search ended, in words.
        iterations: Iterations of the optimizer.
        began: When the search began, by `time.perf_counter`.
        gradient_norm: Largest entry of the gradient of log(loss) at the end.
        history: Losses during the search.
        duality_gap: Relative duality gap of the squared loss, or `None`.
    """
    optimized_for = mechanism.optimized_for
    assert optimized_for is not None
    # From the parameters of the mechanism, by code that no search shares.
    loss_of = max_loss if objective == "max" else rms_loss
    search = SearchStatus(
        objective=objective,
        loss=loss_of(mechanism, optimized_for.rounds, optimized_for.participation, optimized_for.workload),
        message=message,
        iterations=iterations,
        seconds=time.perf_counter() - began,
        gradient_norm=gradient_norm,
        history=history,
    )
    optimized_for = dataclasses.replace(optimized_for, converged=converged, duality_gap=duality_gap, search=search)
    return dataclasses.replace(mechanism, optimized_for=optimized_for)


# Added to the last finite log of the loss where the loss is not finite.
_WALL = 10.0

# A search has converged if no entry of the gradient of log(loss) is larger. One that ended by itself, because
# iterations no longer gained anything, may have larger entries.
_STATIONARY = 1e-4
_STATIONARY_IF_ENDED = 1e-3


class Value(NamedTuple):
    """A value and its gradient."""

    value: float
    gradient: np.ndarray


class Descent(NamedTuple):
    """How a search ended.

    Attributes:
        variables: Where it ended, float64 `[variables]`.
        log_loss: Log of the loss there.
        gradient_norm: Largest entry of the gradient of log(loss) there.
        iterations: Number of iterations.
        ended: Whether it ended by itself, rather than for lack of iterations.
        ending: How it ended, in words.
        history: The loss after each iteration.
    """

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
    limits: tuple[float, float] | None = None,
    on_iteration: Callable[[int, float], None] = lambda iteration, loss: None,
) -> Descent:
    """Minimizes the log of a loss by L-BFGS from `start`.

    Args:
        loss: Returns the log of the loss and its gradient.
        start: Where to start, float64 `[variables]`.
        iterations: Largest number of iterations.
        tolerance: The search ends once an iteration lowers the loss by less than this relative amount.
        memory: Number of earlier steps that L-BFGS keeps.
        limits: Range of each variable.
        on_iteration: Called with the number and the loss of each iteration.
    """
    # Imported here: it would double the time of `import tff_mf`.
    import scipy.optimize

    if not len(start):
        value = float(loss(start).value)
        return Descent(
            start, value, gradient_norm=0.0, iterations=0, ended=True, ending="nothing to choose", history=()
        )
    watched = _Watched(loss, on_iteration)
    optimum = scipy.optimize.minimize(
        watched,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=None if limits is None else [limits] * len(start),
        callback=watched.advance,
        options={"maxcor": memory, "maxiter": iterations, "maxfun": 2 * iterations, "ftol": tolerance, "gtol": 1e-9},
    )
    return Descent(
        variables=optimum.x,
        log_loss=float(optimum.fun),
        gradient_norm=float(np.abs(optimum.jac).max()),
        iterations=int(optimum.nit),
        ended=bool(optimum.success),
        ending=str(optimum.message),
        history=tuple(watched.history),
    )


class _Watched:
    """A loss that is finite everywhere, and its values after each iteration in `history`."""

    def __init__(self, loss: Callable[[np.ndarray], Value], on_iteration: Callable[[int, float], None]) -> None:
        self._loss = loss
        self._on_iteration = on_iteration
        self._finite: list[float] = []
        self.history: list[float] = []

    def __call__(self, variables: np.ndarray) -> tuple[float, np.ndarray]:
        with np.errstate(all="ignore"):
            value, gradient = self._loss(variables)
        if not np.isfinite(value) or not np.all(np.isfinite(gradient)):
            # Finite, or the line search would compute a step of NaN; and so high that the line search turns back.
            return self._finite[-1] + _WALL, np.zeros_like(variables)
        self._finite.append(float(value))
        return value, gradient

    def advance(self, _: np.ndarray) -> None:
        """Records the last value as an iteration's."""
        self.history.append(float(np.exp(self._finite[-1])))
        self._on_iteration(len(self.history), self.history[-1])


def with_descent(mechanism: MechanismT, descent: Descent, objective: str, began: float) -> MechanismT:
    """Returns the mechanism with the status of a descent, its loss recomputed from the mechanism's parameters."""
    converged = descent.gradient_norm <= (_STATIONARY_IF_ENDED if descent.ended else _STATIONARY)
    return with_status(
        mechanism,
        objective=objective,
        converged=converged,
        message=f"{'Stationary' if converged else 'Not at a stationary point'}: {descent.ending}",
        iterations=descent.iterations,
        began=began,
        gradient_norm=descent.gradient_norm,
        history=descent.history,
    )
