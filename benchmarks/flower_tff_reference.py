"""Writes the run in TensorFlow Federated that tests/flower compares with the same run on Flower.

python benchmarks/flower_tff_reference.py tests/flower/tff_run.npz, in the environment with TFF. A linear model, FedAvg
with server momentum, noise with a seed: the file has the clients' updates, the rows of noise, and each round's model;
and, on the default grid, the rows of integers and the noised means of the same updates.
"""

import sys

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators
from tff_mf.noise.tensorflow import build_stream

ROUNDS, CLIENTS, FEATURES, CLIP_NORM, NOISE_MULTIPLIER, SEED = 6, 3, 5, 0.5, 0.7, 11
LEARNING_RATE, MOMENTUM = 0.8, 0.9


def clients(features: np.ndarray) -> list[tf.data.Dataset]:
    return [tf.data.Dataset.from_tensor_slices((x, x @ np.ones((FEATURES, 1), np.float32))).batch(8) for x in features]


def model_fn():
    model = tf.keras.Sequential([tf.keras.layers.InputLayer(input_shape=(FEATURES,)), tf.keras.layers.Dense(1)])
    spec = clients(np.zeros((1, 16, FEATURES), np.float32))[0].element_spec
    return tff.learning.models.from_keras_model(model, tf.keras.losses.MeanSquaredError(), spec)


def updates(weights: list[np.ndarray], data: tf.data.Dataset) -> list[np.ndarray]:
    """One pass of gradient descent by hand, as the process's clients train."""
    w, b = (tf.Variable(value) for value in weights)
    for x, y in data:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, w) + b - y))
        for variable, gradient in zip((w, b), tape.gradient(loss, (w, b)), strict=True):
            variable.assign_sub(0.1 * gradient)
    return [w.numpy() - weights[0], b.numpy() - weights[1]]


def means_on_grid(mechanism: tff_mf.Mechanism, update_w: np.ndarray, update_b: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the integers of the noise, and the noised means, of the default grid."""
    shared = {"clip_norm": CLIP_NORM, "noise_multiplier": NOISE_MULTIPLIER, "insecure_seed": SEED}
    aggregator = aggregators.build_mf_aggregator(mechanism, clients_per_round=CLIENTS, grid="auto", **shared)
    of_w, of_b = (tff.TensorType(np.float32, update.shape[2:]) for update in (update_w, update_b))
    process = aggregator.create(tff.StructWithPythonType([("w", of_w), ("b", of_b)], dict))
    grid = aggregator.grid_for(FEATURES + 1)
    stream = build_stream(mechanism, dimension=FEATURES + 1, stddev=NOISE_MULTIPLIER, insecure_seed=SEED, grid=grid)
    found: dict[str, list] = {"grid_noise": [], "grid_w": [], "grid_b": []}
    state, noise_state = process.initialize(), stream.init()
    for w, b in zip(update_w, update_b, strict=True):
        output = process.next(state, [{"w": one, "b": other} for one, other in zip(w, b, strict=True)])
        state = output.state
        found["grid_w"].append(np.asarray(output.result["w"]))
        found["grid_b"].append(np.asarray(output.result["b"]))
        row, noise_state = stream.next(noise_state)
        found["grid_noise"].append(row.numpy())
    return {name: np.asarray(values) for name, values in found.items()}


def main() -> None:
    mechanism = tff_mf.BLT.production("b100")
    aggregator = aggregators.build_mf_aggregator(
        mechanism,
        clip_norm=CLIP_NORM,
        noise_multiplier=NOISE_MULTIPLIER,
        clients_per_round=CLIENTS,
        insecure_seed=SEED,
    )
    process = tff.learning.algorithms.build_unweighted_fed_avg(
        model_fn,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(LEARNING_RATE, momentum=MOMENTUM),
        model_aggregator=aggregator,
        metrics_aggregator=aggregators.withhold_metrics,
    )
    features = np.random.default_rng(0).normal(size=(CLIENTS, 16, FEATURES)).astype(np.float32)
    stream = build_stream(mechanism, dimension=FEATURES + 1, stddev=NOISE_MULTIPLIER * CLIP_NORM, insecure_seed=SEED)
    found: dict[str, list] = {"w": [], "b": [], "update_w": [], "update_b": [], "noise": []}
    with aggregators.tff_session():
        state, noise_state = process.initialize(), stream.init()
        for number in range(ROUNDS + 1):
            weights = [np.asarray(value) for value in process.get_model_weights(state).trainable]
            found["w"].append(weights[0])
            found["b"].append(weights[1])
            if number == ROUNDS:
                break
            each = [updates(weights, data) for data in clients(features)]
            found["update_w"].append([update[0] for update in each])
            found["update_b"].append([update[1] for update in each])
            state = process.next(state, clients(features)).state
            noise, noise_state = stream.next(noise_state)
            found["noise"].append(noise.numpy())
        floats = {name: np.asarray(values, np.float32) for name, values in found.items()}
        on_grid = means_on_grid(mechanism, floats["update_w"], floats["update_b"])
    np.savez_compressed(sys.argv[1], **floats, **on_grid)


if __name__ == "__main__":
    main()
