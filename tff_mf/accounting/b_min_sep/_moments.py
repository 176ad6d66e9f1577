r"""Bounds of b-min-sep sampling without samples: moments of the likelihood ratio Z.

n is the number of rounds, b the separation, p the probability to join, b̂ the number of bands and σ the noise
multiplier. Theorem 1, lemma 2, Z and K are in docs/proofs/amplification.md. Theorems 3 to 5 bound moments of Z. They
are about the pair of theorem 1, and so hold for contributions that are chosen adaptively. Theorems 3 and 4 take the
rows of C as if they were independent, at the price of higher moments, by Hölder's inequality; theorem 5 does not, where
it can be computed.

With b̂ ≤ b bands, columns of C that belong to rounds of one client have no row in common. With u_t = ⟨c_t, y⟩/σ² −
‖c_t‖²/2σ² and w_t = e^(u_t), exp(a_x − K_xx/2) is the product of w_t over t in x, and K_xy the sum of ⟨c_s, c_t⟩/σ²
over s in x and t in y. Before the first round, a client is in the state that it is in after many rounds.

## Theorem 3

**Theorem 3** (the run with the client against the run without it). Let a ≥ 0 be a vector of b̂ entries with
Σ_i a_i·a_(i + d) ≥ ⟨c_t, c_(t − d)⟩/σ² for all t and d ≥ 0. Let m ≥ 2 be an integer, ‖·‖_m the norm of L^m, g ~ N(0,
1), and W_r = exp(√b̂·a_i·g − b̂·a_i²/2) with i = b̂ − 1 − r. Let v_0(w) = 1 for w = 0, …, b − 1, and

    v_(k+1)(w) = ‖(1 − p)^(b̂ − w)·v_k(0)
                  + Σ_(r = w, …, b̂ − 1) p·(1 − p)^(r − w)·W_r·v_k(b − b̂ + r)‖_m,    w < b̂,

and v_(k+1)(w) = v_k(w − b̂) for w ≥ b̂. Let V_k = Σ_w v_k(w)/(1 + (b − 1)p)·(1 for w = 0, else p). Then E[Z^m] is at
most the product of V_k^(m/b̂) over the b̂ numbers k = ⌊(n + b̂ − 1 + l)/b̂⌋ for l = 0, …, b̂ − 1, and E[(Z − e^ε)₊] ≤
E[Z^m]·e^(−(m − 1)ε)·(m − 1)^(m − 1)/m^m.

*Proof.* Let C\* have the entries a_(t − u) in rows t = 0, …, n + b̂ − 2 and columns u, of all integers u in the window
t − b̂ < u ≤ t of a row. With histories that begin before round 0 and end after round n − 1, K\* of C\* is at least K in
every entry, and z^m is convex: by lemma 2, C may be replaced by C\*. The mean of a product of lognormal variables is

    E[Z^m] = E[exp(Σ_t X_t)],    X_t = Σ_(i < j) s_i(t)·s_j(t),

for m independent histories x_i of the sampling, with s_i(t) = a_(t − u) if x_i has a round u in the window of t, and 0
otherwise; it has at most one such round. Let Y_l be the sum of X_t over the rows t with t mod b̂ = l. By Hölder's
inequality, E[Π_l e^(Y_l)] ≤ Π_l E[e^(b̂·Y_l)]^(1/b̂). Likewise, E[e^(b̂·Y_l)] = E[Z_l^m] with

    Z_l = E_x[Π_t exp(√b̂·s(t)·g_t − b̂·s(t)²/2)],

over the rows t of the class l, each with a normal g_t of its own. Their windows follow one another, so that Z_l =
1ᵀM_k…M_1π: π has the probabilities of a client to be free after w = 0, …, b − 1 rounds, which are the same before every
round, and M_j, which depends on the g of window j alone, has what the client does in that window, with its weight W_r.
For every u ≥ 0 that is not random, ‖v_jᵀM·u‖_m ≤ Σ_w u_w·‖(v_jᵀM)_w‖_m = v_(j+1)ᵀu, by Minkowski's inequality. Given
the windows before, with u = M_(k−1−j)…M_1π, this holds for one window after the other, from the last, and ‖Z_l‖_m ≤
v_kᵀπ = V_k. There are n + b̂ − 1 rows. The last inequality is that of z ↦ (z − e^ε)/z^m, whose maximum is at z =
e^ε·m/(m − 1). ∎

Multiples of powers 0, ¼, ½, ¾ and 1 of the entries of C are tried as a. The m-th power of a window is a sum of
exponentials, each of which the trapezoidal rule integrates exactly up to 1e-32. If v_(k+1) ≤ γ·v_k in every entry, the
same holds for all later k, as the recursion does not fall in v: beyond 8,192 rounds that is what is computed.

## Theorem 4

**Theorem 4** (the opposite). Let p < 1, q = p/(p + (1 − p)^b·(b − 1)^(b − 1)/b^b), ρ = p/(1 + (b − 1)p)/q and μ the
largest ‖c_t‖/σ. For every s > 0,

    E[Z^(−s)] ≤ N^(n/b̂),    N = E[(1 − q + q·exp(μg − μ²/2))^(−sρb̂)],

and E[(1 − e^ε·Z)₊] ≤ E[Z^(−s)]·e^(−sε)·s^s/(1 + s)^(1 + s).

*Proof.* There is a random set S of rounds, each in it with probability ρ and any two at least b apart, such that a
client who takes each of them with probability q, independently, has the law of b-min-sep sampling. It is the stationary
renewal process whose gaps are d with probability (p/q)·y_(d − b), where y_0 = 1, y_d = 0 for d < 0, and y_d = (1 −
p)·y_(d − 1) − c·y_(d − b) with c = p(1 − q)/q. No y_d is below 0: c = (1 − p)^b·(b − 1)^(b − 1)/b^b, so that y_d ≥
θ·y_(d − 1) with θ = (1 − p)(b − 1)/b follows from the same for smaller d: y_(d − b) ≤ θ^(1 − b)·y_(d − 1), and (1 − p)
− c·θ^(1 − b) = θ. The generating function of the gaps is G = (p/q)z^b/(1 − (1 − p)z + cz^b); that of the gaps between
those that are taken, qG/(1 − (1 − q)G) = pz^b/(1 − (1 − p)z), is the one of b-min-sep sampling, whose gaps are b and a
geometric number of rounds. A stationary process from which points are taken so is stationary; as b-min-sep sampling is,
the two have one law.

Z is therefore the mean over S of Z_S = Π_(t in S) (1 − q + q·w_t). The logarithm is concave, so that log Z ≥ E_S[log
Z_S] = ρ·Σ_t log(1 − q + q·w_t), a sum over all rounds. Hence Z^(−s) ≤ Π_t (1 − q + q·w_t)^(−sρ). By Hölder's inequality
for the b̂ classes t mod b̂, its mean is at most Π_t E[(1 − q + q·w_t)^(−sρb̂)]^(1/b̂), since the columns of a class
have no row in common: their w_t are independent. Each of these means grows with ‖c_t‖, by lemma 2 for one variable. The
last inequality is as above. ∎

## Theorem 5

**Theorem 5** (the run with the client against the run without it). Let κ_d ≥ ⟨c_t, c_(t − d)⟩/σ² for all t and d = 0,
…, b̂ − 1, and κ_d = 0 from b̂ on. The age of a history is the number of rounds since its last one, or 0 from b on, when
it is free. Let m histories begin with independent ages of the law above, let each that is free join the next round with
probability p, and let a round in which j of them join have the weight exp(κ_0·j(j − 1)/2 + j·Σ κ_a), summed over the
ages a > 0. Then E[Z^m] is at most the mean of the product of the weights of all rounds.

*Proof.* E[Z^m] = E[exp(Σ_(i < j) K_(x_i x_j))] for m independent histories, and K_xy is the sum of ⟨c_s, c_t⟩/σ² over s
in x and t in y. Only rounds that are less than b̂ ≤ b apart have a product above 0. Count it with the later of both,
and once if they are one round: whoever joins in round t has products with those who join too, κ_0 for each pair, and
with the last round of each other history, κ_a. No history has an earlier one within b rounds. Ages at the beginning
count as if there had been rounds before the first, which adds weights of at least 1. ∎

The weights are summed by a vector over all tuples of ages up to their order, of which there are C(b + m − 1, m): few
bands, or little noise, for which m is small. All terms are positive, so that rounding errors are relative, and what
underflows is replaced by more.

## One band

For one band, the rounds share no row, and Z = Π_t (1 + α_t·(w_t − 1)) where α_t ≤ p depends on w_0, …, w_(t − 1): the
probability of round t given the outputs before it. E[φ(1 + α(w − 1))] is convex in α and least at 0, and so does not
fall: from the last round to the first, α_t may be replaced by p. Then the run is *Poisson sampling* with p.

`tests/tff_mf/test_b_min_sep.py` compares the moments with sums over all histories, and ε with quadrature; a
bound in which rows that share a round are taken to be independent fails there.
"""

import itertools
import math

import numpy as np

from tff_mf.accounting.b_min_sep._samples import Chain
from tff_mf.accounting.poisson import poisson_epsilons, query_losses
from tff_mf.numerics import gaussian

# Orders m of moments: the largest, and how many are tried at once, first of all and then around the best of them.
_MOST_ORDER, _ORDERS = 2000, 10
# Windows of so many rounds are computed with, or fewer, if the others grow alike but for this share of all growth; the
# rest grow as the last one can at most.
_MOST_ROUNDS, _ALIKE = 2**13, 1e-10
# Powers s.
_POWERS = np.geomspace(0.05, 5000, 140)
# Nothing is tried after an ε that exceeds the smallest by this factor.
_RISEN = 1.3
# Of tuples of ages: how many steps from one to another are computed with in all rounds, and how many ages in them; the
# next order that is tried; and the share of all weights that each tuple has at least, more than what underflows.
_MOST_STEPS, _MOST_AGES, _NEXT_ORDER, _LEAST_SHARE = 6e8, 2e7, 1.2, 1e-280
# Powers of the largest entries of the columns that are tried as a dominating column.
_SHAPES = (0.0, 0.25, 0.5, 0.75, 1.0)
# Of a sum in place of an integral: the step, how far it reaches, and the largest exponent that is computed with.
_STEP, _REACH, _LARGEST_EXPONENT = 0.5, 12.0, 600.0
# Exceed rounding errors: of the growth in a window, relative, beside 2⁻⁵⁰ for each of its rounds.
_GROWTH_SLACK = 1e-12
# Of a logarithm of a moment, and of inner products, relative.
_LOG_SLACK, _SLACK = 1e-12, 1e-9


def epsilons(
    columns: np.ndarray, *, min_sep: int, probability: float, delta: float, most: float
) -> tuple[float, float]:
    """Returns ε ≤ `most` for the run with the client against the run without it, and for the opposite.

    Formal guarantee: not below those of b-min-sep sampling with columns of C/σ of at most these entries, including all
    rounding errors, by theorems 3 to 5 above.

    Args:
        columns: The columns of C/σ, from the diagonal down, at least 0, float64 `[rounds, bands]`.
        min_sep: b, at least the number of bands.
        probability: p.
        delta: δ.
        most: An ε that is known otherwise.
    """
    rounds, bands = columns.shape
    mu = gaussian.mu_of(math.sqrt(float(np.max(np.sum(columns**2, axis=1)))) * (1 + _SLACK), 1.0)
    if mu == 0:
        return most, most
    if bands == 1:
        # In every round a client joins with at most p, whatever happened before, and rounds share no row.
        remove, add = poisson_epsilons(rounds, probability, mu, delta)
        return min(remove, most), min(add, most)
    setting = {"rounds": rounds, "min_sep": min_sep, "probability": probability}
    remove = _remove(columns, delta, **setting)
    add = _add(mu, delta, bands=bands, **setting)
    return min(remove, most), min(add, most)


def products_of(columns: np.ndarray) -> np.ndarray:
    """Returns the largest ⟨c_t, c_(t − d)⟩ of all t for d = 0, …, b̂ − 1, float64 `[bands]`."""
    rounds, bands = columns.shape
    products = [np.sum(columns[d:, : bands - d] * columns[: rounds - d, d:], axis=1) for d in range(bands)]
    return np.array([np.max(each, initial=0.0) for each in products])


def dominating(columns: np.ndarray) -> list[np.ndarray]:
    """Returns vectors a with Σ_i a_i·a_(i + d) ≥ ⟨c_t, c_(t − d)⟩ for all t and d ≥ 0, float64 `[bands]` each.

    Example:
        >>> [a.round(3).tolist() for a in dominating(np.array([[1.0, 0.5], [1.0, 0.5]]))][0]
        [0.791, 0.791]
    """
    products, bands = products_of(columns), columns.shape[1]
    found = []
    for shape in _SHAPES:
        column = np.max(columns, axis=0) ** shape
        own = np.array([float(column[: bands - d] @ column[d:]) for d in range(bands)])
        # Where both are 0, nothing has to be dominated.
        scale = np.max(np.where(products > 0, products, 0.0) / np.where(own > 0, own, 1.0))
        if np.all(own[products > 0] > 0):
            found.append(column * math.sqrt(scale) * (1 + _SLACK))
    return found


def log_moments(column: np.ndarray, orders: np.ndarray, *, rounds: int, min_sep: int, probability: float) -> np.ndarray:
    """Returns a bound on log E[Z^m] for each of some orders m, float64 `[orders]`; infinity where it is too large.

    The m-th power of a window is a sum of exponentials e^(λg) with positive weights and 0 ≤ λ ≤ m·√b̂·max a. For each,
    Poisson's summation formula has the sum with steps h exact to 2.1·e^(−2π²/h²) of its mean, 1e-33, and what is more
    than 12 below 0 or above λ is less than 1e-32 of it.
    """
    bands = len(column)
    # A row has the last round of its window at the diagonal.
    means = math.sqrt(bands) * column[::-1]
    largest = float(np.max(means))
    found = np.full(len(orders), math.inf)
    small = (orders * largest + _REACH) * largest < _LARGEST_EXPONENT
    if not np.any(small):
        return found
    powers = orders[small, np.newaxis].astype(float)
    points = np.arange(-_REACH, float(np.max(powers)) * largest + _REACH + _STEP, _STEP)
    ratios = np.exp(np.multiply.outer(means, points) - np.square(means)[:, np.newaxis] / 2)
    logs = math.log(_STEP / math.sqrt(2 * math.pi)) - np.square(points) / 2
    start = Chain(rounds=rounds, min_sep=min_sep, probability=probability).start
    windows, longer = divmod(rounds + bands - 1, bands)
    rest, scale, growth = np.ones((len(powers), min_sep)), np.zeros(len(powers)), np.ones(len(powers))
    totals = []
    most_computed = min(windows + 1, max(1, _MOST_ROUNDS // bands))
    for left in range(most_computed, 0, -1):
        totals.append(scale + np.log(rest @ start))
        before = _before_window(rest, ratios, probability, powers, logs)
        growths = before / rest
        growth = np.max(growths, axis=1)
        most = np.max(before, axis=1)
        rest, scale = before / most[:, np.newaxis], scale + np.log(most)
        # Nothing is lost by bounding all windows that are left by the last one.
        if np.all(left * np.log(growth / np.min(growths, axis=1)) <= _ALIKE * (scale + left * np.log(growth))):
            break
    totals.append(scale + np.log(rest @ start))
    computed = len(totals) - 1
    # Of the rows modulo b̂, some have a window more.
    ends = [totals[min(k, computed)] + max(0, k - computed) * np.log(growth) for k in (windows, windows + 1)]
    found[small] = powers[:, 0] * ((bands - longer) * ends[0] + longer * ends[1]) / bands * (1 + _SLACK)
    return found


def _before_window(
    rest: np.ndarray, ratios: np.ndarray, probability: float, powers: np.ndarray, logs: np.ndarray
) -> np.ndarray:
    """Returns v before a window from v after it, rounded up, float64 `[orders, min_sep]`.

    `ratios` has W_r at each point, `[bands, points]`, `powers` the orders m, `[orders, 1]`, and `logs` the logarithms
    of the weights of the points.
    """
    (bands, _), apart = ratios.shape, rest.shape[1]
    found = np.empty_like(rest)
    found[:, bands:] = rest[:, : apart - bands]
    after = np.repeat(rest[:, :1], len(logs), axis=1)
    for r in range(bands - 1, -1, -1):
        joined = rest[:, apart - bands + r, np.newaxis] * ratios[r]
        after = joined if probability == 1 else (1 - probability) * after + probability * joined
        terms = powers * np.log(after) + logs
        top = np.max(terms, axis=1)
        found[:, r] = np.exp((top + np.log(np.sum(np.exp(terms - top[:, np.newaxis]), axis=1))) / powers[:, 0])
    return found * (1 + _GROWTH_SLACK + bands * 2.0**-50)


def log_moment_of_tuples(
    products: np.ndarray, order: int, *, rounds: int, min_sep: int, probability: float
) -> float | None:
    """Returns a bound on log E[Z^m], by all m-tuples of histories; `None` if there are too many tuples of ages.

    The age of a history is the number of rounds since its last one, and 0 if it is free. In a round that it joins, a
    history has the product of 0 with each other that joins, and the product of its age with each that does not.
    """
    tuples = math.comb(min_sep + order - 1, order)
    # Compared as integers first, which can be too large for a float.
    if tuples * rounds > _MOST_STEPS or products[0] * order**2 / 2 > _LARGEST_EXPONENT:
        return None
    steps = tuples * (1 + order / min_sep)
    if steps * rounds > _MOST_STEPS or steps * order > _MOST_AGES:
        return None
    from scipy.special import gammaln

    # Of each tuple, in order: those that are free come first. Its place is its rank among all of them.
    ages = np.array(list(itertools.combinations_with_replacement(range(min_sep), order)))
    ranks = np.array([[math.comb(age + i, i + 1) for i in range(order)] for age in range(min_sep)])

    def place(ages: np.ndarray) -> np.ndarray:
        return np.sum(ranks[ages, np.arange(order)], axis=1)

    free, places = np.count_nonzero(ages == 0, axis=1), place(ages)
    products = np.append(products, np.zeros(min_sep - len(products))) * (1 + _SLACK)
    met = np.sum(products[ages] * (ages > 0), axis=1)
    # With p = 1 nobody stays.
    stays = math.log1p(-probability) if probability < 1 else 0.0
    before, after, weights = [], [], []
    for joins in range(order + 1):
        rows = free >= joins if probability < 1 else free == joins
        left = free[rows] - joins
        moved = np.where(ages > 0, (ages + 1) % min_sep, 0)[rows]
        moved[:, :joins] = 1
        moved.sort(axis=1)
        logs = gammaln(free[rows] + 1) - gammaln(joins + 1) - gammaln(left + 1) + joins * math.log(probability)
        logs += left * stays + joins * (joins - 1) / 2 * products[0] + joins * met[rows]
        before.append(places[rows])
        after.append(place(moved))
        weights.append(np.exp(logs))
    sources, targets, factors = (np.concatenate(each) for each in (before, after, weights))
    start = Chain(rounds=rounds, min_sep=min_sep, probability=probability).start
    counts = np.stack([np.count_nonzero(ages == age, axis=1) for age in range(min_sep)], axis=1)
    logs = math.lgamma(order + 1) - np.sum(gammaln(counts + 1), axis=1) + np.sum(np.log(start)[ages], axis=1)
    sums, log_scale = np.zeros(tuples), 0.0
    sums[places] = np.exp(logs)
    for _ in range(rounds):
        sums = np.bincount(targets, factors * np.maximum(sums, _LEAST_SHARE)[sources], minlength=tuples)
        total = float(np.sum(sums))
        sums, log_scale = sums / total, log_scale + math.log(total)
    return log_scale + (rounds + 1) * (order + 1) * _GROWTH_SLACK


def _remove(columns: np.ndarray, delta: float, **setting) -> float:
    """Returns the smallest ε with E[Z^m]·e^(−(m − 1)ε)·(m − 1)^(m − 1)/m^m ≤ δ for some m, of windows or of tuples."""

    def tried(column: np.ndarray, low: float, high: float) -> tuple[float, float, float, float]:
        """Returns the smallest ε of a few orders, its order, and the orders beside it."""
        orders = np.unique(np.geomspace(low, high, _ORDERS).round().astype(int))
        moments = log_moments(column, orders, **setting)
        found = [_of_moment(log, m - 1.0, delta) for log, m in zip(moments, orders, strict=True)]
        near = [orders[place] for place in np.clip(int(np.argmin(found)) + np.arange(-1, 2), 0, len(orders) - 1)]
        return min(found), float(near[1]), float(near[0]), float(near[2])

    first = [(*tried(column, 2, _MOST_ORDER), column) for column in dominating(columns)]
    found, order = min([(math.inf, 2.0), *(each[:2] for each in first)])
    # ε rises steeply beyond some orders, so that few of them hardly tell which column is best.
    for epsilon, best, low, high, column in first:
        while epsilon <= _RISEN * found < math.inf and high - low > 2:
            width = high - low
            epsilon, best, low, high = tried(column, low, high)
            found, order = min((found, order), (epsilon, best))
            if high - low >= width:
                break
    return min(found, _of_tuples(products_of(columns), int(order), delta, **setting))


def _of_tuples(products: np.ndarray, order: int, delta: float, **setting) -> float:
    """Returns the smallest ε by tuples, of orders from this one on; infinity if there are too many of them."""
    found = math.inf
    while (log := log_moment_of_tuples(products, order, **setting)) is not None:
        epsilon = _of_moment(log, order - 1.0, delta)
        if epsilon > found:
            break
        found, order = epsilon, max(order + 1, round(order * _NEXT_ORDER))
    return found


def thinning(min_sep: int, probability: float) -> tuple[float, float]:
    """Returns q, with which a client takes each round of a set, and ρ, the probability of a round to be in the set.

    The gaps of the set are d with probability p/q·y_(d − b), where y_d = (1 − p)·y_(d − 1) − c·y_(d − b), y_0 = 1, and
    c = p(1 − q)/q; c is the largest for which no y_d is below 0.

    Example:
        >>> [round(value, 4) for value in thinning(2, 0.1)]
        [0.3306, 0.275]
    """
    log = min_sep * math.log1p(-probability) + (min_sep - 1) * math.log1p(-1 / min_sep) - math.log(min_sep)
    chance = probability / (probability + math.exp(log) * (1 - _SLACK))
    return chance, probability / (1 + (min_sep - 1) * probability) / chance


def log_inverse_moment(
    mu: float, s: float, *, rounds: int, bands: int, min_sep: int, probability: float
) -> float | None:
    """Returns a bound on log E[Z^(−s)], or `None` if it would take too long."""
    if probability == 1:
        return None
    chance, density = thinning(min_sep, probability)
    if chance == 1:
        return None
    power = s * density * bands * (1 + _SLACK)
    nodes = query_losses(chance, mu)[1].nodes(power, 0.0)
    if nodes is None:
        return None
    return (nodes.log_moment(power) + _LOG_SLACK * (1 + power)) * rounds / bands * (1 + _SLACK)


def _add(mu: float, delta: float, **setting) -> float:
    """Returns the smallest ε with E[Z^(−s)]·e^(−sε)·s^s/(1 + s)^(1 + s) ≤ δ for some s."""
    found = math.inf
    for s in _POWERS:
        log = log_inverse_moment(mu, float(s), **setting)
        if log is None:
            break
        epsilon = _of_moment(log, float(s), delta)
        found = min(found, epsilon)
        if epsilon > _RISEN * found:
            break
    return found


def _of_moment(log: float, s: float, delta: float) -> float:
    """Returns ε at δ from a bound on log E[e^(sL)]: (1 − e^(ε − L))₊ is at most e^(s(L − ε))·s^s/(1 + s)^(1 + s)."""
    height = log - math.log(delta) + s * math.log(s) - (1 + s) * math.log1p(s)
    return max(0.0, height / s * (1 + _SLACK) + _LOG_SLACK)
