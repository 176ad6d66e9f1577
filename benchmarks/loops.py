"""Time of a training round with each of TFF's loops over a client's batches, and whether the models are the same.

python benchmarks/loops.py [--clients N] [--sentences N] [--rounds N]

Small models are trained on random words in a resident context: the loops differ in TensorFlow's overhead per client.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import _settings
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators
from tff_mf.experiments.runs.settings import RunSettings
from tff_mf.experiments.training import evaluation, learning_process, task

WORDS = 2000
BATCH = 16
UNTIMED = 2


def measured(
    settings: RunSettings, loop: tff.learning.LoopImplementation, cohort: list[tf.data.Dataset], rounds: int
) -> tuple[float, list[np.ndarray]]:
    """Returns the median seconds of a round, and the final model."""
    privacy = tff_mf.plan(
        mechanism=tff_mf.Identity(),
        rounds=rounds + UNTIMED,
        sampling=tff_mf.MinSep(min_sep=1, max_participations=rounds + UNTIMED),
        delta=1e-6,
        clients_per_round=len(cohort),
        noise_multiplier=0.1,
        insecure_seed=1,
    )
    language_task: task.Task = task.build_task(settings, [f"word{number}" for number in range(WORDS)])
    process, _ = learning_process.build_process(settings, privacy, language_task, loop=loop)
    seconds = []
    with aggregators.resident_context():
        state = process.set_model_weights(process.initialize(), language_task.initial_weights)
        for _ in range(privacy.rounds):
            start = time.perf_counter()
            state = process.next(state, cohort).state
            seconds.append(time.perf_counter() - start)
        model = [np.asarray(weight) for weight in process.get_model_weights(state).trainable]
    return statistics.median(seconds[UNTIMED:]), model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--sentences", type=int, default=64, help="number of sentences of each client")
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args()
    shape = (arguments.clients, arguments.sentences, evaluation.SEQUENCE_LENGTH + 1)
    words = np.random.default_rng(0).integers(1, WORDS + 1, shape)
    cohort = [tf.data.Dataset.from_tensor_slices((one[:, :-1], one[:, 1:])).batch(BATCH) for one in words]
    print("| model | simulation loop, s | device loop, s | simulation over device | the same model bit for bit |")
    print("|---|---|---|---|---|")
    for architecture in ("conv", "lstm"):
        sizes = {"vocab_size": WORDS, "embedding_size": 32, "units": 64, "batch_size": BATCH}
        settings = _settings.of_model(model=architecture, max_examples=arguments.sentences, **sizes)
        (fast, one), (slow, other) = (
            measured(settings, loop, cohort, arguments.rounds)
            for loop in (learning_process.SIMULATION_LOOP, learning_process.DEVICE_LOOP)
        )
        same = all(np.array_equal(*pair) for pair in zip(one, other, strict=True))
        print(
            f"| {architecture} | {fast:.2f} | {slow:.2f} | {fast / slow:.2f} | {'yes' if same else 'no'} |", flush=True
        )


if __name__ == "__main__":
    main()
