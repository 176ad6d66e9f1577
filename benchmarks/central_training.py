"""Rounds per second of central training, beside plain Keras and TensorFlow Privacy's DPSequential.

python benchmarks/central_training.py [--batch-size N] [--rounds N] [--repeats N] [--only NAME]
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from tensorflow_privacy.privacy.keras_models import dp_keras_model

import tff_mf
from tff_mf.frameworks import keras


def _layers() -> list[tf.keras.layers.Layer]:
    layers = tf.keras.layers
    return [
        layers.Conv2D(16, 3, activation="relu", input_shape=(8, 8, 1)),
        layers.Conv2D(32, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(32, activation="relu"),
        layers.Dense(10),
    ]


def _seconds(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    batch, count = given.batch_size, given.batch_size * given.rounds
    x = np.random.default_rng(0).normal(size=(count, 8, 8, 1)).astype(np.float32)
    y = np.random.default_rng(1).integers(0, 10, count)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def training(mechanism: tff_mf.Mechanism, sampling: tff_mf.Sampling, *, secret: bool) -> Callable[[], object]:
        model = network()
        model.compile(tf.keras.optimizers.SGD(0.1, 0.9), loss)
        plan = tff_mf.Plan(
            mechanism=mechanism,
            rounds=epochs * given.rounds,
            sampling=sampling,
            noise_multiplier=1.0,
            delta=1e-6,
            clients_per_round=batch,
            cohort=batch,
            secret_cohorts=secret,
        )
        trained = keras.Training(model, x, y, plan)
        return lambda: trained.fit(epochs=1)

    def plain(model: tf.keras.Model) -> Callable[[], object]:
        model.compile(tf.keras.optimizers.SGD(0.1, 0.9), loss)
        return lambda: model.fit(x, y, batch_size=batch, shuffle=False, verbose=0)

    def network() -> tf.keras.Model:
        return tf.keras.Sequential(_layers())

    epochs = given.repeats + 1
    fixed = tff_mf.FixedEpoch(min_sep=given.rounds, max_participations=epochs)
    sampled = tff_mf.Poisson(population=count, clients_per_round=batch)
    ways = {
        "Keras without privacy": lambda: plain(network()),
        "TensorFlow Privacy, DPSequential": lambda: plain(
            dp_keras_model.DPSequential(1.0, 1.0, layers=_layers(), use_xla=False)
        ),
        "identity, Poisson batches": lambda: training(tff_mf.Identity(), sampled, secret=True),
        "BLT of 4 buffers, fixed order": lambda: training(tff_mf.BLT.production("b400"), fixed, secret=False),
    }
    print(f"{network().count_params()} parameters, {given.rounds} rounds of {batch} examples")
    runs = {name: way() for name, way in ways.items() if given.only in name}
    # In turns, and the shortest time of each, because other programs take their share of the machine. The first traces.
    times = [{name: _seconds(run) for name, run in runs.items()} for _ in range(given.repeats + 1)][1:]
    best = {name: min(each[name] for each in times) for name in runs}
    first = next(iter(best.values()))
    print("| training | rounds a second | relative |\n|---|--:|--:|")
    for name, seconds in best.items():
        print(f"| {name} | {given.rounds / seconds:.3g} | {first / seconds:.2f} |")


if __name__ == "__main__":
    main()
