"""Privacy amplification by sampling: banded mechanisms whose cohorts are drawn at random and kept secret.

The population is split into b̂ groups, where b̂ is the number of bands of C; in round i only clients of group i mod b̂
take part. Different rounds of a client then change different rows of Cx, so that the run is a sequence of ⌈n/b̂⌉
Gaussian queries on one group, each of sensitivity max_t ‖C e_t‖, and every amplification theorem for such a sequence
applies to the run: Choquette-Choo et al. (2023), theorem 4.

This does not apply to cross-device training, where a server cannot draw clients at random: see `tff_mf.guarantee`.
"""

import functools
import math
import typing

import numpy as np

from tff_mf import _matrices, composed_losses, gaussian, grids, sensitivities, validation
from tff_mf.composed_losses import Losses, Nodes
from tff_mf.errors import InputValueError
from tff_mf.grids import Grid
from tff_mf.guarantees import Guarantee
from tff_mf.mechanisms import BandedMechanism, Mechanism, ToeplitzMechanism

if typing.TYPE_CHECKING:
    import dp_accounting

# A sum in place of an integral is exact to e to the power of minus this, ten times: for itself, and for its ends.
_DIGITS = 42.0
_MOST_NODES = 2**18

# Of the search for a noise multiplier on a grid: first by the charge at the last one, then in small steps.
_APPROACHES, _STEPS = 6, 60


def amplified_dp_event(
    mechanism: Mechanism, rounds: int, *, population: int, clients_per_round: float, noise_multiplier: float
) -> "dp_accounting.SelfComposedDpEvent":
    """Returns a run with cyclic Poisson sampling as one event of dp-accounting.

    Formal guarantee:
        Adjacency: zero-out of all contributions of one client, each of L2 norm at most the clip norm. dp-accounting
        calls the relation add-or-remove-one; the two agree as long as nobody learns who took part, or how many did.
        Participation: in round i each client of group i mod b̂ takes part with probability
        q = clients_per_round / ⌊population / b̂⌋, independently of everything else, and no other client does. Groups are
        fixed beforehand and hold ⌊population / b̂⌋ clients each. Cohorts of a fixed size are not covered.
        Sensitivity: the largest column norm of `mechanism.cast_to_float32()`, rounded up, in each of ⌈n/b̂⌉ queries.
        Released: all `rounds` noised sums, possibly divided by a constant, but not by the size of a cohort.
        Arithmetic: noise is taken to be Gaussian with real values. What a grid costs is no event of dp-accounting:
        `amplified_epsilon` includes it.

    Args:
        mechanism: A mechanism whose C has b̂ bands; b̂ is counted from its entries.
        rounds: Number of rounds n.
        population: Number of clients N, at least b̂.
        clients_per_round: Expected size B of a cohort, above 0 and at most ⌊N / b̂⌋.
        noise_multiplier: σ, standard deviation of a coordinate of z divided by the clip norm; at least 0.

    Source: Choquette-Choo et al. (2023), theorem 4 and corollary E.1.

    Example:
        >>> from tff_mf import Identity
        >>> event = amplified_dp_event(Identity(), 8, population=100, clients_per_round=5, noise_multiplier=1)
        >>> event.count, event.event.sampling_probability
        (8, 0.05)

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or C has more bands than there are clients.
    """
    # Imported here: it takes a second, and no other function needs it.
    import dp_accounting

    sigma = validation.nonnegative("noise_multiplier", noise_multiplier)
    queries, probability, norm = _queries(mechanism, rounds, population, clients_per_round)
    one_release = Guarantee.of_gaussian(norm, sigma).dp_event()
    # pyrefly: ignore[unexpected-keyword]: it cannot see the fields of classes made with attr.s.
    sampled = dp_accounting.PoissonSampledDpEvent(sampling_probability=probability, event=one_release)
    # pyrefly: ignore[unexpected-keyword]
    return dp_accounting.SelfComposedDpEvent(event=sampled, count=queries)


def amplified_epsilon(
    mechanism: Mechanism,
    rounds: int,
    *,
    population: int,
    clients_per_round: float,
    noise_multiplier: float,
    delta: float,
    grid: Grid | None = None,
    dimension: int | None = None,
) -> float:
    """Returns ε for which a run with cyclic Poisson sampling is (ε, δ)-DP: mostly 0.01 % above the smallest.

    It is never above the ε of the run without amplification.

    Formal guarantee: as for `amplified_dp_event`, in both directions: a client's contributions are set to zero, or
    no longer are. Rounding errors are included. With `grid`, the release is the integers that are computed, and what
    they cost is included: the norm of a column of C changes by what the rounding of its entries changes, the ideal
    release is amplified, and the computed one is close to it for every draw of the cohorts, by the chain of
    `grids.epsilon_of_chain`. A cohort beyond `grid.max_clients`, which ends the run, is part of δ.

    Args:
        mechanism: A mechanism whose C has b̂ bands.
        rounds: Number of rounds n.
        population: Number of clients N.
        clients_per_round: Expected size B of a cohort.
        noise_multiplier: σ, standard deviation of a coordinate of z divided by the clip norm; at least 0.
        delta: δ, at least 1e-12 and below 1.
        grid: The grid on which records are summed and noised, or `None` for floating point.
        dimension: Number d of coordinates of a record, with a grid.

    Source: Choquette-Choo et al. (2023), corollary E.1; `tff_mf.composed_losses` for the arithmetic, with its proof;
    docs/floating-point.md for the grid.

    Example:
        >>> from tff_mf import Identity
        >>> setting = {"population": 1000, "clients_per_round": 10, "noise_multiplier": 1.0}
        >>> round(amplified_epsilon(Identity(), 100, **setting, delta=1e-6), 2)
        0.95
        >>> on_grid = {"grid": Grid(bits=16, max_clients=1000), "dimension": 4_050_748}
        >>> round(amplified_epsilon(Identity(), 100, **setting, delta=1e-6, **on_grid), 4)
        0.9558

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or C has more bands than there are clients.
    """
    sigma = validation.nonnegative("noise_multiplier", noise_multiplier)
    delta = validation.tail_delta(delta)
    queries, probability, norm = _queries(mechanism, rounds, population, clients_per_round)
    # A client has one participation in each query.
    charge_of = grids.charge_of_secret_cohorts(
        mechanism, rounds, 1, grid=grid, dimension=dimension, clients_per_round=clients_per_round
    )
    if charge_of is None or sigma == 0:
        return _epsilon(queries, probability, Guarantee.of_gaussian(norm, sigma).mu, delta)
    return _on_grid(queries, probability, norm, sigma, delta, charge_of(sigma))


def calibrate_amplified_noise_multiplier(
    mechanism: Mechanism,
    rounds: int,
    *,
    population: int,
    clients_per_round: float,
    epsilon: float,
    delta: float,
    grid: Grid | None = None,
    dimension: int | None = None,
) -> float:
    """Returns the smallest σ, to 0.1 %, for which a run with cyclic Poisson sampling is (ε, δ)-DP.

    Formal guarantee: as for `amplified_epsilon`, which for the result is at most the requested `epsilon`.

    Args:
        mechanism: A mechanism whose C has b̂ bands.
        rounds: Number of rounds n.
        population: Number of clients N.
        clients_per_round: Expected size B of a cohort.
        epsilon: ε, greater than 0.
        delta: δ, at least 1e-12 and below 1.
        grid: The grid on which records are summed and noised, or `None` for floating point.
        dimension: Number d of coordinates of a record, with a grid.

    Source: Choquette-Choo et al. (2023), corollary E.1.

    Example:
        >>> from tff_mf import Identity
        >>> setting = {"population": 1000, "clients_per_round": 10}
        >>> round(calibrate_amplified_noise_multiplier(Identity(), 100, **setting, epsilon=2.0, delta=1e-6), 2)
        0.8

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, C has more bands than there are clients, or the grid alone
            costs more than `epsilon`.
    """
    target, delta = validation.positive("epsilon", epsilon), validation.tail_delta(delta)
    queries, probability, norm = _queries(mechanism, rounds, population, clients_per_round)
    # A client has one participation in each query.
    charge_of = grids.charge_of_secret_cohorts(
        mechanism, rounds, 1, grid=grid, dimension=dimension, clients_per_round=clients_per_round
    )
    sigma = _calibrate(queries, probability, norm, target, delta)
    if charge_of is None:
        return sigma
    settled = False
    for step in range(_STEPS):
        charge = charge_of(sigma)
        level = grids.ideal_level(target, delta, charge)
        if level is None:
            break
        if step < _APPROACHES and not settled:
            before, at_charge = sigma, _calibrate(queries, probability, norm + charge.sensitivity, *level)
            sigma = max(sigma, at_charge)
            settled = sigma <= before * (1 + 1e-2)
        elif _on_grid(queries, probability, norm, sigma, delta, charge) <= target * composed_losses.ON_EVERY_MACHINE:
            return sigma
        else:
            sigma = gaussian.rounded_sigma(sigma * (1 + 1e-4))
    raise InputValueError(
        f"epsilon={epsilon!r} at delta={delta!r} was not reached on grid={grid!r} with dimension={dimension!r}, which "
        "costs too much of it, or has too little room for cohorts: take fewer bits or a larger max_clients."
    )


def _on_grid(
    queries: int, probability: float, norm: float, sigma: float, delta: float, charge: grids.GridCharge
) -> float:
    """Returns ε of the computed release: that of the amplified chain, or that of a run whose cohorts are known."""
    mu = Guarantee.of_gaussian(norm + charge.sensitivity, sigma).mu
    known = Guarantee(mu=(mu * math.sqrt(queries) + 2 * charge.mu) * (1 + 2.0**-48), tail=charge.tail).epsilon(delta)
    if probability == 1:
        return known
    return min(known, grids.epsilon_of_chain(delta, charge, lambda part: _epsilon(queries, probability, mu, part)))


def _calibrate(queries: int, probability: float, norm: float, target: float, delta: float) -> float:
    def private(sigma: float) -> bool:
        found = _epsilon(queries, probability, Guarantee.of_gaussian(norm, sigma).mu, delta)
        return found <= target * composed_losses.ON_EVERY_MACHINE

    # This σ is large enough without amplification.
    high = gaussian.mu_of(norm * math.sqrt(queries), gaussian.mu_from(target, delta)) * (1 + 2.0**-27)
    low = high
    while private(low) and low > high * 1e-6:
        high, low = low, low / 2
    while high > low * (1 + 1e-4):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if private(middle) else (middle, high)
    high = gaussian.rounded_sigma(high)
    # The bound is not quite monotone in σ.
    while not private(high):
        high = gaussian.rounded_sigma(high * (1 + 2.0**-20))
    return high


@functools.lru_cache(maxsize=256)
def _epsilon(queries: int, probability: float, mu: float, delta: float) -> float:
    plain = Guarantee(mu=mu * math.sqrt(queries) * (1 + 2.0**-50)).epsilon(delta)
    if probability == 1 or plain in (0.0, math.inf):
        return plain
    losses = [Losses(nodes=functools.partial(_nodes, probability, mu, takes_part)) for takes_part in (True, False)]
    return composed_losses.epsilon(losses, queries, delta, most=plain)


def _nodes(probability: float, mu: float, takes_part: bool, s: float, omega: float) -> Nodes | None:
    """Returns φ(s + iω) of one query whose client takes part with probability q, or not at all, by quadrature.

    Let Z(x) = 1 − q + q·e^(μx − μ²/2). Without the client, x ~ N(0, 1) and the loss is −log Z(x); with it, x has this
    density times Z, and the loss is log Z(x). So φ(s + iω) = ∫ f with f(x) = e^(−x²/2)·Z(x)^(p ± iω)/√(2π), where p is
    −s or 1 + s. The trapezoidal rule with steps h is off by at most 2M/(e^(2πc/h) − 1), if M bounds ∫|f(x + iy)|dx for
    |y| ≤ c (Trefethen and Weideman (2014), theorem 5.1). Let c ≤ π/(2μ). The angle of Z(x + iy) is at most μc, and

        |Z(x + iy)| ≤ Z(x),    |Z(x + iy)| ≥ Z(x)·cos(μc/2) ≥ Z(x)·e^(−0.141(μc)²),    |Z(x + iy)| ≥ 1 − q.

    As φ(s) ≥ 1 by Jensen's inequality, M/φ(s) is at most e^(c²/2 + ωμc), times the smaller of e^(0.141s(μc)²) and
    (1 − q)^(−s) for p = −s. Nodes are left out where f is small, and so is the density. To the right, f ends like a
    normal density and e^(s(s + 1)μ²/2) times one around (1 + s)μ, as Z^(1 + s) ≤ 1 + e^((1 + s)(μx − μ²/2)), where
    φ(s) ≥ q^(1 + s)·e^(s(s + 1)μ²/2). Z^(−s) is at most 1 to the right of μ/2, and (1 − q)^(−s) to the left. In
    between, Z^p is monotone, which bounds f in intervals of ¼.
    """
    least = -math.log1p(-probability)
    step = _step(mu, omega, 0.5, _DIGITS)
    if takes_part:
        cost = min((s + 1) * s * mu * mu / 2, -(1 + s) * math.log(probability))
        low, high, power = -math.sqrt(2 * _DIGITS), (1 + s) * mu + math.sqrt(2 * (_DIGITS + cost)), 1 + s
    else:
        low, high, power = -math.sqrt(2 * (_DIGITS + s * least)), mu + math.sqrt(2 * _DIGITS), -s
        step = max(_step(mu, omega, 0.5 + 0.141 * s * mu * mu, _DIGITS), _step(mu, omega, 0.5, _DIGITS + s * least))
    if not high - low < _MOST_NODES / 4:
        return None
    edges = low + np.arange(math.ceil((high - low) * 4) + 1) / 4
    # Of f, and of the density itself, whose weights must add up to 1.
    ratios = _log_ratio(probability, mu, edges)
    powers = np.maximum(power * ratios, ratios if takes_part else 0.0)
    heights = np.maximum(powers[1:], powers[:-1]) - np.square(np.minimum(np.abs(edges[1:]), np.abs(edges[:-1]))) / 2
    large = np.flatnonzero(heights > -_DIGITS - math.log(len(edges)))
    low, high = float(edges[large[0]]), float(edges[large[-1] + 1])
    if not (high - low) / step < _MOST_NODES:
        return None
    x = low + step * np.arange(math.ceil((high - low) / step) + 1)
    losses, y = _log_ratio(probability, mu, x), mu * (x - mu / 2)
    # q·e^y/Z is the derivative of log Z by y.
    share = np.exp(np.minimum(math.log(probability) + y - losses, 0.0))
    logs = math.log(step / math.sqrt(2 * math.pi)) - np.square(x) / 2
    return Nodes(
        losses=losses if takes_part else -losses,
        logs=logs + losses if takes_part else logs,
        rounding=np.abs(losses) + share * (1 + np.abs(y) + mu * np.abs(x) + mu * mu),
        error=10 * math.exp(-_DIGITS),
    )


def _step(mu: float, omega: float, curvature: float, digits: float) -> float:
    """Returns the largest h with 2πc/h ≥ `digits` + ωμc + `curvature`·c² for some c ≤ π/(2μ)."""
    width = min(math.sqrt(digits / curvature), math.pi / (2 * mu))
    return 2 * math.pi / (digits / width + curvature * width + omega * mu)


def _log_ratio(probability: float, mu: float, x: np.ndarray) -> np.ndarray:
    """Returns log Z(x), without cancellation where Z is near 1, nor where it is near 0."""
    y = mu * (x - mu / 2)
    change = probability * np.expm1(np.minimum(y, 1.0))
    far = np.logaddexp(math.log1p(-probability), math.log(probability) + y)
    return np.where((y < 1) & (change > -0.5), np.log1p(np.maximum(change, -0.5)), far)


def _queries(mechanism: Mechanism, rounds: int, population: int, clients_per_round: float) -> tuple[int, float, float]:
    """Returns the number of queries on a group, and of each the sampling probability and the sensitivity."""
    validation.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.Banded")
    bands, norm = bands_and_norm(sensitivities.as_released(mechanism), mechanism.check(rounds))
    group = validation.whole("population", population) // bands
    size = validation.positive("clients_per_round", clients_per_round)
    if group < 1:
        raise InputValueError(
            f"population={population} is less than the {bands} bands of C, each of which needs a group of clients: "
            "take fewer bands."
        )
    if size > group:
        raise InputValueError(
            f"clients_per_round={clients_per_round} exceeds the {group} clients in each of the {bands} groups: take at "
            f"most {population // math.ceil(size)} bands, or smaller cohorts."
        )
    return -(-rounds // bands), size / group, norm


def bands_and_norm(mechanism: Mechanism, rounds: int) -> tuple[int, float]:
    """Returns the number of bands of C, counted from its entries, and its largest column norm.

    Example:
        >>> from tff_mf import BandedToeplitz
        >>> bands_and_norm(BandedToeplitz(column=[1.0, 0.75, 0.0]), 4)
        (2, 1.25)
    """
    sensitivities.check_outside(mechanism, rounds)
    if isinstance(mechanism, BandedMechanism):
        found = mechanism.diagonals(validation.listable(rounds))
        diagonals = np.array(_matrices.shaped("diagonals", found, (mechanism.bands, rounds))[:rounds])
        for offset, diagonal in enumerate(diagonals):
            diagonal[rounds - offset :] = 0
        used = np.flatnonzero(np.any(diagonals, axis=1))
        squares = np.sum(np.square(diagonals), axis=0)
    elif isinstance(mechanism, ToeplitzMechanism):
        column = _matrices.shaped("coefficients", mechanism.coefficients(validation.listable(rounds)), (rounds,))
        used, squares = np.flatnonzero(column), np.sum(np.square(column), keepdims=True)
    else:
        matrix = mechanism.encoder(validation.dense(rounds))
        used = np.subtract(*np.nonzero(matrix))
        squares = np.sum(np.square(matrix), axis=0)
    return 1 + int(np.max(used, initial=0)), float(np.sqrt(np.max(squares)))
