"""Our rounds for `peers.py`: the learning process of `tff-mf train`, in the context that it trains in."""

import argparse
import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("AUTOGRAPH_STRICT_CONVERSION", "1")

import _peer
import _settings
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators
from tff_mf.experiments.training import client_batches, learning_process, models, task

_ROUNDS = 10_000


def process_of(case: _peer.Case, *, model_of_tff: bool) -> tff.learning.templates.LearningProcess:
    settings = _settings.of_case(
        case,
        clip_norm=case.clip_norm,
        client_learning_rate=case.client_rate,
        server_momentum=case.momentum,
        server_warmup=0.0,
        server_cooldown=0.0,
        batch_size=case.batch,
        max_examples=case.sentences,
    )
    privacy = tff_mf.plan(
        mechanism=tff_mf.Identity(),
        rounds=_ROUNDS,
        sampling=tff_mf.MinSep(min_sep=1, max_participations=_ROUNDS),
        delta=1e-6,
        clients_per_round=case.clients,
        noise_multiplier=case.noise_multiplier,
        insecure_seed=1,
    )
    vocabulary = [f"word{number}" for number in range(case.vocab_size)]
    language_task = task.build_task(settings, vocabulary)
    if model_of_tff:
        build = functools.partial(task.build_keras_model, settings, vocabulary=vocabulary)
        language_task = dataclasses.replace(language_task, model=tffs_model(case.architecture, build))
    process, _ = learning_process.build_process(settings, privacy, language_task)
    return process


def tffs_model(architecture: str, build: Callable[[], tf.keras.Model]) -> Any:
    """Returns TFF's own model of a Keras model: a functional one where possible, whose rounds take a third less time.

    The recurrent model cannot be one: it masks padding, and TFF's conversion leaves the mask behind.
    """
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=models.PADDING)
    words = tf.TensorSpec([None, client_batches.SEQUENCE_LENGTH], tf.int64)
    if architecture == "lstm":
        return lambda: tff.learning.models.from_keras_model(build(), loss, input_spec=(words, words), metrics=[])
    return tff.learning.models.functional_model_from_keras(build(), loss, input_spec=(words, words))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--model-of-tff", action="store_true")
    given = parser.parse_args()
    read = _peer.read(given.folder)
    with aggregators.resident_context(threads=1):
        process = process_of(read.case, model_of_tff=given.model_of_tff)
        batches = range(0, read.case.sentences, read.case.batch)
        # As `train` passes them.
        cohort = [
            [(words[start : start + read.case.batch], following[start : start + read.case.batch]) for start in batches]
            for words, following in zip(read.inputs, read.targets, strict=True)
        ]
        first = tff.learning.models.ModelWeights(trainable=tuple(read.weights), non_trainable=())
        state = process.set_model_weights(process.initialize(), first)

        def one_round(clients: int) -> None:
            nonlocal state
            state = process.next(state, cohort[:clients]).state

        def model() -> list[np.ndarray]:
            return [np.asarray(weight) for weight in process.get_model_weights(state).trainable]

        _peer.serve(model, one_round)


if __name__ == "__main__":
    main()
