"""Our rounds for `peers.py`: the learning process of `tff-mf train`, in the context that it trains in."""

import argparse
import contextlib
import os
import pathlib
from collections.abc import Iterator

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


@contextlib.contextmanager
def _worker(core: int | None) -> Iterator[aggregators.Worker]:
    """Runs a worker, on one of the cores that this process has if one is given."""
    own = os.sched_getaffinity(0)
    if core is not None:
        # A process begins with the cores of the one that starts it.
        os.sched_setaffinity(0, {sorted(own)[core % len(own)]})
    with contextlib.ExitStack() as stack:
        try:
            worker = stack.enter_context(aggregators.running_worker(threads=1))
        finally:
            os.sched_setaffinity(0, own)
        yield worker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--reference-model", action="store_true")

    parser.add_argument("--workers", type=int, default=0, help="instead of one that the context starts")
    parser.add_argument("--clients-at-once", type=int)
    parser.add_argument("--core-each", action="store_true", help="each worker runs on a core of its own")
    given = parser.parse_args()
    read = _peer.read(given.folder)
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(_worker(core if given.core_each else None)) for core in range(given.workers)]
        context = aggregators.resident_context(
            workers=tuple(worker.address for worker in workers),
            clients_at_once=given.clients_at_once,
            threads=None if workers else 1,
        )
        stack.enter_context(context)
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
