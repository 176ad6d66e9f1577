"""Rounds for `peers.py` in TensorFlow: `_peer_tensorflow.py FOLDER plain|ours|tff`; or `cases`, which makes the cases.

*plain* is a loop without TFF, with the Keras model that TFF trains. *ours* is the learning process of `tff-mf train`,
in the context that it trains in; *tff* is the same with TFF's own model.
"""

import dataclasses
import functools
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("AUTOGRAPH_STRICT_CONVERSION", "1")

import _peer
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators
from tff_mf.experiments import next_word
from tff_mf.experiments.data import data_file, most_used_words
from tff_mf.experiments.runs.settings import RunSettings

_ROUNDS = 10_000


def settings_of(case: _peer.Case, **changes: object) -> RunSettings:
    """Returns settings with the model of a case; the run that they ask for is no benchmark."""
    sizes = {name: getattr(case, name) for name in ("vocab_size", "embedding_size", "units")}
    run = {"rounds": 1, "clients_per_round": 1, "delta": 1e-6, "sampling": "single"}
    return RunSettings(**run, model=case.architecture, **sizes, **changes)


def words_of(case: _peer.Case, settings: RunSettings) -> np.ndarray:
    """Returns words `[clients, sentences, length + 1]`: sentences of `pydoc` in their order, or random words."""
    number, shape = case.clients * case.sentences, (case.clients, case.sentences, -1)
    if case.full:
        length = next_word.SEQUENCE_LENGTH + 1
        return np.random.default_rng(0).integers(1, case.vocab_size + 1, (number, length)).reshape(shape)
    data = data_file("pydoc")
    vocabulary = most_used_words(data, case.vocab_size)
    chunks = next_word.Evaluator(settings, data, vocabulary).tokens("train", most=number)
    return np.concatenate([chunk.words for chunk in chunks]).astype(np.int64).reshape(shape)


def make_cases() -> None:
    """Writes the cases in standard input, JSON `{folder: case}`."""
    for folder, values in json.load(sys.stdin).items():
        case = _peer.Case(**values)
        settings = settings_of(case)
        names = [f"word{number}" for number in range(case.vocab_size)]
        model = next_word.build_keras_model(settings, vocabulary=names)
        weights = [variable.numpy() for variable in model.trainable_variables]
        case.write(pathlib.Path(folder), words_of(case, settings), weights)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlainRound:
    """Clients with SGD, clipped updates, one noise, and momentum on the server.

    Attributes:
        model: The model, whose variables are used.
        batch: Sentences of a step.
        client_rate: Rate of the clients' SGD.
        clip_norm: Bound on the norm of a client's update.
        noise: Standard deviation of the noise of the sum.
        momentum: Momentum of the server, whose rate is 1.
    """

    model: tf.keras.Model
    batch: int
    client_rate: float
    clip_norm: float = 1.0
    noise: float = 0.1
    momentum: float = 0.9

    def build(self, clients: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[Callable[[], object], list[tf.Variable]]:
        """Returns a function that runs a round, and the server's variables.

        Args:
            clients: Words and those that follow them, `[sentences, length]`, of each client.
        """
        variables = self.model.trainable_variables
        start = [tf.Variable(variable) for variable in variables]
        total, velocity = ([tf.Variable(tf.zeros_like(variable)) for variable in variables] for _ in range(2))

        @tf.function(autograph=False)
        def client(words: tf.Tensor, following: tf.Tensor) -> None:
            for variable, given in zip(variables, start, strict=True):
                variable.assign(given)
            self._train(words, following)
            changes = [variable - given for variable, given in zip(variables, start, strict=True)]
            scale = tf.minimum(1.0, self.clip_norm / tf.linalg.global_norm(changes))
            for variable, change in zip(total, changes, strict=True):
                variable.assign_add(scale * change)

        @tf.function(autograph=False)
        def server(number: tf.Tensor, key: tf.Tensor) -> None:
            for variable, added, speed in zip(start, total, velocity, strict=True):
                noise = self.noise * tf.random.stateless_normal(tf.shape(added), key)
                speed.assign(self.momentum * speed + (added + noise) / number)
                variable.assign_add(speed)
                added.assign(tf.zeros_like(added))

        data = [(tf.constant(words), tf.constant(following)) for words, following in clients]

        def one_round() -> object:
            for words, following in data:
                client(words, following)
            server(tf.constant(float(len(data))), tf.constant([1, 2]))
            return start[0].numpy()

        return one_round, start

    def _train(self, words: tf.Tensor, following: tf.Tensor) -> None:
        def batch(number: tf.Tensor) -> tf.Tensor:
            part = slice(number * self.batch, (number + 1) * self.batch)
            self._step(words[part], following[part])
            return number + 1

        steps = tf.shape(words)[0] // self.batch
        tf.while_loop(lambda number: number < steps, batch, [0], parallel_iterations=1)

    def _step(self, words: tf.Tensor, following: tf.Tensor) -> None:
        variables = self.model.trainable_variables
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
        with tf.GradientTape() as tape:
            value = loss(following, self.model(words, training=True))
        for variable, gradient in zip(variables, tape.gradient(value, variables), strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                changes = tf.IndexedSlices(self.client_rate * gradient.values, gradient.indices)
                variable.scatter_sub(changes)
            else:
                variable.assign_sub(self.client_rate * gradient)


def run_plain(given: _peer.Given) -> None:
    """Runs rounds of a plain loop."""
    case = given.case
    model = next_word.build_keras_model(settings_of(case), vocabulary=["word"] * case.vocab_size)
    model.set_weights(given.weights)
    plain = PlainRound(
        model=model,
        batch=case.batch,
        client_rate=case.client_rate,
        clip_norm=case.clip_norm,
        noise=case.noise_multiplier * case.clip_norm,
        momentum=case.momentum,
    )
    one_round, variables = plain.build(list(zip(given.inputs, given.targets, strict=True)))
    _peer.serve(lambda: [variable.numpy() for variable in variables], one_round)


def plan_of(case: _peer.Case) -> tff_mf.Plan:
    return tff_mf.plan(
        mechanism=tff_mf.Identity(),
        rounds=_ROUNDS,
        sampling=tff_mf.MinSep(min_sep=1, max_participations=_ROUNDS),
        delta=1e-6,
        clients_per_round=case.clients,
        clip_norm=case.clip_norm,
        noise_multiplier=case.noise_multiplier,
        insecure_seed=1,
    )


def tffs_model(architecture: str, build: Callable[[], tf.keras.Model]) -> Any:
    """Returns TFF's own model of a Keras model: a functional one where possible, whose rounds take a third less time.

    The recurrent model cannot be one: it masks padding, and TFF's conversion leaves the mask behind.
    """
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=next_word.PADDING)
    words = tf.TensorSpec([None, next_word.SEQUENCE_LENGTH], tf.int64)
    if architecture == "lstm":
        return lambda: tff.learning.models.from_keras_model(build(), loss, input_spec=(words, words), metrics=[])
    return tff.learning.models.functional_model_from_keras(build(), loss, input_spec=(words, words))


def run_ours(given: _peer.Given) -> None:
    """Runs rounds of the process of `tff-mf train`."""
    case = given.case
    settings = settings_of(
        case,
        clip_norm=case.clip_norm,
        client_learning_rate=case.client_rate,
        server_momentum=case.momentum,
        server_warmup=0.0,
        server_cooldown=0.0,
        batch_size=case.batch,
        max_examples=case.sentences,
    )
    with aggregators.resident_context(threads=1):
        task = next_word.build_task(settings, [f"word{number}" for number in range(case.vocab_size)])
        process, _ = next_word.build_process(settings, plan_of(case), task)
        batches = range(0, case.sentences, case.batch)
        # As `train` passes them.
        cohort = [
            [(words[start : start + case.batch], following[start : start + case.batch]) for start in batches]
            for words, following in zip(given.inputs, given.targets, strict=True)
        ]
        state = process.set_model_weights(process.initialize(), first_model(given))

        def one_round() -> None:
            nonlocal state
            state = process.next(state, cohort).state

        _peer.serve(lambda: arrays_of(process.get_model_weights(state)), one_round)


def run_private_fed_avg(given: _peer.Given) -> None:
    """Runs rounds of `private_fed_avg` as README has them: TFF's model, a dataset for each client, files of a run."""
    case = given.case
    datasets = {
        str(number): tf.data.Dataset.from_tensor_slices(arrays).batch(case.batch)
        for number, arrays in enumerate(zip(given.inputs, given.targets, strict=True))
    }
    settings, vocabulary = settings_of(case), ["word"] * case.vocab_size
    build = functools.partial(next_word.build_keras_model, settings, vocabulary=vocabulary)
    with tempfile.TemporaryDirectory() as folder:
        training = aggregators.private_fed_avg(
            plan_of(case),
            tffs_model(case.architecture, build),
            client_optimizer_fn=tff.learning.optimizers.build_sgdm(case.client_rate),
            server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0, momentum=case.momentum),
            folder=folder,
            initial_weights=first_model(given),
        )
        with training:
            cohorts = training.cohorts(datasets)
            _peer.serve(
                lambda: arrays_of(training.model()),
                lambda: training.next({client: datasets[client] for client in next(cohorts)}),
            )


def first_model(given: _peer.Given) -> tff.learning.models.ModelWeights:
    return tff.learning.models.ModelWeights(trainable=tuple(given.weights), non_trainable=())


def arrays_of(model: tff.learning.models.ModelWeights) -> list[np.ndarray]:
    return [np.asarray(weight) for weight in model.trainable]


if __name__ == "__main__":
    if sys.argv[1] == "cases":
        make_cases()
    else:
        kinds = {"plain": run_plain, "ours": run_ours, "tff": run_private_fed_avg}
        kinds[sys.argv[2]](_peer.read(pathlib.Path(sys.argv[1])))
