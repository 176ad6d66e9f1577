"""Adaptive server optimizers: TFF's steps, their state in checkpoints, and a guarantee that they leave as it is."""

import numpy as np
import pytest
import run_folders
import tensorflow as tf

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.runs.folders import ExecutionSettings
from tff_mf.experiments.runs.settings import ADAPTIVE_OPTIMIZERS
from tff_mf.experiments.training import learning_process, program

from .shared import small_settings

pytestmark = pytest.mark.usefixtures("traced_once")

SCHEMA = tff_mf.MinSep(min_sep=2, max_participations=3)
TAU = 1e-2


def of(name, **changes):
    """Settings of a run with an optimizer."""
    plan = run_folders.plan(sampling=SCHEMA, rounds=6, clients_per_round=3, noise_multiplier=0.1, insecure_seed=7)
    own = {"server_optimizer": name, "server_learning_rate": 0.5}
    own |= {"server_momentum": 0.0 if name == "adagrad" else 0.5}
    own |= {"server_adaptivity": TAU} if name in ADAPTIVE_OPTIMIZERS else {}
    return small_settings(plan, **own, **changes), plan


def by_the_papers(name, gradients):
    """Steps of the formulas of FedAdagrad, FedAdam and FedYogi in float64, the latter two without bias at the start."""
    momentum = 0.0 if name == "adagrad" else 0.5
    mean, square, steps = 0.0, 0.0 if name == "adam" else TAU**2, []
    for number, gradient in enumerate(gradients, 1):
        mean = momentum * mean + (1 - momentum) * gradient
        if name == "adagrad":
            square += gradient**2
            steps.append(0.5 * gradient / np.sqrt(square))
            continue
        square -= 0.01 * (square - gradient**2 if name == "adam" else gradient**2 * np.sign(square - gradient**2))
        unbiased = np.sqrt(1 - 0.99**number) / (1 - momentum**number)
        steps.append(0.5 * unbiased * mean / (np.sqrt(square) + TAU))
    return steps


@pytest.mark.parametrize("name", ADAPTIVE_OPTIMIZERS)
def test_steps_are_those_of_the_paper_and_follow_the_rates(name):
    gradients = [0.3, -0.001, 0.02, 0.1, 0.0, -0.5]
    optimizer = learning_process.server_optimizer(*of(name, server_warmup=0.0, server_cooldown=0.5))
    state, weight, found = optimizer.initialize(tf.TensorSpec([], tf.float32)), tf.constant(0.0), []
    for gradient in gradients:
        state, after = optimizer.next(state, weight, tf.constant(gradient))
        found.append(float(weight - after))
        weight = after
    ramp = 0.05 + 0.95 * np.minimum(1, (6 - np.arange(6)) / 3)
    np.testing.assert_allclose(found, ramp * by_the_papers(name, gradients), rtol=1e-4)


class StoppedError(Exception):
    pass


def trained(data, out, name, *, stop=None, resume=False):
    def on_round(number, metrics):
        if number == stop:
            raise StoppedError

    out.mkdir(exist_ok=True)
    settings, plan = of(name)
    execution = ExecutionSettings(checkpoint_every=2, resume=resume)
    return program.run(settings, plan, data=data, out=out, on_round=on_round, execution=execution, without_epsilon=True)


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("name", ADAPTIVE_OPTIMIZERS)
def test_a_resumed_run_ends_as_one_that_was_not_stopped(small_data, tmp_path, name):
    """It would not without the squares of past updates, which are in the checkpoint."""
    whole = trained(small_data, tmp_path / "whole", name)
    with pytest.raises(StoppedError):
        trained(small_data, tmp_path / "stopped", name, stop=5)
    resumed = trained(small_data, tmp_path / "stopped", name, resume=True)
    for one, other in zip(resumed.weights, whole.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    assert resumed.history == whole.history
    settings = reports.read_record(tmp_path / "stopped").settings
    assert (settings.server_optimizer, settings.server_adaptivity) == (name, TAU)
