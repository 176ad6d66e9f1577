import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_mf


@functools.cache
def found(rounds, participation, workload=None):
    return tff_mf.optimize_dense(rounds=rounds, participation=participation, workload=workload)


def epochs(rounds, min_sep, max_participations=None):
    most = (rounds - 1) // min_sep + 1
    return tff_mf.FixedEpoch(
        min_sep=min_sep, max_participations=most if max_participations is None else max_participations
    )


def squared_error(workload, gram):
    return np.trace(workload @ np.linalg.solve(gram, workload.T))


@pytest.mark.parametrize("workload", [None, tff_mf.Momentum(momentum=0.9)])
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_no_feasible_matrix_is_below_the_bound(workload, rounds, min_sep, seed):
    """Random X near the optimum and elsewhere, scaled to be feasible, are never better than the dual bound."""
    min_sep = min(min_sep, rounds)
    participation = epochs(rounds, min_sep)
    result = found(rounds, participation, workload)
    matrix = np.tri(rounds) if workload is None else workload.matrix(rounds)
    generator = np.random.default_rng(seed)
    noise = generator.standard_normal((rounds, rounds))
    gram = result.matrix.T @ result.matrix + generator.choice([0.01, 0.1]) * noise @ noise.T / rounds
    same = (np.arange(rounds)[:, None] - np.arange(rounds)) % min_sep == 0
    if participation.max_participations > 1:
        gram[same & ~np.eye(rounds, dtype=bool)] = 0.0
        classes = [np.trace(gram[place::min_sep, place::min_sep]) for place in range(min_sep)]
        scale = np.resize(classes, rounds) ** -0.5
    else:
        scale = np.diagonal(gram) ** -0.5
    gram *= scale[:, None] * scale
    if np.linalg.eigvalsh(gram)[0] > 0:
        least = result.optimized_for.search.loss**2 * rounds * (1 - result.optimized_for.duality_gap)
        assert squared_error(matrix, gram) >= least * (1 - 1e-9)


@given(st.integers(1, 40), st.integers(1, 40))
def test_constraints_hold_and_the_duality_gap_is_small(rounds, min_sep):
    min_sep = min(min_sep, rounds)
    participation = epochs(rounds, min_sep)
    result = found(rounds, participation)
    sensitivity = tff_mf.explain_sensitivity(result, rounds, participation)
    assert result.optimized_for.converged
    assert 0 <= result.optimized_for.duality_gap <= 5e-5
    assert sensitivity.exact
    assert sensitivity.value == pytest.approx(1.0, rel=1e-12)
    assert result.optimized_for.search.loss == pytest.approx(tff_mf.rms_loss(result, rounds, participation), rel=1e-12)
    assert result.optimized_for.search.loss <= tff_mf.rms_loss(tff_mf.Identity(), rounds, participation) * (1 + 1e-12)


@pytest.mark.parametrize("min_sep", [4, 10, 31])
def test_min_sep_has_equal_norms_and_a_larger_bound(min_sep):
    schema = tff_mf.MinSep(min_sep=min_sep, max_participations=119 // min_sep + 1)
    result = found(120, schema)
    norms = np.linalg.norm(result.matrix, axis=0)
    np.testing.assert_allclose(norms, norms[0], rtol=1e-12)
    fixed = tff_mf.rms_loss(result, 120, epochs(120, min_sep, schema.max_participations))
    best = found(120, epochs(120, min_sep)).optimized_for.search.loss
    assert result.optimized_for.converged
    assert best * (1 - 1e-4) <= fixed <= result.optimized_for.search.loss
    assert "of equal norms" in result.optimized_for.search.message
