"""Rounds per second of central training, beside plain Keras and TensorFlow Privacy's DPSequential.

python benchmarks/central_training.py
python benchmarks/central_training.py --cifar --batch-size 500 --rounds 5 --repeats 1
"""

import argparse
import resource
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from tensorflow_privacy.privacy.keras_models import dp_keras_model

import tff_mf
from tff_mf.frameworks import keras

_layers = tf.keras.layers


def _digits() -> list[tf.keras.layers.Layer]:
    return [
        _layers.Conv2D(16, 3, activation="relu", input_shape=(8, 8, 1)),
        _layers.Conv2D(32, 3, activation="relu"),
        _layers.MaxPooling2D(),
        _layers.Flatten(),
        _layers.Dense(32, activation="relu"),
        _layers.Dense(10),
    ]


def _cifar() -> list[tf.keras.layers.Layer]:
    layers: list[tf.keras.layers.Layer] = [_layers.InputLayer((32, 32, 3))]
    for filters in (32, 64, 128):
        layers += [_layers.Conv2D(filters, 3, padding="same", activation="tanh") for _ in range(2)]
        layers.append(_layers.MaxPooling2D())
    return [*layers, _layers.Flatten(), _layers.Dense(128, activation="tanh"), _layers.Dense(10)]


def _seconds(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cifar", action="store_true", help="a net of 0.5 million parameters on 32 x 32 images")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    make, size, batch = _cifar if given.cifar else _digits, (32, 32, 3) if given.cifar else (8, 8, 1), given.batch_size
    count = batch * given.rounds
    x = np.random.default_rng(0).normal(size=(count, *size)).astype(np.float32)
    y = np.random.default_rng(1).integers(0, 10, count)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def training(model: tf.keras.Model, mechanism: tff_mf.Mechanism, order: tff_mf.Order) -> Callable[[], object]:
        model.compile(tf.keras.optimizers.SGD(0.1, 0.9), loss)
        trained = keras.Training(model, x, y, order=order, mechanism=mechanism, clip_norm=1.0, noise_multiplier=1.0)
        return lambda: trained.fit(epochs=1)

    def plain(model: tf.keras.Model) -> Callable[[], object]:
        model.compile(tf.keras.optimizers.SGD(0.1, 0.9), loss)
        return lambda: model.fit(x, y, batch_size=batch, shuffle=False, verbose=0)

    def network() -> tf.keras.Model:
        return tf.keras.Sequential(make())

    fixed = tff_mf.Order.fixed(examples=count, batch_size=batch, epochs=given.repeats + 1)
    sampled = tff_mf.Order(
        sampling=tff_mf.Poisson(population=count, clients_per_round=batch),
        examples=count,
        batch_size=batch,
        rounds=(given.repeats + 1) * given.rounds,
    )
    blt, banded = tff_mf.BLT.production("b400"), tff_mf.BandedToeplitz.square_root(14)
    ways = {
        "Keras without privacy": lambda: plain(network()),
        "TensorFlow Privacy, DPSequential": lambda: plain(
            dp_keras_model.DPSequential(1.0, 1.0, layers=make(), use_xla=False)
        ),
        "identity, Poisson batches": lambda: training(network(), tff_mf.Identity(), sampled),
        "identity, fixed order": lambda: training(network(), tff_mf.Identity(), fixed),
        "BLT of 4 buffers, fixed order": lambda: training(network(), blt, fixed),
        "banded by 14, fixed order": lambda: training(network(), banded, fixed),
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
    print(f"largest memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GB")


if __name__ == "__main__":
    main()
