"""A small run of `private_fed_avg` in a folder: begun, gone on with, or looked at once it has ended."""

import os
import pathlib
import signal
import sys

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators
from tff_mf.experiments.runs import names

ROUNDS, EACH = 4, 2
CLIENTS = [f"client {index}" for index in range(EACH * ROUNDS)]
SETTING = {
    "mechanism": "tree-full",
    "rounds": ROUNDS,
    "clients_per_round": EACH,
    "delta": 1e-3,
    "noise_multiplier": 1.0,
    "population": len(CLIENTS),
}


def dataset() -> tf.data.Dataset:
    x = np.ones([4, 2], np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(2)


def model_fn() -> tff.learning.models.VariableModel:
    layers = [tf.keras.layers.InputLayer(input_shape=(2,)), tf.keras.layers.Dense(1, kernel_initializer="ones")]
    loss = tf.keras.losses.MeanSquaredError()
    return tff.learning.models.from_keras_model(tf.keras.Sequential(layers), loss, dataset().element_spec)


def opened(folder: pathlib.Path) -> aggregators.PrivateTraining:
    """Returns the training of a folder, whatever became of it before."""
    plan = tff_mf.plan(**SETTING)
    sgd = tff.learning.optimizers.build_sgdm(0.1)
    return aggregators.private_fed_avg(plan, model_fn, client_optimizer_fn=sgd, folder=folder)


def main() -> None:
    """Trains in the folder that is the first argument, up to the end of the run."""
    with opened(pathlib.Path(sys.argv[1])) as training:
        for cohort in training.cohorts(CLIENTS):
            training.next({client: dataset() for client in cohort})
        print(training.report())
        training.evaluate(dataset())


def kill_once_ended(folder: pathlib.Path, event: str, name: str) -> None:
    """Kills this process before something happens to a file in a folder after the run's end is in its ledger.

    Args:
        folder: The folder of the run.
        event: Python's audit event, such as `os.remove`.
        name: How the name of the file begins.
    """

    def hook(happens: str, given: tuple[object, ...]) -> None:
        paths = [os.path.basename(str(each)) for each in given] if happens == event else []
        if any(path.startswith(name) for path in paths) and '"ended"' in (folder / names.LEDGER).read_text():
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
