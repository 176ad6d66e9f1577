"""Every optimizer: what it states of a mechanism is so, and of tiny ones no other mechanism is better."""

import math

import numpy as np
import pytest
import scipy.optimize
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tff_mf
from tff_mf.mechanisms import OptimizedFor

from .oracles import largest_norm, schemas

ONCE = tff_mf.SingleParticipation()
RATES = tff_mf.LinearSchedule(warmup_rounds=2, cooldown_rounds=1, cooldown_to=0.25)
LOSSES = {"rms": tff_mf.rms_loss, "max": tff_mf.max_loss}
# Of rounds, a schema and an objective.
OPTIMIZERS = {
    "blt": lambda **asked: tff_mf.optimize_blt(**asked, buffers=2),
    "blt of any size": tff_mf.optimize_blt,
    "scaled blt": lambda **asked: tff_mf.optimize_scaled_blt(**asked, buffers=1),
    "banded": lambda **asked: tff_mf.optimize_banded(**asked, bands=bands_of(asked)),
    "banded, of other norms": lambda **asked: tff_mf.optimize_banded(**asked, bands=bands_of(asked), unit_norms=False),
    "banded toeplitz": lambda **asked: tff_mf.optimize_banded_toeplitz(**asked, bands=bands_of(asked)),
    "dense": lambda objective, **asked: tff_mf.optimize_dense(**asked),
}


def bands_of(asked):
    return min(getattr(asked["participation"], "min_sep", 3), asked["rounds"], 3)


@st.composite
def small(draw):
    rounds = draw(st.integers(1, 10))
    return rounds, draw(st.just(ONCE) | schemas(rounds))


@pytest.mark.parametrize("objective", LOSSES)
@pytest.mark.parametrize("name", OPTIMIZERS)
@settings(max_examples=6)
@example((2, tff_mf.MinSep(min_sep=1, max_participations=2)))
@example((12, tff_mf.MinSep(min_sep=10**15, max_participations=1)))
@given(small())
def test_the_stated_loss_is_that_of_dense_matrices_and_between_the_bounds(name, objective, setting):
    rounds, schema = setting
    objective = "rms" if name == "dense" else objective
    found = OPTIMIZERS[name](rounds=rounds, participation=schema, objective=objective)
    search = found.optimized_for.search
    encoder = found.encoder(rounds)
    variances = np.sum(np.square(np.tri(rounds) @ np.linalg.inv(encoder)), axis=1)
    error = math.sqrt(variances.mean() if objective == "rms" else variances.max())
    sensitivity = tff_mf.explain_sensitivity(found, rounds, schema)
    assert largest_norm(encoder, schema.patterns(rounds)) <= sensitivity.value * (1 + 1e-9)
    assert search.loss == pytest.approx(sensitivity.value * error, rel=1e-9)
    assert search.loss == pytest.approx(LOSSES[objective](found, rounds, schema), rel=1e-12)
    assert tff_mf.least_loss(rounds, schema, objective) <= search.loss
    assert search.objective == objective
    assert (found.optimized_for.rounds, found.optimized_for.participation) == setting
    assert sensitivity.exact or name == "dense"
    if name.startswith("blt"):
        # As it runs, too.
        assert tff_mf.explain_sensitivity(found.cast_to_float32(), rounds, schema).exact
    if name != "dense" or not isinstance(schema, tff_mf.MinSep):
        assert search.loss <= LOSSES[objective](tff_mf.Identity(), rounds, schema) * (1 + 1e-6)


@pytest.mark.parametrize(
    ("buffers", "objective", "target"),
    [(2, "max", 10.8063), (3, "max", 10.7514), (4, "max", 10.735), (3, "rms", 9.172)],
)
def test_published_losses_of_blts_are_reached(buffers, objective, target):
    schema = tff_mf.MinSep(min_sep=342, max_participations=6)
    mechanism = tff_mf.optimize_blt(rounds=2052, participation=schema, buffers=buffers, objective=objective)
    search = mechanism.optimized_for.search
    assert search.gradient_norm < 1e-6
    assert mechanism.optimized_for == OptimizedFor(rounds=2052, participation=schema, converged=True)
    assert search.loss <= target
    assert search.history[-1] == pytest.approx(search.loss, rel=1e-10)


@pytest.mark.parametrize("objective", LOSSES)
@pytest.mark.parametrize(
    ("rounds", "schema"),
    [
        (128, tff_mf.MinSep(min_sep=32, max_participations=4)),
        (100, tff_mf.FixedEpoch(min_sep=30, max_participations=4)),
    ],
)
def test_scaled_columns_never_lose_against_the_blt(rounds, schema, objective):
    setting = {"rounds": rounds, "participation": schema, "buffers": 2, "objective": objective}
    found, blt = tff_mf.optimize_scaled_blt(**setting), tff_mf.optimize_blt(**setting)
    assert found.optimized_for.search.loss <= blt.optimized_for.search.loss * (1 + 1e-6)


@given(st.integers(1, 40), st.integers(1, 40))
def test_the_gap_of_a_dense_matrix_is_small(rounds, min_sep):
    min_sep = min(min_sep, rounds)
    schema = tff_mf.FixedEpoch(min_sep=min_sep, max_participations=(rounds - 1) // min_sep + 1)
    found = tff_mf.optimize_dense(rounds=rounds, participation=schema)
    assert found.optimized_for.converged
    assert 0 <= found.optimized_for.duality_gap <= 5e-5
    sensitivity = tff_mf.explain_sensitivity(found, rounds, schema)
    assert sensitivity.exact
    assert sensitivity.value == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("min_sep", [4, 31])
def test_a_dense_matrix_for_min_sep_has_equal_norms_and_a_larger_bound(min_sep):
    most = 119 // min_sep + 1
    schema, epochs = (kind(min_sep=min_sep, max_participations=most) for kind in (tff_mf.MinSep, tff_mf.FixedEpoch))
    found, best = (tff_mf.optimize_dense(rounds=120, participation=each) for each in (schema, epochs))
    norms = np.linalg.norm(found.matrix, axis=0)
    np.testing.assert_allclose(norms, norms[0], rtol=1e-12)
    fixed = tff_mf.rms_loss(found, 120, epochs)
    assert best.optimized_for.search.loss * (1 - 1e-4) <= fixed <= found.optimized_for.search.loss


def convex_oracle(optimized_for, bands, *, unit):
    """RmsLoss by a general solver over X = CᵀC with its constraints, as in Choquette-Choo et al. (2023)."""
    rounds, schema = optimized_for.rounds, optimized_for.participation
    workload = optimized_for.workload.matrix(rounds)
    rows, columns = (
        np.array(each)
        for each in zip(*[(i, j) for i in range(rounds) for j in range(i + 1) if i - j < bands], strict=True)
    )
    on_diagonal = rows == columns

    def gram(entries):
        matrix = np.zeros((rounds, rounds))
        matrix[rows, columns] = matrix[columns, rows] = entries
        return matrix

    def log_error(entries):
        matrix = gram(entries)
        if np.linalg.eigvalsh(matrix)[0] < 1e-9:
            return 1e3, np.zeros_like(entries)
        solved = np.linalg.solve(matrix, workload.T)
        error = np.sum(workload.T * solved)
        by_matrix = -solved @ solved.T
        return np.log(error), by_matrix[rows, columns] * np.where(on_diagonal, 1, 2) / error

    patterns = [pattern for pattern in schema.patterns(rounds) if pattern]
    members = np.array([np.isin(np.arange(rounds), pattern) for pattern in patterns], dtype=float)
    select = np.eye(len(rows))[on_diagonal]
    if unit:
        constraints = {"type": "eq", "fun": lambda entries: entries[on_diagonal] - 1, "jac": lambda _: select}
    else:
        constraints = {
            "type": "ineq",
            "fun": lambda entries: schema.max_participations - members @ entries[on_diagonal],
            "jac": lambda _: -members @ select,
        }
    found = scipy.optimize.minimize(
        log_error,
        np.where(on_diagonal, 0.999, 0.0),
        jac=True,
        method="SLSQP",
        constraints=constraints,
        options={"ftol": 1e-12, "maxiter": 500},
    )
    return np.sqrt(np.exp(found.fun) * schema.max_participations / rounds)


@pytest.mark.parametrize("workload", [tff_mf.PrefixSum(), tff_mf.MomentumWithRates(rates=RATES, momentum=0.5)])
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize(
    ("rounds", "bands", "schema"),
    [
        (8, 3, tff_mf.MinSep(min_sep=3, max_participations=2)),
        (8, 4, tff_mf.MinSep(min_sep=5, max_participations=2)),
        (8, 1, tff_mf.MinSep(min_sep=2, max_participations=4)),
        (6, 3, tff_mf.FixedEpoch(min_sep=3, max_participations=2)),
        (7, 2, tff_mf.FixedEpoch(min_sep=3, max_participations=3)),
        (6, 6, ONCE),
        (7, 3, ONCE),
    ],
)
def test_tiny_matrices_are_the_best(rounds, bands, schema, unit, workload):
    asked = {"rounds": rounds, "participation": schema, "workload": workload}
    mechanism = tff_mf.optimize_banded(**asked, bands=bands, unit_norms=unit)
    oracle = convex_oracle(mechanism.optimized_for, bands, unit=unit)
    for each in [mechanism] if bands < rounds or unit else [mechanism, tff_mf.optimize_dense(**asked)]:
        assert oracle * (1 - 1e-6) <= each.optimized_for.search.loss <= oracle * (1 + 2e-4)
    assert tff_mf.sensitivity(mechanism, rounds, schema) == pytest.approx(np.sqrt(schema.max_participations), rel=1e-9)
    if unit:
        np.testing.assert_allclose(np.sum(np.square(mechanism.values), axis=0), 1, rtol=1e-12)
