"""Time of a round with its clients as one computation, client by client, and in a plain TensorFlow loop.

python benchmarks/cohort.py [--rounds N] [--threads N] [lstm] [conv] [workers]

The LSTM of the papers with 10 clients of 32 sentences, and a small convolutional model with 100 clients of 16; their
words are random. The ways take turns round by round, so that the load of the machine affects all of them. CPU seconds
are those of Python and of the worker together.
"""

import argparse
import os
import statistics
import time
import unittest.mock
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import psutil
import tensorflow_federated as tff
from _common import header, row, worker
from _plain_round import PlainRound

import tff_mf
from tff_mf import aggregators
from tff_mf.aggregators.resident import _cohorts
from tff_mf.experiments.configuration.settings import ModelConfig, TrainingSettings
from tff_mf.experiments.privacy.plan import plan_privacy
from tff_mf.experiments.training import evaluation, learning_process, models

BATCH = 16
UNTIMED = 2
_NEVER = 10**9


class Case:
    """A model, a cohort, and the learning process for them.

    Args:
        name: `lstm` or `conv`.
        rounds: Number of rounds that will run.
    """

    def __init__(self, name: str, rounds: int) -> None:
        large = name == "lstm"
        self.clients, sentences, words = (10, 32, 10_000) if large else (100, 16, 2000)
        size = {"embedding_size": 96, "units": 670} if large else {"embedding_size": 32, "units": 32}
        self.config = ModelConfig(architecture=name, vocab_size=words, **size)
        self.vocabulary = [f"word{number}" for number in range(words)]
        settings = TrainingSettings(model=self.config, batch_size=BATCH, max_examples=sentences)
        privacy = plan_privacy(
            mechanism=tff_mf.Identity(),
            rounds=rounds,
            participation=tff_mf.MinSep(min_sep=1, max_participations=rounds),
            delta=1e-6,
            clients_per_round=self.clients,
            noise_multiplier=0.1,
            insecure_seed=1,
        )
        shape = (self.clients, sentences, evaluation.SEQUENCE_LENGTH + 1)
        self.words = np.random.default_rng(0).integers(1, words + 1, shape)
        # As `train` passes them.
        self.cohort = [
            [(one[start : start + BATCH, :-1], one[start : start + BATCH, 1:]) for start in range(0, sentences, BATCH)]
            for one in self.words
        ]
        self.rate = settings.client_learning_rate
        self.task = learning_process.build_task(settings, self.vocabulary)
        self.process: tff.learning.templates.LearningProcess
        self.process, _ = learning_process.build_process(settings, privacy, self.task)

    def initial_state(self) -> object:
        return self.process.set_model_weights(self.process.initialize(), self.task.initial_weights)


def plain(case: Case) -> Callable[[], object]:
    """Returns a round of the same arithmetic in a plain `tf.function`."""
    model = models.build_keras_model(case.config, extended_vocab_size=case.config.vocab_size + 4, seed=0)
    one_round, _ = PlainRound(model=model, batch=BATCH, client_rate=case.rate).build(
        [(one[:, :-1], one[:, 1:]) for one in case.words]
    )
    return lambda: one_round(case.clients)


def cpu_seconds() -> float:
    times = worker().cpu_times()
    return time.process_time() + times.user + times.system


def ways(name: str, rounds: int, threads: int | None) -> None:
    case = Case(name, rounds + UNTIMED)
    found: dict[str, list[tuple[float, float]]] = {}
    with aggregators.resident_context(threads=threads) as context:
        states = dict.fromkeys(
            ("client by client", "one computation, 1 at once", "one computation"), case.initial_state()
        )
        at_once = {"one computation, 1 at once": 1}
        summing = {way: _cohorts.Summing(at_once.get(way)) for way in states}
        floor = plain(case)
        for number in range(rounds + UNTIMED):
            for way in (*states, "plain TensorFlow"):
                cpu, start = cpu_seconds(), time.perf_counter()
                if way in states:
                    fewest = _NEVER if way == "client by client" else 1
                    context._summing = summing[way]
                    with unittest.mock.patch.object(_cohorts, "_FEWEST", fewest):
                        states[way] = case.process.next(states[way], case.cohort).state
                else:
                    floor()
                if number >= UNTIMED:
                    found.setdefault(way, []).append((time.perf_counter() - start, cpu_seconds() - cpu))
        trained = [
            [np.asarray(weight) for weight in case.process.get_model_weights(state).trainable]
            for state in states.values()
        ]
    same = all(np.array_equal(*pair) for other in trained[1:] for pair in zip(trained[0], other, strict=True))
    for way, times in found.items():
        ratios = zip(times, found["plain TensorFlow"], strict=True)
        ratio = statistics.median(one / other for (one, _), (other, _) in ratios)
        wall, cpu = (statistics.median(column) for column in zip(*times, strict=True))
        row(f"{name}, {case.clients} clients: {way}", f"{wall:.2f} s, CPU {cpu:.2f} s; {ratio:.2f} times plain")
    row(f"{name}: the same model, bit for bit", "yes" if same else "NO", "yes")


def workers(rounds: int) -> None:
    """Two workers that run one client at a time each, over one; and what their CPU seconds would allow.

    On a machine with other work, the wall time says little. If Python and the workers have a core each, a round takes
    no longer than the CPU seconds of Python and of the busier worker, one after the other.
    """
    case, times, busy = Case("lstm", rounds + UNTIMED), {}, {}
    with aggregators.running_worker(threads=1) as one, aggregators.running_worker(threads=1) as two:
        processes = [child for child in psutil.Process().children() if child.name().startswith("worker")]
        for addresses in ((one.address,), (one.address, two.address)):
            with aggregators.resident_context(workers=addresses, clients_at_once=1):
                state, taken = case.initial_state(), []
                for number in range(rounds + UNTIMED):
                    if number == UNTIMED:
                        before = time.process_time(), [sum(process.cpu_times()[:2]) for process in processes]
                    start = time.perf_counter()
                    state = case.process.next(state, case.cohort).state
                    taken.append(time.perf_counter() - start)
            of_workers = [
                sum(process.cpu_times()[:2]) - earlier for process, earlier in zip(processes, before[1], strict=True)
            ]
            times[len(addresses)] = statistics.median(taken[UNTIMED:])
            busy[len(addresses)] = time.process_time() - before[0] + max(of_workers)
    row("lstm: two workers on a core each over one", f"{times[1] / times[2]:.2f} times as fast", "≥ 1.6")
    row("lstm: the same by CPU seconds of Python and of the busier worker", f"{busy[1] / busy[2]:.2f}", "≥ 1.6")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="threads inside an operation of the worker")
    arguments = parser.parse_args()
    print(f"load of {os.cpu_count()} cores before: {psutil.getloadavg()[0]:.1f}")
    header("round", "median")
    for part in arguments.parts or ("lstm", "conv", "workers"):
        if part == "workers":
            workers(arguments.rounds)
        else:
            ways(part, arguments.rounds, arguments.threads)


if __name__ == "__main__":
    main()
