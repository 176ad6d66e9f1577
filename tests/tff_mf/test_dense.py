import dataclasses

import numpy as np
import pytest

import tff_mf


def lower(rounds, seed=0):
    generator = np.random.default_rng(seed)
    return np.tril(generator.standard_normal((rounds, rounds))) * 0.3 + np.eye(rounds) * 2


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
    run = mechanism.cast_to_float32()
    assert np.array_equal(run.inverse(30).astype(np.float32), mechanism.inverse(30).astype(np.float32))
    np.testing.assert_allclose(run.inverse(30), mechanism.inverse(30).astype(np.float32), atol=1e-15)
    assert run.cast_to_float32() == run or np.allclose(run.cast_to_float32().matrix, run.matrix, rtol=1e-12, atol=1e-14)


def test_privacy_is_accounted_for_what_runs():
    # C⁻¹ = 1 + 3e-8 rounds to 1 in float32: C grows.
    mechanism = tff_mf.Dense(matrix=[[1 / (1 + 3e-8)]])
    once = tff_mf.SingleParticipation()
    assert tff_mf.sensitivity(mechanism, 1, once) < 1
    assert tff_mf.guarantee(mechanism, 1, once, noise_multiplier=1.0).mu >= 1.0


def test_an_inverse_beyond_float32_is_refused_where_it_would_run():
    mechanism = tff_mf.Dense(matrix=[[1e-60]])
    with pytest.raises(tff_mf.InputError, match="does not fit into float32"):
        mechanism.cast_to_float32()


def test_equality_and_hash():
    one, same = tff_mf.Dense(matrix=lower(4)), tff_mf.Dense(matrix=lower(4).tolist())
    assert one == same
    assert hash(one) == hash(same)
    assert one != tff_mf.Dense(matrix=lower(4, seed=1))
    assert one != dataclasses.replace(
        one, optimized_for=tff_mf.OptimizedFor(rounds=4, participation=tff_mf.SingleParticipation())
    )
    assert one != tff_mf.Identity()
    zeros = tff_mf.Dense(matrix=[[1.0, -0.0], [-0.0, 1.0]])
    assert hash(zeros) == hash(tff_mf.Dense(matrix=np.eye(2)))
