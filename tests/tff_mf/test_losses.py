"""Workloads, errors and losses, against dense matrices and loops, and the bound that no mechanism's loss is below."""

import dataclasses
import itertools

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf.problem.workloads import ToeplitzWorkload, Workload
from tff_mf.sensitivities import losses

from .oracles import restarted

RATES = (0.5, 1.0, 0.25, 0.0, 2.0, 1.0, 0.75, 0.125)
SCHEDULE = tff_mf.LinearSchedule(warmup_rounds=3, cooldown_rounds=4)
WORKLOADS = [
    tff_mf.PrefixSum(),
    tff_mf.Momentum(momentum=0.9),
    tff_mf.Momentum(momentum=0),
    tff_mf.LearningRates(rates=RATES),
    tff_mf.LearningRates(rates=SCHEDULE),
    tff_mf.MomentumWithRates(rates=RATES, momentum=0.95),
    tff_mf.MomentumWithRates(rates=SCHEDULE, momentum=0.5),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Last(ToeplitzWorkload):
    """The mean of two rounds."""

    kind = "last"

    def coefficients(self, rounds):
        return np.array([0.5, 0.5, *[0.0] * rounds])[:rounds]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Squares(Workload):
    kind = "squares"

    def matrix(self, rounds):
        return np.tril(np.add.outer(np.arange(rounds), np.arange(rounds)) ** 2.0)


def equation_11(rates, momentum):
    rounds = len(rates)
    by_rates = np.tril(np.ones((rounds, 1)) * np.array(rates))
    by_momentum = np.array([[momentum ** (i - j) if i >= j else 0.0 for j in range(rounds)] for i in range(rounds)])
    return by_rates @ by_momentum


@given(st.lists(st.floats(0, 2), min_size=1, max_size=20), st.floats(0, 0.999))
def test_matrices_are_those_of_equation_11(rates, momentum):
    rounds = len(rates)
    ones = [1.0] * rounds
    for workload, expected in [
        (tff_mf.PrefixSum(), equation_11(ones, 0.0)),
        (tff_mf.Momentum(momentum=momentum), equation_11(ones, momentum)),
        (tff_mf.LearningRates(rates=rates), equation_11(rates, 0.0)),
        (tff_mf.MomentumWithRates(rates=rates, momentum=momentum), equation_11(rates, momentum)),
    ]:
        np.testing.assert_allclose(workload.matrix(rounds), expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("workload", [*WORKLOADS, Last(), Squares()], ids=repr)
def test_applied_to_is_the_product_with_the_matrix(workload):
    values = np.random.default_rng(0).standard_normal((8, 3))
    before = values.copy()
    np.testing.assert_allclose(workload.applied_to(values), workload.matrix(8) @ values, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(
        workload.applied_to(values[:, 0]), workload.matrix(8) @ values[:, 0], rtol=1e-13, atol=1e-14
    )
    np.testing.assert_array_equal(values, before)
    assert not np.triu(workload.matrix(8), 1).any()
    if isinstance(workload, ToeplitzWorkload):
        np.testing.assert_array_equal(workload.matrix(8)[:, 0], workload.coefficients(8))


@pytest.mark.parametrize("workload", [*WORKLOADS, Last(), Squares()], ids=repr)
@given(st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3), st.floats(0.0, 1.0))
def test_errors_are_those_of_the_dense_decoder(workload, theta, total):
    mechanism = tff_mf.BLT(theta=theta, omega=[total / 3] * 3)
    rows = np.sum((workload.matrix(8) @ np.linalg.inv(mechanism.encoder(8))) ** 2, axis=1)
    for each in (mechanism, tff_mf.Dense(matrix=mechanism.encoder(8))):
        assert tff_mf.rms_error(each, 8, workload) == pytest.approx(np.sqrt(np.mean(rows)), rel=1e-9)
        assert tff_mf.max_error(each, 8, workload) == pytest.approx(np.sqrt(np.max(rows)), rel=1e-9)


# Of these inverses, the coefficients grow: (−3)^i of the first.
@pytest.mark.parametrize(
    "mechanism", [tff_mf.BandedToeplitz(column=[1.0, 3.0]), tff_mf.BLT(theta=[1.0, 0.5], omega=[40.0, 30.0])]
)
@pytest.mark.parametrize("workload", [None, tff_mf.MomentumWithRates(rates=[1.0] * 1000, momentum=0.9)])
@pytest.mark.filterwarnings("error")
def test_an_unstable_inverse_has_infinite_errors_and_losses_and_no_warning(mechanism, workload):
    schema = tff_mf.MinSep(min_sep=10, max_participations=3)
    for error, loss in ((tff_mf.rms_error, tff_mf.rms_loss), (tff_mf.max_error, tff_mf.max_loss)):
        assert error(mechanism, 1000, workload) == loss(mechanism, 1000, schema, workload) == np.inf


@pytest.mark.parametrize("mechanism", [tff_mf.Tree(12), tff_mf.BLT(theta=[0.9], omega=[0.2]), tff_mf.Identity()])
@pytest.mark.parametrize("workload", [tff_mf.PrefixSum(), tff_mf.Momentum(momentum=0.9)])
@pytest.mark.parametrize("every", [None, 5, 12])
def test_the_error_of_each_round_is_the_norm_of_its_row(mechanism, workload, every):
    rounds = 12
    encoder = restarted(mechanism.encoder(every or rounds), rounds, every or rounds)
    rows = np.linalg.norm(workload.matrix(rounds) @ np.linalg.inv(encoder), axis=1)
    found = losses.round_errors(mechanism, rounds, restart_every=every, workload=workload)
    np.testing.assert_allclose(found, rows, rtol=1e-9)
    whole = losses.restart_errors(mechanism, rounds, restart_every=every or rounds, workload=workload)
    assert whole == pytest.approx((np.sqrt(np.mean(rows**2)), rows.max()), rel=1e-9)


SCHEMAS = [(1, 12), (3, 4), (5, 3), (12, 1), (3, 2), (2, 5)]
NAMES = ["all", "epochs", "partial", "once", "fewer", "two"]
LOSSES = {"rms": tff_mf.rms_loss, "max": tff_mf.max_loss}


def schema_of(min_sep, most):
    if most == 1:
        return tff_mf.SingleParticipation()
    return tff_mf.MinSep(min_sep=min_sep, max_participations=most)


@pytest.mark.parametrize("objective", LOSSES)
@pytest.mark.parametrize(("min_sep", "most"), [(1, 5), (2, 3), (2, 2), (5, 1), (3, 2)])
def test_the_optimum_of_few_rounds_by_brute_force_is_near_and_not_below(min_sep, most, objective):
    rounds, lower = 5, np.tril_indices(5)
    schema = schema_of(min_sep, most)
    signed = np.array(
        [
            np.sum([sign * np.eye(rounds)[place] for sign, place in zip(signs, pattern, strict=True)], axis=0)
            for size in range(1, most + 1)
            for pattern in itertools.combinations(range(rounds), size)
            if schema.allows(pattern)
            for signs in itertools.product((-1, 1), repeat=size)
        ]
    )

    def largest(values, power):
        top = values.max()
        return top if power is None else top * np.sum((values / top) ** power) ** (1 / power)

    def loss(entries, power=None):
        """The loss of C with these entries; with a power, each maximum is a sum of powers, which is smooth."""
        encoder = np.zeros((rounds, rounds))
        encoder[lower] = entries
        variances = np.square(np.linalg.solve(encoder.T, np.tril(np.ones((rounds, rounds))).T)).sum(axis=0)
        squares = np.square(signed @ encoder.T).sum(axis=1)
        error = variances.mean() if objective == "rms" else largest(variances, power)
        return np.sqrt(error * largest(squares, power))

    entries = np.eye(rounds)[lower]
    for power in (4, 16, 64, 256, 1024):
        entries = scipy.optimize.minimize(loss, entries, args=(power,), method="BFGS").x
    least = tff_mf.least_loss(rounds, schema, objective)
    assert 0.95 * loss(entries) <= least <= loss(entries) * (1 + 1e-9)
