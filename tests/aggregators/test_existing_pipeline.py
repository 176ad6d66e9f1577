"""An existing pipeline replaces one argument and keeps everything else."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators


def test_replacing_model_aggregator_is_enough(regression):
    """In a loop as TFF's tutorials have it."""
    process, losses = regression.process(regression.aggregator(noise_multiplier=0.05, insecure_seed=None)), []
    state = process.initialize()
    for _ in range(12):
        output = process.next(state, regression.clients)
        state = output.state
        losses.append(output.metrics["client_work"]["train"]["loss"])
    assert losses[-1] < 0.5 * losses[0]
    noise = state.aggregator.query_state.numerator_state.noise
    assert noise.round == 12
    assert [row.shape for row in noise.rows] == [(5 * 4 + 4 + 4 + 1,)] * 4
    assert all(np.any(row != 0) for row in noise.rows)


def test_the_aggregator_composes_with_tffs_factories():
    inner = aggregators.build_mf_aggregator(tff_mf.Identity(), clip_norm=1.0, noise_multiplier=0.0, clients_per_round=2)
    zeroing = tff.aggregators.zeroing_factory(10.0, inner)
    process = zeroing.create(tff.TensorType(np.float32, [2]))
    output = process.next(process.initialize(), [[0.3, 0.4], [100.0, 0.0]])
    np.testing.assert_allclose(output.result, [0.15, 0.2], rtol=1e-5)


def mean(**changes):
    arguments = {"clip_norm": 1.0, "noise_multiplier": 0.0, "clients_per_round": 2, **changes}
    return aggregators.build_mf_aggregator(tff_mf.Identity(), **arguments)


def linear_model():
    keras_model = tf.keras.Sequential([tf.keras.layers.InputLayer(input_shape=(5,)), tf.keras.layers.Dense(1)])
    return tff.learning.models.from_keras_model(
        keras_model,
        loss=tf.keras.losses.MeanSquaredError(),
        input_spec=(tf.TensorSpec([None, 5]), tf.TensorSpec([None, 1])),
    )


def by_hand(clients, kernel, bias, *, rounds, clip_norm, divisor, rate, momentum):
    """FedSGDM in NumPy: the sum of clipped mean gradients over a constant, and SGD with momentum on the server."""
    weights = np.concatenate([kernel.ravel(), bias]).astype(np.float64)
    velocity = np.zeros_like(weights)
    for _ in range(rounds):
        total = np.zeros_like(weights)
        for features, targets in clients:
            inputs = np.hstack([features, np.ones((len(features), 1))])
            gradient = 2 * inputs.T @ (inputs @ weights - targets[:, 0]) / len(features)
            total += gradient * min(1.0, clip_norm / np.linalg.norm(gradient))
        velocity = momentum * velocity + total / divisor
        weights -= rate * velocity
    return weights


def test_fed_sgd_with_momentum_matches_numpy():
    generator = np.random.default_rng(1)
    # Clients have very different sizes and a smaller last batch; each sends its mean gradient with equal weight.
    clients = [
        (scale * generator.normal(size=(count, 5)), generator.normal(size=(count, 1)))
        for count, scale in ((3, 1.0), (40, 1.0), (7, 0.05))
    ]
    clients = [tuple(part.astype(np.float32) for part in client) for client in clients]
    process = tff.learning.algorithms.build_fed_sgd(
        linear_model,
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(0.3, 0.9),
        model_aggregator=tff.aggregators.as_weighted_aggregator(mean(clip_norm=0.7, clients_per_round=3)),
        metrics_aggregator=aggregators.withhold_metrics,
    )
    kernel, bias = generator.normal(size=(5, 1)).astype(np.float32), np.zeros(1, np.float32)
    state = process.set_model_weights(process.initialize(), tff.learning.models.ModelWeights([kernel, bias], []))
    data = [tf.data.Dataset.from_tensor_slices(client).batch(4) for client in clients]
    for _ in range(6):
        output = process.next(state, data)
        state = output.state
    found = np.concatenate([np.ravel(part) for part in process.get_model_weights(state).trainable])
    arguments = {"rounds": 6, "divisor": 3, "rate": 0.3, "momentum": 0.9}
    np.testing.assert_allclose(found, by_hand(clients, kernel, bias, clip_norm=0.7, **arguments), rtol=1e-4)
    # Clipping and momentum have an effect.
    assert not np.allclose(found, by_hand(clients, kernel, bias, clip_norm=1e9, **arguments), rtol=1e-2)
    assert output.metrics["client_work"]["train"] == {}
