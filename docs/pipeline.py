"""Your own pipeline, with a privacy report: sampler, guard, training, checkpoint, report, check.

python docs/pipeline.py {resident,session,default} FOLDER [--stop-after ROUND]: run again, it resumes where it stopped.
"""

import argparse
import contextlib
import pathlib
import random

import numpy as np
import safetensors.numpy
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators
from tff_mf.experiments import guard, reports

# The worker of TFF's own context ends with the program once an aggregator has been created.
CONTEXTS = {
    "resident": aggregators.resident_context,
    "session": aggregators.tff_session,
    "default": contextlib.nullcontext,
}
ROUNDS, CLIENTS, CLIP_NORM = 6, 3, 1.0
PARAMETERS = 6
# Clients send integers; without a grid the guarantee is about real numbers, not those that are released.
GRID = tff_mf.Grid.auto(dimension=PARAMETERS, max_clients=CLIENTS)
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("context", choices=CONTEXTS)
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--stop-after", type=int, default=ROUNDS)
given = parser.parse_args()
given.folder.mkdir(parents=True, exist_ok=True)

features = np.random.default_rng(0).normal(size=(20, 32, 5)).astype(np.float32)
clients = {
    f"client {index}": tf.data.Dataset.from_tensor_slices((x, x @ np.ones((5, 1), np.float32))).batch(8)
    for index, x in enumerate(features)
}
element_spec = clients["client 0"].element_spec


def model_fn():
    model = tf.keras.Sequential([tf.keras.layers.InputLayer(input_shape=(5,)), tf.keras.layers.Dense(1)])
    return tff.learning.models.from_keras_model(model, tf.keras.losses.MeanSquaredError(), element_spec)


plan = tff_mf.plan(
    mechanism=tff_mf.BLT.production("b100"),  # or tff_mf.load("mechanism.safetensors")
    rounds=ROUNDS,
    sampling=tff_mf.MinSep(min_sep=2, max_participations=2),
    delta=1e-3,
    clients_per_round=CLIENTS,
    epsilon=8.0,
    clip_norm=CLIP_NORM,
    grid=GRID,
    dimension=PARAMETERS,
)
mean = aggregators.build_mf_aggregator(
    plan.mechanism,
    clip_norm=CLIP_NORM,
    noise_multiplier=plan.noise_multiplier,
    clients_per_round=CLIENTS,
    rounds=ROUNDS,
    grid=GRID,
)
process = tff.learning.algorithms.build_unweighted_fed_avg(
    model_fn,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.05),
    server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
    model_aggregator=mean,
    metrics_aggregator=aggregators.withhold_metrics,
)


def sampler(guarded):
    """Any sampler will do: this one draws uniformly from the allowed clients."""
    while True:
        yield random.sample(guarded.allowed(clients), CLIENTS)


with (
    guard.open_guard(
        given.folder, plan, sampler="uniform, of those allowed", aggregator=mean, population=20
    ) as guarded,
    CONTEXTS[given.context](),
):
    checkpoints = aggregators.CheckpointManager(given.folder / "checkpoints", aggregator=mean)
    states = aggregators.SavedStates(checkpoints, process.initialize())
    guarded.resume(states)
    state = states.state
    for round_number, cohort in guarded.cohorts(sampler(guarded)):  # on disk before anyone trains
        state = process.next(state, [clients[client] for client in cohort]).state
        guarded.finish(state)  # checks its noise, saves it, and then records the release
        model = process.get_model_weights(state)  # only now release anything of the round
        print(f"round {round_number}: {', '.join(cohort)}; bias {np.asarray(model.trainable[1])[0]:.3f}")
        if round_number == given.stop_after < ROUNDS:
            raise SystemExit(f"stopped after round {round_number}")
    weights = {str(index): np.asarray(weight) for index, weight in enumerate(model.trainable)}
    (given.folder / "model.safetensors").write_bytes(safetensors.numpy.save(weights))
    report = guarded.end()  # deletes the checkpoints too, with the keys of the noise

print(report)
for problem in reports.check(given.folder).problems:
    print(problem)
