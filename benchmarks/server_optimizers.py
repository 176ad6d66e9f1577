"""Accuracy on `pydoc` by the server's optimizer, and by mechanism, at one ε.

python benchmarks/server_optimizers.py --data FILE --out FILE.jsonl [--mechanisms] [--only WORD] [--epsilon E …]
python benchmarks/server_optimizers.py --out FILE.jsonl --table

The setting is smaller than `pydoc-light`: 100 rounds of 10 clients that stand for 500, with half their sentences. The
optimizers are those that `tff-mf train` runs, the clients those of signal_to_noise.py. Each rate is found in the same
way, with seed 100, by accuracy on heldout clients: three powers of 2 at first, and more as long as the best is at an
end. Results are of seeds 0 to 4, on test clients. FILE.jsonl has one line a run; runs that are in it are not repeated.
`--data` is a file of `pydoc.write_pydoc(FILE)`.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import math
import pathlib
import statistics
import time
from collections.abc import Iterator

import msgspec
import numpy as np
import scipy.stats
import signal_to_noise as clients
import tensorflow as tf

import tff_mf
from tff_mf.experiments.runs import layers
from tff_mf.experiments.runs.settings import RunSettings
from tff_mf.experiments.training import learning_process
from tff_mf.experiments.training.datasets import sqlite
from tff_mf.problem.draws import SeededDraws

MEASURED = 2500
SENTENCES = 8
TUNED, SEEDS = 100, range(5)
# Powers of 2 of the rate that is tried first, from short trials.
FIRST = {"sgdm": 1, "adam": -3, "yogi": -3, "adagrad": -1}
OPTIMIZERS = [(optimizer, "blt") for optimizer in FIRST]
MECHANISMS = [("sgdm", mechanism) for mechanism in ("blt", "scaled-blt", "banded")]


@dataclasses.dataclass(frozen=True)
class Run:
    """A training run."""

    optimizer: str
    mechanism: str
    epsilon: float
    power: int
    seed: int


def settings_of(run: Run) -> RunSettings:
    """Returns the settings with which `tff-mf train` would do the same."""
    preset = layers.settings(layers.PRESETS.load("pydoc-light").over(layers.Layer.of({}, "benchmark")))
    return msgspec.structs.replace(
        preset,
        rounds=100,
        min_sep=50,
        clients_per_round=10,
        cohort=500,
        max_examples=SENTENCES,
        epsilon=run.epsilon,
        grid="none",
        server_optimizer=run.optimizer,
        server_learning_rate=2.0**run.power,
        server_momentum=0.0 if run.optimizer == "adagrad" else preset.server_momentum,
        seed=run.seed,
    )


@functools.cache
def mechanism_of(name: str) -> tff_mf.Mechanism:
    """Returns a mechanism that is optimized for the setting."""
    settings = settings_of(Run("sgdm", "blt", 2.0, 0, 0))
    if name != "scaled-blt":
        return msgspec.structs.replace(settings, mechanism=name).build_mechanism()
    return tff_mf.optimize_scaled_blt(rounds=settings.rounds, participation=settings.participation(), buffers=4)


class Data:
    """The sentences of `pydoc`."""

    def __init__(self, path: pathlib.Path) -> None:
        words = list(sqlite.load_word_counts(path, clients.WORDS))
        self.train = list(clients._sentences(path, "train", words).values())
        self.heldout, self.test = (
            np.random.default_rng(0).permutation(np.concatenate([*clients._sentences(path, split, words).values()]))
            for split in ("heldout", "test")
        )


def accuracy(run: Run, data: Data) -> float:
    """Returns what a run reaches, on heldout clients with the seed that tunes."""
    settings, mechanism = settings_of(run), mechanism_of(run.mechanism)
    plan = settings.privacy_plan(mechanism)
    random = np.random.default_rng(run.seed)
    weights = clients._initial(settings.units, random)
    sizes = [weight.size for weight in weights]
    z = np.random.default_rng().standard_normal((settings.rounds, sum(sizes)), np.float32)
    scale = plan.noise_multiplier * settings.clip_norm / plan.cohort
    noise = (scale * mechanism.inverse(settings.rounds)).astype(np.float32) @ z
    cohorts = plan.participation.cohorts(
        len(data.train), settings.rounds, clients_per_round=settings.clients_per_round, draws=SeededDraws(run.seed)
    )
    optimizer = learning_process.server_optimizer(settings, plan)
    model = tf.constant(np.concatenate([weight.ravel() for weight in weights]))
    state = optimizer.initialize(tf.TensorSpec(model.shape, model.dtype))
    for cohort, noise_of_round in zip(cohorts, noise, strict=True):
        parts = np.split(model.numpy(), np.cumsum(sizes)[:-1])
        weights = [part.reshape(weight.shape) for part, weight in zip(parts, weights, strict=True)]
        updates = [
            clients._update(weights, random.permutation(data.train[client])[:SENTENCES], settings.clip_norm)
            for client in cohort
        ]
        state, model = optimizer.next(state, model, tf.constant(-sum(updates) / len(updates) - noise_of_round))
    parts = np.split(model.numpy(), np.cumsum(sizes)[:-1])
    weights = [part.reshape(weight.shape) for part, weight in zip(parts, weights, strict=True)]
    return clients._accuracy(weights, (data.heldout if run.seed == TUNED else data.test)[:MEASURED])


class Results:
    """The runs that are done, in a file."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        self.done = {Run(**row["run"]): 100 * row["accuracy"] for row in map(json.loads, lines)}

    def do(self, run: Run, data: Data) -> None:
        """Does a run that is not done."""
        if run in self.done:
            return
        began = time.process_time()
        found = accuracy(run, data)
        row = {"run": dataclasses.asdict(run), "accuracy": found, "seconds": time.process_time() - began}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self.done[run] = 100 * found

    def tried(self, optimizer: str, mechanism: str, epsilon: float) -> dict[int, float]:
        """Returns accuracy on heldout clients by the rate's power of 2."""
        same = (optimizer, mechanism, epsilon, TUNED)
        own = (run for run in self.done if (run.optimizer, run.mechanism, run.epsilon, run.seed) == same)
        return {run.power: self.done[run] for run in sorted(own, key=lambda run: run.power)}

    def final(self, optimizer: str, mechanism: str, epsilon: float) -> dict[int, float]:
        """Returns accuracy on test clients at the best rate that was tried, by seed."""
        tried = self.tried(optimizer, mechanism, epsilon)
        runs = [Run(optimizer, mechanism, epsilon, max(tried, key=tried.__getitem__), seed) for seed in SEEDS]
        return {run.seed: self.done[run] for run in runs if run in self.done}


def find(results: Results, optimizer: str, mechanism: str, epsilon: float, data: Data) -> None:
    """Finds the rate, and does the runs of the result."""
    powers = [FIRST[optimizer] + step for step in (-1, 0, 1)]
    while True:
        for power in powers:
            results.do(Run(optimizer, mechanism, epsilon, power, TUNED), data)
        tried = results.tried(optimizer, mechanism, epsilon)
        best = max(tried, key=tried.__getitem__)
        if min(tried) < best < max(tried):
            break
        powers = [best - 1, best + 1]
    for seed in SEEDS:
        results.do(Run(optimizer, mechanism, epsilon, best, seed), data)


def interval(values: list[float]) -> str:
    """Returns the mean and Student's 95 % interval."""
    if len(values) < 2:
        return " ".join(f"{value:.2f}" for value in values)
    half = scipy.stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.fmean(values):.2f} ± {half:.2f}"


def table(results: Results) -> Iterator[str]:
    """Yields accuracies, rates, and gaps to the first of each group, paired by seed."""
    yield "| ε | optimizer | mechanism | accuracy, % | seeds | over the first | rate | rates tried |"
    yield "|---|---|---|---|---|---|---|---|"
    for epsilon, pairs in itertools.product(sorted({run.epsilon for run in results.done}), (OPTIMIZERS, MECHANISMS)):
        first = results.final(*pairs[0], epsilon)
        for pair in (each for each in pairs if results.tried(*each, epsilon)):
            own, tried = results.final(*pair, epsilon), results.tried(*pair, epsilon)
            gaps = [own[seed] - first[seed] for seed in own if seed in first]
            gap = "" if pair == pairs[0] else interval(gaps)
            rate = f"{2.0 ** max(tried, key=tried.__getitem__):g}"
            cells = [f"{epsilon:g}", *pair, interval([*own.values()]), str(len(own)), gap, rate, str(len(tried))]
            yield f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[2.0, 8.0])
    parser.add_argument("--mechanisms", action="store_true", help="compare mechanisms with SGD, not optimizers")
    parser.add_argument("--only", default="", help="an optimizer or mechanism: run it alone")
    parser.add_argument("--table", action="store_true", help="print the table of finished runs, and run nothing")
    arguments = parser.parse_args()
    results = Results(arguments.out)
    if arguments.table:
        print("\n".join(table(results)))
        return
    data = Data(arguments.data)
    for epsilon, pair in itertools.product(arguments.epsilon, MECHANISMS if arguments.mechanisms else OPTIMIZERS):
        if not arguments.only or arguments.only in pair:
            find(results, *pair, epsilon, data)


if __name__ == "__main__":
    main()
