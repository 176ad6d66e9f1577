"""Runs whose noise restarts, counts of adaptive clipping, and servers that restart too: their ε and their files."""

import numpy as np
import pytest
import tensorflow as tf

import tff_mf
from tff_mf.experiments import next_word
from tff_mf.experiments.runs import statements
from tff_mf.experiments.runs.settings import RunSettings
from tff_mf.experiments.runs.signal_to_noise import rmse_of_plan
from tff_mf.experiments.sampling import SamplingSettings

from .shared import small_settings

SCHEMA = tff_mf.MinSep(min_sep=2, max_participations=4)
SETTING = {"rounds": 9, "sampling": SCHEMA, "delta": 1e-6, "clients_per_round": 3, "cohort": 30}
CONSTANT = {"server_warmup": 0.0, "server_cooldown": 0.0}


def plan(**changes):
    return tff_mf.plan(**{**SETTING, "mechanism": tff_mf.Tree(4), "restart_every": 4, **changes})


def test_restarts_are_not_amplified():
    schema = tff_mf.MinSep(min_sep=1, max_participations=9)
    setting = {**SETTING, "sampling": schema, "noise_multiplier": 5.0, "mechanism": tff_mf.Identity(), "cohort": None}
    poisson = SamplingSettings(sampling="poisson")
    assert statements.amplified_level(tff_mf.plan(**setting), poisson, 1000).epsilon < tff_mf.plan(**setting).epsilon
    with pytest.raises(tff_mf.InputError, match="restart_every=3 does not go with secret_cohorts"):
        statements.amplified_level(tff_mf.plan(**setting, restart_every=3), poisson, 1000)


def test_a_mechanism_is_optimized_for_one_restart_and_accounted_for_all():
    settings = RunSettings(
        rounds=24, clients_per_round=2, delta=1e-6, min_sep=4, max_participations=6, epsilon=4.0, mechanism="banded",
        restart_every=8,
    )  # fmt: skip
    settings.check()
    mechanism = settings.build_mechanism()
    assert mechanism.optimized_for.rounds == 8
    found = settings.privacy_plan(mechanism)
    expected = tff_mf.guarantee(
        mechanism, 24, settings.participation(), noise_multiplier=found.noise_multiplier, restart_every=8,
        grid=found.grid, dimension=found.dimension,
    )  # fmt: skip
    assert 3.99 < expected.epsilon(1e-6) <= 4.0
    assert found.epsilon == expected.epsilon(1e-6)


def test_the_error_of_restarts_is_that_of_the_noise_they_draw():
    """L_e, from which rates are proposed: against the block-diagonal inverse of the whole run."""
    inverse = np.kron(np.eye(3), tff_mf.Tree(4).inverse(4))[:9, :9]
    exact = np.sqrt(np.mean(np.sum(np.square(np.cumsum(inverse, axis=0)), axis=1)))
    found = rmse_of_plan(plan(noise_multiplier=5.0))
    assert found == pytest.approx(exact * 5.0 / 30, rel=1e-9)


def test_the_run_adds_the_noise_that_its_plan_accounts_for():
    privacy = plan(noise_multiplier=5.0)
    settings = small_settings(privacy, **CONSTANT)
    task = next_word.build_task(settings, [f"word{number}" for number in range(60)])
    _, aggregator = next_word.build_process(settings, privacy, task)
    found = aggregator.dp_event(9, SCHEMA).noise_multiplier
    # Of the clients that train: a tenth of the cohort, with a tenth of its noise.
    sums = tff_mf.guarantee(tff_mf.Tree(4), 9, SCHEMA, noise_multiplier=0.5, restart_every=4)
    assert found == pytest.approx(sums.effective_noise_multiplier, rel=1e-6)


def test_the_momentum_of_dp_ftrl_starts_anew_at_a_restart_and_that_of_sgd_does_not():
    specs = tf.TensorSpec([], tf.float32)
    moved = {}
    for name in ("sgdm", "dp-ftrl"):
        privacy = plan(noise_multiplier=1.0)
        settings = small_settings(privacy, **CONSTANT, server_optimizer=name, server_momentum=0.5)
        optimizer = next_word.server_optimizer(settings, privacy)
        state, weight, steps = optimizer.initialize(specs), tf.constant(0.0), []
        for gradient in (1.0, 0.0, 0.0, 0.0, 0.0):
            state, after = optimizer.next(state, weight, tf.constant(gradient))
            steps.append(float(weight - after))
            weight = after
        moved[name] = steps
    np.testing.assert_allclose(moved["sgdm"], [1, 0.5, 0.25, 0.125, 0.0625])
    np.testing.assert_allclose(moved["dp-ftrl"], [1, 0.5, 0.25, 0.125, 0.0])
