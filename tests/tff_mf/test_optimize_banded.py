import dataclasses

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf.mechanisms import OptimizedFor
from tff_mf.problem.workloads import Workload

from .oracles import schemas

RATES = tff_mf.LinearSchedule(warmup_rounds=2, cooldown_rounds=1, cooldown_to=0.25)
OBJECTIVES = ("rms", "max")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weighted(Workload):
    """Prefix sums, of which the squared errors count by weights."""

    kind = "weighted"
    weights: tuple[float, ...]

    def matrix(self, rounds):
        return np.tril(np.tile(np.sqrt(self.weights)[:, None], rounds))


@st.composite
def settings(draw, largest=12):
    rounds = draw(st.integers(1, largest))
    return tff_mf.OptimizedFor(rounds=rounds, participation=draw(schemas(rounds)))


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
        (6, 2, tff_mf.MinSep(min_sep=2, max_participations=3)),
        (8, 3, tff_mf.MinSep(min_sep=3, max_participations=2)),
        (8, 4, tff_mf.MinSep(min_sep=5, max_participations=2)),
        (7, 3, tff_mf.MinSep(min_sep=3, max_participations=3)),
        (8, 1, tff_mf.MinSep(min_sep=2, max_participations=4)),
        (6, 3, tff_mf.FixedEpoch(min_sep=3, max_participations=2)),
        (7, 2, tff_mf.FixedEpoch(min_sep=3, max_participations=3)),
        (6, 6, tff_mf.SingleParticipation()),
        (7, 3, tff_mf.SingleParticipation()),
    ],
)
def test_tiny_matrices_are_the_best(rounds, bands, schema, unit, workload):
    mechanism = tff_mf.optimize_banded(
        rounds=rounds, bands=bands, participation=schema, unit_norms=unit, workload=workload
    )
    oracle = convex_oracle(mechanism.optimized_for, bands, unit=unit)
    assert mechanism.optimized_for.search.loss == pytest.approx(oracle, rel=2e-4)
    assert mechanism.optimized_for.search.loss >= oracle * (1 - 1e-6)
    found = tff_mf.explain_sensitivity(mechanism, rounds, schema)
    assert found.exact
    assert found.value == pytest.approx(np.sqrt(schema.max_participations), rel=1e-9)
    if unit:
        np.testing.assert_allclose(np.sum(np.square(mechanism.values), axis=0), 1, rtol=1e-12)


@pytest.mark.sampled
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize(
    ("rounds", "bands", "schema"),
    [
        (6, 2, tff_mf.MinSep(min_sep=2, max_participations=3)),
        (6, 3, tff_mf.FixedEpoch(min_sep=3, max_participations=2)),
        (6, 6, tff_mf.SingleParticipation()),
    ],
)
def test_the_largest_error_is_within_a_percent_of_the_least(rounds, bands, schema, unit):
    """Of tiny matrices: a mean of errors by any weights is less than their maximum, and the best weights reach it."""
    given = {"rounds": rounds, "bands": bands, "participation": schema, "unit_norms": unit}
    mechanism = tff_mf.optimize_banded(objective="max", **given)
    search, k = mechanism.optimized_for.search, schema.max_participations
    assert search.objective == "max"
    assert search.loss == tff_mf.max_loss(mechanism, rounds, schema) == pytest.approx(search.history[-1], rel=1e-9)
    assert search.loss <= tff_mf.max_loss(tff_mf.optimize_banded(**given), rounds, schema)
    assert tff_mf.explain_sensitivity(mechanism, rounds, schema).value == pytest.approx(np.sqrt(k), rel=1e-9)
    if unit:
        np.testing.assert_allclose(np.sum(np.square(mechanism.values), axis=0), 1, rtol=1e-12)

    def mean(logarithms):
        weights = np.exp(logarithms) / np.exp(logarithms).sum()
        weighted = OptimizedFor(rounds=rounds, participation=schema, workload=Weighted(weights=tuple(rounds * weights)))
        return -convex_oracle(weighted, bands, unit=unit)

    least = -scipy.optimize.minimize(mean, np.zeros(rounds), method="BFGS", options={"maxiter": 10}).fun
    assert least * (1 - 1e-6) <= search.loss <= 1.01 * least


@pytest.mark.once
@given(settings(largest=9), st.integers(1, 9), st.sampled_from(OBJECTIVES))
def test_toeplitz_matrices_of_any_setting(optimized_for, bands, objective):
    rounds, schema = optimized_for.rounds, optimized_for.participation
    bands = min(bands, rounds)
    arguments = {"rounds": rounds, "bands": bands, "participation": schema, "objective": objective}
    loss = tff_mf.rms_loss if objective == "rms" else tff_mf.max_loss
    identity = loss(tff_mf.Identity(), rounds, schema)
    result = tff_mf.optimize_banded_toeplitz(**arguments)
    assert result.optimized_for.search.loss == loss(result, rounds, schema)
    assert result.optimized_for.search.loss <= identity * (1 + 1e-6)
    assert result.bands <= bands
    assert result == tff_mf.optimize_banded_toeplitz(**arguments)
    assert tff_mf.explain_sensitivity(result, rounds, schema).exact
