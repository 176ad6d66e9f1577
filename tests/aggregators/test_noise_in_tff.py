"""TFF traces graphs of the old kind, in which operators of tensors may mean something else: noise is the same there."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators, queries
from tff_mf.experiments import mechanisms

ROUNDS = 22
SCHEMA = tff_mf.MinSep(min_sep=11, max_participations=2)
SETTING = {"clip_norm": 1.0, "noise_multiplier": 1.0, "insecure_seed": 5}


@pytest.mark.parametrize("name", mechanisms.NAMES)
def test_noise_in_tff_is_that_of_the_query(name):
    mechanism = mechanisms.build(name, rounds=ROUNDS, participation=SCHEMA)
    value = np.zeros([3], np.float32)

    query = queries.build_query(mechanism, record_specs=tf.TensorSpec([3]), **SETTING)
    state, expected = query.initial_global_state(), []
    for _ in range(ROUNDS):
        row, state, _ = query.get_noised_result(tf.constant(value), state)
        expected.append(row.numpy())

    factory = aggregators.build_mf_aggregator(mechanism, clients_per_round=1, **SETTING)
    process = factory.create(tff.TensorType(np.float32, [3]))
    server, found = process.initialize(), []
    for _ in range(ROUNDS):
        output = process.next(server, [value])
        server = output.state
        found.append(output.result)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
