"""Optimizer of banded matrices: from few rounds to many, in O(rounds · bands²) a step."""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import Banded, OptimizedFor
from tff_mf.mechanisms.banded import in_matrix
from tff_mf.optimize._banded_loss import BandedError, ColumnNorms, column_norms, inverse_diagonals, resampled
from tff_mf.optimize._descent import Descent, Progress, Value, descend, with_descent
from tff_mf.optimize.banded_toeplitz import best_column, check_bands
from tff_mf.problem.participation import FixedEpoch, MinSep, Participation, SingleParticipation
from tff_mf.problem.workloads import PrefixSum, Workload
from tff_mf.sensitivities.losses import round_errors

_COARSENING = 4
_FEWEST_BANDS = 32

_TOLERANCE = 1e-7
_MEMORY = 10


# Of MaxLoss: how often rows are weighed, by which power of their variance, and with how many iterations each time. No
# weight is below a millionth of the mean, so that the problem stays well conditioned.
_WEIGHINGS, _POWER, _ITERATIONS_EACH, _LEAST_WEIGHT = 12, 3, 50, 1e-6


class BestDiagonals(NamedTuple):
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

    def diagonals(self) -> np.ndarray:
        """Returns the diagonals of C."""
        lengths = np.sqrt(self.norms.squared(self.variables))
        # A column and its negative give the same error; the noise needs a positive main diagonal.
        return self.directions * np.where(self.directions[0] < 0, -lengths, lengths)


def best_diagonals(
    optimized_for: OptimizedFor,
    bands: int,
    *,
    objective: str,
    unit_norms: bool,
    iterations: int,
    progress: Callable[[Progress], None],
) -> BestDiagonals:
    """Returns the C with the least loss, and how the search for it ended."""
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
    if objective == "max":
        level = _evened(optimized_for, level, progress)
    descent = level.descent
    # The sensitivity squared is k, whatever the norms.
    factor = np.sqrt(optimized_for.participation.max_participations)
    return BestDiagonals(
        level.diagonals(), descent._replace(history=tuple(factor * error for error in descent.history))
    )


def _evened(optimized_for: OptimizedFor, level: _Level, progress: Callable[[Progress], None]) -> _Level:
    """Returns a solution of less MaxError, with the least MaxError so far after each weighing as its history.

    The squared MaxError is at least the mean of the squared errors of rows, by any weights. So rows with more error get
    more weight, until all that have any weight have the same error.
    """
    rounds, workload = optimized_for.rounds, optimized_for.workload
    inverse, weights = inverse_diagonals(workload, rounds), np.ones(rounds)
    errors = round_errors(Banded(values=level.diagonals()), rounds, workload=workload)
    best, history = level, [errors.max()]
    for _ in range(_WEIGHINGS):
        weights *= errors ** (2 * _POWER)
        weights = np.maximum(weights / weights.mean(), _LEAST_WEIGHT)
        problem = _Problem(rounds, len(level.directions), level.norms, BandedError(inverse / np.sqrt(weights)))
        level = _solve(problem, level, _ITERATIONS_EACH, progress)
        errors = round_errors(Banded(values=level.diagonals()), rounds, workload=workload)
        if errors.max() < history[-1]:
            best = level
        history.append(min(history[-1], errors.max()))
    return best._replace(descent=level.descent._replace(history=tuple(history)))


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


_ITERATIONS = 500


def optimize_banded(
    *,
    rounds: int,
    bands: int,
    participation: Participation | None = None,
    workload: Workload | None = None,
    unit_norms: bool = True,
    objective: str = "rms",
    progress: Callable[[Progress], None] = lambda where: None,
) -> Banded:
    """Returns the banded matrix with the least loss.

    With unit norms this is BandMF: one matrix for every number of participations, as long as they are at least `bands`
    apart. Without, column norms are fitted to the participation schema, at the same sensitivity √k, and the loss is
    lower; for another schema it may then be higher.

    Loss and gradient are exact and cost O(rounds · bands²). They are minimized by L-BFGS, starting with a problem of
    few rounds and bands and going on to four times as many, up to the full number. For MaxLoss this is repeated with
    rows of B weighed by their errors.

    The `history` in `optimized_for.search` has RmsLoss after each iteration with all rounds, or the least MaxLoss after
    each weighing.

    Args:
        rounds: Number of rounds n.
        bands: Number of diagonals of C, at most the `min_sep` of the participation schema.
        participation: The participation schema; `None` for as many participations as fit, at least `bands` apart.
        workload: The workload A; `None` is the prefix sum. In the search, learning rates below a thousandth of the
            largest are raised to that.
        unit_norms: Whether every column of C has norm 1.
        objective: "rms" for RmsLoss, "max" for MaxLoss, which takes several times as long.
        progress: Called after each iteration.

    Source: Choquette-Choo et al. (2023), "(Amplified) banded matrix factorization", section 4 and appendix B.

    Example:
        >>> from tff_mf import MinSep
        >>> mechanism = optimize_banded(rounds=24, bands=6)
        >>> mechanism.optimized_for.participation
        MinSep(min_sep=6, max_participations=4)
        >>> free = optimize_banded(rounds=24, bands=6, unit_norms=False)
        >>> mechanism.optimized_for.search.loss > free.optimized_for.search.loss
        True

    Raises:
        InputValueError: If the participations do not fit in `rounds`.
    """
    began = time.perf_counter()
    rounds = validation.dense(validation.whole("rounds", rounds))
    bands = check_bands(bands, rounds)
    if participation is None:
        participation = MinSep(min_sep=bands, max_participations=(rounds - 1) // bands + 1)
    optimized_for = OptimizedFor(rounds=rounds, participation=participation, workload=workload or PrefixSum())
    if participation.max_participations > 1 and bands > participation.min_sep:
        raise InputValueError(
            f"bands={bands} exceeds min_sep={participation.min_sep}: columns that one client contributes to would "
            f"overlap. Take at most {participation.min_sep} bands."
        )
    validation.instance("unit_norms", unit_norms, bool, "True or False")
    validation.one_of("objective", objective, ("rms", "max"))
    best = best_diagonals(
        optimized_for,
        bands,
        objective=objective,
        unit_norms=unit_norms,
        iterations=_ITERATIONS,
        progress=progress,
    )
    return with_descent(Banded(values=best.diagonals, optimized_for=optimized_for), best.descent, objective, began)
