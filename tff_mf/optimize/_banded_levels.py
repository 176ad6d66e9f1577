"""The search for a banded C, from few rounds to many.

C for a quarter of the rounds and bands, stretched to all of them, is nearly the optimum already. What is stretched is
the quotient of C and the best banded Toeplitz matrix, because the quotient, unlike C, is smooth next to the main
diagonal. Most iterations then are cheap ones, over few rounds.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tff_mf.mechanisms import OptimizedFor
from tff_mf.mechanisms.banded import in_matrix
from tff_mf.optimize._banded_loss import BandedError
from tff_mf.optimize._column_norms import ColumnNorms, column_norms, resampled
from tff_mf.optimize._descent import Descent, Value, descend
from tff_mf.optimize._progress import Progress
from tff_mf.optimize._workload_inverse import inverse_diagonals
from tff_mf.optimize.banded_toeplitz import best_column
from tff_mf.participation import FixedEpoch, MinSep, SingleParticipation
from tff_mf.workloads import PrefixSum

_COARSENING = 4
_FEWEST_BANDS = 32

_TOLERANCE = 1e-7
_MEMORY = 10


class Found(NamedTuple):
    """The diagonals of C, float64 `[bands, rounds]`, and the end of the search for them."""

    diagonals: np.ndarray
    descent: Descent


class _Level(NamedTuple):
    """A solved problem.

    Attributes:
        directions: Diagonals of C with unit columns, float64 `[bands, rounds]`.
        toeplitz: The same for the best banded Toeplitz matrix.
        norms: The set of allowed column norms.
        variables: Variables of the norms.
        descent: How the search ended; its iterations are summed over all problems so far.
    """

    directions: np.ndarray
    toeplitz: np.ndarray
    norms: ColumnNorms
    variables: np.ndarray
    descent: Descent


def best_diagonals(
    optimized_for: OptimizedFor,
    bands: int,
    *,
    unit_norms: bool,
    iterations: int,
    progress: Callable[[Progress], None],
) -> Found:
    """Returns the C with the least RmsLoss, and how the search for it ended."""
    settings = [(optimized_for, bands)]
    while settings[-1][1] >= _FEWEST_BANDS:
        settings.append((_coarser(settings[-1][0]), -(-settings[-1][1] // _COARSENING)))
    level = None
    for setting, fewer in reversed(settings):
        # A problem of fewer rounds only gives a start: prefix sums will do for its workload.
        inverse = inverse_diagonals(optimized_for.workload if setting is optimized_for else PrefixSum(), setting.rounds)
        norms = column_norms(setting, unit=unit_norms)
        level = _solve(_Problem(setting.rounds, fewer, norms, BandedError(inverse)), level, iterations, progress)
    assert level is not None
    lengths = np.sqrt(level.norms.squared(level.variables))
    descent = level.descent
    # The sensitivity squared is k, whatever the norms.
    factor = np.sqrt(optimized_for.participation.max_participations)
    descent = descent._replace(history=tuple(factor * error for error in descent.history))
    # A column and its negative give the same error; the noise needs a positive main diagonal.
    return Found(level.directions * np.where(level.directions[0] < 0, -lengths, lengths), descent)


class _Problem:
    """Log of RmsError as a function of the variables of the norms, followed by columns of C before normalization."""

    def __init__(self, rounds: int, bands: int, norms: ColumnNorms, error: BandedError) -> None:
        self.rounds, self.bands, self.norms = rounds, bands, norms
        self._error = error
        self.split = len(norms.start())

    def __call__(self, variables: np.ndarray) -> Value:
        free = variables[self.split :].reshape(self.bands, self.rounds)
        lengths = np.sqrt(np.sum(np.square(free), axis=0))
        columns = free / lengths
        scale = np.sqrt(self.norms.squared(variables[: self.split]))
        total, by_diagonals = self._error(columns * scale)
        by_columns = by_diagonals * scale
        along = np.sum(columns * by_columns, axis=0)
        by_free = (by_columns - columns * along) / lengths
        by_norms = self.norms.gradient(variables[: self.split], along / (2 * np.square(scale)))
        gradient = np.concatenate([by_norms, by_free.ravel()]) / (2 * total)
        return Value(0.5 * np.log(total / self.rounds), gradient)

    def start(self, toeplitz: np.ndarray, coarse: _Level | None) -> np.ndarray:
        """Returns the variables to begin with: the coarse problem's solution, stretched, if there is one."""
        if coarse is None:
            return np.concatenate([self.norms.start(), toeplitz.ravel()])
        directions = _unit_columns(toeplitz * _stretched(_quotient(coarse), self.bands, self.rounds))
        # A setting and its quarter fit participations into their rounds differently, so that stretched norms may be
        # worse than the first ones.
        refined = self.norms.refined(coarse.norms, coarse.variables)
        starts = [np.concatenate([first, directions.ravel()]) for first in (refined, self.norms.start())]
        return min(starts, key=lambda start: self(start).value) if self.split else starts[0]


def _solve(problem: _Problem, coarse: _Level | None, iterations: int, progress: Callable[[Progress], None]) -> _Level:
    done = 0 if coarse is None else coarse.descent.iterations
    toeplitz = _toeplitz_directions(problem.rounds, problem.bands)
    descent = descend(
        problem,
        problem.start(toeplitz, coarse),
        iterations=iterations,
        tolerance=_TOLERANCE,
        memory=_MEMORY,
        on_iteration=lambda iteration, value: progress(Progress(problem.rounds, done + iteration, value)),
    )
    return _Level(
        directions=_unit_columns(descent.variables[problem.split :].reshape(problem.bands, problem.rounds)),
        toeplitz=toeplitz,
        norms=problem.norms,
        variables=descent.variables[: problem.split],
        descent=descent._replace(iterations=done + descent.iterations),
    )


def _coarser(optimized_for: OptimizedFor) -> OptimizedFor:
    """Returns the setting with a quarter of the rounds, and the same number of participations."""
    schema = optimized_for.participation
    rounds = -(-optimized_for.rounds // _COARSENING)
    if schema.max_participations == 1 or schema.max_participations > rounds:
        return OptimizedFor(rounds=rounds, participation=SingleParticipation())
    min_sep = min(-(-schema.min_sep // _COARSENING), (rounds - 1) // (schema.max_participations - 1))
    kind = FixedEpoch if isinstance(schema, FixedEpoch) else MinSep
    return OptimizedFor(
        rounds=rounds, participation=kind(min_sep=min_sep, max_participations=schema.max_participations)
    )


def _toeplitz_directions(rounds: int, bands: int) -> np.ndarray:
    column, _ = best_column(OptimizedFor(rounds=rounds, participation=SingleParticipation()), bands, "rms")
    return _unit_columns(np.where(in_matrix(bands, rounds), column[:, None], 0.0))


def _unit_columns(diagonals: np.ndarray) -> np.ndarray:
    return diagonals / np.sqrt(np.sum(np.square(diagonals), axis=0))


def _quotient(level: _Level) -> np.ndarray:
    return np.divide(level.directions, level.toeplitz, out=np.ones_like(level.toeplitz), where=level.toeplitz != 0)


def _stretched(quotient: np.ndarray, bands: int, rounds: int) -> np.ndarray:
    """Returns a quotient of diagonals, for more bands and rounds; entries beyond the last row repeat those in it."""
    lowest = np.minimum(np.arange(len(quotient))[:, None], np.arange(quotient.shape[1] - 1, -1, -1))
    filled = np.take_along_axis(quotient, lowest, axis=0)
    return resampled(resampled(filled, bands, axis=0), rounds, axis=1)
