"""Mechanisms of whole matrices: dense, banded, and banded plus low rank."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf.mechanisms import series


def test_a_matrix_whose_noise_grows_beyond_all_digits_is_refused():
    grows = np.eye(40) - 1.5 * np.tri(40, k=-1)
    with pytest.raises(tff_mf.InputError, match="dense"):
        tff_mf.Dense(matrix=grows).cast_to_float32()


@pytest.mark.parametrize("entry", [1e-60, 1e60])
def test_a_matrix_beyond_float32_is_refused_where_it_would_run(entry):
    mechanism = tff_mf.Dense(matrix=[[entry]])
    with pytest.raises(tff_mf.InputError, match="matrix"):
        mechanism.cast_to_float32()


@st.composite
def diagonals(draw):
    rounds = draw(st.integers(1, 12))
    bands = draw(st.integers(1, rounds))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = 0.5 * generator.standard_normal((bands, rounds))
    values[0] = generator.uniform(0.5, 2.0, rounds)
    return values


@given(diagonals())
def test_a_banded_matrix_has_its_diagonals_and_nothing_else(values):
    bands, rounds = values.shape
    mechanism = tff_mf.Banded(values=values)
    for offset in range(rounds):
        expected = values[offset, : rounds - offset] if offset < bands else np.zeros(rounds - offset)
        np.testing.assert_array_equal(np.diagonal(mechanism.encoder(rounds), -offset), expected)
    assert (mechanism.bands, mechanism.max_rounds) == (bands, rounds)


@pytest.mark.parametrize("rounds", [1, 255, 256, 257, 1500])
@pytest.mark.parametrize("bands", [1, 2, 300, 2000])
def test_quotients_over_several_blocks(rounds, bands):
    generator = np.random.default_rng(rounds)
    column = series.inverse_square_root(bands) if bands > 1 else np.array([2.0])
    numerator = generator.standard_normal(rounds)
    quotient = series.quotient(numerator, column)
    np.testing.assert_allclose(np.convolve(column, quotient)[:rounds], numerator, atol=1e-11)


ONCE = tff_mf.SingleParticipation()


def random(rounds, diagonals, rank, seed=0):
    generator = np.random.default_rng(seed)
    values = generator.uniform(0.1, 0.5, (diagonals, rounds))
    values[0] += 1
    return tff_mf.BandedPlusLowRank(
        diagonals=values,
        left=generator.uniform(0, 0.3, (rounds, rank)),
        right=generator.uniform(0, 0.3, (rounds, rank)),
    )


@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_the_decoder_is_that_of_the_definition(rounds, diagonals, rank, seed):
    mechanism = random(rounds, min(diagonals, rounds), rank, seed)
    decoder = mechanism.decoder(rounds)
    for row in range(rounds):
        for column in range(rounds):
            offset = row - column
            if offset < 0:
                expected = 0.0
            elif offset < len(mechanism.diagonals):
                expected = mechanism.diagonals[offset, row]
            else:
                expected = mechanism.left[row] @ mechanism.right[column]
            assert decoder[row, column] == pytest.approx(expected, rel=1e-14)
    np.testing.assert_allclose(np.cumsum(mechanism.inverse(rounds), axis=0), decoder, atol=1e-14)


@pytest.mark.parametrize("rank", [1, 3])
def test_a_decoder_of_the_same_structure_is_recovered(rank):
    wanted = random(40, 2, rank)
    optimized_for = tff_mf.OptimizedFor(rounds=40, participation=ONCE)
    given_mechanism = tff_mf.Dense(matrix=np.tril(wanted.encoder(40)), optimized_for=optimized_for)
    result = tff_mf.optimize_banded_plus_low_rank(mechanism=given_mechanism, diagonals=2, rank=rank)
    assert result.optimized_for.search.history[-1] < 1e-3
