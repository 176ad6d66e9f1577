"""Bounds of b-min-sep sampling without samples, against all histories of a client, their products, and quadrature."""

import itertools
import math

import numpy as np
import pytest

from tests.tff_mf import secret_rounds_oracle as oracle
from tff_mf.accounting.b_min_sep import _moments


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


def exact_log_moment(encoder, histories, chances, order):
    """Returns log E[Z^m]: the sum over all m-tuples of histories."""
    weights = np.exp(histories @ encoder.T @ encoder @ histories.T)
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
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("is_toeplitz", [True, False])
def test_moments_are_at_least_those_of_all_histories(setting, is_toeplitz):
    rounds, bands, min_sep, probability, sigma = setting
    for seed in range(20):
        columns, encoder = run_of(rounds, bands, sigma, seed, is_toeplitz=is_toeplitz)
        histories, chances = oracle.min_sep_histories(rounds, min_sep, probability)
        for order in (2, 3, 4) if len(chances) < 30 else (2, 3):
            exact = exact_log_moment(encoder, histories, chances, order)
            for column in _moments.dominating(columns):
                assert _moments.log_moment(column, probability, order) * (rounds + bands - 1) / bands >= exact


def test_blocks_that_overlap_by_one_band_would_be_too_small():
    """Rows that are b̂ − 1 apart share a round: a bound that takes them to be independent fails, and b̂ holds."""
    rounds, probability, order = 8, 0.03, 3
    column, encoder = 1.2 * np.ones(2), 1.2 * (np.eye(rounds) + np.eye(rounds, k=-1))
    exact = exact_log_moment(encoder, *oracle.min_sep_histories(rounds, 2, probability), order)

    def bound(apart):
        """The bound where rows that are `apart` are independent."""
        means, grid = math.sqrt(apart) * column, np.arange(-14, 30, 0.01)
        ratio = 1 + probability * np.sum(np.expm1(np.multiply.outer(grid, means) - means**2 / 2), axis=1)
        moment = np.sum(ratio**order * np.exp(-grid * grid / 2)) * 0.01 / math.sqrt(2 * math.pi)
        return math.log(moment) * (rounds + 1) / apart

    assert _moments.log_moment(column, probability, order) * (rounds + 1) / 2 == pytest.approx(bound(2), rel=1e-9)
    assert bound(1) < exact <= bound(2)


def test_a_column_that_does_not_dominate_would_be_too_small():
    columns, encoder = run_of(8, 2, 5.0, 3, is_toeplitz=True)
    histories, chances = oracle.min_sep_histories(8, 2, 0.02)
    exact = exact_log_moment(encoder, histories, chances, 2)
    found = [_moments.log_moment(column, 0.02, 2) * 9 / 2 for column in _moments.dominating(columns)]
    assert exact <= min(found) <= 1.4 * exact
    assert min(_moments.log_moment(0.8 * column, 0.02, 2) * 9 / 2 for column in _moments.dominating(columns)) < exact


@pytest.mark.parametrize(("min_sep", "probability"), [(2, 0.1), (3, 0.04), (4, 0.3), (5, 0.9)])
def test_thinning_has_the_law_of_the_sampling(min_sep, probability):
    """All sets of rounds with the gaps of the theorem, each round taken with q: the law of a client's histories."""
    rounds = 9
    chance, density = _moments.thinning(min_sep, probability)
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


@pytest.mark.parametrize(
    ("rounds", "bands", "min_sep", "probability", "sigma"),
    [(3, 2, 2, 0.2, 1.0), (3, 2, 3, 0.05, 0.6), (3, 3, 3, 0.3, 2.0), (2, 2, 2, 0.01, 1.0)],
)
@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-12])
def test_epsilon_is_above_quadrature(rounds, bands, min_sep, probability, sigma, delta):
    columns, encoder = run_of(rounds, bands, sigma, 7)
    histories, chances = oracle.min_sep_histories(rounds, min_sep, probability)
    setting = {"min_sep": min_sep, "probability": probability}
    found = _moments.epsilons(columns, **setting, delta=delta, most=50.0)
    for remove, epsilon in zip((True, False), found, strict=True):
        assert epsilon < 50
        assert oracle.quadrature(encoder, histories, chances, 1.0, epsilon, remove=remove, points=121) <= delta
    for s in (0.5, 3.0, 20.0):
        bound = _moments.log_inverse_moment(
            math.sqrt(float(np.max(np.sum(columns**2, axis=1)))), s, rounds=rounds, bands=bands, **setting
        )
        assert bound is not None
        assert bound >= math.log(inverse_moment(encoder, histories, chances, s)) * (1 - 1e-9)


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


def test_one_band_is_poisson_sampling_with_p():
    """And is above all histories, of which p is the most that a round can have."""
    columns, encoder = run_of(3, 1, 1.0, 2)
    histories, chances = oracle.min_sep_histories(3, 2, 0.3)
    for delta in (1e-2, 1e-9):
        found = _moments.epsilons(columns, min_sep=2, probability=0.3, delta=delta, most=50.0)
        for remove, epsilon in zip((True, False), found, strict=True):
            assert oracle.quadrature(encoder, histories, chances, 1.0, epsilon, remove=remove, points=121) <= delta


@pytest.mark.parametrize(("order", "scale"), [(2, 1e-3), (7, 0.3), (60, 0.05), (400, 0.01)])
def test_the_sum_in_place_of_an_integral(order, scale):
    column = scale * np.array([1.0, 0.6, 0.3])
    means = math.sqrt(3) * column
    points = np.arange(-15, 15 + order * means[0], 0.003)
    rises = 0.01 * np.sum(np.expm1(np.multiply.outer(points, means) - means**2 / 2), axis=1)
    weights = np.exp(-points * points / 2) * 0.003 / math.sqrt(2 * math.pi)
    exact = math.log1p(float(weights @ np.expm1(order * np.log1p(rises))))
    assert exact <= _moments.log_moment(column, 0.01, order) <= exact * (1 + 1e-6) + 1e-9


def test_few_bands_are_near_cyclic_poisson_sampling():
    """4 bands and n = 512: the certificate by samples was 2.05, where cyclic Poisson sampling has 0.947."""
    column = np.array([1.0, 0.5, 0.375, 0.3125]) / 3
    columns = np.array([[value if t + i < 512 else 0.0 for i, value in enumerate(column)] for t in range(512)])
    found = _moments.epsilons(columns, min_sep=4, probability=0.01, delta=1e-6, most=50.0)
    assert max(found) < 0.9
