"""Sensitivity over patterns that were observed."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_mf

rng = np.random.default_rng(11)
MECHANISMS = [
    tff_mf.Identity(),
    tff_mf.BLT(theta=[0.9, 0.4], omega=[0.2, 0.5]),
    tff_mf.BandedToeplitz(column=[1.0, -0.5, 0.25]),
    tff_mf.Dense(matrix=np.tril(rng.normal(size=(12, 12)), -1) + np.diag(rng.uniform(0.5, 2, 12))),
    tff_mf.Tree(12),
    tff_mf.Tree(12, variant="online"),
    tff_mf.Tree(12, variant="vanilla"),
]
patterns = st.lists(st.sets(st.integers(0, 11), max_size=4).map(sorted), max_size=6)


@given(st.sampled_from(MECHANISMS), patterns, st.sampled_from([None, 3, 5, 12]))
def test_no_contributions_exceed_the_sensitivity(mechanism, several, every):
    encoder = mechanism.encoder(12)
    if every is not None:
        whole, encoder = encoder, np.zeros((12, 12))
        for begin in range(0, 12, every):
            end = min(begin + every, 12)
            encoder[begin:end, begin:end] = whole[: end - begin, : end - begin]
    worst = 0.0
    for pattern in several:
        for signs in range(2 ** max(len(pattern) - 1, 0)):
            weights = np.array([1 - 2 * (signs >> index & 1) for index in range(len(pattern))])
            worst = max(worst, float(np.sum(np.square(encoder[:, pattern] @ weights))))
    found = tff_mf.pattern_sensitivity(mechanism, 12, several, restart_every=every)
    assert found.value >= math.sqrt(worst) * (1 - 1e-12)
    if found.exact:
        assert found.value == pytest.approx(math.sqrt(worst), rel=1e-9)


def test_a_shorter_last_restart_ends_with_the_run():
    """Rounds 10 and 11 are the first two of a restart of 5, whose later rounds are not part of the run."""
    encoder = np.tril(np.ones((5, 5)))
    found = tff_mf.pattern_sensitivity(tff_mf.Dense(matrix=encoder), 12, [(10,), (11,)], restart_every=5)
    assert found.exact
    assert found.value == pytest.approx(2**0.5)
    whole = tff_mf.pattern_sensitivity(tff_mf.Dense(matrix=encoder), 15, [(10,), (11,)], restart_every=5)
    assert whole.value == pytest.approx(5**0.5)


@pytest.mark.parametrize("mechanism", MECHANISMS[:2] + MECHANISMS[4:5])
def test_all_patterns_of_a_schema_have_its_sensitivity(mechanism):
    schema = tff_mf.MinSep(min_sep=4, max_participations=3)
    found = tff_mf.pattern_sensitivity(mechanism, 12, schema.patterns(12))
    assert found.exact
    assert found.value == pytest.approx(tff_mf.sensitivity(mechanism, 12, schema), rel=1e-12)
    restarted = tff_mf.pattern_sensitivity(mechanism, 12, schema.patterns(12), restart_every=6)
    if not isinstance(mechanism, tff_mf.Tree):
        bound = tff_mf.restart_sensitivity(mechanism, 12, schema, restart_every=6)
        assert restarted.value <= bound.value * (1 + 1e-12)


def test_no_patterns_have_sensitivity_zero():
    assert tff_mf.pattern_sensitivity(tff_mf.Identity(), 5, [()]).value == 0
