"""Sensitivity of any C against brute force: the rule of each structure, where it is exact, and what it refuses."""

import itertools
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf.base.matrices import lower_toeplitz
from tff_mf.sensitivities import general

from .oracles import largest_norm, restarted, schemas
from .outside import any_matrix, of_column, with_diagonals

TWICE = tff_mf.MinSep(min_sep=2, max_participations=2)


def of_bands(values):
    return with_diagonals(lambda rounds: values[:, :rounds], count=len(values), max_rounds=values.shape[1])


def matrices(rows, columns, low):
    number = st.floats(low, 2, allow_subnormal=False) | st.just(0.0) | st.integers(int(low), 2).map(float)
    return st.lists(number, min_size=rows * columns, max_size=rows * columns).map(
        lambda numbers: np.array(numbers).reshape(rows, columns)
    )


@st.composite
def settings(draw, low=-2.0):
    rounds = draw(st.integers(1, 9))
    return np.tril(draw(matrices(rounds, rounds, low))), draw(schemas(rounds))


@st.composite
def banded_settings(draw):
    rounds = draw(st.integers(1, 9))
    return of_bands(draw(matrices(draw(st.integers(1, rounds + 2)), rounds, -2.0))), draw(schemas(rounds))


@st.composite
def toeplitz_settings(draw, low=-2.0):
    (column,) = draw(matrices(1, draw(st.integers(1, 9)), low))
    return of_column(column), draw(schemas(len(column)))


@st.composite
def blts(draw):
    rounds, total = draw(st.integers(1, 9)), draw(st.floats(0.0, 1.6))
    theta = draw(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=2))
    return tff_mf.BLT(theta=theta, omega=[total / 2, total / 2]), rounds, draw(schemas(rounds))


@st.composite
def scaled_blts(draw):
    rounds, generator = draw(st.integers(1, 8)), np.random.default_rng(draw(st.integers(0, 99)))
    scales = generator.uniform(0.5, 2, size=rounds)
    scales = np.sort(scales)[::-1] if draw(st.booleans()) else scales
    theta, omega = generator.uniform(0.5, 1, 3), generator.uniform(0, 0.3, 3)
    return tff_mf.ScaledBLT(theta=theta, omega=omega, scales=scales), rounds, draw(schemas(rounds))


@st.composite
def trees(draw, variant):
    """Of a run that may end before the tree does."""
    rounds = draw(st.integers(1, 10))
    return tff_mf.Tree(rounds + draw(st.integers(0, 3)), variant=variant), rounds, draw(schemas(rounds, most=6))


def of_all_rounds(settings, make=lambda given: given):
    return settings.map(lambda given: (make(given[0]), make(given[0]).max_rounds, given[1]))


def has_negative_entries(mechanism, rounds):
    return bool(np.any(mechanism.encoder(rounds) < 0))


def falling(mechanism):
    return of_column(-np.sort(-mechanism.coefficients(mechanism.max_rounds)))


# Settings of each kind, and where its rule must be exact, besides single participations.
KINDS = {
    "any": (
        of_all_rounds(settings() | settings(low=0.0), any_matrix),
        lambda mechanism, rounds, schema: (
            isinstance(schema, tff_mf.FixedEpoch) and not has_negative_entries(mechanism, rounds)
        ),
    ),
    "banded": (
        of_all_rounds(banded_settings()),
        lambda mechanism, rounds, schema: mechanism.bands <= schema.min_sep,
    ),
    "Toeplitz": (
        of_all_rounds(toeplitz_settings() | toeplitz_settings(low=0.0)),
        lambda mechanism, rounds, schema: (
            isinstance(schema, tff_mf.FixedEpoch) and not has_negative_entries(mechanism, rounds)
        ),
    ),
    "falling Toeplitz": (
        of_all_rounds(toeplitz_settings(low=0.0), falling),
        lambda *_: True,
    ),
    "Toeplitz that falls below zero": (of_all_rounds(toeplitz_settings(), falling), lambda *_: False),
    "BLT": (blts(), lambda mechanism, *_: sum(mechanism.omega) <= 1),
    "scaled BLT": (
        scaled_blts(),
        lambda mechanism, rounds, schema: (
            isinstance(schema, tff_mf.FixedEpoch) or bool(np.all(np.diff(mechanism.scales) <= 0))
        ),
    ),
    "full tree": (trees("full"), lambda mechanism, rounds, _: mechanism.max_rounds == rounds),
    "online tree": (trees("online"), lambda *_: False),
    "vanilla tree": (trees("vanilla"), lambda *_: True),
}


def check(mechanism, schema, rounds=None):
    rounds = mechanism.max_rounds if rounds is None else rounds
    result = tff_mf.explain_sensitivity(mechanism, rounds, schema)
    largest = largest_norm(mechanism.encoder(rounds), schema.patterns(rounds))
    assert result.value >= largest * (1 - 1e-12)
    if result.exact:
        assert result.value == pytest.approx(largest, rel=1e-12, abs=1e-150)
    return result


@pytest.mark.parametrize("kind", KINDS)
@hypothesis.settings(max_examples=60)
@given(st.data(), st.integers(0, 2**32 - 1))
def test_no_client_exceeds_the_sensitivity_and_exact_ones_are_reached(kind, data, seed):
    """Whatever its signs, and whatever vectors it sends."""
    setting, is_exact = KINDS[kind]
    mechanism, rounds, schema = data.draw(setting)
    assert check(mechanism, tff_mf.SingleParticipation(), rounds).exact or "tree" in kind
    result = check(mechanism, schema, rounds)
    assert result.exact or not is_exact(mechanism, rounds, schema)
    matrix, generator = mechanism.encoder(rounds), np.random.default_rng(seed)
    for pattern in schema.patterns(rounds):
        contributions = generator.standard_normal((20, len(pattern), 3))
        contributions /= np.linalg.norm(contributions, axis=2, keepdims=True)
        norms = np.linalg.norm(matrix[:, list(pattern)] @ contributions, axis=(1, 2))
        assert np.all(norms <= result.value * (1 + 1e-12))


def test_restarts_of_more_rounds_than_a_matrix_is_made_of_are_counted():
    """The upper bound is attained where no rounds have rows in common."""
    schema = tff_mf.MinSep(min_sep=10, max_participations=7)
    found = tff_mf.restart_sensitivity(tff_mf.Identity(), 4000, schema, restart_every=100)
    assert found.value == pytest.approx(math.sqrt(7), rel=1e-9)


MECHANISMS = {
    "identity": lambda rounds: tff_mf.Identity(),
    "BLT": lambda rounds: tff_mf.BLT(theta=[0.9, 0.4], omega=[0.2, 0.5]),
    "Toeplitz": lambda rounds: tff_mf.BandedToeplitz(column=[1.0, -0.5, 0.25]),
    "dense": lambda rounds: tff_mf.Dense(
        matrix=np.tril(np.random.default_rng(5).normal(size=(rounds, rounds)), -1) + 1.2 * np.eye(rounds)
    ),
    "full tree": lambda rounds: tff_mf.Tree(rounds),
    "online tree": lambda rounds: tff_mf.Tree(rounds, variant="online"),
    "vanilla tree": lambda rounds: tff_mf.Tree(rounds, variant="vanilla"),
}


@pytest.mark.parametrize("kind", MECHANISMS)
@hypothesis.settings(max_examples=15)
@given(st.data(), st.integers(2, 12), st.integers(1, 12), st.integers(0, 3))
def test_no_client_exceeds_the_sensitivity_with_restarts_of_any_length(kind, data, rounds, every, more):
    schema = data.draw(schemas(rounds, most=4))
    mechanism = MECHANISMS[kind](min(every, rounds) + more)
    found = tff_mf.restart_sensitivity(mechanism, rounds, schema, restart_every=every)
    block = mechanism.encoder(mechanism.max_rounds or every)
    worst = largest_norm(restarted(block, rounds, every), schema.patterns(rounds))
    assert worst * (1 - 1e-12) <= found.value
    if found.exact:
        assert found.value == pytest.approx(worst, rel=1e-9)


@pytest.mark.parametrize("kind", MECHANISMS)
@pytest.mark.parametrize(("rounds", "every", "more"), [(7, 4, 0), (8, 3, 1), (9, 7, 0), (10, 4, 3), (11, 3, 0)])
def test_no_client_exceeds_the_sensitivity_if_the_last_restart_is_shorter(kind, rounds, every, more):
    mechanism = MECHANISMS[kind](every + more)
    whole = restarted(mechanism.encoder(every + more), rounds, every)
    for schema_class, min_sep, most in itertools.product((tff_mf.MinSep, tff_mf.FixedEpoch), range(1, 6), range(1, 5)):
        if (most - 1) * min_sep < rounds:
            schema = schema_class(min_sep=min_sep, max_participations=most)
            found = tff_mf.restart_sensitivity(mechanism, rounds, schema, restart_every=every)
            worst = largest_norm(whole, schema.patterns(rounds))
            assert worst * (1 - 1e-12) <= found.value
            assert not found.exact or found.value == pytest.approx(worst, rel=1e-9)


@pytest.mark.parametrize("kind", MECHANISMS)
@hypothesis.example([[0], [10, 11]], None)
@given(st.lists(st.sets(st.integers(0, 11), max_size=4).map(sorted), max_size=6), st.sampled_from([None, 3, 5, 12]))
def test_no_client_of_observed_patterns_exceeds_their_sensitivity(kind, patterns, every):
    mechanism = MECHANISMS[kind](12)
    worst = largest_norm(restarted(mechanism.encoder(12), 12, every or 12), patterns)
    found = tff_mf.pattern_sensitivity(mechanism, 12, patterns, restart_every=every)
    assert found.value >= worst * (1 - 1e-12)
    if found.exact:
        assert found.value == pytest.approx(worst, rel=1e-9)


def vec_sens(min_sep, values, max_participations):
    """Algorithm 2 of Choquette-Choo et al. (2023), as printed, without its root."""
    rounds = len(values)
    best = np.zeros((rounds + min_sep + 1, max_participations + 1))
    for size in range(1, max_participations + 1):
        for place in range(rounds - 1, -1, -1):
            best[place, size] = max(values[place] + best[place + min_sep, size - 1], best[place + 1, size])
    return best[0, max_participations]


@given(settings())
def test_the_bound_is_no_larger_than_algorithm_3(setting):
    matrix, schema = setting
    gram = np.abs(matrix.T @ matrix)
    rows = np.array([vec_sens(schema.min_sep, row, schema.max_participations) for row in gram])
    printed = np.sqrt(vec_sens(schema.min_sep, rows, schema.max_participations))
    assert general.upper_bound(matrix, schema).value <= printed * (1 + 1e-12)


@pytest.mark.parametrize("added", [np.eye(6, k=4), np.eye(6, k=1) + np.eye(6, k=-1)], ids=["far", "beside it"])
def test_an_entry_above_the_diagonal_is_not_overlooked(added):
    matrix = np.eye(6) + added
    for schema in (tff_mf.MinSep(min_sep=2, max_participations=3), tff_mf.FixedEpoch(min_sep=2, max_participations=3)):
        assert tff_mf.sensitivity(any_matrix(matrix), 6, schema) >= largest_norm(matrix, schema.patterns(6)) > 2


def test_fixed_epochs_of_many_rounds_fall_back_to_the_bounds_of_min_sep(monkeypatch):
    monkeypatch.setattr("tff_mf.sensitivities.toeplitz._MOST_PRODUCTS", 5)
    column, setting = of_column([1.0, 0.5, 1.5, 0.25]), {"min_sep": 2, "max_participations": 2}
    fixed = tff_mf.explain_sensitivity(column, 4, tff_mf.FixedEpoch(**setting))
    assert fixed == tff_mf.explain_sensitivity(column, 4, tff_mf.MinSep(**setting))


@pytest.mark.parametrize("schema", [tff_mf.MinSep, tff_mf.FixedEpoch])
@pytest.mark.parametrize("scale", [1e-170, 1e-200, 1e-305])
def test_entries_whose_squares_are_zero_in_float64_count_all_the_same(schema, scale):
    matrix, column = np.tril(np.random.default_rng(2).standard_normal((6, 6))), (1.0, -0.5, 2.0, 0.125, 0.25, 0.5)
    schema = schema(min_sep=2, max_participations=3)
    for plain, tiny in (
        (any_matrix(matrix), any_matrix(scale * matrix)),
        (of_column(column), of_column(scale * np.array(column))),
    ):
        expected = scale * tff_mf.sensitivity(plain, 6, schema)
        assert tff_mf.sensitivity(tiny, 6, schema) == pytest.approx(expected, rel=1e-9, abs=0)
        one = [(0, 3)]
        expected = scale * tff_mf.pattern_sensitivity(plain, 6, one).value
        assert tff_mf.pattern_sensitivity(tiny, 6, one).value == pytest.approx(expected, rel=1e-9, abs=0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e200])
def test_entries_that_overflow_are_refused(bad):
    matrix = np.eye(4)
    matrix[3, 0] = bad
    bands = np.array([np.ones(4), [bad, 0, 0, 0]])
    for mechanism in (any_matrix(matrix), of_bands(bands), of_column([1.0, bad, 0.0, 0.0])):
        with pytest.raises(tff_mf.InputError, match="overflow"):
            tff_mf.sensitivity(mechanism, 4, TWICE)


def test_whole_matrices_that_no_memory_holds_are_refused():
    once = tff_mf.SingleParticipation()
    mechanism = of_bands(np.ones((2, 20_000)))
    assert tff_mf.sensitivity(mechanism, 20_000, once) == pytest.approx(2**0.5)
    fixed = tff_mf.FixedEpoch(min_sep=1, max_participations=3)
    assert tff_mf.explain_sensitivity(mechanism, 20_000, fixed).exact
    with pytest.raises(tff_mf.InputError, match="rounds=20000 exceeds the maximum of 16,384"):
        tff_mf.sensitivity(mechanism, 20_000, tff_mf.MinSep(min_sep=1, max_participations=3))


@pytest.mark.parametrize(("order", "rounds"), [(2, 64), (4, 40), (7, 12), (8, 64), (14, 128), (18, 128)])
@pytest.mark.parametrize("kind", ["dense", "structured"])
def test_c_that_is_solved_for_is_the_one_of_the_noise_or_refused(kind, order, rounds):
    """C = (1 − x)^−order grows, and sums of float64 lose its digits: the sensitivity was up to 50 % too small."""
    lags = range(min(order, rounds - 1) + 1)
    inverse = [(-1.0) ** lag * math.comb(order, lag) for lag in lags]
    column = [float(math.comb(t + order - 1, order - 1)) for t in range(rounds)]
    if kind == "dense":
        mechanism = tff_mf.Dense(matrix=lower_toeplitz(np.array(column)))
    else:
        # B = A·C⁻¹ has the diagonals of (1 − x)^(order − 1), which float32 holds.
        diagonals = np.repeat(np.cumsum(inverse)[:order, np.newaxis], rounds, axis=1)
        mechanism = tff_mf.BandedPlusLowRank(
            diagonals=diagonals, left=np.zeros((rounds, 1)), right=np.zeros((rounds, 1))
        )
    once = tff_mf.SingleParticipation()
    if (order, rounds) in ((8, 64), (14, 128), (18, 128)):
        with pytest.raises(tff_mf.InputError, match=f"rounds={rounds} are too many for this {kind} mechanism"):
            tff_mf.epsilon(mechanism, rounds, once, noise_multiplier=1.0, delta=1e-6)
        return
    exact = math.sqrt(sum(math.comb(t + order - 1, order - 1) ** 2 for t in range(rounds)))
    assert tff_mf.sensitivity(mechanism.cast_to_float32(), rounds, once) == pytest.approx(exact, rel=1e-9)
