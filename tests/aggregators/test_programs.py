"""TFF's own programs, as docs/tff-programs.md says how to use them; test_docs.py runs its `train_model`."""

import asyncio

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators

X = np.random.default_rng(0).normal(size=(8, 16, 5)).astype(np.float32)
CLIENTS = [tf.data.Dataset.from_tensor_slices((one, one[:, :1])).batch(8) for one in X]


def model_fn():
    model = tf.keras.Sequential([tf.keras.layers.InputLayer(input_shape=(5,)), tf.keras.layers.Dense(1)])
    return tff.learning.models.from_keras_model(model, tf.keras.losses.MeanSquaredError(), CLIENTS[0].element_spec)


@pytest.fixture(scope="module")
def built():
    """An aggregator and a process with it."""
    aggregator = aggregators.build_mf_aggregator(
        tff_mf.BLT.production("b400"), clip_norm=1.0, noise_multiplier=7.379, clients_per_round=2
    )
    return aggregator, tff.learning.algorithms.build_unweighted_fed_avg(
        model_fn,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0, 0.9),
        model_aggregator=aggregator,
        metrics_aggregator=aggregators.withhold_metrics,
    )


def test_run_training_process_goes_on_in_a_thread_after_rounds_that_were_awaited(built, tmp_path):
    """As in a notebook, whose cells run inside an event loop."""
    aggregator, process = built
    checkpoints = aggregators.CheckpointManager(tmp_path / "checkpoints", aggregator=aggregator)

    def train():
        asyncio.set_event_loop(asyncio.new_event_loop())
        with aggregators.resident_context():
            state = tff.simulation.run_training_process(
                process,
                training_selection_fn=lambda round_number: CLIENTS[2 * round_number - 2 : 2 * round_number],
                total_rounds=4,
                program_state_manager=checkpoints,
            )
            return [np.asarray(weight) for weight in process.get_model_weights(state).trainable]

    async def cells():
        with aggregators.resident_context():
            state = process.initialize()
            for round_number in (1, 2):
                state = process.next(state, CLIENTS[:2]).state
                await checkpoints.save(state, round_number)
        return await asyncio.to_thread(train), await checkpoints.get_versions()

    weights, versions = asyncio.run(cells())
    assert versions == [3, 4]
    assert np.linalg.norm(weights[0]) > 0.1


def test_in_the_asynchronous_context_every_call_is_awaited(built):
    _, process = built

    async def train(rounds):
        state = await process.initialize()
        for _ in range(rounds):
            state = (await process.next(state, CLIENTS[:2])).state
        return state

    context = tff.backends.native.create_async_local_cpp_execution_context()
    with tff.framework.get_context_stack().install(context):
        state = asyncio.run(train(3))
    assert state.aggregator.query_state.numerator_state.noise.round == 3
