"""Amplification by sampling, shuffling and allocation, against integrals, lists of outcomes and simulated runs."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

import tff_mf
from tests.tff_mf import balls_in_bins_oracle, secret_rounds_oracle
from tests.tff_mf.samplings import allocated_epsilon, bins_level, cyclic_epsilon, cyclic_event, shuffled_epsilon
from tff_mf.accounting import bands_and_norm
from tff_mf.accounting.allocation import Atoms, one_of_many
from tff_mf.accounting.shuffled_epochs import clones_delta, clones_epsilon
from tff_mf.numerics import composed_losses

STACK_OVERFLOW = {"population": 342_477, "clients_per_round": 1000}


def banded(bands):
    """Returns a mechanism with this number of bands and columns of norm 1, up to rounding."""
    return tff_mf.BandedToeplitz(column=[1.0] + [2.0**-30] * (bands - 1))


@pytest.mark.once
@pytest.mark.parametrize(
    ("bands", "sigma", "epsilon"), [(9, 0.79118, 1), (18, 0.64708, 2), (32, 0.52224, 4), (64, 0.4349, 8)]
)
def test_the_amplified_runs_of_stack_overflow(bands, sigma, epsilon):
    """Choquette-Choo et al. (2023), table 5, where C is scaled to sensitivity 1 for k = 6."""
    sigma *= math.sqrt(6)
    ours = cyclic_epsilon(banded(bands), 2052, **STACK_OVERFLOW, noise_multiplier=sigma, delta=1e-6)
    assert ours == pytest.approx(epsilon, rel=2e-3)


def hockey_stick(epsilon, probability, mu, *, removed):
    """Returns δ(ε) of one sampled query, exactly; ε may be negative."""
    # The likelihood ratio 1 − q + q·exp(μx − μ²/2) rises in x.
    ratio = math.exp(epsilon if removed else -epsilon)
    inside = (ratio - 1 + probability) / probability
    at = (math.log(inside) / mu + mu / 2) if inside > 0 else -math.inf
    mixture = (1 - probability) * stats.norm.sf(at) + probability * stats.norm.sf(at - mu)
    if removed:
        return mixture - math.exp(epsilon) * stats.norm.sf(at)
    return stats.norm.cdf(at) - math.exp(epsilon) * (1 - mixture)


def exact_delta(epsilon, queries, probability, mu):
    """Returns δ(ε) of one or two sampled queries, by integration over the first."""

    def both(removed):
        if queries == 1:
            return hockey_stick(epsilon, probability, mu, removed=removed)

        def integrand(x):
            ratio = 1 - probability + probability * math.exp(mu * x - mu * mu / 2)
            density = stats.norm.pdf(x) * (ratio if removed else 1)
            rest = epsilon - math.log(ratio) * (1 if removed else -1)
            return density * hockey_stick(rest, probability, mu, removed=removed)

        return integrate.quad(integrand, -12, 12 + mu, limit=400, epsabs=1e-13)[0]

    return max(both(True), both(False))


@st.composite
def cyclic_runs(draw):
    """A run of one or two queries with its sampling, and the probability q with which a client joins its rounds.

    Groups are of whole clients, and those who are left over take part in none; the last query may miss its last rounds.
    """
    queries, groups, members = draw(st.integers(1, 2)), draw(st.integers(1, 4)), draw(st.integers(1, 6))
    probability = draw(st.floats(0.01, 0.9))
    rounds = groups * queries - draw(st.integers(0, groups - 1))
    column = draw(st.lists(st.floats(-1, 1, width=32), max_size=min(groups, rounds) - 1))
    sampling = tff_mf.CyclicPoisson(
        groups=groups,
        population=groups * members + draw(st.integers(0, groups - 1)),
        clients_per_round=probability * members,
    )
    return tff_mf.BandedToeplitz(column=[draw(st.floats(0.5, 2, width=32)), *column]), rounds, sampling, probability


LEFT_OVER = tff_mf.CyclicPoisson(groups=4, population=7, clients_per_round=0.5)


@settings(max_examples=10)
@example(run=(tff_mf.BandedToeplitz(column=[1.0, -0.75]), 4, LEFT_OVER, 0.5), mu=1.0, decades=-5.0)
@example(run=(tff_mf.BandedToeplitz(column=[2.0, 0.5, 0.5]), 5, LEFT_OVER, 0.5), mu=0.5, decades=-3.0)
@given(run=cyclic_runs(), mu=st.floats(0.2, 3), decades=st.floats(-7, -2))
def test_epsilon_is_never_below_the_integral(run, mu, decades):
    mechanism, rounds, sampling, probability = run
    delta, queries = 10.0**decades, math.ceil(rounds / sampling.groups)
    sigma = float(np.linalg.norm(mechanism.cast_to_float32().encoder(rounds), axis=0).max()) / mu
    epsilon = tff_mf.epsilon(mechanism, rounds, sampling, noise_multiplier=sigma, delta=delta)
    assert exact_delta(epsilon, queries, probability, mu) <= delta * (1 + 1e-7)
    if epsilon > 0:
        assert exact_delta(0.99 * epsilon - 1e-4, queries, probability, mu) > delta


def test_simulated_runs_with_two_bands_satisfy_epsilon():
    """The whole run with two bands and four rounds, one client in rounds 0 and 2 or not, in 200,000 simulations."""
    mechanism, probability, sigma, delta = tff_mf.BandedToeplitz(column=[1.0, 0.75]), 0.3, 1.0, 0.01
    epsilon = cyclic_epsilon(mechanism, 4, population=20, clients_per_round=3, noise_multiplier=sigma, delta=delta)
    rng = np.random.default_rng(2)
    encoder = mechanism.encoder(4)
    patterns = [np.array([first, 0, second, 0.0]) for first, second in itertools.product((0, 1), repeat=2)]
    weights = [probability ** pattern.sum() * (1 - probability) ** (2 - pattern.sum()) for pattern in patterns]
    which = rng.choice(4, p=weights, size=200_000)
    outputs = np.array([encoder @ pattern for pattern in patterns])[which] + sigma * rng.normal(size=(200_000, 4))
    densities = [np.exp(-np.sum(np.square(outputs - encoder @ pattern), 1) / (2 * sigma**2)) for pattern in patterns]
    ratio = np.average(densities, axis=0, weights=weights) / densities[0]
    terms = np.maximum(0, 1 - math.exp(epsilon) / ratio)
    error = terms.std() / math.sqrt(len(terms))
    assert terms.mean() - 4 * error <= delta
    # The test has enough power to detect an ε that is too small by a tenth.
    assert np.maximum(0, 1 - math.exp(0.9 * epsilon) / ratio).mean() > delta + 4 * error


def test_a_sampling_probability_of_one_amplifies_nothing():
    schema = tff_mf.FixedEpoch(min_sep=4, max_participations=3)
    mechanism = tff_mf.BandedToeplitz(column=[1.0, 0.5, 0.25, 0.125])
    sampled = cyclic_epsilon(mechanism, 12, population=40, clients_per_round=10, noise_multiplier=5, delta=1e-6)
    plain = tff_mf.epsilon(mechanism, 12, schema, noise_multiplier=5, delta=1e-6)
    # Theorem 4 uses the largest column norm for all columns; the last column is shorter.
    assert plain <= sampled <= plain * 1.01


def test_the_event_is_that_of_the_paper():
    event = cyclic_event(banded(9), 2052, **STACK_OVERFLOW, noise_multiplier=2.0)
    assert event.count == math.ceil(2052 / 9)
    assert event.event.sampling_probability == 1000 / (342_477 // 9)
    assert event.event.event.noise_multiplier == pytest.approx(2.0, rel=1e-9)
    assert event.event.event.noise_multiplier <= 2.0


def test_bands_are_counted_from_the_entries():
    assert bands_and_norm(tff_mf.BandedToeplitz(column=[1.0, 0.0, 0.0]), 9) == (1, 1.0)
    dense = tff_mf.Dense(matrix=[[3.0, 0, 0], [4, 1, 0], [0, 0, 1]])
    released = float(np.linalg.norm(dense.cast_to_float32().encoder(3)[:, 0]))
    assert bands_and_norm(dense, 3) == (2, pytest.approx(released, rel=1e-15)) == (2, pytest.approx(5))
    assert bands_and_norm(tff_mf.optimize_banded(rounds=12, bands=4), 12)[0] == 4
    assert bands_and_norm(tff_mf.Tree(4), 4)[0] == 4


@pytest.mark.once
def test_the_best_number_of_bands():
    """Choquette-Choo et al. (2023), table 3, has the number fall as ε falls and as k rises."""
    few = tff_mf.amplified_bands(rounds=64, population=64, clients_per_round=16, epsilon=0.125, delta=1e-6)
    many = tff_mf.amplified_bands(
        rounds=64, population=64, clients_per_round=1, epsilon=8, delta=1e-6, bands=[1, 8, 64]
    )
    assert few[0].bands < many[0].bands == 64
    assert [each.rms_error for each in many] == sorted(each.rms_error for each in many)
    # One band is DP-SGD.
    sgd = next(each for each in few if each.bands == 1)
    assert sgd.rms_error == pytest.approx(sgd.noise_multiplier * tff_mf.rms_error(tff_mf.Identity(), 64), rel=1e-6)


@pytest.mark.parametrize(("count", "pure"), [(1, 1.0), (2, 0.5), (5, 1.5), (9, 0.1)])
@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.4, 1.2])
def test_clones_delta_agrees_with_all_outcomes(count, pure, epsilon):
    """Every outcome of Feldman, McMillan and Talwar's pair, listed."""
    first, second = pair(count, pure)
    exact = sum(max(0.0, first.get(key, 0) - math.exp(epsilon) * second.get(key, 0)) for key in first)
    assert clones_delta(count, pure, epsilon) == pytest.approx(exact, rel=1e-8, abs=1e-14)
    assert clones_delta(count, pure, epsilon) >= exact


def pair(count, pure):
    """The two distributions of `clones_delta`, every outcome listed."""
    heads = math.exp(pure) / (math.exp(pure) + 1)
    first, second = {}, {}
    for clones in range(count):
        for ones in range(clones + 1):
            chance = stats.binom.pmf(clones, count - 1, math.exp(-pure)) * stats.binom.pmf(ones, clones, 0.5)
            for delta, weight in ((1, heads), (0, 1 - heads)):
                one, other = (ones + delta, clones - ones + 1 - delta), (ones + 1 - delta, clones - ones + delta)
                first[one] = first.get(one, 0) + chance * weight
                second[other] = second.get(other, 0) + chance * weight
    return first, second


def product_delta(first, second, epsilon, epochs):
    """δ(ε) of the product of two distributions with themselves, outcome by outcome."""
    total = 0.0
    for outcomes in itertools.product(first, repeat=epochs):
        one, other = (math.prod(each.get(outcome, 0.0) for outcome in outcomes) for each in (first, second))
        total += max(0.0, one - math.exp(epsilon) * other)
    return total


@pytest.mark.parametrize(("count", "pure", "epochs"), [(2, 0.5, 2), (3, 1.5, 3), (6, 0.3, 2), (1, 1.0, 4)])
@pytest.mark.parametrize("delta", [1e-4, 0.05])
def test_several_shuffles_agree_with_all_outcomes(count, pure, epochs, delta):
    found = clones_epsilon(count, pure, delta, epochs=epochs)
    first, second = pair(count, pure)
    assert product_delta(first, second, found, epochs) <= delta
    # Losses are rounded up by 1/5000 of ε₀ in each epoch at most; one more release costs most near the largest loss.
    lower = 0.998 * found - 1.01 * epochs * pure / 5000
    assert lower <= 0 or product_delta(first, second, lower, epochs) >= delta * (1 - 1e-6)


@pytest.mark.parametrize("others", [(0, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("pure", [0.4, 1.2])
def test_shuffled_answers_of_three_clients_over_two_epochs_satisfy_it(others, pure):
    """Each answers a bit by randomized response in an order of its own: all orders, all outputs of both epochs."""
    honest = math.exp(pure) / (math.exp(pure) + 1)

    def outputs(bit):
        orders = list(itertools.permutations((bit, *others)))
        return {
            said: np.mean(
                [
                    math.prod(honest if a == b else 1 - honest for a, b in zip(said, order, strict=True))
                    for order in orders
                ]
            )
            for said in itertools.product((0, 1), repeat=3)
        }

    for delta in (1e-3, 0.02, 0.1):
        epsilon = clones_epsilon(3, pure, delta, epochs=2)
        assert product_delta(outputs(1), outputs(0), epsilon, 2) <= delta
        assert product_delta(outputs(0), outputs(1), epsilon, 2) <= delta


@pytest.mark.parametrize("epochs", [1, pytest.param(2, marks=pytest.mark.once)])
def test_simulated_shuffled_epochs_satisfy_epsilon(epochs):
    """Against others that contribute −1 and a client that contributes 1 or 0, in 4,000 simulated runs."""
    count, sigma, delta = 1000, 4.0, 0.02
    run = {"noise_multiplier": sigma, "delta": delta, "epochs": epochs}
    epsilon = shuffled_epsilon(tff_mf.Identity(), epochs * count, **run)
    assert 0 < epsilon < 0.8 * tff_mf.Guarantee(mu=math.sqrt(epochs) / sigma).epsilon(delta)
    rng = np.random.default_rng(3)
    losses = np.zeros(4000)
    for _ in range(epochs):
        # All −1 but for one round: 1 − (−1) = 2 above the others with the client, 0 − (−1) = 1 above them without.
        outputs = sigma * rng.normal(size=(4000, count))
        outputs[:, 0] += 2

        def log_density(height, outputs=outputs):
            return np.logaddexp.reduce((height * outputs - height**2 / 2) / sigma**2, axis=1)

        losses += log_density(2.0) - log_density(1.0)
    terms = np.maximum(0, 1 - np.exp(epsilon - losses))
    assert terms.mean() - 4 * terms.std() / math.sqrt(len(terms)) <= delta


@pytest.mark.once
def test_several_shuffled_epochs_never_hurt():
    """Above one epoch, below known rounds; and what is not proven is refused or not claimed."""
    mechanism = tff_mf.BandedToeplitz(column=[0.8, 0.6])
    run = {"noise_multiplier": 6.0, "delta": 1e-6}
    one = shuffled_epsilon(mechanism, 6000, **run)
    three = shuffled_epsilon(mechanism, 18000, epochs=3, **run)
    schema = tff_mf.FixedEpoch(min_sep=6000, max_participations=3)
    assert one < three < 0.7 * tff_mf.epsilon(mechanism, 18000, schema, noise_multiplier=6.0, delta=1e-6)
    known = math.sqrt(3) * (1 + 1e-9)
    few = shuffled_epsilon(mechanism, 12, epochs=3, **run)
    assert few == pytest.approx(tff_mf.Guarantee(mu=known / 6).epsilon(1e-6), rel=1e-6)
    for rounds, epochs in ((7, 2), (9, 3), (12, 5)):
        with pytest.raises(tff_mf.InputError, match=f"rounds={rounds} with epochs={epochs}"):
            shuffled_epsilon(mechanism, rounds, epochs=epochs, **run)
    with pytest.raises(tff_mf.InputError, match="epochs="):
        shuffled_epsilon(mechanism, 12, epochs=0, **run)
    assert clones_epsilon(100, 701.0, 0.1, epochs=2) == math.inf
    # A share of ε₀ below what float64 has beside 1.
    assert 120.0 <= clones_epsilon(100, 60.0, 1e-6, epochs=2) * (1 + 1e-9) < 120.1


@pytest.mark.parametrize(
    "sampling",
    [tff_mf.Poisson(population=1, clients_per_round=1), tff_mf.RandomAllocation(participations=2)],
    ids=["poisson", "random allocation"],
)
def test_delta_is_1_where_nothing_less_is_known(sampling):
    """Each client is in each of two rounds: δ(0) is 2Φ(√2/(2σ)) − 1, which is nearer to 1 than any float."""
    found = tff_mf.guarantee(tff_mf.Identity(), 2, sampling, noise_multiplier=0.05)
    assert found.at(epsilon=0.0).delta == 1.0


def test_cohorts_of_more_clients_than_a_grid_was_charged_for_are_refused():
    sampling = tff_mf.BMinSep(min_sep=2, probability=0.5, clients_per_round=1)
    with pytest.raises(tff_mf.InputError, match="clients=1000"):
        sampling.cohorts(1000, 20)
    of_three = tff_mf.BMinSep.of_population(min_sep=2, population=9, clients_per_round=3)
    assert len(of_three.cohorts(9, 4)) == 4


IDENTITY = tff_mf.Identity()


@pytest.mark.parametrize(("bins", "sigma"), [(2, 0.5), (3, 1.0)])
def test_one_of_many_is_just_above_quadrature(bins, sigma):
    atoms = one_of_many(bins, 1 / sigma, 1e-6)
    for epsilon in (0.05, 1.0):
        for remove in (True, False):
            exact = balls_in_bins_oracle.quadrature(np.eye(bins) / sigma**2, epsilon, remove=remove)
            if exact > 1e-9:
                assert exact * (1 - 1e-4) <= atoms.delta(epsilon, remove=remove) <= 1.03 * exact + 1e-11


@pytest.mark.parametrize(("rounds", "turns", "sigma"), [(3, 2, 0.8), (3, 2, 2.0), (3, 3, 1.0), (3, 1, 1.0)])
def test_not_below_the_list_of_all_allocations(rounds, turns, sigma):
    delta = 1e-4
    found = allocated_epsilon(IDENTITY, rounds, participations=turns, noise_multiplier=sigma, delta=delta)
    rows, chances = secret_rounds_oracle.allocations(rounds, turns)
    setting = {"points": 121, "reach": 6.5}
    for share, holds in ((1.0, True), (0.8 if turns < 3 else 0.98, False)):
        exact = max(
            secret_rounds_oracle.quadrature(
                np.eye(rounds), rows, chances, sigma, share * found, remove=remove, **setting
            )
            for remove in (True, False)
        )
        # Trapezoids of this width are off by less.
        assert (exact <= delta * 1.01) == holds


def test_all_rounds_are_not_amplified():
    setting = {"noise_multiplier": 1.5, "delta": 1e-6}
    found = allocated_epsilon(IDENTITY, 5, participations=5, **setting)
    schema = tff_mf.MinSep(min_sep=1, max_participations=5)
    assert found == pytest.approx(tff_mf.epsilon(IDENTITY, 5, schema, **setting), rel=1e-9)


def test_products_of_poisson_rounds_are_what_the_accountant_of_poisson_sampling_has():
    """1 − q + qX per round, through the same grid, against quadrature without a grid."""
    q, delta = 0.1, 1e-6
    one = Atoms.lognormal(1.0, delta)
    level = Atoms(points=1 - q + q * one.points, masses=one.masses, spill=q * one.spill, rounding=one.rounding)
    losses = [level.losses(remove=remove) for remove in (True, False)]
    found = composed_losses.epsilon(losses, 10, delta, most=50.0)
    expected = cyclic_epsilon(IDENTITY, 10, population=100, clients_per_round=10, noise_multiplier=1.0, delta=delta)
    assert expected * (1 - 2e-4) <= found <= expected * (1 + 1e-3)


def test_means_and_masses_are_kept():
    atoms = one_of_many(20, 1.2, 1e-8)
    assert atoms.masses.sum() == pytest.approx(1, rel=1e-9)
    assert atoms.masses @ atoms.points + atoms.spill == pytest.approx(1, rel=1e-7)
    assert np.all(atoms.masses >= 0)
    assert np.all(np.diff(atoms.points) > 0)


def test_balls_in_bins_of_the_identity_are_bounded_without_samples():
    """Of 7 rounds and 3 bins, one bin has 3 rounds, and others 2: all are taken for as large as the largest."""
    found = bins_level(IDENTITY, 7, bins=3, noise_multiplier=2.0, delta=1e-5)
    assert (found.theorem, found.samples, found.failure, found.bound) == ("allocation", 0, 0.0, "proved")
    gram = np.diag([3.0, 2.0, 2.0]) / 4
    exact = [balls_in_bins_oracle.quadrature(gram, found.epsilon, remove=each) for each in (True, False)]
    assert max(exact) <= 1e-5
    again = bins_level(IDENTITY, 7, bins=3, noise_multiplier=2.0, epsilon=found.epsilon)
    assert again.theorem == "allocation"
    assert max(exact) <= again.delta <= 1.001e-5


def test_products_beyond_what_float64_holds():
    """The product of 32 such likelihood ratios has points far above e^709. Each is at least half of its round's."""
    found = allocated_epsilon(IDENTITY, 64, participations=32, noise_multiplier=0.09, delta=1e-12)
    schema = tff_mf.MinSep(min_sep=1, max_participations=32)
    plain = tff_mf.epsilon(IDENTITY, 64, schema, noise_multiplier=0.09, delta=1e-12)
    assert plain - 32 * math.log(2) <= found < plain
