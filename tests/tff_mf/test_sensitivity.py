"""Sensitivity of any C against brute force: the rule of each structure, where it is exact, and what it refuses."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import tff_mf
from tff_mf.mechanisms import BandedMechanism, ToeplitzMechanism
from tff_mf.sensitivities import general

TWICE = tff_mf.MinSep(min_sep=2, max_participations=2)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Any(tff_mf.Mechanism):
    kind = "any"
    matrix: np.ndarray

    @property
    def max_rounds(self):
        return len(self.matrix)

    def encoder(self, rounds):
        return self.matrix[:rounds, :rounds]

    def inverse(self, rounds):
        return np.linalg.inv(self.encoder(rounds))

    def cast_to_float32(self):
        return self


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Bands(BandedMechanism):
    kind = "bands"
    values: np.ndarray

    @property
    def bands(self):
        return len(self.values)

    @property
    def max_rounds(self):
        return self.values.shape[1]

    def diagonals(self, rounds):
        return self.values[:, :rounds]

    def cast_to_float32(self):
        return self


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column(ToeplitzMechanism):
    kind = "column"
    column: tuple[float, ...]

    @property
    def max_rounds(self):
        return len(self.column)

    def coefficients(self, rounds):
        return np.array(self.column[:rounds], dtype=np.float64)

    def inverse_coefficients(self, rounds):
        return np.linalg.inv(self.encoder(rounds))[:, 0]

    def cast_to_float32(self):
        return self


def brute_force(matrix, schema):
    """Largest norm over all patterns, and over the contributions +1 and −1 in each of their rounds."""
    squares = [0.0]
    for pattern in schema.patterns(matrix.shape[1]):
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(pattern))))
        squares.append(np.max(np.sum(np.square(signs @ matrix[:, list(pattern)].T), axis=1)))
    return np.sqrt(max(squares))


@st.composite
def schemas(draw, rounds):
    min_sep = draw(st.integers(1, rounds))
    max_participations = draw(st.integers(1, (rounds - 1) // min_sep + 1))
    return draw(st.sampled_from([tff_mf.MinSep, tff_mf.FixedEpoch]))(
        min_sep=min_sep, max_participations=max_participations
    )


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
    return Bands(values=draw(matrices(draw(st.integers(1, rounds + 2)), rounds, -2.0))), draw(schemas(rounds))


@st.composite
def toeplitz_settings(draw, low=-2.0):
    (column,) = draw(matrices(1, draw(st.integers(1, 9)), low))
    return Column(column=tuple(column.tolist())), draw(schemas(len(column)))


KINDS = {
    "any": settings().map(lambda setting: (Any(matrix=setting[0]), setting[1])),
    "banded": banded_settings(),
    "Toeplitz": toeplitz_settings(),
}


def check(mechanism, schema):
    rounds = mechanism.max_rounds
    result = tff_mf.explain_sensitivity(mechanism, rounds, schema)
    largest = brute_force(mechanism.encoder(rounds), schema)
    assert result.value >= largest * (1 - 1e-12)
    if result.exact:
        assert result.value == pytest.approx(largest, rel=1e-12, abs=1e-150)
    return result


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_no_rule_is_below_brute_force_and_exact_ones_are_equal(kind, data):
    check(*data.draw(KINDS[kind]))


@pytest.mark.parametrize("kind", KINDS)
@given(st.data(), st.integers(0, 2**32 - 1))
def test_no_contributions_of_vectors_exceed_the_bound(kind, data, seed):
    mechanism, schema = data.draw(KINDS[kind])
    matrix = mechanism.encoder(mechanism.max_rounds)
    bound = tff_mf.sensitivity(mechanism, len(matrix), schema)
    generator = np.random.default_rng(seed)
    for pattern in schema.patterns(len(matrix)):
        contributions = generator.standard_normal((20, len(pattern), 3))
        contributions /= np.linalg.norm(contributions, axis=2, keepdims=True)
        norms = np.linalg.norm(matrix[:, list(pattern)] @ contributions, axis=(1, 2))
        assert np.all(norms <= bound * (1 + 1e-12))


@given(banded_settings())
def test_a_banded_matrix_has_the_sensitivity_of_the_same_entries(setting):
    mechanism, schema = setting
    matrix = Any(matrix=mechanism.encoder(mechanism.max_rounds))
    same = tff_mf.sensitivity(matrix, mechanism.max_rounds, schema)
    assert check(mechanism, schema).value == pytest.approx(same, rel=1e-12, abs=1e-150)
    if mechanism.bands <= schema.min_sep:
        assert check(mechanism, schema).exact


@given(toeplitz_settings(low=0.0))
def test_non_increasing_coefficients_are_exact(setting):
    mechanism, schema = setting
    assert check(Column(column=tuple(sorted(mechanism.column, reverse=True))), schema).exact


@given(toeplitz_settings(), st.lists(st.floats(0.01, 1.0), min_size=2, max_size=2), st.floats(0.0, 1.6))
def test_blt_against_brute_force(setting, theta, total):
    rounds, schema = setting[0].max_rounds, setting[1]
    mechanism = tff_mf.BLT(theta=theta, omega=[total / 2, total / 2])
    result = tff_mf.explain_sensitivity(mechanism, rounds, schema)
    largest = brute_force(mechanism.encoder(rounds), schema)
    assert result.value >= largest * (1 - 1e-12)
    if total <= 1:
        assert result.value == pytest.approx(largest, rel=1e-12)


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 300))
@example(300, 1, 300)
def test_sum_of_shifts_is_the_sum_of_columns(rounds, min_sep, max_participations):
    max_participations = min(max_participations, (rounds - 1) // min_sep + 1)
    mechanism = tff_mf.BLT(theta=[1.0, 0.6], omega=[0.1, 0.5])
    schema = tff_mf.MinSep(min_sep=min_sep, max_participations=max_participations)
    directly = np.linalg.norm(mechanism.encoder(rounds)[:, : max_participations * min_sep : min_sep].sum(axis=1))
    assert tff_mf.sensitivity(mechanism, rounds, schema) == pytest.approx(directly, rel=1e-13)


@given(settings(low=0.0), st.booleans())
def test_fixed_epochs_of_a_nonnegative_matrix_are_exact(setting, negated):
    matrix, schema = setting
    schema = tff_mf.FixedEpoch(min_sep=schema.min_sep, max_participations=schema.max_participations)
    assert check(Any(matrix=-matrix if negated else matrix), schema).exact


@given(settings())
def test_one_participation_is_exact(setting):
    matrix, _ = setting
    result = check(Any(matrix=matrix), tff_mf.SingleParticipation())
    assert result.exact
    assert result.value == pytest.approx(np.max(np.linalg.norm(matrix, axis=0)), rel=1e-14, abs=1e-150)


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


@pytest.mark.parametrize(("min_sep", "max_participations"), [(1, 9), (2, 5), (2, 4), (3, 3), (4, 2)])
def test_the_bound_is_reached_where_all_columns_are_the_same(min_sep, max_participations):
    matrix = np.zeros((9, 9))
    matrix[-1] = 1
    schema = tff_mf.MinSep(min_sep=min_sep, max_participations=max_participations)
    assert check(Any(matrix=matrix), schema).value == pytest.approx(max_participations, rel=1e-14)


@pytest.mark.parametrize("max_participations", [24, 25, 26, 27, 40])
def test_large_limits_reach_it_too(max_participations):
    matrix = np.zeros((100, 100))
    matrix[-1] = 1
    schema = tff_mf.MinSep(min_sep=2, max_participations=max_participations)
    assert (
        max_participations * (1 - 1e-12)
        <= tff_mf.sensitivity(Any(matrix=matrix), 100, schema)
        <= max_participations * (1 + 1e-4)
    )


@given(st.lists(st.floats(-2, 2, allow_subnormal=False), min_size=12, max_size=12), st.integers(1, 12), st.data())
def test_toeplitz_and_any_matrix_agree_on_fixed_epochs(column, min_sep, data):
    max_participations = data.draw(st.integers(1, 11 // min_sep + 1))
    schema = tff_mf.FixedEpoch(min_sep=min_sep, max_participations=max_participations)
    toeplitz = Column(column=tuple(column))
    assert tff_mf.sensitivity(toeplitz, 12, schema) == pytest.approx(
        tff_mf.sensitivity(Any(matrix=toeplitz.encoder(12)), 12, schema), rel=1e-12, abs=1e-150
    )


def test_large_limits_keep_the_bound():
    generator = np.random.default_rng(1)
    matrix = np.tril(generator.standard_normal((100, 100)))
    schema = tff_mf.MinSep(min_sep=2, max_participations=40)
    value = tff_mf.sensitivity(Any(matrix=matrix), 100, schema)
    gram = np.abs(matrix.T @ matrix)
    rows = np.array([vec_sens(2, row, 40) for row in gram])
    assert value <= np.sqrt(vec_sens(2, rows, 40)) * (1 + 1e-9)
    for _ in range(200):
        places = 2 * np.sort(generator.choice(50, 40, replace=False))
        assert np.linalg.norm(matrix[:, places] @ generator.choice([-1.0, 1.0], 40)) <= value


def exact(matrix, schema):
    return check(Any(matrix=np.array(matrix, dtype=np.float64)), schema).exact


def test_a_band_too_many_is_never_exact_however_small():
    matrix = np.diag(np.ones(6)) + np.diag(np.ones(5), -1)
    schema = tff_mf.MinSep(min_sep=2, max_participations=3)
    assert exact(matrix, schema)
    for entry in (1.0, -1e-9, 1e-300, 5e-324):
        matrix[4, 1] = entry
        assert not exact(matrix, schema)
        values = np.array([np.diag(matrix, -each).tolist() + [7.0] * each for each in range(4)])
        assert not check(Bands(values=values), schema).exact


def test_an_entry_above_the_diagonal_is_not_overlooked():
    matrix = np.eye(6)
    matrix[0, 4] = 1
    for schema in (tff_mf.MinSep(min_sep=2, max_participations=3), tff_mf.FixedEpoch(min_sep=2, max_participations=3)):
        assert tff_mf.sensitivity(Any(matrix=matrix), 6, schema) >= brute_force(matrix, schema) > 2


def test_bands_are_what_the_diagonals_hold():
    values = np.array([[1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 9.0], [0.0, 0.0, 9.0, 9.0], [0.0, 9.0, 9.0, 9.0]])
    result = check(Bands(values=values), tff_mf.MinSep(min_sep=2, max_participations=2))
    assert result.exact
    assert result.value == pytest.approx(np.sqrt(5 + 16))


def test_entries_below_zero_are_exact_where_they_do_not_matter():
    schema = tff_mf.FixedEpoch(min_sep=2, max_participations=2)
    assert exact([[1, 0, 0, 0], [-1, 1, 0, 0], [0.5, -1, 1, 0], [0.25, 0.5, -1, 1]], schema)
    assert not exact([[1, 0, 0, 0], [0, 1, 0, 0], [-1, 0, 1, 0], [0, -1, 0, 1]], schema)
    assert not exact([[1, 0, 0, 0], [0, 1, 0, 0], [-1e-9, 0, 1, 0], [0, -1e-9, 0, 1]], schema)


@pytest.mark.parametrize(
    ("column", "exact"),
    [
        ((1.0, 1.0, 0.5, 0.5), True),
        ((1.0, np.nextafter(1.0, 2.0), 0.5, 0.25), False),
        ((1.0, 0.5, 0.25, np.nextafter(0.25, 1.0)), False),
        ((1.0, 0.5, 0.25, -5e-324), False),
        ((1.0, 0.0, 0.0, 5e-324), False),
        ((1.0, 2.0, 0.5, 0.25), False),
    ],
)
def test_the_theorem_for_coefficients_that_do_not_rise_is_applied_up_to_the_edge_of_its_conditions(column, exact):
    result = check(Column(column=column), TWICE)
    assert result.exact is exact
    assert result.value >= brute_force(Column(column=column).encoder(4), TWICE) * (1 - 1e-15)


def test_majorant_costs_next_to_nothing_just_outside():
    inside = tff_mf.sensitivity(Column(column=(1.0, 1.0, 0.5, 0.25)), 4, TWICE)
    outside = tff_mf.sensitivity(Column(column=(1.0, np.nextafter(1.0, 2.0), 0.5, 0.25)), 4, TWICE)
    assert outside == pytest.approx(inside, rel=1e-15)


def test_a_late_spike_is_not_charged_to_every_round():
    result = tff_mf.explain_sensitivity(Column(column=(1.0, *[0.0] * 98, 1.0)), 100, TWICE)
    assert "Cauchy-Schwarz" in result.rule
    assert result.value <= 2 * np.sqrt(2) * (1 + 1e-15)


def test_rising_coefficients_would_fool_the_earliest_pattern():
    """Why the conditions matter: the pattern of theorem 3.1 is not the worst one here."""
    mechanism = Column(column=(1.0, -1.0, 1.0, 0.0))
    earliest = np.linalg.norm(mechanism.encoder(4)[:, [0, 1]].sum(axis=1))
    schema = tff_mf.MinSep(min_sep=1, max_participations=2)
    assert tff_mf.sensitivity(mechanism, 4, schema) >= brute_force(mechanism.encoder(4), schema) > earliest


@pytest.mark.parametrize(("min_sep", "max_participations", "rounds"), [(1, 1, 1), (1, 16, 16), (400, 9, 10**6)])
def test_identity_is_the_root_of_the_participations(min_sep, max_participations, rounds):
    result = tff_mf.explain_sensitivity(
        tff_mf.Identity(), rounds, tff_mf.MinSep(min_sep=min_sep, max_participations=max_participations)
    )
    assert (result.value, result.exact) == (max_participations**0.5, True)


def test_large_settings_are_quick_and_agree_with_the_limit():
    schema = tff_mf.MinSep(min_sep=1, max_participations=10**6)
    value = tff_mf.sensitivity(tff_mf.BLT(theta=[0.5], omega=[0.5]), 10**6, schema)
    assert value == pytest.approx(2 * 1e3, rel=1e-5)


def test_fixed_epochs_are_tighter_than_min_sep_where_coefficients_rise():
    column = Column(column=(1.0, 0.5, 1.5, 0.25, 1.25, 0.125))
    setting = {"min_sep": 2, "max_participations": 3}
    fixed = tff_mf.explain_sensitivity(column, 6, tff_mf.FixedEpoch(**setting))
    assert fixed.exact
    assert fixed.value < tff_mf.sensitivity(column, 6, tff_mf.MinSep(**setting))


def test_fixed_epochs_of_many_rounds_fall_back_to_the_bounds_of_min_sep(monkeypatch):
    monkeypatch.setattr("tff_mf.sensitivities.toeplitz._MOST_PRODUCTS", 5)
    column, setting = Column(column=(1.0, 0.5, 1.5, 0.25)), {"min_sep": 2, "max_participations": 2}
    fixed = tff_mf.explain_sensitivity(column, 4, tff_mf.FixedEpoch(**setting))
    assert fixed == tff_mf.explain_sensitivity(column, 4, tff_mf.MinSep(**setting))


@pytest.mark.parametrize("schema", [tff_mf.MinSep, tff_mf.FixedEpoch])
@pytest.mark.parametrize("scale", [1e-170, 1e-200, 1e-305])
def test_entries_whose_squares_are_zero_in_float64_count_all_the_same(schema, scale):
    matrix, column = np.tril(np.random.default_rng(2).standard_normal((6, 6))), (1.0, -0.5, 2.0, 0.125, 0.25, 0.5)
    schema = schema(min_sep=2, max_participations=3)
    for plain, tiny in (
        (Any(matrix=matrix), Any(matrix=scale * matrix)),
        (Column(column=column), Column(column=tuple(scale * each for each in column))),
    ):
        expected = scale * tff_mf.sensitivity(plain, 6, schema)
        assert tff_mf.sensitivity(tiny, 6, schema) == pytest.approx(expected, rel=1e-9, abs=0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e200])
def test_entries_that_overflow_are_refused(bad):
    matrix = np.eye(4)
    matrix[3, 0] = bad
    bands = np.array([np.ones(4), [bad, 0, 0, 0]])
    for mechanism in (Any(matrix=matrix), Bands(values=bands), Column(column=(1.0, bad, 0.0, 0.0))):
        with pytest.raises(tff_mf.InputError, match="overflow"):
            tff_mf.sensitivity(mechanism, 4, TWICE)


def test_a_matrix_of_zeros_has_none():
    assert tff_mf.sensitivity(Any(matrix=np.zeros((3, 3))), 3, tff_mf.SingleParticipation()) == 0


def test_whole_matrices_that_no_memory_holds_are_refused():
    once = tff_mf.SingleParticipation()
    mechanism = Bands(values=np.ones((2, 20_000)))
    assert tff_mf.sensitivity(mechanism, 20_000, once) == pytest.approx(2**0.5)
    fixed = tff_mf.FixedEpoch(min_sep=1, max_participations=3)
    assert tff_mf.explain_sensitivity(mechanism, 20_000, fixed).exact
    with pytest.raises(tff_mf.InputError, match="rounds=20000 exceeds the maximum of 16,384"):
        tff_mf.sensitivity(mechanism, 20_000, tff_mf.MinSep(min_sep=1, max_participations=3))


def test_a_banded_matrix_and_its_inverse_are_those_of_its_diagonals():
    mechanism = Bands(values=np.array([[1.0, 2.0, 4.0], [3.0, 5.0, 9.0]]))
    np.testing.assert_array_equal(mechanism.encoder(3), [[1, 0, 0], [3, 2, 0], [0, 5, 4]])
    np.testing.assert_array_equal(mechanism.encoder(1), [[1]])
    np.testing.assert_allclose(mechanism.inverse(3) @ mechanism.encoder(3), np.eye(3), atol=1e-15)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((Column(column=(1.0, 0.5, 0.1)), 4, TWICE), "rounds=4 is more than the 3"),
        ((tff_mf.Identity(), 10, tff_mf.MinSep(min_sep=5, max_participations=3)), "max_participations=3"),
        ((tff_mf.Identity(), 10**12, TWICE), "rounds=1000000000000"),
        (("blt", 4, TWICE), "mechanism="),
        ((None, 4, TWICE), "mechanism="),
        ((tff_mf.BLT, 4, TWICE), "mechanism="),
        ((tff_mf.Identity(), 4, (2, 2)), "participation="),
        ((tff_mf.Identity(), 4, tff_mf.FixedEpoch), "participation="),
        ((tff_mf.Identity(), 4.0, TWICE), "rounds="),
        ((tff_mf.Identity(), 0, TWICE), "rounds="),
    ],
)
def test_settings_that_are_none_are_refused(arguments, field):
    with pytest.raises(tff_mf.InputError, match=field):
        tff_mf.sensitivity(*arguments)
