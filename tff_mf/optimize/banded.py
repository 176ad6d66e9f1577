"""Optimizer of banded matrices."""

import time
from collections.abc import Callable

from tff_mf import validation
from tff_mf.errors import InputValueError
from tff_mf.mechanisms import Banded, OptimizedFor
from tff_mf.optimize._banded_levels import best_diagonals
from tff_mf.optimize._descent import with_descent
from tff_mf.optimize._progress import Progress
from tff_mf.optimize.banded_toeplitz import check_bands
from tff_mf.participation import MinSep, Participation
from tff_mf.workloads import PrefixSum, Workload

_ITERATIONS = 500


def optimize_banded(
    *,
    rounds: int,
    bands: int,
    participation: Participation | None = None,
    workload: Workload | None = None,
    unit_norms: bool = True,
    progress: Callable[[Progress], None] = lambda where: None,
) -> Banded:
    """Returns the banded matrix with the least RmsLoss.

    With unit norms this is BandMF: one matrix for every number of participations, as long as they are at least `bands`
    apart. Without, column norms are fitted to the participation schema, at the same sensitivity √k, and the loss is
    lower; for another schema it may then be higher.

    Loss and gradient are exact and cost O(rounds · bands²). They are minimized by L-BFGS, starting with a problem of
    few rounds and bands and going on to four times as many, up to the full number.

    The `history` in `optimized_for.search` has the loss after each iteration with all rounds.

    Args:
        rounds: Number of rounds n.
        bands: Number of diagonals of C, at most the `min_sep` of the participation schema.
        participation: The participation schema; `None` for as many participations as fit, at least `bands` apart.
        workload: The workload A; `None` is the prefix sum. In the search, learning rates below a thousandth of the
            largest are raised to that.
        unit_norms: Whether every column of C has norm 1.
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
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or the participations do not fit in `rounds`.
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
    found = best_diagonals(
        optimized_for,
        bands,
        unit_norms=unit_norms,
        iterations=_ITERATIONS,
        progress=progress,
    )
    return with_descent(Banded(values=found.diagonals, optimized_for=optimized_for), found.descent, "rms", began)
