"""An existing pipeline swaps one argument, and keeps everything else."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators


def their_model():
    """A model of their own, with a shape that nothing of ours knows."""
    keras_model = tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer(input_shape=(5,)),
            tf.keras.layers.Dense(4, activation="tanh"),
            tf.keras.layers.Dense(1),
        ]
    )
    return tff.learning.models.from_keras_model(
        keras_model,
        loss=tf.keras.losses.MeanSquaredError(),
        input_spec=(tf.TensorSpec([None, 5]), tf.TensorSpec([None, 1])),
    )


def their_clients(count=8):
    generator = np.random.default_rng(0)
    truth = generator.normal(size=(5, 1))
    for _ in range(count):
        features = generator.normal(size=(32, 5)).astype(np.float32)
        targets = (features @ truth).astype(np.float32)
        yield tf.data.Dataset.from_tensor_slices((features, targets)).batch(8)


def train(rounds=12, **arguments):
    process = tff.learning.algorithms.build_unweighted_fed_avg(
        their_model,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.05),
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0, 0.5),
        **arguments,
    )
    clients = list(their_clients())
    state, losses = process.initialize(), []
    for _ in range(rounds):
        output = process.next(state, clients)
        state = output.state
        losses.append(output.metrics["client_work"]["train"]["loss"])
    return losses, state


def test_swapping_model_aggregator_is_all():
    aggregator = aggregators.build_mf_aggregator(
        tff_mf.BLT.production("b400"), clip_norm=1.0, noise_multiplier=0.05, clients_per_round=8
    )
    theirs, _ = train()
    ours, state = train(model_aggregator=aggregator)
    assert theirs[-1] < 0.5 * theirs[0]
    assert ours[-1] < 0.5 * ours[0]
    noise = state.aggregator.query_state.numerator_state.noise
    assert noise.round == 12
    assert [row.shape for row in noise.rows] == [(5 * 4 + 4 + 4 + 1,)] * 4
    assert all(np.any(row != 0) for row in noise.rows)


def test_it_composes_with_the_factories_of_tff():
    inner = aggregators.build_mf_aggregator(tff_mf.Identity(), clip_norm=1.0, noise_multiplier=0.0, clients_per_round=2)
    zeroing = tff.aggregators.zeroing_factory(10.0, inner)
    process = zeroing.create(tff.TensorType(np.float32, [2]))
    output = process.next(process.initialize(), [[0.3, 0.4], [100.0, 0.0]])
    np.testing.assert_allclose(output.result, [0.15, 0.2], rtol=1e-5)
