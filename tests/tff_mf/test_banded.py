import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf.mechanisms import series
from tff_mf.optimize.banded_toeplitz import ToeplitzLoss


@st.composite
def diagonals(draw):
    rounds = draw(st.integers(1, 12))
    bands = draw(st.integers(1, rounds))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = 0.5 * generator.standard_normal((bands, rounds))
    values[0] = generator.uniform(0.5, 2.0, rounds)
    return values


def columns():
    return st.builds(lambda head, tail: [head, *tail], st.floats(0.5, 2.0), st.lists(st.floats(-1.0, 1.0), max_size=20))


@given(diagonals())
def test_a_banded_matrix_has_its_diagonals_and_nothing_else(values):
    bands, rounds = values.shape
    mechanism = tff_mf.Banded(values=values)
    for offset in range(rounds):
        expected = values[offset, : rounds - offset] if offset < bands else np.zeros(rounds - offset)
        np.testing.assert_array_equal(np.diagonal(mechanism.encoder(rounds), -offset), expected)
    assert (mechanism.bands, mechanism.max_rounds) == (bands, rounds)


def test_equal_banded_matrices_are_equal_whatever_belongs_to_no_row():
    one = tff_mf.Banded(values=[[1, 1, 2], [-0.0, 0.5, 7]])
    other = tff_mf.Banded(values=np.array([[1, 1, 2], [0.0, 0.5, 0]], dtype=np.float32))
    assert one == other
    assert hash(one) == hash(other)
    assert one.values.tobytes() == other.values.tobytes()
    assert one != tff_mf.Banded(values=[[1, 1, 2], [0, 0.25, 0]])
    assert one != tff_mf.Banded(values=[[1, 1, 2]])
    assert one != tff_mf.Identity()


def test_the_values_of_a_banded_matrix_cannot_change():
    given_values = np.ones((1, 3))
    mechanism = tff_mf.Banded(values=given_values)
    given_values[:] = 5
    np.testing.assert_array_equal(mechanism.values, np.ones((1, 3)))
    with pytest.raises(ValueError, match="read-only"):
        mechanism.values[0, 0] = 2


@given(columns(), st.integers(1, 30))
def test_toeplitz_matrices_and_their_inverses(column, rounds):
    banded = tff_mf.BandedToeplitz(column=column)
    inverse = tff_mf.BandedInverse(inverse_column=column)
    expected = np.zeros(rounds)
    expected[: len(column)] = column[:rounds]
    np.testing.assert_array_equal(banded.coefficients(rounds), expected)
    np.testing.assert_array_equal(banded.encoder(rounds), inverse.inverse(rounds))
    np.testing.assert_array_equal(banded.inverse(rounds), inverse.encoder(rounds))
    # Rounding is to the size of what is added up.
    size = np.abs(banded.encoder(rounds)) @ np.abs(banded.inverse(rounds))
    assert np.all(np.abs(banded.encoder(rounds) @ banded.inverse(rounds) - np.eye(rounds)) <= 1e-13 * (1 + size))
    assert banded.bands == inverse.bands == len(column)
    assert banded.max_rounds is None


@pytest.mark.parametrize("rounds", [1, 255, 256, 257, 1500])
@pytest.mark.parametrize("bands", [1, 2, 300, 2000])
def test_quotients_over_several_blocks(rounds, bands):
    generator = np.random.default_rng(rounds)
    column = series.square_root(bands) if bands > 1 else np.array([2.0])
    numerator = generator.standard_normal(rounds)
    quotient = series.quotient(numerator, column)
    np.testing.assert_allclose(np.convolve(column, quotient)[:rounds], numerator, atol=1e-11)


@pytest.mark.parametrize("rounds", [1, 2, 40])
def test_square_roots_square_to_prefix_sums(rounds):
    encoder = tff_mf.BandedToeplitz.square_root(rounds).encoder(rounds)
    np.testing.assert_allclose(encoder @ encoder, np.tril(np.ones((rounds, rounds))), atol=1e-14)
    np.testing.assert_allclose(tff_mf.BandedInverse.square_root(rounds).encoder(rounds), encoder, atol=1e-14)
    cut = tff_mf.BandedToeplitz.square_root(3).column
    assert cut == (1.0, 0.5, 0.375)
    assert tff_mf.BandedInverse.square_root(3).inverse_column == (1.0, -0.5, -0.125)


@pytest.mark.parametrize("bands", [1, 2, 5, 60])
def test_banded_inverse_square_roots_never_rise(bands):
    # Kalinin et al. (2025): the rule for non-increasing coefficients holds for every number of bands.
    for mechanism in (
        tff_mf.BandedInverse.square_root(bands),
        tff_mf.BandedInverse.square_root(bands).cast_to_float32(),
    ):
        schema = tff_mf.MinSep(min_sep=50, max_participations=6)
        assert tff_mf.explain_sensitivity(mechanism, 300, schema).exact


@given(columns(), st.integers(1, 12), st.integers(1, 4), st.integers(1, 4), st.sampled_from(["rms", "max"]))
def test_toeplitz_losses_are_those_of_the_dense_matrices(column, rounds, min_sep, max_participations, objective):
    max_participations = min(max_participations, (rounds - 1) // min_sep + 1)
    schema = tff_mf.MinSep(min_sep=min_sep, max_participations=max_participations)
    optimized_for = tff_mf.OptimizedFor(rounds=rounds, participation=schema, workload=tff_mf.Momentum(momentum=0.25))
    loss = ToeplitzLoss(optimized_for, objective)
    falling = np.sort(np.abs(column))[::-1][:rounds]
    public = tff_mf.rms_loss if objective == "rms" else tff_mf.max_loss
    if max_participations == 1 or len(falling) <= min_sep:
        free = np.array(column[: len(falling)])
        expected = public(tff_mf.BandedToeplitz(column=free), rounds, schema, optimized_for.workload)
        assert np.exp(loss.of_encoder(free, orthogonal=True).value) == pytest.approx(expected, rel=1e-9)
    expected = public(tff_mf.BandedToeplitz(column=falling), rounds, schema, optimized_for.workload)
    assert np.exp(loss.of_encoder(falling, orthogonal=False).value) == pytest.approx(expected, rel=1e-9)
