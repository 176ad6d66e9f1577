"""Rounds of the server alone: noise and momentum at the size of a model, without training."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators

BANDS, ROUNDS = 342, 2052


def server_process(mechanism: tff_mf.Mechanism, dimension: int) -> tff.templates.IterativeProcess:
    """Returns a process of one client's clipped value, noise, and the server's momentum."""
    aggregation = aggregators.build_mf_aggregator(
        mechanism, clip_norm=1.0, noise_multiplier=1.0, clients_per_round=1
    ).create(tff.TensorType(np.float32, [dimension]))
    optimizer = tff.learning.optimizers.build_sgdm(1.0, 0.9)
    filled = tff.tensorflow.computation(lambda value: tf.fill([dimension], value), np.float32)

    @tff.tensorflow.computation
    def start() -> object:
        return optimizer.initialize(tf.TensorSpec([dimension])), tf.zeros([dimension])

    optimizer_type, weights_type = start.type_signature.result

    @tff.tensorflow.computation(optimizer_type, weights_type, weights_type)
    def update(state: object, weights: tf.Tensor, change: tf.Tensor) -> object:
        return optimizer.next(state, weights, change)

    @tff.federated_computation
    def initialize() -> object:
        return tff.federated_zip((aggregation.initialize(), tff.federated_eval(start, tff.SERVER)))

    @tff.federated_computation(initialize.type_signature.result, tff.FederatedType(np.float32, tff.CLIENTS))
    def one_round(state: tff.Value, values: tff.Value) -> object:
        noise, (momentum, weights) = state[0], (state[1][0], state[1][1])
        output = aggregation.next(noise, tff.federated_map(filled, values))
        changed = tff.federated_map(update, (momentum, weights, output.result))
        return tff.federated_zip((output.state, changed)), output.measurements

    return tff.templates.IterativeProcess(initialize, one_round)


def stepping(process: tff.templates.IterativeProcess, data: list[object]) -> Callable[[], None]:
    """Returns a function that runs the next round of a process."""
    state = [process.initialize()]

    def step() -> None:
        output = process.next(state[0], data)
        state[0] = output.state if hasattr(output, "state") else output[0]

    return step


def draw(dimension: int) -> Callable[[], None]:
    """Returns a function that draws as many normals as a model has parameters."""
    normals = tff.tensorflow.computation(
        lambda seed: tf.random.stateless_normal([dimension], tf.stack([seed, 7]), alg="philox")[:1], np.int64
    )
    seeds = iter(range(10**9))
    return lambda: normals(next(seeds))


def banded(bands: int = BANDS) -> tff_mf.Mechanism:
    """Returns a banded mechanism with the coefficients of a square root: their values do not affect time and memory."""
    column = tff_mf.BandedToeplitz.square_root(bands).column
    values = np.zeros((bands, ROUNDS))
    for band, value in enumerate(column):
        values[band, : ROUNDS - band] = value
    return tff_mf.Banded(values=values)
