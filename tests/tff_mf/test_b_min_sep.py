"""b-min-sep sampling, against all histories of a client, their products, and quadrature over all outputs."""

import fractions
import itertools
import math

import numpy as np
import pytest

import tff_mf
from tests.tff_mf import secret_rounds_oracle as oracle
from tff_mf.accounting import b_min_sep, secret
from tff_mf.accounting.b_min_sep import Chain, columns_of
from tff_mf.accounting.secret import least
from tff_mf.numerics import gaussian

BANDED = tff_mf.BandedToeplitz(column=[1.0, 0.6])


@pytest.mark.parametrize(
    ("rounds", "min_sep", "probability"), [(5, 2, 0.3), (6, 3, 0.2), (4, 4, 0.7), (6, 3, 1.0), (3, 5, 0.4)]
)
def test_the_probabilities_of_a_chain_are_those_of_all_histories(rounds, min_sep, probability):
    chain = Chain(rounds=rounds, min_sep=min_sep, probability=probability)
    histories, chances = oracle.min_sep_histories(rounds, min_sep, probability)
    assert chances.sum() == pytest.approx(1, rel=1e-12)
    assert chances @ histories == pytest.approx(np.full(rounds, chain.cohort_probability), rel=1e-12)
    assert math.exp(chain.log_never) == pytest.approx(chances @ ~histories.any(axis=1), rel=1e-12, abs=1e-300)


def test_probability_of_a_population():
    """As the sampler has it, on average m clients take part."""
    p = tff_mf.BMinSep.of_population(population=400, clients_per_round=8, min_sep=10).probability
    assert 400 * Chain(rounds=1, min_sep=10, probability=p).cohort_probability == pytest.approx(8)
    assert tff_mf.BMinSep.of_population(population=80, clients_per_round=8, min_sep=10).probability == 1
    with pytest.raises(ValueError, match="need 500 clients, but population=400"):
        tff_mf.BMinSep.of_population(population=400, clients_per_round=5, min_sep=100)


@pytest.mark.parametrize("probability", [4e-13, 2e-12, 1e-9, 0.3])
def test_bound_of_no_round_is_not_below_its_logarithm(probability):
    """−log P(no round), in fractions: 4 rounds of a client that is free at first, and 3 of one that waits."""
    found = Chain(rounds=4, min_sep=2, probability=probability)
    sampling = tff_mf.BMinSep(min_sep=2, probability=probability)
    level = tff_mf.guarantee(BANDED, 4, sampling, noise_multiplier=0.3).at(delta=1e-200)
    p = fractions.Fraction(probability)
    joins = 1 - ((1 - p) ** 4 + p * (1 - p) ** 3) / (1 + p)
    expected = -math.log1p(-float(joins))
    bound = -found.log_never * (1 + 1e-9) + b_min_sep._NEVER_ERROR
    assert expected * (1 + 1e-13) <= bound <= expected * (1 + 1e-8) + 2e-11
    assert level.epsilon >= expected


@pytest.mark.parametrize(("rounds", "probability"), [(5, 0.3), (4000, 0.5), (40, 1 - 2.0**-52)])
def test_no_round_may_be_less_likely_than_any_float(rounds, probability):
    """With b = 2, a client that is free stays out of n rounds, and one that waits of n − 1: (1 − p)^(n − 1)/(1 + p)."""
    expected = (rounds - 1) * math.log1p(-probability) - math.log1p(probability)
    assert Chain(rounds=rounds, min_sep=2, probability=probability).log_never == pytest.approx(expected, rel=1e-12)


def run_of(rounds, bands, sigma, seed, *, is_toeplitz=False):
    """Returns the columns of a random C/σ, and C/σ."""
    diagonals = np.random.default_rng(seed).uniform(0.0, 1.0, (bands, rounds)) + np.eye(bands, 1) * 0.2
    if is_toeplitz:
        diagonals = np.repeat(diagonals[:, :1], rounds, axis=1)
    encoder = np.zeros((rounds, rounds))
    for t, offset in itertools.product(range(rounds), range(bands)):
        if t + offset < rounds:
            encoder[t + offset, t] = diagonals[offset, t] / sigma
    columns = [[encoder[t + i, t] if t + i < rounds else 0.0 for i in range(bands)] for t in range(rounds)]
    return np.array(columns), encoder


def chain_of(columns, min_sep, probability):
    return Chain(rounds=len(columns), min_sep=min_sep, probability=probability)


def log_moment(column, order, rounds, min_sep, probability):
    chain = Chain(rounds=rounds, min_sep=min_sep, probability=probability)
    return float(b_min_sep.log_moments(column, np.array([order]), chain)[0])


def exact_log_moment(encoder, histories, chances, order):
    """Returns log E[Z^m]: the sum over all m-tuples of histories."""
    return sum_over_tuples(chances, np.exp(histories @ encoder.T @ encoder @ histories.T), order)


def sum_over_tuples(chances, weights, order):
    """Returns the logarithm of the mean of the product of the weights of all pairs in m-tuples."""
    letters = "ijkl"[:order]
    pairs = list(itertools.combinations(letters, 2))
    terms = ",".join([*letters, *map("".join, pairs)])
    operands = [chances] * order + [weights] * len(pairs)
    return math.log(np.einsum(f"{terms}->", *operands, optimize=True))


# n, b̂, b, p, σ.
SETTINGS = [
    (8, 2, 2, 0.3, 1.0),
    (8, 3, 3, 0.02, 0.7),
    (8, 4, 4, 0.2, 2.0),
    (8, 2, 4, 0.45, 0.5),
    (7, 3, 4, 0.001, 5.0),
    (2, 2, 3, 0.4, 1.0),
    # Where p·b̂ exceeds 1, and where a client always joins.
    (8, 3, 4, 0.9, 1.0),
    (8, 2, 3, 1.0, 0.8),
    (3, 2, 6, 0.5, 1.0),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("is_toeplitz", [True, False])
def test_moments_are_at_least_those_of_all_histories(setting, is_toeplitz):
    rounds, bands, min_sep, probability, sigma = setting
    for seed in range(8):
        columns, encoder = run_of(rounds, bands, sigma, seed, is_toeplitz=is_toeplitz)
        histories, chances = oracle.min_sep_histories(rounds, min_sep, probability)
        for order in (2, 3, 4) if len(chances) < 30 else (2, 3):
            exact = exact_log_moment(encoder, histories, chances, order)
            for column in b_min_sep.dominating(columns):
                assert log_moment(column, order, rounds, min_sep, probability) >= exact
            assert of_tuples(columns, order, min_sep, probability) >= exact


def of_tuples(columns, order, min_sep, probability):
    products = b_min_sep.products_of(columns)
    found = b_min_sep.log_moment_of_tuples(products, order, chain_of(columns, min_sep, probability))
    assert found is not None
    return found


@pytest.mark.parametrize(("bands", "min_sep", "probability"), [(1, 2, 0.3), (2, 2, 0.3), (2, 3, 0.4), (3, 3, 1.0)])
def test_tuples_of_histories_are_summed_exactly(bands, min_sep, probability):
    """Of Toeplitz C, over the histories of 6 rounds that may begin before the first: of more rounds, the last 6."""
    rounds, before = 6, min_sep - 1
    row = np.array([0.7, 0.5, 0.3])[:bands]
    columns = np.tile(row, (rounds, 1))
    # Columns of rounds before the first one, too, and no row is cut off.
    encoder = np.array([[row[t - u] if 0 <= t - u < bands else 0.0 for u in range(-before, rounds)]
                        for t in range(-before, rounds + bands)])  # fmt: skip
    histories, chances = oracle.min_sep_histories(rounds + before, min_sep, probability)
    early = histories.copy()
    early[:, before:] = 0
    for order in (2, 3):
        # Products of two rounds that are both before the first one do not count.
        weights = np.exp(histories @ encoder.T @ encoder @ histories.T - early @ encoder.T @ encoder @ early.T)
        exact = sum_over_tuples(chances, weights, order)
        assert of_tuples(columns, order, min_sep, probability) == pytest.approx(exact, rel=1e-8, abs=1e-10)


@pytest.mark.parametrize("order", [2, 40])
def test_tuples_that_underflow_are_not_lost(order):
    """Little noise, and a client that hardly ever joins: all of the moment is where all histories join."""
    products, probability = np.array([0.7, 0.1]), 1e-9
    found = b_min_sep.log_moment_of_tuples(products, order, Chain(rounds=1, min_sep=2, probability=probability))
    share = probability / (1 + probability)
    terms = [
        math.log(math.comb(order, j))
        + j * math.log(share)
        + (order - j) * math.log1p(-share)
        + j * (j - 1) / 2 * products[0]
        for j in range(order + 1)
    ]
    assert found >= float(np.logaddexp.reduce(terms)) - 1e-9


@pytest.mark.parametrize("probability", [1.0, 1 - 2.0**-52, 0.999])
@pytest.mark.parametrize(("rounds", "min_sep", "column", "sigma"), [
    (60, 2, [1.0, 0.1], 4.0), (100, 2, [1.0, 0.2], 3.58), (40, 2, [1.0, 0.2], 3.0), (600, 2, [1.0, 0.6], 12.0),
    (100, 3, [1.0, 0.9, 0.66], 8.0), (48, 4, [1.0, 0.1, 0.3, 0.34], 2.0),
])  # fmt: skip
def test_epsilon_is_not_below_what_one_history_alone_leads_to(rounds, min_sep, column, sigma, probability):
    """P ≥ π·P_x for each history x, so that δ(ε) ≥ π·δ_x(ε − log π); here for x of a client that joins whenever it can.

    Weights of other starts underflow in long runs of clients that hardly ever wait.
    """
    delta, joins = 1e-5, -(-rounds // min_sep)
    chance = probability**joins / (1 + (min_sep - 1) * probability)
    mechanism = tff_mf.BandedToeplitz(column=column)
    known = tff_mf.guarantee(
        mechanism, rounds, tff_mf.MinSep(min_sep=min_sep, max_participations=joins), noise_multiplier=sigma
    )
    least = tff_mf.Guarantee(mu=known.mu * (1 - 1e-9)).epsilon(delta / chance) + math.log(chance)
    chain = Chain(rounds=rounds, min_sep=min_sep, probability=probability)
    columns = columns_of(mechanism, rounds, min_sep) / sigma
    assert b_min_sep.epsilons(columns, chain, delta=delta)[0] >= least > 0


def test_a_client_that_never_waits_is_not_told_a_smaller_epsilon_than_in_bins():
    """With p = 1 the two samplings are one."""
    run = (tff_mf.BandedToeplitz(column=[1.0, 0.1]), 60)
    bins = tff_mf.guarantee(*run, tff_mf.BallsInBins(groups=2), noise_multiplier=4.0).at(delta=1e-3)
    sampling = tff_mf.BMinSep(min_sep=2, probability=1.0)
    found = tff_mf.epsilon(*run, sampling, noise_multiplier=4.0, delta=1e-3, samples=2000)
    assert found >= 0.98 * bins.epsilon


@pytest.mark.parametrize("rounds", [20, 1000])
@pytest.mark.parametrize("min_sep", [2, 3, 5])
@pytest.mark.parametrize("probability", [1.0, 1 - 2.0**-52, 0.5])
def test_moments_of_little_noise_and_many_rounds_are_numbers(rounds, min_sep, probability):
    chain, orders = Chain(rounds=rounds, min_sep=min_sep, probability=probability), np.array([2, 9, 43, 200, 2000])
    for sigma in (0.2, 1.0, 5.0):
        column = np.linspace(1.0, 0.1, min_sep) / sigma
        assert not np.any(np.isnan(b_min_sep.log_moments(column, orders, chain)))


def test_what_is_no_number_is_no_bound():
    assert b_min_sep._of_moment(math.nan, 2.0, 1e-6) == b_min_sep._of_moment(math.inf, 2.0, 1e-6) == math.inf
    known = (1.0, "unamplified")
    assert least("add", 1e-6, [known, (math.nan, "none"), (2.0, "larger")]) == least("add", 1e-6, [known])


@pytest.mark.parametrize("s", [0.05, 1.0, 60.0, 5000.0])
def test_a_moment_leads_to_the_epsilon_of_the_one_loss_that_attains_its_bound(s):
    """A loss L that is certain has the moment e^(sL) and, at ε = 1, the δ 1 − e^(1 − L), which is 1/(1 + s) here."""
    loss = 1 + math.log1p(1 / s)
    assert 1 <= b_min_sep._of_moment(s * loss, s, 1 / (1 + s)) <= 1 + 1e-8


def windows_log_norm(column, order, probability, min_sep, windows, apart):
    """log E[Z^m] of independent windows, by their recursion with a fine sum in place of integrals."""
    bands, grid = len(column), np.arange(-14, 30, 0.01)
    scaled, rest = math.sqrt(apart) * column, np.ones(min_sep)
    density = np.exp(-grid * grid / 2) * 0.01 / math.sqrt(2 * math.pi)
    for _ in range(windows):
        before = np.array([rest[max(w - bands, 0)] for w in range(min_sep)])
        for w in range(bands):
            value = (1 - probability) ** (bands - w) * rest[0] + 0 * grid
            for r in range(w, bands):
                ratio = np.exp(scaled[bands - 1 - r] * grid - scaled[bands - 1 - r] ** 2 / 2)
                value += probability * (1 - probability) ** (r - w) * ratio * rest[min_sep - bands + r]
            before[w] = (density @ value**order) ** (1 / order)
        rest = before
    start = np.append(1.0, np.full(min_sep - 1, probability)) / (1 + (min_sep - 1) * probability)
    return order * math.log(start @ rest)


def test_the_recursion_over_windows():
    """Of 9 rows and 2 bands, one class has 4 windows and the other 5."""
    column, order, probability, min_sep = np.array([0.7, 0.4]), 3, 0.3, 5
    four, five = (windows_log_norm(column, order, probability, min_sep, windows, 2) for windows in (4, 5))
    assert log_moment(column, order, 8, min_sep, probability) == pytest.approx((four + five) / 2, rel=1e-8)


def test_windows_beyond_those_computed_with_grow_as_the_last(monkeypatch):
    column = np.array([0.3, 0.2])
    exact = log_moment(column, 4, 60, 3, 0.1)
    monkeypatch.setattr(b_min_sep, "_MOST_ROUNDS", 12)
    assert exact < log_moment(column, 4, 60, 3, 0.1) < 1.05 * exact


@pytest.mark.parametrize(("bands", "min_sep", "probability"), [(2, 2, 0.01), (8, 8, 0.1), (8, 20, 0.5), (3, 40, 0.9)])
def test_windows_that_grow_alike_are_bounded_by_one_of_them(monkeypatch, bands, min_sep, probability):
    column, orders = np.linspace(0.3, 0.1, bands), np.array([2, 5, 30, 200])
    chain = Chain(rounds=2052, min_sep=min_sep, probability=probability)
    computed = []
    before = b_min_sep._before_window
    monkeypatch.setattr(b_min_sep, "_before_window", lambda *given: computed.append(1) or before(*given))
    few, windows = b_min_sep.log_moments(column, orders, chain), len(computed)
    monkeypatch.setattr(b_min_sep, "_ALIKE", -1.0)
    every = b_min_sep.log_moments(column, orders, chain)
    assert windows <= len(computed) - windows == (2052 + bands - 1) // bands + 1
    assert windows < 40 or min_sep > bands
    assert np.all(few >= every * (1 - 1e-13))
    assert np.all(few <= every * (1 + 2e-10))


@pytest.mark.parametrize(("min_sep", "probability"), [(2, 0.1), (3, 0.04), (4, 0.3), (5, 0.9)])
def test_thinning_has_the_law_of_the_sampling(min_sep, probability):
    """All sets of rounds with the gaps of the theorem, each round taken with q: the law of a client's histories."""
    rounds = 9
    chance, density = b_min_sep.thinning(min_sep, probability)
    left, cost = [1.0], probability * (1 - chance) / chance
    for d in range(1, 4 * rounds):
        left.append((1 - probability) * left[-1] - (cost * left[d - min_sep] if d >= min_sep else 0.0))
    assert min(left) > 0
    gaps = np.array([0.0] * min_sep + left)[: 4 * rounds] * probability / chance
    longer = 1 - np.cumsum(gaps)
    found: dict[tuple[int, ...], float] = {}

    def extended(places, weight):
        """Adds sets that begin with these places, whose last gap is not over yet."""
        last = places[-1] if places else -min_sep
        ends = float(weight * longer[rounds - 1 - last] if places else 1 - density * np.sum(longer[:rounds]))
        for kept in itertools.product((0, 1), repeat=len(places)):
            history = [0] * rounds
            for place, keep in zip(places, kept, strict=True):
                history[place] = keep
            factor = chance ** sum(kept) * (1 - chance) ** (len(kept) - sum(kept))
            found[tuple(history)] = found.get(tuple(history), 0.0) + ends * factor
        for place in range(last + min_sep, rounds):
            extended([*places, place], weight * gaps[place - last] if places else density * longer[place])

    extended([], 1.0)
    histories, chances = oracle.min_sep_histories(rounds, min_sep, probability)
    expected = {tuple(map(int, row)): value for row, value in zip(histories, chances, strict=True)}
    assert found.keys() == expected.keys()
    for history, value in expected.items():
        assert found[history] == pytest.approx(value, rel=1e-6)


SMALL = pytest.mark.parametrize(
    ("rounds", "bands", "min_sep", "probability", "sigma"),
    [
        (3, 2, 2, 0.2, 1.0),
        (3, 2, 3, 0.05, 0.6),
        (3, 3, 3, 0.3, 2.0),
        (2, 2, 2, 0.01, 1.0),
        (3, 2, 3, 0.9, 1.0),
        # One band is Poisson sampling with p, the most that a round can have.
        (3, 1, 2, 0.3, 1.0),
    ],
)


@SMALL
@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-12])
def test_epsilon_by_moments_is_above_quadrature(rounds, bands, min_sep, probability, sigma, delta):
    columns, encoder = run_of(rounds, bands, sigma, 7)
    histories, chances = oracle.min_sep_histories(rounds, min_sep, probability)
    found = b_min_sep.epsilons(columns, chain_of(columns, min_sep, probability), delta=delta)
    for remove, epsilon in zip((True, False), found, strict=True):
        assert epsilon < 50
        assert oracle.quadrature(encoder, histories, chances, 1.0, epsilon, remove=remove, points=121) <= delta


@pytest.mark.parametrize("bands", [1, 2])
def test_rounds_of_small_columns_do_not_make_epsilon_smaller(bands):
    columns = np.array([[2.0, 1.0], [0.01, 0.01], [0.01, 0.0]])[:, :bands]
    few, more = (b_min_sep.epsilons(columns[:n], chain_of(columns[:n], 2, 0.9), delta=1e-3) for n in (1, 3))
    assert np.all(np.array(more) >= few)


@SMALL
@pytest.mark.parametrize("s", [0.5, 3.0, 20.0])
def test_inverse_moments_are_at_least_those_of_quadrature(rounds, bands, min_sep, probability, sigma, s):
    columns, encoder = run_of(rounds, bands, sigma, 7)
    exact = math.log(inverse_moment(encoder, *oracle.min_sep_histories(rounds, min_sep, probability), s))
    assert min(inverse_moments(columns, min_sep, probability, s)) >= exact * (1 - 1e-9)


def test_inverse_moments_of_small_columns_are_nearly_attained():
    """By the best h: with one that is for less correlated neighbors, the bound would be below the moment."""
    for seed in range(6):
        columns, encoder = run_of(3, 2, 50.0, seed, is_toeplitz=True)
        exact = math.log(inverse_moment(encoder, *oracle.min_sep_histories(3, 2, 0.3), 60.0))
        assert exact <= min(inverse_moments(columns, 2, 0.3, 60.0)) <= 1.5 * exact


@pytest.mark.parametrize(("bands", "s"), [(2, 3.0), (25, 30.0), (25, 3000.0)])
def test_inverse_moments_without_a_shift_are_of_each_round_alone(bands, s):
    """By a fine sum in place of the integral N of theorem 4."""
    products, (chance, density) = np.full(bands, 0.005), b_min_sep.thinning(26, 0.4)
    axis, mu = np.arange(-220, 20, 0.01), math.sqrt(0.005)
    losses = np.log1p(chance * np.expm1(mu * axis - mu * mu / 2))
    logs = -s * density * bands * losses - axis * axis / 2 + math.log(0.01 / math.sqrt(2 * math.pi))
    found = b_min_sep.log_inverse_moment(products, s, 0.0, Chain(rounds=20, min_sep=26, probability=0.4))
    assert found == pytest.approx(20 / bands * np.logaddexp.reduce(logs), rel=1e-6)


def inverse_moments(columns, min_sep, probability, s):
    """Returns the bounds of theorem 4 for several h, some of them far too large."""
    chain, products = chain_of(columns, min_sep, probability), b_min_sep.products_of(columns)
    found = [b_min_sep.log_inverse_moment(products, s, share, chain) for share in (0.0, 0.5, 0.9, 1.0, 1.5, 4.0)]
    assert found[0] is not None
    return [bound for bound in found if bound is not None]


@pytest.mark.parametrize("seed", range(12))
def test_bounds_where_a_client_is_added_are_above_those_of_samples(seed):
    """Of more rounds than quadrature reaches; C has columns of very different sizes, or is constant on diagonals."""
    generator = np.random.default_rng(seed)
    rounds, min_sep = int(generator.integers(4, 9)), int(generator.integers(2, 5))
    bands, probability = int(generator.integers(2, min_sep + 1)), float(generator.choice([0.02, 0.1, 0.3, 0.6, 0.9]))
    columns, encoder = run_of(rounds, bands, float(generator.choice([0.5, 1.0, 3.0])), seed, is_toeplitz=seed % 2 == 0)
    if seed % 3 == 0:
        scales = generator.uniform(0.05, 1.0, rounds)
        columns, encoder = columns * scales[:, np.newaxis], encoder * scales
    histories, chances = oracle.min_sep_histories(rounds, min_sep, probability)
    added, outputs = histories @ encoder.T, generator.standard_normal((100_000, rounds))
    ratios = np.exp(outputs @ added.T - np.sum(added**2, axis=1) / 2) @ chances
    for s in (0.3, 1.0, 3.0, 10.0):
        values = ratios**-s
        least_mean = values.mean() - 5 * values.std() / math.sqrt(len(values))
        assert min(inverse_moments(columns, min_sep, probability, s)) >= math.log(max(least_mean, 1e-300))
    for delta in (0.1, 1e-2, 1e-3):
        epsilon = b_min_sep.by_jensen(columns, chain_of(columns, min_sep, probability), delta)
        values = np.maximum(1 - math.exp(epsilon) * ratios, 0)
        assert values.mean() - 5 * values.std() / math.sqrt(len(values)) <= delta


@SMALL
@pytest.mark.parametrize("delta", [1e-2, 1e-6])
def test_epsilon_by_jensen_is_above_quadrature(rounds, bands, min_sep, probability, sigma, delta):
    columns, encoder = run_of(rounds, bands, sigma, 7)
    histories, chances = oracle.min_sep_histories(rounds, min_sep, probability)
    epsilon = b_min_sep.by_jensen(columns, chain_of(columns, min_sep, probability), delta)
    assert oracle.quadrature(encoder, histories, chances, 1.0, epsilon, remove=False, points=121) <= delta


@SMALL
def test_jensen_is_of_the_mean_of_what_a_client_adds_and_of_its_mean_square(rounds, bands, min_sep, probability, sigma):
    columns, encoder = run_of(rounds, bands, sigma, 7)
    histories, chances = oracle.min_sep_histories(rounds, min_sep, probability)
    added = histories @ encoder.T
    square, mean_square = np.sum((chances @ added) ** 2), chances @ np.sum(added**2, axis=1)
    found = b_min_sep.by_jensen(columns, chain_of(columns, min_sep, probability), 1e-6)
    assert found == pytest.approx(secret.jensen_epsilon(1e-6, square, mean_square), rel=1e-9)


def test_a_client_whose_rounds_are_known_has_the_epsilon_of_a_gaussian_by_jensen():
    """With p = 1 and one round, or one of b groups that is as good as certain, nothing is lost."""
    assert secret.jensen_epsilon(1e-6, 0.25, 0.25) == pytest.approx(gaussian.epsilon_from_delta(1e-6, 0.5), rel=1e-8)


def inverse_moment(encoder, histories, chances, s):
    """Returns E[Z^(−s)] by trapezoids over all outputs."""
    axis = np.linspace(-11, 9, 141)
    weight = np.exp(-axis * axis / 2) / math.sqrt(2 * math.pi) * (axis[1] - axis[0])
    grids = np.meshgrid(*[axis] * len(encoder), indexing="ij")
    weights = np.prod(np.meshgrid(*[weight] * len(encoder), indexing="ij"), axis=0)
    ratio = sum(
        chance * np.exp(sum(mean * grid for mean, grid in zip(signal, grids, strict=True)) - signal @ signal / 2)
        for chance, signal in zip(chances, histories @ encoder.T, strict=True)
    )
    return float(np.sum(weights * ratio**-s))


@pytest.mark.parametrize(("order", "scale"), [(2, 1e-3), (7, 0.3), (60, 0.05), (400, 0.01)])
def test_the_sum_in_place_of_an_integral(order, scale):
    column = scale * np.array([1.0, 0.6, 0.3])
    exact = windows_log_norm(column, order, 0.01, 4, 1, 3)
    # With one round there are 3 rows, one window of each class.
    assert exact <= log_moment(column, order, 1, 4, 0.01) <= exact * (1 + 1e-6) + order * 1e-11
