import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_mf

SIX = tff_mf.FixedEpoch(min_sep=4, max_participations=6)


def lower(rounds, seed=0):
    generator = np.random.default_rng(seed)
    return np.tril(generator.standard_normal((rounds, rounds))) * 0.3 + np.eye(rounds) * 2


@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_inverse_is_the_inverse(rounds, seed):
    mechanism = tff_mf.Dense(matrix=lower(rounds, seed) + 3 * np.eye(rounds))
    np.testing.assert_allclose(mechanism.encoder(rounds) @ mechanism.inverse(rounds), np.eye(rounds), atol=1e-13)
    assert not np.any(np.triu(mechanism.inverse(rounds), 1))


def test_fewer_rounds_are_the_first_of_all():
    mechanism = tff_mf.Dense(matrix=lower(7))
    assert np.array_equal(mechanism.encoder(4), lower(7)[:4, :4])
    np.testing.assert_allclose(mechanism.inverse(4), mechanism.inverse(7)[:4, :4], atol=1e-15)
    with pytest.raises(tff_mf.InputError, match="rounds=8 is more than the 7"):
        mechanism.encoder(8)


def test_the_matrix_cannot_be_changed_from_outside():
    matrix = lower(3)
    mechanism = tff_mf.Dense(matrix=matrix)
    matrix[0, 0] = 100.0
    mechanism.encoder(3)[0, 0] = 100.0
    assert mechanism.matrix[0, 0] < 10
    with pytest.raises(ValueError, match="read-only"):
        mechanism.matrix[0, 0] = 100.0


def test_what_runs_is_the_inverse_in_float32():
    mechanism = tff_mf.Dense(matrix=lower(30))
    run = mechanism.as_run()
    assert np.array_equal(run.inverse(30).astype(np.float32), mechanism.inverse(30).astype(np.float32))
    np.testing.assert_allclose(run.inverse(30), mechanism.inverse(30).astype(np.float32), atol=1e-15)
    assert run.as_run() == run or np.allclose(run.as_run().matrix, run.matrix, rtol=1e-12, atol=1e-14)


def test_privacy_is_accounted_for_what_runs():
    # C⁻¹ = 1 + 3e-8 rounds to 1 in float32: C grows.
    mechanism = tff_mf.Dense(matrix=[[1 / (1 + 3e-8)]])
    once = tff_mf.SingleParticipation()
    assert tff_mf.sensitivity(mechanism, 1, once) < 1
    assert tff_mf.effective_noise_multiplier(mechanism, 1, once, noise_multiplier=1.0) == 1.0


def test_an_inverse_beyond_float32_is_refused_where_it_would_run():
    mechanism = tff_mf.Dense(matrix=[[1e-60]])
    with pytest.raises(tff_mf.InputError, match="does not fit into float32"):
        mechanism.as_run()


def test_equality_and_hash():
    one, same = tff_mf.Dense(matrix=lower(4)), tff_mf.Dense(matrix=lower(4).tolist())
    assert one == same
    assert hash(one) == hash(same)
    assert one != tff_mf.Dense(matrix=lower(4, seed=1))
    assert one != dataclasses.replace(
        one, made_for=tff_mf.MadeFor(rounds=4, participation=tff_mf.SingleParticipation())
    )
    assert one != tff_mf.Identity()
    zeros = tff_mf.Dense(matrix=[[1.0, -0.0], [-0.0, 1.0]])
    assert hash(zeros) == hash(tff_mf.Dense(matrix=np.eye(2)))


@pytest.mark.parametrize(
    ("matrix", "error", "message"),
    [
        ("abc", TypeError, "must hold numbers"),
        ([[1j]], TypeError, "must hold numbers"),
        ([[True]], TypeError, "must hold numbers"),
        ([1.0], ValueError, "must be square"),
        ([[1.0, 0.0]], ValueError, "must be square"),
        (np.zeros((0, 0)), ValueError, "must be square"),
        (np.ones((2, 2)), ValueError, "must be lower-triangular"),
        ([[1.0, 5e-324], [0.0, 1.0]], ValueError, "must be lower-triangular"),
        ([[1.0, 0.0], [1.0, 0.0]], ValueError, r"matrix\[1, 1\]=0.0 on the diagonal must be greater than 0"),
        ([[-1.0]], ValueError, r"matrix\[0, 0\]=-1.0 on the diagonal must be greater than 0"),
        ([[np.nan]], ValueError, "NaN or infinity"),
        ([[np.inf]], ValueError, "NaN or infinity"),
    ],
)
def test_bad_matrices_are_named(matrix, error, message):
    with pytest.raises(error, match=message) as raised:
        tff_mf.Dense(matrix=matrix)
    assert isinstance(raised.value, tff_mf.InputError)


MECHANISMS = [
    tff_mf.Dense(matrix=lower(5)),
    tff_mf.Dense(matrix=lower(24), made_for=tff_mf.MadeFor(rounds=24, participation=SIX, duality_gap=1.5e-5)),
    tff_mf.Tree(9, variant="full"),
    tff_mf.Tree(24, variant="online", made_for=tff_mf.MadeFor(rounds=24, participation=SIX)),
]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.kind)
def test_it_comes_back_from_a_file_to_the_bit(mechanism, tmp_path):
    tff_mf.save(mechanism, tmp_path / "artifact")
    loaded = tff_mf.load(tmp_path / "artifact")
    assert loaded == mechanism
    assert loaded.made_for == mechanism.made_for
    assert loaded.encoder(5).tobytes() == mechanism.encoder(5).tobytes()


def test_the_gap_of_an_artifact_must_be_a_number():
    with pytest.raises(tff_mf.InputError, match="duality_gap=-1"):
        tff_mf.MadeFor(rounds=24, participation=SIX, duality_gap=-1.0)
