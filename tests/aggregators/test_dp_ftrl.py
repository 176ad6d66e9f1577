"""DP-FTRL on the server, compared with its definition and with SGDM, and in a pipeline."""

import collections

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tff_mf import aggregators

SPECS = collections.OrderedDict(kernel=tf.TensorSpec([2, 2]), bias=tf.TensorSpec([3]))


def updates(rounds, seed=0):
    generator = np.random.default_rng(seed)
    for _ in range(rounds):
        yield tf.nest.map_structure(lambda spec: tf.constant(generator.normal(size=spec.shape), spec.dtype), SPECS)


def run(optimizer, gradients, rate_of=None):
    state, weights, models = optimizer.initialize(SPECS), next(updates(1, seed=9)), []
    for step, gradient in enumerate(gradients):
        if rate_of is not None:
            state = optimizer.set_hparams(state, collections.OrderedDict(learning_rate=tf.constant(rate_of(step))))
        state, weights = optimizer.next(state, weights, gradient)
        models.append(np.concatenate([np.ravel(leaf) for leaf in tf.nest.flatten(weights)]))
    return np.stack(models)


def by_definition(gradients, rate_of, momentum, restart_every):
    """Literal implementation of the paper's sums."""
    rows = np.stack([np.concatenate([np.ravel(leaf) for leaf in tf.nest.flatten(each)]) for each in gradients])
    start = np.concatenate([np.ravel(leaf) for leaf in tf.nest.flatten(next(updates(1, seed=9)))])
    models, begin = [], 0
    for step in range(len(rows)):
        if restart_every and step and step % restart_every == 0:
            start, begin = models[-1], step
        sums = [rows[begin : last + 1].sum(axis=0) for last in range(begin, step + 1)]
        velocity = sum(momentum ** (step - begin - age) * total for age, total in enumerate(sums))
        models.append(start - rate_of(step) * velocity)
    return np.stack(models)


@settings(max_examples=20)
@given(
    momentum=st.floats(0.0, 0.95),
    restart_every=st.none() | st.integers(1, 5),
    rates=st.lists(st.floats(0.0, 2.0, width=32), min_size=8, max_size=8),
)
def test_models_follow_the_definition(momentum, restart_every, rates):
    optimizer = aggregators.build_dp_ftrl(1.0, momentum, restart_every=restart_every)
    gradients = list(updates(8))
    expected = by_definition(gradients, rates.__getitem__, momentum, restart_every)
    np.testing.assert_allclose(run(optimizer, gradients, rates.__getitem__), expected, rtol=1e-4, atol=1e-4)
