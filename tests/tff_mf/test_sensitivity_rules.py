"""Rules that hold for any strategy matrix, and those for banded ones, against brute force."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import tff_mf
from tff_mf.mechanisms import BandedMechanism, ToeplitzMechanism
from tff_mf.sensitivities import general


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
    return draw(matrices(draw(st.integers(1, rounds + 2)), rounds, -2.0)), draw(schemas(rounds))


def check(mechanism, schema):
    rounds = mechanism.max_rounds
    result = tff_mf.explain_sensitivity(mechanism, rounds, schema)
    largest = brute_force(mechanism.encoder(rounds), schema)
    assert result.value >= largest * (1 - 1e-12)
    if result.exact:
        assert result.value == pytest.approx(largest, rel=1e-12, abs=1e-150)
    return result


@given(settings())
def test_any_matrix_against_brute_force(setting):
    check(Any(matrix=setting[0]), setting[1])


@given(settings())
def test_any_matrix_against_contributions_of_vectors(setting):
    matrix, schema = setting
    bound = tff_mf.sensitivity(Any(matrix=matrix), len(matrix), schema)
    generator = np.random.default_rng(0)
    for pattern in schema.patterns(len(matrix)):
        contributions = generator.standard_normal((20, len(pattern), 3))
        contributions /= np.linalg.norm(contributions, axis=2, keepdims=True)
        norms = np.linalg.norm(matrix[:, list(pattern)] @ contributions, axis=(1, 2))
        assert np.all(norms <= bound * (1 + 1e-12))


@given(banded_settings())
def test_banded_against_brute_force_and_against_the_same_matrix(setting):
    values, schema = setting
    mechanism = Bands(values=values)
    result = check(mechanism, schema)
    dense = tff_mf.explain_sensitivity(Any(matrix=mechanism.encoder(mechanism.max_rounds)), values.shape[1], schema)
    assert result.value == pytest.approx(dense.value, rel=1e-12, abs=1e-150)


@given(banded_settings())
def test_no_more_bands_than_the_separation_are_exact(setting):
    values, schema = setting
    assume(len(values) <= schema.min_sep)
    assert check(Bands(values=values), schema).exact


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


@pytest.mark.parametrize("schema", [tff_mf.MinSep, tff_mf.FixedEpoch])
@pytest.mark.parametrize("scale", [1e-170, 1e-200, 1e-305])
def test_entries_whose_squares_are_zero_in_float64_count_all_the_same(schema, scale):
    matrix = np.tril(np.random.default_rng(2).standard_normal((6, 6)))
    schema = schema(min_sep=2, max_participations=3)
    plain = tff_mf.sensitivity(Any(matrix=matrix), 6, schema)
    assert tff_mf.sensitivity(Any(matrix=scale * matrix), 6, schema) == pytest.approx(scale * plain, rel=1e-9, abs=0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e200])
def test_entries_that_overflow_are_refused(bad):
    matrix = np.eye(4)
    matrix[3, 0] = bad
    for mechanism in (Any(matrix=matrix), Bands(values=np.array([np.ones(4), [bad, 0, 0, 0]]))):
        with pytest.raises(tff_mf.InputError, match="overflow"):
            tff_mf.sensitivity(mechanism, 4, tff_mf.MinSep(min_sep=2, max_participations=2))


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
