import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf.base.errors import InputValueError
from tff_mf.problem.workloads import ToeplitzWorkload, Workload

from .test_losses import Dense

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


def test_momentum_agrees_with_a_loop_of_sgd():
    gradients = np.random.default_rng(0).standard_normal((8, 3))
    position, velocity, positions = np.zeros(3), np.zeros(3), []
    for rate, gradient in zip(RATES, gradients, strict=True):
        velocity = 0.9 * velocity + gradient
        position = position + rate * velocity
        positions.append(position)
    workload = tff_mf.MomentumWithRates(rates=RATES, momentum=0.9)
    np.testing.assert_allclose(workload.applied_to(gradients), positions, rtol=1e-12)


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
def test_errors_are_those_of_the_dense_decoder(workload):
    mechanism = tff_mf.BLT(theta=[0.9, 0.4], omega=[0.3, 0.2])
    rows = np.sum((workload.matrix(8) @ np.linalg.inv(mechanism.encoder(8))) ** 2, axis=1)
    for each in (mechanism, Dense(of=mechanism)):
        assert tff_mf.rms_error(each, 8, workload) == pytest.approx(np.sqrt(np.mean(rows)), rel=1e-12)
        assert tff_mf.max_error(each, 8, workload) == pytest.approx(np.sqrt(np.max(rows)), rel=1e-12)


def test_losses_take_the_workload():
    mechanism, schema = tff_mf.BLT.production("b100"), tff_mf.MinSep(min_sep=100, max_participations=2)
    workload = tff_mf.Momentum(momentum=0.9)
    scale = tff_mf.sensitivity(mechanism, 150, schema)
    assert tff_mf.rms_loss(mechanism, 150, schema, workload) == scale * tff_mf.rms_error(mechanism, 150, workload)
    assert tff_mf.max_loss(mechanism, 150, schema, workload=workload) == scale * tff_mf.max_error(
        mechanism, 150, workload
    )
    assert tff_mf.rms_loss(mechanism, 150, schema) == tff_mf.rms_loss(mechanism, 150, schema, tff_mf.PrefixSum())


def test_momentum_of_many_rounds_is_quick_and_nears_its_limit():
    error = tff_mf.max_error(tff_mf.Identity(), 10**6, tff_mf.Momentum(momentum=0.5))
    assert error == pytest.approx(2e3, rel=1e-5)
    schedule = tff_mf.LearningRates(rates=tff_mf.LinearSchedule())
    with pytest.raises(InputValueError, match="rounds=1000000 exceeds the maximum of 16,384"):
        tff_mf.max_error(tff_mf.Identity(), 10**6, schedule)


def test_the_schedule_of_the_banded_paper():
    schedule = tff_mf.LinearSchedule(warmup_rounds=309, cooldown_rounds=513)
    rates = schedule.rates(2052)
    assert (rates[0], rates[308], rates[2052 - 513], rates[-1]) == (0.05, 1.0, 1.0, 0.05)
    np.testing.assert_array_equal(rates[308 : 2052 - 512], 1.0)
    np.testing.assert_allclose(np.diff(rates[:309]), 0.95 / 308, rtol=1e-10)
    np.testing.assert_allclose(np.diff(rates[-513:]), -0.95 / 512, rtol=1e-10)
    np.testing.assert_array_equal(tff_mf.LinearSchedule().rates(3), 1.0)
