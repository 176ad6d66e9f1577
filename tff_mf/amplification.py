"""Banded mechanisms whose cohorts are drawn at random, and kept secret: what that adds to privacy.

The population is split into b̂ groups, b̂ being the number of bands of C; in round i only clients of group i mod b̂ take
part. What different rounds of a client change are then different rows of Cx, so that the run is a sequence of
⌈n/b̂⌉ Gaussian queries on one group, each of sensitivity max_t ‖C e_t‖, and whatever amplifies those amplifies the run:
Choquette-Choo et al. (2023), theorem 4.

None of this holds in cross-device training, where a server cannot draw clients at random: see `tff_mf.guarantee`.
"""

import functools
import math
import typing

import numpy as np

from tff_mf import _validate, gaussian, registry
from tff_mf.errors import InputValueError
from tff_mf.mechanisms import BandedMechanism, Mechanism, ToeplitzMechanism

if typing.TYPE_CHECKING:
    import dp_accounting

# Mass that Fourier transforms of privacy losses may misplace, and that δ is lowered by: far above what rounding in
# float64 leaves of a total mass of 1 over a few million points.
_MISPLACED = 1e-14

# Steps of the grid of privacy losses in one ε.
_GRID = 2000
_FINEST = 1e-5
_COARSEST = 1e-2


def amplified_dp_event(
    mechanism: Mechanism, rounds: int, *, population: int, clients_per_round: float, noise_multiplier: float
) -> "dp_accounting.SelfComposedDpEvent":
    """Returns a run with cyclic Poisson sampling as one event of dp-accounting.

    Formal guarantee:
        Adjacency: zero-out of all contributions of one client, each of L2 norm at most the clip norm. dp-accounting
        calls the relation add-or-remove-one; it is the same as long as nobody learns who, or how many, took part.
        Participation: in round i each client of group i mod b̂ takes part with probability
        q = clients_per_round / ⌊population / b̂⌋, independently of everything else, and no other client does. Groups are
        fixed beforehand, and hold ⌊population / b̂⌋ clients each. Drawing a fixed number of them is not this.
        Sensitivity: the largest column norm of `mechanism.cast_to_float32()`, rounded up, in each of ⌈n/b̂⌉ queries.
        Released: all `rounds` noised sums, divided, if at all, by a constant; not the size of a cohort.

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
    # A second of import that no other function here needs.
    import dp_accounting

    sigma = _validate.nonnegative("noise_multiplier", noise_multiplier)
    queries, probability, norm = _queries(mechanism, rounds, population, clients_per_round)
    mu = gaussian.mu_of(norm, sigma)
    # pyrefly: ignore[unexpected-keyword]: it cannot see the fields of classes made with attr.s.
    one_release = dp_accounting.GaussianDpEvent(noise_multiplier=1 / mu)
    # pyrefly: ignore[unexpected-keyword]
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
) -> float:
    """Returns ε for which a run with cyclic Poisson sampling is (ε, δ)-DP, by privacy loss distributions.

    The privacy loss is put on a grid of ε/2000, rounded up, so that the result is above the smallest ε by about a
    thousandth. It is never above what the run has without amplification.

    Formal guarantee: that of `amplified_dp_event`.

    Args:
        mechanism: A mechanism whose C has b̂ bands.
        rounds: Number of rounds n.
        population: Number of clients N.
        clients_per_round: Expected size B of a cohort.
        noise_multiplier: σ, standard deviation of a coordinate of z divided by the clip norm; at least 0.
        delta: δ, at least 1e-12 and below 1.

    Source: Choquette-Choo et al. (2023), corollary E.1; Doroshenko et al. (2022) for privacy loss distributions.

    Example:
        >>> from tff_mf import Identity
        >>> setting = {"population": 1000, "clients_per_round": 10, "noise_multiplier": 1.0}
        >>> round(amplified_epsilon(Identity(), 100, **setting, delta=1e-6), 2)
        0.95

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or C has more bands than there are clients.
    """
    sigma = _validate.nonnegative("noise_multiplier", noise_multiplier)
    delta = _delta(delta)
    queries, probability, norm = _queries(mechanism, rounds, population, clients_per_round)
    return _epsilon(queries, probability, gaussian.mu_of(norm, sigma), delta)


def calibrate_amplified_noise_multiplier(
    mechanism: Mechanism, rounds: int, *, population: int, clients_per_round: float, epsilon: float, delta: float
) -> float:
    """Returns σ for which a run with cyclic Poisson sampling is (ε, δ)-DP: the smallest, to a thousandth.

    Formal guarantee: that of `amplified_epsilon`, which, given the result, returns at most the `epsilon` asked for.

    Args:
        mechanism: A mechanism whose C has b̂ bands.
        rounds: Number of rounds n.
        population: Number of clients N.
        clients_per_round: Expected size B of a cohort.
        epsilon: ε, greater than 0.
        delta: δ, at least 1e-12 and below 1.

    Source: Choquette-Choo et al. (2023), corollary E.1.

    Example:
        >>> from tff_mf import Identity
        >>> setting = {"population": 1000, "clients_per_round": 10}
        >>> round(calibrate_amplified_noise_multiplier(Identity(), 100, **setting, epsilon=2.0, delta=1e-6), 2)
        0.8

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or C has more bands than there are clients.
    """
    target, delta = _validate.positive("epsilon", epsilon), _delta(delta)
    queries, probability, norm = _queries(mechanism, rounds, population, clients_per_round)
    return _calibrate(queries, probability, norm, target, delta)


def _calibrate(queries: int, probability: float, norm: float, target: float, delta: float) -> float:
    def private(sigma: float) -> bool:
        return _epsilon(queries, probability, gaussian.mu_of(norm, sigma), delta, at_least=target) <= target

    # Without amplification this is enough.
    high = gaussian.mu_of(norm * math.sqrt(queries), gaussian.mu_from(target, delta)) * (1 + 2.0**-30)
    low = high
    while private(low) and low > high * 1e-6:
        high, low = low, low / 2
    while high > low * (1 + 1e-4):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if private(middle) else (middle, high)
    # A finer grid than the search's may give an ε that is larger by its rounding.
    while _epsilon(queries, probability, gaussian.mu_of(norm, high), delta) > target:
        high *= 1 + 1e-4
    return high


def _epsilon(queries: int, probability: float, mu: float, delta: float, *, at_least: float = 0.0) -> float:
    """Returns ε, or, where it is below `at_least`, some number that is."""
    plain = gaussian.epsilon_from_delta(delta, mu * math.sqrt(queries) * (1 + 2.0**-50))
    if probability == 1 or plain in (0.0, math.inf) or plain <= at_least:
        return plain
    # A first, coarse figure tells how fine the grid has to be.
    coarse = _by_pld(queries, probability, mu, delta, min(_COARSEST, plain / 50))
    if coarse <= at_least:
        return coarse
    step = min(max(coarse / _GRID, _FINEST), _COARSEST)
    return min(plain, coarse, _by_pld(queries, probability, mu, delta, step))


@functools.lru_cache(maxsize=256)
def _by_pld(queries: int, probability: float, mu: float, delta: float, step: float) -> float:
    from dp_accounting.pld import privacy_loss_distribution

    one = privacy_loss_distribution.from_gaussian_mechanism(
        1 / mu, value_discretization_interval=step, sampling_prob=probability
    )
    found = one.self_compose(queries).get_epsilon_for_delta(delta - _MISPLACED)
    return float(found) * (1 + 2.0**-40)


def _queries(mechanism: Mechanism, rounds: int, population: int, clients_per_round: float) -> tuple[int, float, float]:
    """Returns the number of queries on a group, the probability of a client in each, and the sensitivity of each."""
    _validate.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.Banded")
    bands, norm = bands_and_norm(mechanism.cast_to_float32(), mechanism.check(rounds))
    group = _validate.whole("population", population) // bands
    size = _validate.positive("clients_per_round", clients_per_round)
    if group < 1:
        raise InputValueError(
            f"population={population} cannot be split into as many groups as C has bands, {bands}: take fewer bands."
        )
    if size > group:
        raise InputValueError(
            f"clients_per_round={clients_per_round} is more than the {group} clients of a group, one of {bands}: take "
            f"at most {population // math.ceil(size)} bands, or smaller cohorts."
        )
    return -(-rounds // bands), size / group, norm


def bands_and_norm(mechanism: Mechanism, rounds: int) -> tuple[int, float]:
    """Returns how many bands C has, counted from its entries, and its largest column norm.

    Example:
        >>> from tff_mf import BandedToeplitz
        >>> bands_and_norm(BandedToeplitz(column=[1.0, 0.75, 0.0]), 4)
        (2, 1.25)
    """
    registry.check_matrices(mechanism, rounds)
    if isinstance(mechanism, BandedMechanism):
        diagonals = np.array(mechanism.diagonals(_validate.listable(rounds))[:rounds])
        for offset, diagonal in enumerate(diagonals):
            diagonal[rounds - offset :] = 0
        used = np.flatnonzero(np.any(diagonals, axis=1))
        squares = np.sum(np.square(diagonals), axis=0)
    elif isinstance(mechanism, ToeplitzMechanism):
        column = mechanism.coefficients(_validate.listable(rounds))
        used, squares = np.flatnonzero(column), np.sum(np.square(column), keepdims=True)
    else:
        matrix = mechanism.encoder(_validate.dense(rounds))
        used = np.subtract(*np.nonzero(matrix))
        squares = np.sum(np.square(matrix), axis=0)
    return 1 + int(np.max(used, initial=0)), float(np.sqrt(np.max(squares)))


def _delta(value: float) -> float:
    delta = _validate.open_unit("delta", value)
    if delta < 1e-12:
        raise InputValueError(f"delta={value!r} is below 1e-12, where privacy loss distributions are only rounding.")
    return delta
