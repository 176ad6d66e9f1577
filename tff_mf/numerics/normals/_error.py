"""How far the probability of a cell of the drawn normals is from a normal's: theorem F5.

docs/proofs.md says how they are drawn, and has the proof.
"""

import dataclasses
import math

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

_UNIT = 2.0**-53
# Twice half the widest layer (3.84), and the steps of the uniforms; each normal adds its own rounding to it.
_STEPS = 4.0
# By end of a level: bound on |log(density of the tables / density of a normal)| from 0 up to there, in units of 2⁻⁴⁰,
# which never falls; tests/tff_mf/normal_law.py proves it.
_DENSITY_ERRORS = ((5.5, 2.0), (7.75, 8.0), (9.5, 8.0), (11.0, 8.0), (12.375, 16.0), (13.5, 16.0))
# Longer cells are divided for the proof.
_LONGEST_CELL = 1 / 8
_FARTHEST = 13.25
_STEP = 1 / 16
# Exceeds the rounding errors of the formulas below.
_SLACK = 2.0**-30


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundingError:
    """What the rounded normals of this package are, compared with rounded real ones.

    Attributes:
        limit: T: the bound holds for cells within [−T, T].
        log_ratio: η: bound on |log(P̂/P)| of every cell within [−T, T], for every position of the cells.
        tail: Bound on the probability that a value lies in another cell, for both laws.
    """

    limit: float
    log_ratio: float
    tail: float


def rounding_error(
    *,
    cell: float,
    limit: float | None = None,
    values: int = 1,
    delta_tail: float = 1e-20,
    later: float = 0.0,
    later_relative: float = 0.0,
) -> RoundingError:
    """Returns the error of the normals of this package after they are rounded to cells.

    Formal guarantee: let Z be normal, ẑ a coordinate of `draw` or `from_words` for independent uniform words, and v
    what later operations compute from ẑ, with |v − ẑ| ≤ later + later_relative·|ẑ|. For every real shift L and every
    cell I = [L + k·cell, L + (k + 1)·cell) within [−T, T], |log(P(v ∈ I)/P(Z ∈ I))| ≤ log_ratio. The probability that
    v, or Z, lies in another cell is at most `tail`. Coordinates are independent, so that both hold for any L that
    depends on other coordinates. The theorem is above.

    Args:
        cell: Width of the cells in standard deviations: 1/s where s·z is rounded to whole numbers.
        limit: T. Otherwise the least multiple of 1/16 with values·tail ≤ delta_tail.
        values: n·d, the number of coordinates that are drawn in all.
        delta_tail: What all tails together may be.
        later: Position error of later operations, in standard deviations.
        later_relative: Position error of later operations relative to |z|: 2⁻⁵³ for a rounded product with s.

    Raises:
        InputValueError: If cells are too narrow for float64, or no T is far enough.

    Example:
        >>> error = rounding_error(cell=2.0**-19, values=2052 * 4_050_748)
        >>> error.limit < 12 and error.log_ratio < 2e-9 and error.tail < 1e-29
        True
    """
    cell, later = validation.positive("cell", cell), validation.nonnegative("later", later)
    relative = validation.nonnegative("later_relative", later_relative)
    values = validation.whole("values", values)
    validation.positive("delta_tail", delta_tail)
    if limit is not None:
        validation.positive("limit", limit)
        if limit > _FARTHEST:
            raise InputValueError(f"limit={limit!r} must be at most {_FARTHEST}.")
        return _error(cell, limit, later, relative)
    for step in range(1, int(_FARTHEST / _STEP) + 1):
        # Beyond the limit lies whatever is in a cell that reaches beyond it.
        if step * _STEP > cell and values * _tail(step * _STEP - cell) <= delta_tail:
            error = _error(cell, step * _STEP, later, relative)
            if values * error.tail <= delta_tail:
                return error
    raise InputValueError(
        f"delta_tail={delta_tail!r} is too small for values={values} and cell={cell!r}: the normals of this package "
        f"have a proof up to {_FARTHEST} standard deviations; take fewer values or narrower cells."
    )


def _error(cell: float, limit: float, later: float, relative: float) -> RoundingError:
    position = (_UNIT * (_STEPS + limit) + later + relative * limit) * (1 + _SLACK)
    # A long cell is a union of short ones.
    short = cell / math.ceil(cell / _LONGEST_CELL)
    farthest = limit + position
    strips = 2 * position / short * math.exp(farthest * (short + 2 * position))
    if not strips < 1 / 2:
        raise InputValueError(
            f"cell={cell!r} is too narrow: positions are known to {position:.3g} standard deviations only; take a "
            "coarser grid or fewer bits."
        )
    density = next(error for end, error in _DENSITY_ERRORS if farthest <= end) * 2.0**-40
    log_ratio = (density - math.log1p(-strips)) * (1 + _SLACK)
    inner = max(limit - cell - position, 0.0)
    return RoundingError(limit=limit, log_ratio=log_ratio, tail=min(1.0, _tail(inner) * (1 + 2.0**-20)))


def _tail(limit: float) -> float:
    return math.erfc(limit / math.sqrt(2)) * (1 + _SLACK)
