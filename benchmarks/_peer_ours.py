"""Our rounds for `peers.py`: the learning process of `tff-mf train`, in the context that it trains in."""

import argparse
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("AUTOGRAPH_STRICT_CONVERSION", "1")

import _peer
import _settings
import numpy as np
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators
from tff_mf.experiments.training import learning_process, task

_ROUNDS = 10_000


def process_of(case: _peer.Case, *, reference_model: bool) -> tff.learning.templates.LearningProcess:
    settings = _settings.of_case(
        case,
        clip_norm=case.clip_norm,
        client_learning_rate=case.client_rate,
        server_momentum=case.momentum,
        server_warmup=0.0,
        server_cooldown=0.0,
        batch_size=case.batch,
        max_examples=case.sentences,
        reference_model=reference_model,
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
    language_task = task.build_task(settings, [f"word{number}" for number in range(case.vocab_size)])
    process, _ = learning_process.build_process(settings, privacy, language_task)
    return process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--reference-model", action="store_true")
    given = parser.parse_args()
    read = _peer.read(given.folder)
    with aggregators.resident_context(threads=1):
        process = process_of(read.case, reference_model=given.reference_model)
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
