"""b-min-sep sampling, against sums over all histories of a client and quadrature over all outputs."""

import fractions
import itertools
import math

import numpy as np
import pytest

import tff_mf
from tests.tff_mf import secret_rounds_oracle as oracle
from tests.tff_mf.samplings import min_sep_directions, min_sep_level
from tff_mf.accounting.b_min_sep._samples import Add, Chain, Pairs, Remove, Signals
from tff_mf.accounting.b_min_sep._sampling import columns_of
from tff_mf.accounting.betting import Claim, strongest

BANDED = tff_mf.BandedToeplitz(column=[1.0, 0.6])
CHAINS = [(5, 2, 0.3), (6, 3, 0.2), (4, 4, 0.7), (6, 3, 1.0), (3, 5, 0.4)]


def parts(rounds, min_sep, probability, *, sigma=1.3, seed=0):
    """Returns the chain, its signals, C/σ, and all histories with their probabilities."""
    chain = Chain(rounds=rounds, min_sep=min_sep, probability=probability)
    bands = min(min_sep, rounds, 3)
    diagonals = np.random.default_rng(seed).uniform(0.2, 1.0, (bands, rounds))
    columns = columns_of(tff_mf.Banded(values=diagonals.tolist()), rounds, min_sep) / sigma
    encoder = np.zeros((rounds, rounds))
    for t, offset in itertools.product(range(rounds), range(bands)):
        if t + offset < rounds:
            encoder[t + offset, t] = columns[t, offset]
    return chain, Signals(chain, columns), encoder, *oracle.min_sep_histories(rounds, min_sep, probability)


@pytest.mark.parametrize("setting", CHAINS)
def test_sums_over_histories(setting):
    chain, signals, encoder, histories, chances = parts(*setting)
    assert chances.sum() == pytest.approx(1, rel=1e-12)
    assert chances @ histories == pytest.approx(np.full(chain.rounds, chain.share), rel=1e-12)
    outputs = np.random.default_rng(1).standard_normal((7, chain.rounds)) * 2
    added = histories @ encoder.T
    ratios = np.exp(outputs @ added.T - np.sum(added**2, axis=1) / 2) @ chances
    assert np.exp(chain.log_sum(signals.exponents(outputs))) == pytest.approx(ratios, rel=1e-10)
    assert signals.sums(histories) == pytest.approx(added, rel=1e-12)
    squares = np.sum(added**2, axis=1)
    assert signals.log_tilted(2.5) == pytest.approx(math.log(chances @ np.exp(2.5 * 1.5 / 2 * squares)), rel=1e-10)


@pytest.mark.parametrize("setting", CHAINS)
def test_sums_over_pairs_of_histories(setting):
    chain, signals, encoder, histories, chances = parts(*setting)
    added = histories @ encoder.T
    for tilt in (1.0, 2.3):
        weights = np.exp(tilt * added @ added.T + tilt * (tilt - 1) / 2 * np.sum(added**2, axis=1))
        expected = math.log(chances @ weights @ chances)
        assert Pairs(chain, signals.inner, tilt).log_sum == pytest.approx(expected, rel=1e-10)


def chi_square(drawn, histories, expected):
    """Returns the statistic of drawn rows over all histories, in standard deviations from its mean."""
    place = {tuple(row): index for index, row in enumerate(histories.astype(int))}
    counts = np.bincount([place[tuple(row)] for row in drawn.astype(int)], minlength=len(histories))
    means = expected / expected.sum() * len(drawn)
    freedom = len(histories) - 1
    return (np.sum((counts - means) ** 2 / means) - freedom) / math.sqrt(2 * max(freedom, 1))


@pytest.mark.parametrize("setting", CHAINS)
def test_draws_have_the_weights_of_histories(setting):
    chain, signals, encoder, histories, chances = parts(*setting)
    added, generator = histories @ encoder.T, np.random.default_rng(3)
    logs = 1.5 * signals.squares
    drawn = chain.draws(logs, 20_000, generator)
    assert chi_square(drawn, histories, chances * np.exp(histories @ logs)) < 5
    weights = np.exp(2.0 * added @ added.T + np.sum(added**2, axis=1)) * np.outer(chances, chances)
    first, second = Pairs(chain, signals.inner, 2.0).draws(20_000, generator)
    assert chi_square(first, histories, weights.sum(axis=1)) < 5
    assert chi_square(second, histories, weights.sum(axis=0)) < 5
    # Also together: the expected number of rounds of both.
    both = np.sum(weights / weights.sum() * (histories @ histories.T))
    spread = np.sqrt(np.sum(weights / weights.sum() * (histories @ histories.T) ** 2) - both**2)
    assert abs(np.mean(np.sum(first & second, axis=1)) - both) < 5 * spread / math.sqrt(20_000)


def directions(signals):
    shares = ((False, 1.0, 0.1), (True, 1.0, 0.2), (True, 2.0, 0.4), (False, 2.0, 0.3))
    return Remove(signals=signals, parts=shares), Add(signals=signals, shift=2.0)


@pytest.mark.parametrize("setting", [(3, 2, 0.3), (3, 3, 1.0)])
def test_values_have_the_mean_of_quadrature_and_are_in_range(setting):
    _, signals, encoder, histories, chances = parts(*setting)
    for direction in directions(signals):
        sample = direction.sample(20_000, np.random.default_rng(2))
        for epsilon in (0.3, 1.0):
            values = sample.values(epsilon)
            exact = oracle.quadrature(
                encoder, histories, chances, 1.0, epsilon, remove=isinstance(direction, Remove), points=121
            )
            assert abs(values.mean() - exact) <= 5 * values.std() / math.sqrt(len(values)) + 1e-5 * exact
            assert 0 <= values.min() <= values.max() <= direction.most(epsilon)


@pytest.mark.parametrize(("min_sep", "probability", "sigma", "delta"), [(2, 0.3, 1.0, 1e-5), (3, 0.1, 0.7, 1e-7)])
def test_certified_epsilon_is_above_quadrature(min_sep, probability, sigma, delta):
    setting = {"min_sep": min_sep, "probability": probability, "noise_multiplier": sigma, "delta": delta}
    found = min_sep_level(BANDED, 3, **setting, samples=20_000)
    assert (found.bound, found.theorem) == ("certified", "Monte Carlo")
    assert 0 < found.failure <= delta / 1000 * (1 + 1e-12)
    assert min_sep_level(BANDED, 3, **setting, samples=20_000) == found
    bounds = min_sep_directions(BANDED, 3, **setting, samples=20_000)
    encoder = BANDED.cast_to_float32().encoder(3)
    histories, chances = oracle.min_sep_histories(3, min_sep, probability)
    for remove, bound in zip((True, False), bounds, strict=True):
        setting = {"remove": remove, "points": 121}
        exact = oracle.quadrature(encoder, histories, chances, sigma, bound.value, **setting)
        assert exact <= delta
        # Where it decides, it is not far above.
        if bound.value == max(each.value for each in bounds):
            assert oracle.quadrature(encoder, histories, chances, sigma, 0.8 * bound.value, **setting) > delta


def test_false_claims_fail():
    """Of 30 claims that are false by 1 %, at most 5 % may hold; more than 6 would have a probability of 1e-3."""
    _, signals, encoder, histories, chances = parts(3, 2, 0.3)
    direction, generator = directions(signals)[0], np.random.default_rng(4)
    exact = oracle.quadrature(encoder, histories, chances, 1.0, 1.0, remove=True, points=121)
    claims = [Claim(epsilon=1.0, mean=0.99 * exact)]
    wrong = sum(strongest(direction, claims, samples=500, failure=0.05, generator=generator) for _ in range(30))
    assert wrong <= 6


def test_probability_of_a_population():
    """As the sampler has it, on average m clients take part."""
    p = tff_mf.BMinSep.of_population(population=400, clients_per_round=8, min_sep=10).probability
    assert 400 * Chain(rounds=1, min_sep=10, probability=p).share == pytest.approx(8)
    with pytest.raises(ValueError, match="need 500 clients, but population=400"):
        tff_mf.BMinSep.of_population(population=400, clients_per_round=5, min_sep=100)


@pytest.mark.parametrize("probability", [4e-13, 2e-12, 1e-9, 0.3])
def test_bound_of_no_round_is_not_below_its_logarithm(probability):
    """−log P(no round), in fractions: 4 rounds of a client that is free at first, and 3 of one that waits."""
    setting = {"min_sep": 2, "noise_multiplier": 0.3, "delta": 1e-200, "samples": 1000}
    found = min_sep_directions(BANDED, 4, probability=probability, **setting)[1]
    p = fractions.Fraction(probability)
    joins = 1 - ((1 - p) ** 4 + p * (1 - p) ** 3) / (1 + p)
    expected = -math.log1p(-float(joins))
    assert found.bound == "no round"
    assert expected * (1 + 1e-13) <= found.value <= expected * (1 + 1e-8) + 2e-11


@pytest.mark.parametrize("delta", [0.05, 1e-3])
def test_an_epsilon_of_0_needs_no_samples(delta):
    """With less than δ a client takes part at all: theorems have 0, below which no claim is."""
    setting = {"min_sep": 2, "probability": 1e-6, "noise_multiplier": 1.0, "samples": 1000}
    assert min_sep_level(BANDED, 1, delta=delta, **setting).epsilon == 0
