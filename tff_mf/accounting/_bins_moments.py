"""The pair that dominates a run with balls in bins, and a deterministic bound of its δ.

The bound is the smallest expectation of a polynomial that lies above the integrand everywhere: "The deterministic
bound" of docs/proofs.md. With K = G/σ², the loss of the pair is L = log (1/b) Σ_j exp(a_j − K_jj/2) for a
Gaussian vector a with covariance K. A part of K is the same for all j: K = k·11ᵀ + K′, so that L = L′ + √k·g − k/2 for
an independent normal g, which is integrated out exactly.
"""

import dataclasses
import math

import numpy as np

from tff_mf.accounting.secret import jensen_epsilon

# Bounds the rounding error of everything that is computed from a loss, as an amount of ε and as a share of δ.
LOSS_SLACK, DELTA_SLACK = 1e-8, 1e-7
# What is left to the Gaussian, as a share of the largest that K allows and at least, as a share of the diagonal of K.
_COMMON, _LEAST_COMMON = 0.999, 1e-8
# Degree of the polynomial; 2 where sums over four indices take minutes.
_DEGREE, _LESS, _MOST_BINS = 4, 2, 512
# Points at which the linear program compares, and points between which the result is verified.
_FEW, _MANY = 500, 8000
# Probability, as a share of δ, of the smallest values of Z.
_SHARE_BELOW = 1e-4
_TOLERANCE = 1e-4
# Share of the unamplified ε below which a smaller one is not looked for.
_LEAST = 1e-5
# Step along a ray on which a change is larger than rounding errors.
_RAY = 1e4
# Of the linear program.
_MOST_STEPS = 400
# Bound on every variable, which makes the first step possible.
_BOX = 1e7
_PIVOT = 1e-10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """A covariance k·11ᵀ + RRᵀ that is at least K in every entry, and hence dominates K.

    Attributes:
        common: k, above 0.
        root: R, float64 `[bins, bins]`, symmetric up to rounding.
        covariance: K′ = RRᵀ, float64 `[bins, bins]`.
        rounding: Bound on the rounding error of each entry of `covariance`.
    """

    common: float
    root: np.ndarray
    covariance: np.ndarray
    rounding: float

    @property
    def bins(self) -> int:
        return len(self.covariance)

    @property
    def variances(self) -> np.ndarray:
        """The diagonal of K′."""
        return np.diagonal(self.covariance)

    def by_jensen(self, delta: float) -> float:
        """Returns ε of the run without the client against the run with it, by theorem 7."""
        square = self.common + self.rounding + self.covariance.mean()
        return jensen_epsilon(delta, square, self.common + 3 * self.rounding + self.variances.mean())


def dominating_pair(gram: np.ndarray, *, relative_error: float) -> Pair:
    """Returns the pair for K = `gram`, of which each entry may be too small by `relative_error`.

    R is any matrix; k is then the largest entry of K − RRᵀ, with all rounding errors. Every entry of k·11ᵀ + RRᵀ is
    therefore at least that of K, and both are covariances, so that Kahane's inequality applies.
    """
    bins = len(gram)
    above = gram * (1 + relative_error)
    values, vectors = np.linalg.eigh(above)
    shares = vectors.sum(axis=0) ** 2
    common = _COMMON / np.sum(shares / np.maximum(values, 1e-13 * values[-1]))
    values, vectors = np.linalg.eigh(above - common)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    covariance = root @ root.T
    # Rounding of a product of matrices: at most (bins + 2)·2⁻⁵³ of the product of the absolute values.
    rounding = float(np.max((bins + 8) * 2.0**-52 * (np.abs(root) @ np.abs(root).T) + 2.0**-50 * above))
    common = max(float(np.max(above - covariance)) + rounding, _LEAST_COMMON * float(np.max(np.diagonal(above))))
    return Pair(common=common, root=root, covariance=covariance, rounding=rounding)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moments:
    """Central moments of Z, divided by powers of its standard deviation, with bounds on their errors."""

    scale: float
    values: np.ndarray
    errors: np.ndarray

    @classmethod
    def of(cls, pair: Pair) -> "Moments | None":
        """Returns the moments, for variances of at most 60, or `None` if they are too small to compute with."""
        degree = _DEGREE if pair.bins <= _MOST_BINS else _LESS
        values, errors = central_moments(pair.covariance, rounding=pair.rounding, highest=degree)
        if not values[2] > 1e-14:
            return None
        scale = math.sqrt(values[2])
        powers = scale ** np.arange(degree + 1)
        return cls(scale=scale, values=values / powers, errors=errors / powers + 1e-13 * np.abs(values / powers))


def gaussian_delta(epsilon: np.ndarray, mu: float) -> np.ndarray:
    """Returns δ(ε) of one Gaussian release for an array of ε of any sign: E[(e^(μg − μ²/2) − e^ε)₊].

    It is also E[(1 − e^(ε + μg − μ²/2))₊]. The relative error is below 1e-8. With μ = 0 it is (1 − e^ε)₊.

    Example:
        >>> gaussian_delta(np.array([1.0]), 1 / 4.22468).round(8)
        array([1.e-06])
    """
    epsilon = np.asarray(epsilon, dtype=np.float64)
    if not mu:
        return -np.expm1(np.minimum(epsilon, 0.0))
    # Imported here: it takes half of the import time of the package.
    from scipy.special import erfcx, log_ndtr, ndtr

    at = epsilon / mu - mu / 2
    above = np.maximum(at, 0)
    below = np.minimum(at, 0)
    tails = erfcx(above / np.sqrt(2)) - erfcx((above + mu) / np.sqrt(2))
    far = 0.5 * np.exp(-above * above / 2) * np.maximum(tails, 0)
    near = ndtr(-below) - np.exp(np.minimum(epsilon, mu * mu / 2) + log_ndtr(-below - mu))
    return np.where(at > 0, far, near)


def moment_epsilon(pair: Pair, moments: Moments, delta: float, *, remove: bool, most: float) -> float:
    """Returns ε ≤ `most` at which the bound of one direction is at most `delta`, or infinity.

    Formal guarantee: δ(ε) of the pair is at most `delta` in this direction. The polynomial comes from a linear program,
    whose result is not relied on: `_proven` verifies it between all points.
    """
    if not _holds(pair, moments, delta, most, remove=remove):
        return math.inf
    low, high = 0.0, most
    while high - low > _TOLERANCE * high and high > _LEAST * most:
        middle = (low + high) / 2 if low else high / 2
        low, high = (low, middle) if _holds(pair, moments, delta, middle, remove=remove) else (middle, high)
    return high


def _holds(pair: Pair, moments: Moments, delta: float, epsilon: float, *, remove: bool) -> bool:
    return moment_delta(pair, moments, epsilon, delta, remove=remove) <= delta


def moment_delta(pair: Pair, moments: Moments, epsilon: float, near: float, *, remove: bool) -> float:
    """Returns a bound of δ(ε) in one direction; `near` is a δ of the expected size.

    Formal guarantee: not below δ(ε) of the pair, including all rounding errors.
    """
    epsilon -= LOSS_SLACK
    below, chance = (0.0, 0.0) if remove else _smallest(pair, near * _SHARE_BELOW)
    few, many = (_points(pair, moments, epsilon, below, count) for count in (_FEW, _MANY))
    coefficients = _program(moments, few, _integrand(pair, epsilon, few, below, remove=remove), near)
    heights = _integrand(pair, epsilon, many, below, remove=remove)
    return _proven(moments, coefficients, many, heights, below, remove) * (1 + DELTA_SLACK) + chance


def _smallest(pair: Pair, chance: float) -> tuple[float, float]:
    """Returns z and a bound of P(Z < z) near `chance`: by Jensen's inequality, log Z ≥ ā − (mean of K′_jj)/2."""
    from scipy.special import ndtri

    spread = math.sqrt(max(float(pair.covariance.mean()), 0.0) + 1e-13 * pair.variances.max()) * (1 + 1e-9)
    return math.exp(-float(pair.variances.mean()) / 2 * (1 + 1e-12) + spread * float(ndtri(chance))), chance * 1.001


def _integrand(pair: Pair, epsilon: float, points: np.ndarray, below: float, *, remove: bool) -> np.ndarray:
    """Returns h(z) = z·δ_G(ε − log z), or δ_G(ε + log z) and 0 for z < `below`; both are convex."""
    logs = np.log(np.maximum(points, 1e-300))
    mu = math.sqrt(pair.common)
    if remove:
        return points * gaussian_delta(epsilon - logs, mu)
    return np.where(points < below, 0.0, gaussian_delta(epsilon + logs, mu))


def _points(pair: Pair, moments: Moments, epsilon: float, below: float, count: int) -> np.ndarray:
    """Returns points from 0 on, dense where the polynomial touches h; the largest is beyond all such places."""
    width = 40 * max(moments.scale, math.sqrt(pair.common))
    logs = np.concatenate(
        [
            np.linspace(-width, width, count),
            np.linspace(0, epsilon + 12 * math.sqrt(pair.common) + 3, count),
            np.linspace(-12, 0, count // 4),
        ]
    )
    around = 1 + moments.scale * np.linspace(-30, 30, count)
    ends = [0.0, below] if below else [0.0]
    points = np.concatenate([ends, np.exp(np.clip(logs, -50, epsilon + 60)), around[around > 0]])
    return np.unique(points)


def _program(moments: Moments, points: np.ndarray, heights: np.ndarray, near: float) -> np.ndarray:
    """Returns the coefficients of the polynomial in (z − 1)/scale of the smallest expectation above all heights."""
    steps = (points - 1) / moments.scale
    powers = np.power.outer(steps, np.arange(len(moments.values)))
    sizes = np.linalg.norm(powers, axis=1)
    # The coefficient of the highest power is not below 0.
    rows = np.concatenate([powers / sizes[:, np.newaxis], np.eye(len(moments.values))[-1:]])
    return smallest_above(moments.values, rows, np.append(heights / sizes / near, 0.0)) * near


def _proven(
    moments: Moments, coefficients: np.ndarray, points: np.ndarray, heights: np.ndarray, below: float, remove: bool
) -> float:
    """Returns E[p(Z)] for p + s·(1 + u^d), u = (z − 1)/scale, with the smallest verified s for which it is above h.

    Between neighboring points of distance w, f = p − h is at least the smaller of its values at both, less
    w²/8·max p″ if that is above 0: f″ ≤ p″, because h is convex. Beyond the last point h rises by at most 1 per unit,
    or falls, and p is convex with at least that slope, or the bound is infinite.
    """
    degree = len(coefficients) - 1
    if not coefficients[-1] >= 0:
        return math.inf
    steps = (points - 1) / moments.scale
    terms = np.power.outer(steps, np.arange(degree + 1)) * coefficients
    values = terms.sum(axis=1) - 1e-14 * np.abs(terms).sum(axis=1)
    gaps = values - heights * (1 + DELTA_SLACK)
    # At the jump the interval to its left has to be above 0 only.
    before = np.where(points == below, values, gaps) if below else gaps
    first, second, third = (np.polynomial.Polynomial(coefficients).deriv(order) for order in (1, 2, 3))
    # p″ is convex: its largest value in an interval is at an end.
    bend = np.maximum(np.maximum(second(steps[:-1]), second(steps[1:])), 0) * (1 + 1e-9)
    lowest = np.minimum(gaps[:-1], before[1:]) - np.diff(steps) ** 2 / 8 * bend
    inside = np.where(steps[:-1] * steps[1:] <= 0, 0.0, np.minimum(np.abs(steps[:-1]), np.abs(steps[1:])))
    # np.maximum keeps a NaN of overflowed powers, which max would replace by 0.
    slack = float(np.maximum(0.0, np.max(-lowest / (1 + inside**degree)))) * (1 + 1e-9)
    if not slack < math.inf:
        return math.inf
    # p″ and p‴ are at least 0 at the last point, and p⁗ everywhere: so all are beyond.
    last = steps[-1]
    rises = first(last) / moments.scale >= (1.001 if remove else 0.0)
    if not (rises and second(last) >= 0 and third(last) >= 0):
        return math.inf
    expected = moments.values @ coefficients + moments.errors @ np.abs(coefficients)
    return float(expected + slack * (1 + moments.values[-1] + moments.errors[-1]))


def central_moments(
    covariance: np.ndarray, *, rounding: float = 0.0, highest: int = 4
) -> tuple[np.ndarray, np.ndarray]:
    """Returns E[(Z − 1)^r] for r = 0, …, `highest`, and bounds on their errors.

    E[Π (X_j − 1)] over the indices of r lognormal X_j with mean 1 is, by inclusion and exclusion, the sum over all
    graphs on r vertices without an isolated one of the product of expm1(K′_ij) over their edges. On 4 vertices those
    are 3 pairs of edges, 12 paths, 4 stars, 3 circles, 12 triangles with an edge, 6 circles with a chord and 1 complete
    graph; on 3 vertices, 3 paths and 1 triangle.

    Args:
        covariance: K′, float64 `[bins, bins]`.
        rounding: Bound on the error of each of its entries.
        highest: 4, or less to save time that grows with the fourth power of bins.

    Example:
        >>> moments, errors = central_moments(np.array([[0.04]]))
        >>> bool(abs(moments[2] - np.expm1(0.04)) < 1e-15)
        True
    """
    bins = len(covariance)
    edges = np.expm1(covariance)
    values, sizes = _sums(edges, complete=highest == 4), _sums(np.abs(edges), complete=False)
    # Sums of absolute values are convex along a ray: a larger step bounds, in proportion, a change too small to see.
    moved = _sums(np.abs(edges) + _RAY * 2 * rounding * np.exp(np.abs(covariance)), complete=False)
    # A sum of up to b⁴ products, each with an error of a few units, added up in five nested sums of b terms.
    errors = sizes * (6 * bins + 64) * 2.0**-53 + (moved - sizes) / _RAY + moved * 1e-14 / _RAY
    return values[: highest + 1], errors[: highest + 1]


def _sums(edges: np.ndarray, *, complete: bool) -> np.ndarray:
    bins = len(edges)
    rows = edges.sum(axis=1)
    squared = edges @ edges
    triangles = np.einsum("ij,ij->i", squared, edges)
    second = rows.sum() / bins**2
    third = (3 * (rows @ rows) + triangles.sum()) / bins**3
    circle_with_chord = np.sum(edges * squared**2)
    fourth = (
        12 * (rows @ edges @ rows)
        + 4 * np.sum(rows**3)
        + 3 * np.sum(squared**2)
        + 12 * (triangles @ rows)
        + 6 * circle_with_chord
        + (_complete(edges) if complete else circle_with_chord * np.max(edges))
    ) / float(bins) ** 4 + 3 * second**2
    return np.array([1.0, 0.0, second, third, fourth])


def _complete(edges: np.ndarray) -> float:
    """Returns the sum over i, j, k, l of the product of all six entries between them."""
    total = 0.0
    for row in edges:
        beside = edges * row
        total += float(row @ np.einsum("jk,jk->j", beside @ edges, beside))
    return total


def smallest_above(objective: np.ndarray, rows: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """Returns x that nearly minimizes objective·x subject to rows·x ≥ heights and |x| ≤ 1e7.

    It is a linear program with a few variables and thousands of constraints, by the simplex method on its dual: SciPy's
    solver ends the whole process on some of these badly scaled programs.

    Constraints may be violated by rounding, or where the search ends early: verify the result. Rows of a norm near 1
    are solved best.

    Example:
        >>> smallest_above(np.array([1.0, 0.0]), np.array([[1.0, -1.0], [1.0, 1.0]]), np.array([1.0, 2.0]))
        array([1.5, 0.5])
    """
    count = len(objective)
    signs = np.where(objective >= 0, 1.0, -1.0)
    columns = np.concatenate([rows, np.eye(count), -np.eye(count)])
    values = np.concatenate([heights, np.full(2 * count, -_BOX)])
    basis = len(rows) + np.arange(count) + np.where(signs > 0, 0, count)
    best = np.full(count, _BOX) * -signs
    for _ in range(_MOST_STEPS):
        matrix = columns[basis]
        try:
            x = np.linalg.solve(matrix, values[basis])
            weights = np.linalg.solve(matrix.T, objective)
        except np.linalg.LinAlgError:
            break
        best = x
        excess = values - columns @ x
        excess[basis] = 0
        entering = int(np.argmax(excess))
        if excess[entering] <= _PIVOT * (1 + abs(values[entering])):
            break
        change = np.linalg.solve(matrix.T, columns[entering])
        steps = np.where(change > 1e-13, np.maximum(weights, 0) / np.where(change > 1e-13, change, 1), np.inf)
        leaving = int(np.argmin(steps))
        if not np.isfinite(steps[leaving]):
            break
        basis[leaving] = entering
    return best
