"""How far the probability of a cell of the drawn normals is from a normal's: how they are drawn, the bound, its proof.

## How a value is drawn

Each coordinate has a random word of 64 bits of its own, from the Philox generator.

1. The lowest 9 bits choose one of 512 *layers*. Layer i < 509 is a rectangle of width xᵢ and area 1/512; stacked on one
   another, they lie under the density f(x) = √(2/π)·exp(−x²/2) of |Z|. The value is word · (xᵢ·2⁻⁶³): uniform between
   −xᵢ and xᵢ. There is no rejection.
2. The other three layers, 0.6 % of the coordinates, stand for the area under f that no rectangle covers. It is divided
   into *pieces*, at every end of a layer and in between; on each, f is a polynomial of degree 5 to 12 digits. The
   coordinate gets seven words. The first chooses a piece [a, a + h] and a number k by cumulative probabilities in units
   of 2⁻⁶⁴, and the value is a + h·U, where U is the k-th smallest of six uniforms. The coordinate's first word gives
   the sign.
3. The pieces reach to 5.5. With the probability of a normal beyond that, 3.8e-8, the choice is to *descend* to the next
   level, which gets seven other words and reaches to 7.75, and so on to 13.5, beyond which a normal lies with
   probability 1.6e-41. A value that descends at the last level is ±13.5.

The k-th smallest of six uniforms has the density 6·C(5, k−1)·tᵏ⁻¹(1 − t)⁶⁻ᵏ, a Bernstein polynomial. A mixture of the
six can therefore have any density with nonnegative Bernstein coefficients. Sorting makes no rounding errors, and no
logarithm, root or division is computed. The tables are 509 widths and 1,425 pieces, all of them integers
(`tff_mf/numerics/normals/tables.npz`, made by `python benchmarks/normal_tables.py`).

## Theorem

Let all words be independent and uniform. Let Z be a real normal, ẑ a drawn value, and v the number that is computed
from it and compared with the ends of cells, in standard deviations, with |v − ẑ| ≤ a + b|ẑ|. For w > 0, 0 < T ≤ 13.25
and

    δ = 2⁻⁵³(4 + T) + a + bT,    w' = w/⌈8w⌉,    θ = (2δ/w')·exp((T + δ)(w' + 2δ)) < ½,
    η = η_f − log(1 − θ),

every real L, and every cell I = [L + kw, L + (k + 1)w) within [−T, T],

    |log(P(v ∈ I) / P(Z ∈ I))| ≤ η.

The probability that v lies in another cell, and the probability that Z does, is at most P(|Z| > T − w − δ)·(1 + 2⁻²⁰).
Coordinates are independent, so that both hold for each coordinate given all others, and for an L that depends on them.
Here η_f is 2·2⁻⁴⁰ up to T = 5.5, 16·2⁻⁴⁰ up to 12.375, and 8·2⁻⁴⁰ in the rest. `normals.rounding_error` computes η
and the tail.

## Proof

*The law of the tables.* Let Z' be the value of steps 1 to 3 with real uniforms instead of words of 64 bits. The density
f̂ of |Z'| on a piece is the sum of the heights of the layers that cover it, which is constant, and six Bernstein
polynomials with coefficients from the table: a polynomial p of degree 5 with known coefficients. Every layer ends at an
end of a piece. The probabilities in the table are integers that sum to 2⁶⁴ at each level, so that nothing is left over.

*Its error.* On a piece with middle m and length h let T₁₄ be the Taylor polynomial of f at m of degree 14. A polynomial
lies between the least and the greatest of its Bernstein coefficients. Hence |p − T₁₄| is at most the greatest
coefficient of p − T₁₄ in degree 14. By Cauchy's estimate with radius r, |f − T₁₄| ≤ f(m)·exp(mr + r²/2)·q¹⁵/(1 − q)
with q = h/(2r), since |f(m + re^{iφ})| ≤ f(m)·exp(mr + r²/2). The sum of both, divided by f at the right end, bounds
|f̂/f − 1|. `tests/tff_mf/normal_law.py` computes it for every piece, with 45 digits, from the integers of the file
alone: the greatest |log(f̂/f)| are 1.8, 6.2, 7.4, 7.0, 15.4 and 5.1 in units of 2⁻⁴⁰ for the six levels, and the code
uses 2, 8, 8, 8, 16 and 8. Tables in which one number is changed fail the test.

*The position.* Let Z' and ẑ be computed from the same real uniforms, with each word the integer part of its uniform. In
step 1, let V be uniform on [−1, 1]. The word without its lowest 9 bits is ⌊2⁵⁴V⌋·2⁹, so that word·2⁻⁶³ is within
2⁻⁵⁴ of V. Conversion to float64 moves it by at most half a unit in the last place, again 2⁻⁵⁴, and the product is
rounded once: the scales xᵢ·2⁻⁶³ are exact, with 24 bits. With xᵢ < 3.84, |ẑ − Z'| ≤ xᵢ·2⁻⁵³ + 2⁻⁵³|ẑ| ≤
2⁻⁵³(4 + |Z'|). In step 2 a uniform is cut to 48 bits, by which U moves by at most 2⁻⁴⁸, also in order statistics.
Pieces are shorter than 2⁻⁵, so that this moves the value by at most 2⁻⁵³. Then a + h·U is computed in integers in units
of 2⁻⁵⁹, at most one unit too small, and converted to float64, which rounds it once. So |ẑ − Z'| ≤ 2⁻⁵³(4 + |Z'|) in
every case, and a fused multiply-add cannot change a bit: no product is followed by a sum of floats. No value is
subnormal.

*The cells.* If |v − Z'| ≤ δ near [−T, T], then {Z' ∈ I⁻} ⊂ {v ∈ I} ⊂ {Z' ∈ I⁺}, where I⁺ is I longer by δ on both
sides, and I⁻ is shorter. Let first w ≤ 1/8. On I⁺, log f has a slope of at most T + δ, so that f differs there from its
mean over I by a factor of at most exp((T + δ)(w + 2δ)), and each strip of length δ has at most θ/2 times the
probability of I. There are two of them between I⁻ and I, and two between I and I⁺: P(Z ∈ I⁺) ≤ (1 + θ)P(Z ∈ I) and P(Z
∈ I⁻) ≥ (1 − θ)P(Z ∈ I). With P(Z' ∈ J) between e^(±η_f)·P(Z ∈ J), |log(P(v ∈ I)/P(Z ∈ I))| ≤ η_f − log(1 −
θ). A longer cell is a union of ⌈8w⌉ cells of length w', whose ratios bound its own.

*The tail.* A cell that is not within [−T, T] lies beyond T − w on one side. P(|Z'| > x) is the integral of f̂ and the
probability of ±13.5, which agrees with P(|Z| > 13.5) to 2⁻⁴⁰; so it is at most (1 + 2⁻²⁰)·P(|Z| > x).

*Joint law.* The first words of coordinates are different outputs of the generator, and so are the words of step 2:
levels and first words have disjoint ranges of its counter, and a part of 2¹⁸ coordinates has a range of its own in each
level. Which of them a coordinate gets depends on the first words of others, but the law of its value, given these, does
not. ∎

## Later operations

A later operation moves v, and counts in a and b. For p = fl(s·z): b = 2⁻⁵³, or 0 where s is a power of two. The float
difference p − L and the sum with ½ would add 2⁻⁵²·(|s·z − L| + 1)/s to a. The code needs neither: with A = ⌊L − ½⌋ and
B = L − ½ − A, computed from the past alone,

    R(p − L) = ⌊p⌋ − A − [p − ⌊p⌋ < B]

in which the float operations on p are exact for |p| < 2⁵². What rounding does to L − ½ does not depend on z, and is
part of the error of the recursion.
"""

import dataclasses
import math

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

_UNIT = 2.0**-53
# Twice half the widest layer (3.84), and the steps of the uniforms; each normal adds its own rounding to it.
_STEPS = 4.0
# By end of a level: bound on |log(density of the tables / density of a normal)| up to there, in units of 2⁻⁴⁰;
# tests/tff_mf/normal_law.py proves it.
_DENSITY_ERRORS = ((5.5, 2.0), (7.75, 8.0), (9.5, 8.0), (11.0, 8.0), (12.375, 16.0), (13.5, 8.0))
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
        cell: Width of a cell in standard deviations.
        limit: T: the bound holds for cells within [−T, T].
        position: Bound on what the computed normal, and later operations, may be off, in standard deviations.
        log_ratio: η: bound on |log(P̂/P)| of every cell within [−T, T], for every position of the cells.
        tail: Bound on the probability that a value lies in another cell, for both laws.
    """

    cell: float
    limit: float
    position: float
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
        InputTypeError: If an argument is not a number.
        InputValueError: If an argument is out of range, cells are too narrow for float64, or no T is far enough.

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
            found = _error(cell, step * _STEP, later, relative)
            if values * found.tail <= delta_tail:
                return found
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
    return RoundingError(
        cell=cell, limit=limit, position=position, log_ratio=log_ratio, tail=min(1.0, _tail(inner) * (1 + 2.0**-20))
    )


def _tail(limit: float) -> float:
    return math.erfc(limit / math.sqrt(2)) * (1 + _SLACK)
