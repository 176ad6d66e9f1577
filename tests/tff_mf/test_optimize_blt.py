import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf.optimize._blt_loss import BLTLoss

PAPER = tff_mf.OptimizedFor(rounds=2052, participation=tff_mf.MinSep(min_sep=342, max_participations=6))
OBJECTIVES = ("max", "rms")


def setting(rounds, min_sep, max_participations):
    schema = tff_mf.MinSep(min_sep=min_sep, max_participations=max_participations)
    return tff_mf.OptimizedFor(rounds=rounds, participation=schema)


def found(optimized_for, buffers=None, objective="max"):
    return tff_mf.optimize_blt(
        rounds=optimized_for.rounds, participation=optimized_for.participation, buffers=buffers, objective=objective
    )


@st.composite
def settings(draw):
    rounds = draw(st.integers(1, 40))
    max_participations = draw(st.integers(1, min(rounds, 6)))
    min_sep = draw(st.integers(1, max(1, (rounds - 1) // max(max_participations - 1, 1))))
    return setting(rounds, min_sep, max_participations)


@st.composite
def variables(draw, slowest=-8.0):
    """Increments from e^slowest to e²: decays near 1 and 0, and nearly coinciding ones."""
    buffers = draw(st.integers(1, 4))
    return np.array(draw(st.lists(st.floats(slowest, 2.0), min_size=2 * buffers, max_size=2 * buffers)))


def dense_loss(mechanism, optimized_for, objective):
    """The definition, from dense matrices."""
    rounds, schema = optimized_for.rounds, optimized_for.participation
    pattern = np.zeros(rounds)
    pattern[: (schema.max_participations - 1) * schema.min_sep + 1 : schema.min_sep] = 1
    encoder = mechanism.encoder(rounds)
    variances = np.sum(np.square(np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(encoder)), axis=1)
    error = np.sqrt(variances.max() if objective == "max" else variances.mean())
    return np.linalg.norm(encoder @ pattern) * error


def loss_of(mechanism, optimized_for, objective):
    loss = tff_mf.max_loss if objective == "max" else tff_mf.rms_loss
    return loss(mechanism, optimized_for.rounds, optimized_for.participation)


@given(variables(), settings(), st.sampled_from(OBJECTIVES))
def test_loss_is_that_of_the_dense_matrices(variables, optimized_for, objective):
    loss = BLTLoss(optimized_for, objective, len(variables) // 2)
    mechanism = tff_mf.BLT(**loss.parameters(variables)._asdict())
    expected = dense_loss(mechanism, optimized_for, objective)
    assert np.exp(loss(variables)[0]) == pytest.approx(expected, rel=1e-10)


@given(variables(slowest=-16.0), st.sampled_from(OBJECTIVES))
def test_loss_is_that_of_the_summed_coefficients(variables, objective):
    optimized_for = setting(200_000, 30_000, 6)
    loss = BLTLoss(optimized_for, objective, len(variables) // 2)
    mechanism = tff_mf.BLT(**loss.parameters(variables)._asdict())
    # The tolerance is for θ, which is rounded to 1e-16, while 1 − θ is down to 1e-7; the loss itself is more accurate.
    assert np.exp(loss(variables)[0]) == pytest.approx(loss_of(mechanism, optimized_for, objective), rel=1e-8)


@pytest.mark.parametrize(
    ("buffers", "objective", "target"),
    [(2, "max", 10.8063), (3, "max", 10.7514), (4, "max", 10.735), (3, "rms", 9.172)],
)
def test_published_losses_are_reached(buffers, objective, target):
    mechanism = found(PAPER, buffers, objective)
    search = mechanism.optimized_for.search
    assert search.objective == objective
    assert search.gradient_norm < 1e-6
    assert mechanism.buffers == buffers
    assert mechanism.optimized_for == dataclasses.replace(PAPER, converged=True)
    assert search.loss <= target
    loss = tff_mf.max_loss if objective == "max" else tff_mf.rms_loss
    assert search.loss == pytest.approx(loss(mechanism, PAPER.rounds, PAPER.participation), rel=1e-12)
    assert search.history[-1] == pytest.approx(search.loss, rel=1e-10)


@pytest.mark.once
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("buffers", [1, 3, None])
@pytest.mark.parametrize(
    "optimized_for",
    [
        *(setting(1, 1, 1), setting(2, 1, 1), setting(2, 1, 2), setting(3, 1, 1), setting(3, 1, 2), setting(3, 2, 2)),
        *(setting(30, 1, 30), setting(30, 1, 1), setting(30, 10**15, 1), setting(16, 2, 6), setting(36, 6, 6)),
    ],
    ids=str,
)
def test_small_and_crowded_settings(optimized_for, buffers, objective):
    result = found(optimized_for, buffers, objective)
    assert result.optimized_for.converged
    assert result.optimized_for.search.loss == pytest.approx(dense_loss(result, optimized_for, objective), rel=1e-10)
    assert result.optimized_for.search.loss <= dense_loss(tff_mf.Identity(), optimized_for, objective) * (1 + 1e-12)
    assert sum(result.omega) <= 1


@pytest.mark.once
@given(settings(), st.sampled_from(OBJECTIVES))
def test_the_exact_rule_holds_also_for_the_cast_parameters(optimized_for, objective):
    mechanism = found(optimized_for, 2, objective)
    for each in (mechanism, mechanism.cast_to_float32()):
        assert sum(each.omega) < 1
        assert tff_mf.explain_sensitivity(each, optimized_for.rounds, optimized_for.participation).exact
