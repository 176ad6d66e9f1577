"""Accuracy on scikit-learn's digits with the same noise in Keras, PyTorch and JAX: docs/results/frameworks.json.

.venv/bin/python benchmarks/framework_digits.py keras
.venv-frameworks/bin/python benchmarks/framework_digits.py torch
.venv-frameworks/bin/python benchmarks/framework_digits.py jax

Each replaces its own part of the file, or of `--out`, and prints all of them. `--trainings` is their number. Network,
weights to begin with, order of the examples, mechanism, σ and rates are the same; noise is fresh in each run.
"""

import argparse
import json
import pathlib
from collections.abc import Callable

import numpy as np
import scipy.stats
from sklearn.datasets import load_digits

import tff_mf

FILE = pathlib.Path(__file__).parents[1] / "docs" / "results" / "frameworks.json"
EPSILONS, SEEDS, DELTA = (2.0, 8.0), range(20), 1e-5
EXAMPLES, BATCH, EPOCHS, RATE, MOMENTUM = 1437, 128, 20, 0.25, 0.9
X, Y = load_digits(return_X_y=True)
X, Y = (X / 16).astype(np.float32), Y.astype(np.int32)
TRAIN, TEST = slice(0, EXAMPLES), slice(EXAMPLES, None)

# From a seed to the trained weights.
Train = Callable[[int], list[np.ndarray]]


def planned(epsilon: float) -> tff_mf.Plan:
    """Returns the plan of all frameworks."""
    epoch = EXAMPLES // BATCH
    schema = tff_mf.FixedEpoch(min_sep=epoch, max_participations=EPOCHS)
    return tff_mf.plan(
        mechanism="blt", epsilon=epsilon, delta=DELTA, rounds=epoch * EPOCHS, clients_per_round=BATCH, sampling=schema
    )


def initial(seed: int) -> list[np.ndarray]:
    """Returns the weights of a network of 32 hidden units: inputs to units, their bias, units to classes, theirs."""
    normal = np.random.default_rng(seed).normal
    found = [normal(size=[64, 32]) / 8, np.zeros(32), normal(size=[32, 10]) / 6, np.zeros(10)]
    return [each.astype(np.float32) for each in found]


def accuracy(weights: list[np.ndarray]) -> float:
    """Returns the accuracy on the test digits, in NumPy for all."""
    scores = np.tanh(X[TEST] @ weights[0] + weights[1]) @ weights[2] + weights[3]
    return float(np.mean(np.argmax(scores, axis=1) == Y[TEST]))


def in_keras(plan: tff_mf.Plan) -> Train:
    import tensorflow as tf

    from tff_mf.frameworks import keras

    def train(seed: int) -> list[np.ndarray]:
        layers = [tf.keras.layers.Dense(32, activation="tanh", input_shape=(64,)), tf.keras.layers.Dense(10)]
        model = tf.keras.Sequential(layers)
        model.set_weights(initial(seed))
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.SGD(RATE, momentum=MOMENTUM), loss)
        keras.Training.of(model, X[TRAIN], Y[TRAIN], plan, seed=seed).fit()
        return model.get_weights()

    return train


def in_torch(plan: tff_mf.Plan) -> Train:
    import torch

    from tff_mf.frameworks.torch import CorrelatedNoise, clipped_sum

    x, y = torch.from_numpy(X), torch.from_numpy(Y).long()

    def loss(weights: tuple[torch.Tensor, ...], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scores = torch.tanh(x @ weights[0] + weights[1]) @ weights[2] + weights[3]
        return torch.nn.functional.cross_entropy(scores[None], y[None])

    gradients_of = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))

    def train(seed: int) -> list[np.ndarray]:
        weights = [torch.nn.Parameter(torch.from_numpy(each)) for each in initial(seed)]
        optimizer = torch.optim.SGD(weights, lr=RATE, momentum=MOMENTUM)
        noise, order = CorrelatedNoise(plan, weights), tff_mf.Order.of(plan, examples=EXAMPLES, seed=seed)
        for batch in order.batches(0, order.rounds):
            gradients = gradients_of(tuple(weights), x[batch], y[batch])
            present = torch.from_numpy(batch >= 0)
            noise.apply(clipped_sum(gradients, plan.clip_norm, present=present))
            optimizer.step()
        return [each.numpy(force=True) for each in weights]

    return train


def in_jax(plan: tff_mf.Plan) -> Train:
    import jax
    import jax.numpy as jnp
    import optax

    from tff_mf.frameworks.optax import clipped_sum, correlated_noise

    def loss(weights: list[jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
        scores = jnp.tanh(x @ weights[0] + weights[1]) @ weights[2] + weights[3]
        return optax.softmax_cross_entropy_with_integer_labels(scores, y)

    optimizer = optax.chain(correlated_noise(plan), optax.sgd(RATE, momentum=MOMENTUM))

    @jax.jit
    def step(weights, state, x, y, present):
        gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(weights, x, y)
        updates, state = optimizer.update(clipped_sum(gradients, plan.clip_norm, present=present), state)
        return optax.apply_updates(weights, updates), state

    def train(seed: int) -> list[np.ndarray]:
        weights = [jnp.asarray(each) for each in initial(seed)]
        state, order = optimizer.init(weights), tff_mf.Order.of(plan, examples=EXAMPLES, seed=seed)
        for batch in order.batches(0, order.rounds):
            weights, state = step(weights, state, X[TRAIN][batch], Y[TRAIN][batch], batch >= 0)
        return [np.asarray(each) for each in weights]

    return train


FRAMEWORKS = {"keras": in_keras, "torch": in_torch, "jax": in_jax}


def interval(values: list[float]) -> tuple[float, float]:
    """Returns mean and half the width of the 95 % interval by Student's t."""
    half = scipy.stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values)), float(half)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("--trainings", type=int, default=len(SEEDS))
    parser.add_argument("--out", type=pathlib.Path, default=FILE)
    given = parser.parse_args()
    name = given.framework
    ours = {}
    for epsilon in EPSILONS:
        plan = planned(epsilon)
        train = FRAMEWORKS[name](plan)
        ours[f"{epsilon:g}"] = {
            "noise_multiplier": plan.noise_multiplier,
            "accuracies": [round(accuracy(train(seed)), 5) for seed in SEEDS[: given.trainings]],
        }
    found = json.loads(given.out.read_text()) if given.out.exists() else {}
    found = {each: {**found, name: ours}[each] for each in FRAMEWORKS if each in {**found, name: ours}}
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    for each, runs in found.items():
        for epsilon, of in runs.items():
            mean, half = interval(of["accuracies"])
            print(f"{each:6} ε = {epsilon}: {100 * mean:.1f} ± {100 * half:.1f} %")


if __name__ == "__main__":
    main()
