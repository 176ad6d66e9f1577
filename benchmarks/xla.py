"""CPU time of a client's steps with and without XLA, in plain TensorFlow: TFF's worker has no XLA.

    python benchmarks/xla.py [lstm] [conv] [--turns N]

The clients of `peers.py`: 16 sentences for the light model, 32 for the LSTM. Each way runs all clients once in each
turn, in rotation, and ratios are of one turn. TFF's worker is asked too.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import _peer
import _settings
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from _common import header, row
from _peer_cases import words_of
from _plain_round import PlainRound
from peers import CONV, LSTM, changed

from tff_mf import aggregators
from tff_mf.experiments.runs.settings import RunSettings
from tff_mf.experiments.training import evaluation, models

PLAIN, PACKED = "TFF's Keras model", "what `train` computes, without padding"
PADDED, COMPILED = "the same with padding, as XLA needs it", "the same, compiled by XLA"
UNTIMED = 2
CASES = {"conv": changed(CONV, clients=20, most_clients=20), "lstm": changed(LSTM, clients=4, most_clients=4)}

Clients = Sequence[tuple[np.ndarray, np.ndarray]]


def steps_of(
    case: _peer.Case, model: tff.learning.models.FunctionalModel, clients: Clients, *, compiled: bool
) -> Callable[[], object]:
    """Returns a function that trains every client, and sums their clipped changes."""
    start = [tf.Variable(weight) for weight in model.initial_weights[0]]
    total = [tf.Variable(tf.zeros_like(weight)) for weight in start]

    @tf.function(autograph=False, jit_compile=compiled)
    def change(words: tf.Tensor, following: tf.Tensor) -> list[tf.Tensor]:
        given = [tf.convert_to_tensor(weight) for weight in start]
        weights = given
        for first in range(0, case.sentences, case.batch):
            part = slice(first, first + case.batch)
            with tf.GradientTape() as tape:
                tape.watch(weights)
                loss = model.loss(model.predict_on_batch((weights, ()), words[part]), following[part])
            # As TFF's optimizers do with sparse ones.
            gradients = map(tf.convert_to_tensor, tape.gradient(loss, weights))
            weights = [
                weight - case.client_rate * gradient for weight, gradient in zip(weights, gradients, strict=True)
            ]
        changes = [weight - before for weight, before in zip(weights, given, strict=True)]
        scale = tf.minimum(1.0, case.clip_norm / tf.linalg.global_norm(changes))
        return [scale * each for each in changes]

    data = [(tf.constant(words), tf.constant(following)) for words, following in clients]

    def all_clients() -> object:
        for words, following in data:
            for variable, each in zip(total, change(words, following), strict=True):
                variable.assign_add(each)
        return total[0].numpy()

    return all_clients


def ways(case: _peer.Case, settings: RunSettings, clients: Clients) -> dict[str, Callable[[], object]]:
    keras = models.build_keras_model(settings, extended_vocab_size=settings.vocab_size + 4)
    words = tf.TensorSpec([None, evaluation.SEQUENCE_LENGTH], tf.int64)
    weights = [variable.numpy() for variable in keras.trainable_variables]
    packed, padded = (
        models.build_hoisted_model(settings.model, weights, input_spec=(words, words), static_shapes=static)
        for static in (False, True)
    )
    plain, _ = PlainRound(model=keras, batch=case.batch, client_rate=case.client_rate).build(clients)
    return {
        PLAIN: lambda: plain(len(clients)),
        PACKED: steps_of(case, packed, clients, compiled=False),
        PADDED: steps_of(case, padded, clients, compiled=False),
        COMPILED: steps_of(case, padded, clients, compiled=True),
    }


def measure(name: str, turns: int) -> None:
    case = CASES[name]
    settings = _settings.of_case(case)
    words = words_of(case, settings)
    found: dict[str, list[float]] = {}
    steps = ways(case, settings, [(one[:, :-1], one[:, 1:]) for one in words])
    for turn in range(UNTIMED + turns):
        for way, step in steps.items():
            start = time.process_time()
            step()
            if turn >= UNTIMED:
                found.setdefault(way, []).append(time.process_time() - start)
    for way, times in found.items():
        ratio = statistics.median(one / plain for one, plain in zip(times, found[PLAIN], strict=True))
        each = 1000 * statistics.median(times) / len(words)
        row(f"{name}: {way}", f"{each:.1f} ms, {ratio:.2f} times TFF's")


def of_worker() -> str:
    """Returns whether TFF's worker compiles a function that is for XLA: one that XLA refuses, since it has strings."""

    @tff.tensorflow.computation(tff.TensorType(np.float32, [4]))
    def for_xla(numbers: tf.Tensor) -> tf.Tensor:
        return tf.function(
            lambda each: tf.strings.to_number(tf.strings.as_string(each)), autograph=False, jit_compile=True
        )(numbers)

    with aggregators.resident_context():
        try:
            for_xla(np.ones(4, np.float32))
        except tf.errors.OpError as error:
            return f"compiles: {error}"
    return "computes it without XLA"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="model", help=", ".join(CASES))
    parser.add_argument("--turns", type=int, default=7)
    given = parser.parse_args()
    header("steps of a client", "CPU, median")
    for name in given.models or CASES:
        measure(name, given.turns)
    row("TFF's worker, with a function that XLA refuses", of_worker())


if __name__ == "__main__":
    main()
