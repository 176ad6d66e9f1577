"""Toeplitz matrices without entries below 0 that minimize a given loss of their coefficients."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tff_mf.mechanisms import BLT, OptimizedFor
from tff_mf.optimize._blt_loss import BLTLoss
from tff_mf.optimize._descent import Value

_ITERATIONS = 300

# The smallest normal float32: the cast to float32 would make a faster decay 0.
_FASTEST_DECAY = float(np.finfo(np.float32).tiny)


class Column(NamedTuple):
    """A column c with c_0 = 1, the log of its surrogate loss, and the largest entry of its projected gradient."""

    column: np.ndarray
    log_loss: float
    gradient_norm: float


def best_column(loss: Callable[[np.ndarray], Value], start: np.ndarray) -> Column:
    """Returns the c ≥ 0 with c_0 = 1 and as many entries as `start` where the loss is least."""
    # Imported here: it would double the time of `import tff_mf`.
    import scipy.optimize

    if len(start) == 1:
        return Column(np.ones(1), float(loss(np.ones(1)).value), 0.0)

    def of_free(free: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = loss(np.append(1.0, free))
        return value, gradient[1:]

    found = scipy.optimize.minimize(
        of_free,
        start[1:] / start[0],
        jac=True,
        method="L-BFGS-B",
        bounds=[(0, None)] * (len(start) - 1),
        options={"maxcor": 20, "maxiter": _ITERATIONS, "ftol": 1e-9},
    )
    projected = found.x - np.maximum(found.x - found.jac, 0)
    return Column(np.append(1.0, found.x), float(found.fun), float(np.abs(projected).max()))


class BLTFamily:
    """BLTs in the variables of `BLTLoss`, whose values all have ω > 0, under a loss of their coefficients."""

    def __init__(self, optimized_for: OptimizedFor) -> None:
        self._optimized_for = optimized_for
        self._steps = np.arange(optimized_for.rounds - 1.0)[:, np.newaxis]

    def mechanism(self, variables: np.ndarray) -> BLT:
        """Returns the BLT."""
        if not len(variables):
            return BLT(theta=(0.5,), omega=(0.0,), optimized_for=self._optimized_for)
        theta, omega = self._loss(len(variables) // 2).parameters(variables)
        theta = np.maximum(theta, _FASTEST_DECAY).tolist()
        return BLT(theta=theta, omega=omega.tolist(), optimized_for=self._optimized_for)

    def column(self, variables: np.ndarray) -> np.ndarray:
        """Returns the coefficients, float64 `[rounds]`."""
        theta, omega = self._loss(len(variables) // 2).parameters(variables)
        return np.append(1.0, np.exp(np.log(theta) * self._steps) @ omega)

    def loss(
        self, of_column: Callable[[np.ndarray], Value], buffers: int
    ) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
        """Returns a loss of coefficients as one of variables."""
        variables_of = self._loss(buffers)

        def of_variables(variables: np.ndarray) -> tuple[float, np.ndarray]:
            theta, omega = variables_of.parameters(variables)
            decayed = np.exp(np.log(theta) * self._steps)
            value, by_column = of_column(np.append(1.0, decayed @ omega))
            by_log_omega = omega * (by_column[1:] @ decayed)
            by_exponent = -omega * ((by_column[1:] * self._steps[:, 0]) @ decayed)
            return value, variables_of.gradient(variables, by_log_omega, by_exponent)

        return of_variables

    def _loss(self, buffers: int) -> BLTLoss:
        return BLTLoss(self._optimized_for, "rms", buffers)
