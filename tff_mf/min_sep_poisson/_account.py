"""ε of b-min-sep sampling: the smaller of an unamplified and a Monte Carlo bound."""

import dataclasses
import math
import time

import numpy as np

from tff_mf import grids, validation
from tff_mf.balls_in_bins import DirectionBound
from tff_mf.betting import Claim, best_bets, strongest
from tff_mf.errors import InputValueError
from tff_mf.grids import Grid
from tff_mf.guarantees import Guarantee, guarantee
from tff_mf.mechanisms import Mechanism
from tff_mf.min_sep_poisson._chain import Chain
from tff_mf.min_sep_poisson._columns import columns_of
from tff_mf.min_sep_poisson._directions import Add, Losses, Remove, Signals
from tff_mf.min_sep_poisson._result import MinSepPoissonGuarantee
from tff_mf.participation import MinSep

# Share of δ that is spent on a wrong certificate, half of it in either direction.
FAILURE = 1e-3
# What the package allows for the entries of C, and for sums of their products: δ grows with every entry.
_ENTRY_ERROR = 2.0**-36
# Above it, a round's variance leads to weights that are not computed with.
_LARGEST_VARIANCE = 60.0
# Of a logarithm of a sum of up to b + n probabilities.
_NEVER_ERROR = 1e-11
_PILOT = 4000
_TILTS = (1.5, 2.0, 3.0, 5.0, 8.0)
_SHIFTS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 300.0)
# Claims approach the estimate by this factor, up to this share of it.
_APPROACH, _FINEST = 0.85, 5e-4


def min_sep_poisson_probability(population: int, clients_per_round: int, min_sep: int) -> float:
    """Returns p = m/(P − m(b − 1)), at which cohorts have m clients on average.

    Example:
        >>> min_sep_poisson_probability(1000, 10, 11)
        0.011111111111111112

    Raises:
        InputTypeError: If an argument is not a whole number.
        InputValueError: If an argument is out of range.
    """
    population, apart = validation.whole("population", population), validation.whole("min_sep", min_sep)
    size = validation.whole("clients_per_round", clients_per_round)
    if size * apart > population:
        raise InputValueError(
            f"clients_per_round={size} and min_sep={apart} need {size * apart} clients, but population={population}."
        )
    return size / (population - size * (apart - 1))


def min_sep_poisson_epsilon(
    mechanism: Mechanism,
    rounds: int,
    *,
    min_sep: int,
    probability: float,
    noise_multiplier: float,
    delta: float,
    samples: int = 200_000,
    seed: int | None = None,
    grid: Grid | None = None,
    dimension: int | None = None,
    clients_per_round: float | None = None,
) -> MinSepPoissonGuarantee:
    """Returns a certified ε for which a run with b-min-sep sampling is (ε, δ)-DP.

    Formal guarantee:
        Adjacency: zero-out of all contributions of one client, each of L2 norm at most the clip norm. They may be
        chosen adaptively, from everything that was released before.
        Participation: in each round, a client that was in none of the last b − 1 cohorts joins with probability p,
        independently of everything else and in secret. Before the first round it is as after many. Rounds of others may
        be anything that is independent of it; cohorts of a fixed size, truncated cohorts and a log of the cohorts that
        is released are not covered.
        Sensitivity: C is `mechanism.cast_to_float32()`, has at most b bands and no entry below 0; its rounding errors
        are included.
        Released: all `rounds` noised sums, possibly divided by a constant, but not by the size of a cohort, and nothing
        else that depends on the client's rounds, such as counts of adaptive clipping.
        Arithmetic: with `grid`, the release is the integers that are computed, and what they cost is included, by the
        chain of `grids.charged_epsilon`, if all clients join independently. Without one, noise is taken to be Gaussian
        with real values.
        Certainty: the result holds except with probability `failure` ≤ δ/1000 over the random numbers drawn here, which
        δ includes. They come from the system; numbers of NumPy's generator are taken for random.
        Proof: docs/amplification.md.

    Args:
        mechanism: A mechanism whose C has at most b bands and no entry below 0.
        rounds: Number of rounds n.
        min_sep: b, at least 2; with 1, sampling is Poisson's, of `tff_mf.amplified_epsilon`.
        probability: p, above 0 and at most 1; `min_sep_poisson_probability` gives that of a population.
        noise_multiplier: σ, standard deviation of a coordinate of z divided by the clip norm; at least 0.
        delta: δ, strictly between 0 and 1.
        samples: Number of samples per direction. The certificate approaches the estimate slowly, up to some 10⁶.
        seed: Makes the result repeatable, and not certified.
        grid: The grid on which records are summed and noised, or `None` for floating point.
        dimension: Number d of coordinates of a record, with a grid.
        clients_per_round: Expected size of a cohort, with a grid.

    Source: Dong and Ganesh (2026), "Privacy amplification for BandMF via b-min-sep subsampling", for the sampling and
    the recursion of its likelihood ratio; docs/amplification.md for the certificate.

    Example:
        >>> from tff_mf import BandedToeplitz
        >>> setting = {"min_sep": 2, "probability": 0.05, "noise_multiplier": 1.0, "delta": 1e-3, "samples": 4000}
        >>> found = min_sep_poisson_epsilon(BandedToeplitz(column=[1.0, 0.5]), 20, **setting)
        >>> found.bound, found.certified, found.estimate <= found.epsilon
        ('Monte Carlo', True, True)

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, C has an entry below 0, or more than b bands.
    """
    began = time.perf_counter()
    validation.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.BandedToeplitz")
    rounds, sigma = mechanism.check(rounds), validation.nonnegative("noise_multiplier", noise_multiplier)
    delta, samples = validation.open_unit("delta", delta), validation.whole("samples", samples, at_least=1000)
    chain = _chain(rounds, min_sep, probability)
    columns = columns_of(mechanism, rounds, chain.min_sep)
    if seed is not None:
        seed = validation.whole("seed", seed, at_least=0)
    turns = MinSep(min_sep=chain.min_sep, max_participations=-(-rounds // chain.min_sep))
    charge_of = grids.charge_of_secret_cohorts(
        mechanism,
        rounds,
        turns.max_participations,
        grid=grid,
        dimension=dimension,
        clients_per_round=clients_per_round,
    )
    known = guarantee(
        mechanism,
        rounds,
        turns,
        noise_multiplier=sigma,
        grid=grid if sigma else None,
        dimension=dimension if sigma else None,
    )
    problem = _Problem(
        chain=chain,
        columns=columns,
        sigma=sigma,
        known=known,
        samples=samples,
        generator=np.random.default_rng(seed),
    )
    charge = charge_of(sigma) if charge_of is not None and sigma else None
    found = _epsilon(problem, delta) if charge is None else _on_grid(problem, charge, delta)
    return dataclasses.replace(found, certified=seed is None, seconds=time.perf_counter() - began, grid=grid)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Problem:
    """The sampling, C, σ, the guarantee if rounds are known, and the source of random numbers."""

    chain: Chain
    columns: np.ndarray
    sigma: float
    known: Guarantee
    samples: int
    generator: np.random.Generator


def _epsilon(problem: _Problem, delta: float) -> MinSepPoissonGuarantee:
    """Returns ε of real numbers."""
    chain, samples, generator = problem.chain, problem.samples, problem.generator
    columns = problem.columns * (1 + _ENTRY_ERROR)
    most = problem.known.epsilon(delta)
    plain = DirectionBound(value=most, estimate=most, bound="unamplified", samples=0)
    bounds = [plain, plain]
    if 0 < most < math.inf and float(np.max(np.sum(columns**2, axis=1))) < _LARGEST_VARIANCE * problem.sigma**2:
        signals = Signals(chain, columns / problem.sigma)
        remove = _bounded(_removal(signals, most, delta, generator), plain, delta, samples, generator)
        # Z is at least the probability of no round at all.
        no_round = -chain.log_never * (1 + 1e-9) + _NEVER_ERROR
        if no_round < most:
            plain = dataclasses.replace(plain, value=no_round, bound="no round")
        added = _addition(signals, plain.value, delta, generator)
        bounds = [remove, _bounded(added, plain, delta, samples, generator)]
    worst = max(bounds, key=lambda each: each.value)
    return MinSepPoissonGuarantee(
        epsilon=worst.value,
        delta=delta,
        noise_multiplier=problem.sigma,
        min_sep=chain.min_sep,
        probability=chain.probability,
        estimate=max(each.estimate for each in bounds),
        remove=bounds[0],
        add=bounds[1],
        bound=worst.bound,
        failure=FAILURE * delta if any(each.bound == "Monte Carlo" for each in bounds) else 0.0,
        certified=False,
        seconds=0.0,
    )


def _on_grid(problem: _Problem, charge: grids.GridCharge, delta: float) -> MinSepPoissonGuarantee:
    """Returns ε of the computed release: that of the chain, or that of a run whose rounds are known.

    An entry of C̃ exceeds that of C by at most the change of its column, and is 0 where C's is: inner products grow
    with the entries. The μ of known rounds includes the charge, and so is at least that of the ideal release.
    """
    known = Guarantee(mu=problem.known.mu, tail=charge.tail).epsilon(delta)
    columns = problem.columns + charge.sensitivity * (problem.columns > 0)
    ideal = dataclasses.replace(problem, columns=columns, known=Guarantee(mu=problem.known.mu))
    part = grids.ideal_delta(ideal.known.epsilon(delta), delta, charge)
    found = _epsilon(ideal, part or delta)
    value = grids.charged_epsilon(found.epsilon, part, delta, charge) if part else math.inf
    if known <= value:
        return dataclasses.replace(found, epsilon=known, delta=delta, bound="unamplified", failure=0.0)
    return dataclasses.replace(found, epsilon=value, delta=delta)


def _chain(rounds: int, min_sep: int, probability: float) -> Chain:
    apart, probability = validation.whole("min_sep", min_sep), validation.positive("probability", probability)
    if apart < 2:
        raise InputValueError(
            "min_sep=1 is Poisson sampling: take tff_mf.amplified_epsilon, which needs no random numbers."
        )
    if probability > 1:
        raise InputValueError(f"probability={probability!r} must be at most 1.")
    return Chain(rounds=rounds, min_sep=apart, probability=probability)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Found:
    """A direction with its proposals, and an estimate of its ε."""

    direction: Remove | Add
    epsilon: float


def _bounded(
    found: _Found, plain: DirectionBound, delta: float, samples: int, generator: np.random.Generator
) -> DirectionBound:
    """Returns the smaller of `plain` and of ε that the samples certify."""
    shares, excess = [0.0], _FINEST
    estimate = max(found.epsilon, _FINEST * plain.value)
    while estimate * (1 + excess) < plain.value:
        shares.append(excess)
        excess /= _APPROACH
    claims = [
        Claim(epsilon=estimate * (1 + share), mean=delta * (1 - FAILURE))
        for share in reversed(shares)
        if estimate * (1 + share) < plain.value
    ]
    count = strongest(found.direction, claims, samples=samples, failure=FAILURE / 2 * delta, generator=generator)
    if not count:
        return dataclasses.replace(plain, estimate=min(found.epsilon, plain.value), samples=samples)
    return DirectionBound(value=claims[count - 1].epsilon, estimate=found.epsilon, bound="Monte Carlo", samples=samples)


def _removal(signals: Signals, most: float, delta: float, generator: np.random.Generator) -> _Found:
    """Returns proposals near the best: those by which a bet on a tenth more than the mean grows fastest."""
    tilts = [tilt for tilt in _TILTS if signals.can_tilt(tilt)] or [1.0]
    shares = [(False, 1.0, 0.1), *((False, tilt, 0.9 / len(tilts)) for tilt in tilts)]
    epsilon = _estimate(Remove(signals=signals, parts=tuple(shares)).sample(_PILOT, generator), delta, most)
    tried = [((False, 1.0, 0.1), (False, tilt, 0.9)) for tilt in tilts]
    if signals.has_pairs:
        tried += [
            ((False, 1.0, 0.1), (True, 1.0, 0.2), (True, tilt, 0.4), (False, tilt, 0.3)) for tilt in (1.0001, *tilts)
        ]
    candidates = [Remove(signals=signals, parts=parts) for parts in tried]
    candidates = sorted(candidates, key=lambda each: each.most(epsilon))[:3]
    pilots = [each.sample(_PILOT, generator) for each in candidates]
    growths = [_growth(each, pilot, epsilon) for each, pilot in zip(candidates, pilots, strict=True)]
    best = int(np.argmax(growths))
    return _Found(direction=candidates[best], epsilon=_estimate(pilots[best], delta, most))


def _addition(signals: Signals, most: float, delta: float, generator: np.random.Generator) -> _Found:
    """Returns the shift with the smallest range."""
    epsilon = most
    for _ in range(3):
        direction = min((Add(signals=signals, shift=shift) for shift in _SHIFTS), key=lambda each: each.most(epsilon))
        epsilon = _estimate(direction.sample(_PILOT, generator), delta, most)
    return _Found(direction=direction, epsilon=epsilon)


def _growth(direction: Remove, pilot: Losses, epsilon: float) -> float:
    values = pilot.values(epsilon)
    mean = 1.1 * float(np.mean(values)) + 1e-300
    return max(
        float(np.mean(np.log1p(stake * (mean - values)))) for stake in best_bets(values, mean, direction.most(epsilon))
    )


def _estimate(losses: Losses, delta: float, most: float) -> float:
    low, high = 0.0, most
    if float(np.mean(losses.values(0.0))) <= delta:
        return 0.0
    while high - low > 1e-5 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if float(np.mean(losses.values(middle))) <= delta else (middle, high)
    return high
