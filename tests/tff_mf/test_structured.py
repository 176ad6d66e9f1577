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
    return tff_mf.Structured(
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


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_encoder_inverse_and_decoder_belong_together(rounds, fewer, seed):
    mechanism = random(rounds, min(3, rounds), 2, seed)
    fewer = min(fewer, rounds)
    sums = np.tri(fewer)
    np.testing.assert_allclose(mechanism.decoder(fewer) @ mechanism.encoder(fewer), sums, atol=1e-12)
    np.testing.assert_allclose(sums @ mechanism.inverse(fewer), mechanism.decoder(fewer), atol=1e-14)
    np.testing.assert_allclose(mechanism.inverse(fewer), mechanism.inverse(rounds)[:fewer, :fewer], atol=1e-14)


def test_what_runs_has_the_memory_it_claims():
    """The recursion of Denisov et al. (2022), algorithm 3, against the decoder."""
    mechanism, noise = random(20, 3, 2), np.random.default_rng(1).standard_normal((20, 4))
    recent, sums, rows = [], np.zeros((2, 4)), []
    for row, new in enumerate(noise):
        recent = [new, *recent]
        if len(recent) > 3:
            sums += np.outer(mechanism.right[row - 3], recent.pop())
        near = sum(mechanism.diagonals[offset, row] * each for offset, each in enumerate(recent))
        rows.append(near + mechanism.left[row] @ sums)
    np.testing.assert_allclose(rows, mechanism.decoder(20) @ noise, atol=1e-13)


@pytest.mark.once
@pytest.mark.parametrize(("rounds", "diagonals", "rank", "published"), [(256, 4, 4, 40.4), (512, 5, 4, 62.2)])
def test_it_is_as_good_as_published(rounds, diagonals, rank, published):
    # Denisov et al. (2022), table 2, column Efficient.
    result = tff_mf.optimize_structured_result(mechanism=dense(rounds), diagonals=diagonals, rank=rank)
    assert round(result.loss * rounds**0.5, 1) <= published
    assert result.loss >= tff_mf.rms_loss(dense(rounds), rounds, ONCE)
    assert result.loss == tff_mf.rms_loss(result.mechanism, rounds, ONCE)


def test_its_sensitivity_is_its_own():
    fitted = tff_mf.optimize_structured(mechanism=dense(128), diagonals=3, rank=2)
    encoder = np.linalg.solve(fitted.decoder(128), np.tri(128))
    largest = np.max(np.linalg.norm(encoder, axis=0))
    assert tff_mf.sensitivity(fitted, 128, ONCE) == pytest.approx(largest, rel=1e-10)
    assert largest > 1.001 * tff_mf.sensitivity(dense(128), 128, ONCE)


def test_all_diagonals_are_the_decoder_itself():
    result = tff_mf.optimize_structured_result(mechanism=dense(8), diagonals=7, rank=1)
    np.testing.assert_allclose(result.mechanism.encoder(8), dense(8).encoder(8), atol=1e-8)


@pytest.mark.parametrize("rank", [1, 3])
def test_a_decoder_of_that_structure_is_found(rank):
    wanted = random(40, 2, rank)
    made_for = tff_mf.MadeFor(rounds=40, participation=ONCE)
    given_mechanism = tff_mf.Dense(matrix=np.tril(wanted.encoder(40)), made_for=made_for)
    result = tff_mf.optimize_structured_result(mechanism=given_mechanism, diagonals=2, rank=rank)
    assert result.history[-1] < 1e-3


def test_nothing_below_the_diagonals_is_no_trouble():
    twice = tff_mf.Dense(
        matrix=np.tri(6), made_for=tff_mf.MadeFor(rounds=6, participation=tff_mf.SingleParticipation())
    )
    result = tff_mf.optimize_structured_result(mechanism=twice, diagonals=2, rank=1)
    assert result.converged
    np.testing.assert_allclose(result.mechanism.decoder(6), np.eye(6), atol=1e-15)


def test_distance_never_rises():
    history = tff_mf.optimize_structured_result(mechanism=dense(64), diagonals=3, rank=3).history
    assert all(after <= before for before, after in itertools.pairwise(history))


def test_what_runs_is_float32():
    run = random(10, 3, 2).as_run()
    for array in (run.diagonals, run.left, run.right):
        assert np.array_equal(array, array.astype(np.float32))
    assert run.as_run() == run


def test_it_comes_back_from_a_file_to_the_bit(tmp_path):
    fitted = tff_mf.optimize_structured(mechanism=dense(64), diagonals=3, rank=2)
    tff_mf.save(fitted, tmp_path / "artifact")
    loaded = tff_mf.load(tmp_path / "artifact")
    assert loaded == fitted
    assert hash(loaded) == hash(fitted)
    assert loaded != random(64, 3, 2)


GOOD = {"diagonals": [[1.0, 1.0]], "left": [[1.0], [1.0]], "right": [[1.0], [1.0]]}


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"diagonals": "abc"}, TypeError, "diagonals of type"),
        ({"diagonals": [1.0]}, ValueError, r"diagonals of shape \(1,\)"),
        ({"diagonals": [[1.0, 0.0]]}, ValueError, r"diagonals\[0, 1\]=0.0 must be greater than 0"),
        ({"diagonals": [[1.0, 1.0]] * 3}, ValueError, "must be no more than the 2 rounds"),
        ({"diagonals": [[1.0, np.nan]]}, ValueError, "diagonals holds NaN"),
        ({"left": [[1.0]]}, ValueError, "must both have 2 rows, one per round"),
        ({"right": [[1.0, 1.0], [1.0, 1.0]]}, ValueError, "the same number of columns"),
        ({"left": [[np.inf], [0.0]]}, ValueError, "left holds NaN or infinity"),
    ],
)
def test_bad_fields_are_named(changed, error, message):
    with pytest.raises(error, match=message) as raised:
        tff_mf.Structured(**(GOOD | changed))
    assert isinstance(raised.value, tff_mf.InputError)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"mechanism": "dense"}, TypeError, "mechanism='dense'"),
        ({"mechanism": tff_mf.Identity()}, ValueError, "must have been made for a setting"),
        ({"diagonals": 0}, ValueError, "diagonals=0"),
        ({"rank": 0}, ValueError, "rank=0"),
        ({"rank": 8}, ValueError, "diagonals=1 and rank=8 are together more than rounds=8"),
    ],
)
def test_bad_input_is_named(changed, error, message):
    with pytest.raises(error, match=message) as raised:
        tff_mf.optimize_structured(**({"mechanism": dense(8), "diagonals": 1, "rank": 1} | changed))
    assert isinstance(raised.value, tff_mf.InputError)
