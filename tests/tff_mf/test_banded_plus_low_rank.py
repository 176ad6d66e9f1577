import functools
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_mf

ONCE = tff_mf.SingleParticipation()


@functools.cache
def dense(rounds):
    return tff_mf.optimize_dense(rounds=rounds, participation=ONCE)


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


@pytest.mark.once
@pytest.mark.parametrize(("rounds", "diagonals", "rank", "published"), [(256, 4, 4, 40.4), (512, 5, 4, 62.2)])
def test_published_errors_are_reached(rounds, diagonals, rank, published):
    # Denisov et al. (2022), table 2, column Efficient.
    result = tff_mf.optimize_banded_plus_low_rank(mechanism=dense(rounds), diagonals=diagonals, rank=rank)
    assert round(result.optimized_for.search.loss * rounds**0.5, 1) <= published
    assert result.optimized_for.search.loss >= tff_mf.rms_loss(dense(rounds), rounds, ONCE)
    assert result.optimized_for.search.loss == tff_mf.rms_loss(result, rounds, ONCE)


def test_sensitivity_is_that_of_the_fitted_matrix():
    fitted = tff_mf.optimize_banded_plus_low_rank(mechanism=dense(128), diagonals=3, rank=2)
    encoder = np.linalg.solve(fitted.decoder(128), np.tri(128))
    largest = np.max(np.linalg.norm(encoder, axis=0))
    assert tff_mf.sensitivity(fitted, 128, ONCE) == pytest.approx(largest, rel=1e-10)
    assert largest > 1.001 * tff_mf.sensitivity(dense(128), 128, ONCE)


def test_all_diagonals_are_the_decoder_itself():
    result = tff_mf.optimize_banded_plus_low_rank(mechanism=dense(8), diagonals=7, rank=1)
    np.testing.assert_allclose(result.encoder(8), dense(8).encoder(8), atol=1e-8)


@pytest.mark.parametrize("rank", [1, 3])
def test_a_decoder_of_the_same_structure_is_recovered(rank):
    wanted = random(40, 2, rank)
    optimized_for = tff_mf.OptimizedFor(rounds=40, participation=ONCE)
    given_mechanism = tff_mf.Dense(matrix=np.tril(wanted.encoder(40)), optimized_for=optimized_for)
    result = tff_mf.optimize_banded_plus_low_rank(mechanism=given_mechanism, diagonals=2, rank=rank)
    assert result.optimized_for.search.history[-1] < 1e-3


def test_a_decoder_without_entries_below_the_diagonals():
    twice = tff_mf.Dense(
        matrix=np.tri(6), optimized_for=tff_mf.OptimizedFor(rounds=6, participation=tff_mf.SingleParticipation())
    )
    result = tff_mf.optimize_banded_plus_low_rank(mechanism=twice, diagonals=2, rank=1)
    assert result.optimized_for.converged
    np.testing.assert_allclose(result.decoder(6), np.eye(6), atol=1e-15)


def test_distance_never_rises():
    history = tff_mf.optimize_banded_plus_low_rank(
        mechanism=dense(64), diagonals=3, rank=3
    ).optimized_for.search.history
    assert all(after <= before for before, after in itertools.pairwise(history))
