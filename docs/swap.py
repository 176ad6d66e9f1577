"""Swaps each mechanism into one existing TFF pipeline: only the argument `model_aggregator=` changes.

`metrics_aggregator=` is set too: TFF's default releases exact metrics of the clients that train.
"""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators

ROUNDS, CLIENTS, PARAMETERS = 8, 10, 6
GRID = tff_mf.Grid.auto(dimension=PARAMETERS, max_clients=CLIENTS)
participation = tff_mf.MinSep(min_sep=4, max_participations=2)
mechanisms = {
    "identity (DP-FedAvg)": tff_mf.Identity(),
    "BLT": tff_mf.optimize_blt(rounds=ROUNDS, participation=participation, buffers=2),
    "banded": tff_mf.optimize_banded(rounds=ROUNDS, bands=4),
    "banded Toeplitz": tff_mf.BandedToeplitz.square_root(4),
    "tree, online": tff_mf.Tree(ROUNDS, variant="online"),
    "tree, vanilla": tff_mf.Tree(ROUNDS, variant="vanilla"),
    "tree, full": tff_mf.Tree(ROUNDS, variant="full"),
    "dense": tff_mf.optimize_dense(rounds=ROUNDS, participation=participation),
}
# Four cohorts that take turns: each client waits for four rounds, as `participation` says.
features = np.random.default_rng(0).normal(size=(4 * CLIENTS, 32, 5)).astype(np.float32)
clients = [tf.data.Dataset.from_tensor_slices((x, x @ np.ones((5, 1), np.float32))).batch(8) for x in features]


def model_fn():
    model = tf.keras.Sequential([tf.keras.layers.InputLayer(input_shape=(5,)), tf.keras.layers.Dense(1)])
    return tff.learning.models.from_keras_model(model, tf.keras.losses.MeanSquaredError(), clients[0].element_spec)


with aggregators.tff_session():
    for name, mechanism in mechanisms.items():
        sigma = tff_mf.calibrate_noise_multiplier(
            mechanism, ROUNDS, participation, epsilon=8.0, delta=1e-6, grid=GRID, dimension=PARAMETERS
        )
        process = tff.learning.algorithms.build_unweighted_fed_avg(
            model_fn,
            client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.05),
            server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
            model_aggregator=aggregators.build_mf_aggregator(
                mechanism, clip_norm=1.0, noise_multiplier=sigma, clients_per_round=CLIENTS, rounds=ROUNDS, grid=GRID
            ),
            metrics_aggregator=aggregators.withhold_metrics,
        )
        state = process.initialize()
        for t in range(ROUNDS):
            first = t % 4 * CLIENTS
            output = process.next(state, clients[first : first + CLIENTS])
            state = output.state
        rows = output.metrics["aggregator"]["dp_query_metrics"]["rows_in_use"]
        print(f"{name:22} sigma {sigma:5.2f} for epsilon 8; rows of noise remembered: {rows}")
