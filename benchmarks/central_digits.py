"""Every mechanism at the same (ε, δ) on scikit-learn's digits, trained centrally: docs/results.md.

python benchmarks/central_digits.py [--work FOLDER] [--seconds S]

For each mechanism and ε, batch size, momentum and learning rate are chosen by validation accuracy on two seeds, by the
same search; five other seeds are then trained with the choice and evaluated on the test split. Each run is a line in
FOLDER/runs.jsonl, and is not repeated: a study that was stopped continues. --seconds stops it after so many. Runs that
differ in rate, momentum and seed share one traced graph: a loop of the parts of `tff_mf.frameworks.keras`, whose
examples are permuted for each seed.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import math
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.stats

import tff_mf
from tff_mf.experiments import central
from tff_mf.experiments.central import CentralSettings

FOLDER = pathlib.Path(__file__).parents[1] / "docs" / "results"
Cell = Mapping[str, Any]
EPSILONS = (2.0, 4.0, 8.0, 16.0)
DELTA = 1e-5
MECHANISMS = ("identity", "tree-online", "tree-full", "blt", "banded", "banded, sampled")
# Batch size and epochs, of 200 rounds each.
CANDIDATES = ((128, 20), (256, 40))
# Where only errors are compared, and at which ε.
MORE_EPOCHS, LEVELS = ((128, 5), (128, 60)), np.geomspace(0.25, 32.0, 15)
MOMENTA = (0.0, 0.9)
# Rates of the search, times 1 − momentum: four to a power of ten.
RATES = tuple(round(10 ** (power / 4), 3) for power in range(-8, 5))
FIRST = RATES.index(1.0)
TUNING_SEEDS, SEEDS = (101, 102), (1, 2, 3, 4, 5)
VALIDATION = 220


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What runs share a graph by: everything but rate, momentum and seed."""

    mechanism: str
    epsilon: float
    batch_size: int
    epochs: int

    @functools.cached_property
    def settings(self) -> CentralSettings:
        """The settings of `tff-mf train-central`, with the rates of the first run."""
        common = {
            "dataset": "digits",
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "delta": DELTA,
            "epsilon": self.epsilon,
            "validation_examples": VALIDATION,
        }
        if self.mechanism == "identity":
            return CentralSettings(**common, mechanism="identity", sampling="poisson")
        if self.mechanism == "banded, sampled":
            return CentralSettings(**common, mechanism="banded", sampling="cyclic-poisson", groups=self._bands)
        return CentralSettings(**common, mechanism=self.mechanism)

    @property
    def _bands(self) -> int:
        examples = central.EXAMPLES["digits"] - VALIDATION
        epoch = examples // self.batch_size
        return tff_mf.amplified_bands(
            rounds=epoch * self.epochs,
            population=examples,
            clients_per_round=self.batch_size,
            epsilon=self.epsilon,
            delta=DELTA,
            bands=range(1, epoch + 1),
        )[0].bands

    @functools.cached_property
    def plan(self) -> tff_mf.Plan:
        """The mechanism, the sampling and σ."""
        self.settings.check()
        return self.settings.plan(self.settings.build_mechanism())

    @property
    def error(self) -> float:
        """Root mean squared error of the prefix sums of mean gradients, for clip norm 1."""
        rms = tff_mf.rms_error(self.plan.mechanism, self.settings.rounds)
        return rms * self.plan.noise_multiplier / self.batch_size


class Trainer:
    """Trains with one setting, as often as asked, in one graph."""

    def __init__(self, setting: Setting, data: central.ImageData) -> None:
        import tensorflow as tf

        from tff_mf import queries
        from tff_mf.frameworks import keras

        self._setting, self._data = setting, data
        self._model = self._network(seed=0)
        self._variables = self._model.trainable_variables
        self._velocity = [tf.Variable(tf.zeros_like(each)) for each in self._variables]
        self._rate, self._momentum = tf.Variable(0.0), tf.Variable(0.0)
        self._examples = [tf.Variable(part) for part in data.train]
        plan = setting.plan
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self._sum = keras.ClippedSum(self._model, loss, clip_norm=1.0)
        query = queries.build_query(
            plan.mechanism,
            record_specs=[tf.TensorSpec(each.shape) for each in self._variables],
            clip_norm=1.0,
            noise_multiplier=plan.noise_multiplier,
        )
        self._query = query.limited_to(plan.rounds)
        self._step = tf.function(self._one_step, autograph=False, reduce_retracing=True)

    def _network(self, seed: int) -> object:
        return central.network("digits", (8, 8, 1), seed=seed)

    def _one_step(self, row: object, state: object) -> object:
        import tensorflow as tf

        x, y = (tf.gather(part, tf.maximum(row, 0)) for part in self._examples)
        noised, state, _ = self._query.get_noised_result(self._sum(x, y, row >= 0), state)
        for variable, velocity, total in zip(self._variables, self._velocity, noised, strict=True):
            velocity.assign(self._momentum * velocity - self._rate * total / self._setting.batch_size)
            variable.assign_add(velocity)
        return state

    def run(self, *, rate: float, momentum: float, seed: int) -> None:
        """Trains from new weights, on newly permuted examples, with fresh noise."""
        import tensorflow as tf

        self._model.set_weights(self._network(seed).get_weights())
        places = np.random.default_rng(seed).permutation(len(self._data.train[1]))
        for variable, part in zip(self._examples, self._data.train, strict=True):
            variable.assign(part[places])
        for velocity in self._velocity:
            velocity.assign(tf.zeros_like(velocity))
        self._rate.assign(rate * (1 - momentum))
        self._momentum.assign(momentum)
        order = self._setting.settings.order
        state = self._query.initial_global_state()
        for row in tf.constant(order.batches(0, order.rounds, secret=tff_mf.CohortSecret.drawn())):
            state = self._step(row, state)

    def accuracy(self, part: central.Examples) -> float:
        """Returns the accuracy of the trained model."""
        images, labels = part
        return float(np.mean(np.argmax(self._model(images.astype(np.float32)), axis=1) == labels))


class Study:
    """The runs of the study, which are lines of a file."""

    def __init__(self, work: pathlib.Path, seconds: float) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self._path = work / "runs.jsonl"
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        self.runs = {self._key(run): run for run in map(json.loads, lines)}
        self._end = time.monotonic() + seconds
        self._trainers: dict[Setting, Trainer] = {}

    @staticmethod
    def _key(run: Mapping[str, object]) -> tuple[object, ...]:
        names = ("mechanism", "epsilon", "batch_size", "epochs", "momentum", "rate", "seed")
        return tuple(run[name] for name in names)

    def accuracy(self, setting: Setting, momentum: float, rate: float, seed: int) -> float:
        """Returns the accuracy of a run: on validation for seeds of the search, on test for the others."""
        wanted = {**dataclasses.asdict(setting), "momentum": momentum, "rate": rate, "seed": seed}
        key = self._key(wanted)
        if key not in self.runs:
            self._train(setting, wanted)
        return self.runs[key]["accuracy"]

    def _train(self, setting: Setting, wanted: Mapping[str, object]) -> None:
        if time.monotonic() > self._end:
            raise SystemExit("time is up: start again to continue")
        data = _data()
        if setting not in self._trainers:
            self._trainers = {setting: Trainer(setting, data)}
        trainer, begun = self._trainers[setting], time.process_time()
        trainer.run(rate=wanted["rate"], momentum=wanted["momentum"], seed=wanted["seed"])
        part = data.validation if wanted["seed"] in TUNING_SEEDS else data.test
        run = {**wanted, "accuracy": trainer.accuracy(part), "cpu_seconds": round(time.process_time() - begun, 2)}
        with self._path.open("a") as file:
            file.write(json.dumps(run) + "\n")
        self.runs[self._key(wanted)] = run
        print(run, flush=True)

    def chosen(self, mechanism: str, epsilon: float) -> tuple[Setting, float, float]:
        """Returns the setting, momentum and rate with the best validation accuracy."""
        found = []
        for batch_size, epochs in CANDIDATES:
            setting = Setting(mechanism=mechanism, epsilon=epsilon, batch_size=batch_size, epochs=epochs)
            found += [(self._best_rate(setting, momentum), setting, momentum) for momentum in MOMENTA]
        (_, rate), setting, momentum = max(found, key=lambda each: each[0][0])
        return setting, momentum, rate

    def _best_rate(self, setting: Setting, momentum: float) -> tuple[float, float]:
        """Climbs the grid of rates from 1 until both neighbours of the best rate are tried."""
        tried: dict[int, float] = {}

        def mean(index: int) -> float:
            if index not in tried and 0 <= index < len(RATES):
                found = [self.accuracy(setting, momentum, RATES[index], seed) for seed in TUNING_SEEDS]
                tried[index] = float(np.mean(found))
            return tried.get(index, -1.0)

        best = FIRST
        while max(mean(best - 1), mean(best + 1)) > mean(best):
            best = max((best - 1, best + 1), key=mean)
        return tried[best], RATES[best]


@functools.cache
def _data() -> central.ImageData:
    return central.split("digits", VALIDATION)


def cell(study: Study, mechanism: str, epsilon: float) -> dict[str, object]:
    """Returns the results of a mechanism at an ε, with the settings that were chosen for it."""
    setting, momentum, rate = study.chosen(mechanism, epsilon)
    return {
        **dataclasses.asdict(setting),
        "bands": setting.settings.bands,
        "momentum": momentum,
        "learning_rate": rate * (1 - momentum),
        "noise_multiplier": setting.plan.noise_multiplier,
        "error": setting.error,
        "validation": float(np.mean([study.accuracy(setting, momentum, rate, seed) for seed in TUNING_SEEDS])),
        "test": {str(seed): study.accuracy(setting, momentum, rate, seed) for seed in SEEDS},
    }


def crossings() -> list[dict[str, object]]:
    """Returns the ε above which a mechanism without amplification has a smaller error than DP-SGD."""
    found = []
    for batch_size, epochs in (*CANDIDATES, *MORE_EPOCHS):
        errors = {name: _errors(name, batch_size, epochs) for name in MECHANISMS if name != "banded, sampled"}
        ratios = {name: own / errors["identity"] for name, own in errors.items() if name != "identity"}
        found.append(
            {
                "batch_size": batch_size,
                "epochs": epochs,
                "epsilons": LEVELS.tolist(),
                "errors_relative_to_dp_sgd": {name: ratio.tolist() for name, ratio in ratios.items()},
                "crossing": {name: _crossing(LEVELS, ratio) for name, ratio in ratios.items()},
            }
        )
    return found


def _errors(mechanism: str, batch_size: int, epochs: int) -> np.ndarray:
    """Returns the error of a mechanism at each of `LEVELS`."""
    setting = Setting(mechanism=mechanism, epsilon=1.0, batch_size=batch_size, epochs=epochs)
    order, found = setting.settings.order, setting.plan.mechanism
    sigmas = [
        tff_mf.calibrate_noise_multiplier(found, order.rounds, order.sampling, epsilon=epsilon, delta=DELTA)
        for epsilon in LEVELS
    ]
    return setting.error / setting.plan.noise_multiplier * np.array(sigmas)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns mean and half the width of the 95 % interval by Student's t."""
    half = scipy.stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return float(np.mean(values)), float(half)


def write(cells: Sequence[Cell], crossings: Sequence[Cell], runs: Sequence[Cell], seconds: float) -> None:
    """Writes `digits.json`, and the tables of `docs/results.md`."""
    found = {"cells": cells, "gaps": _gaps(cells), "crossings": crossings, "cpu_seconds": round(seconds)}
    lines = ",\n".join(f"  {json.dumps(run)}" for run in runs)
    text = json.dumps(found, indent=1).removesuffix("\n}")
    (FOLDER / "digits.json").write_text(f'{text},\n "runs": [\n{lines}\n ]\n}}\n')
    page = FOLDER.parent / "results.md"
    text = page.read_text()
    texts = {"table": _table(cells), "crossings": _crossing_table(crossings)}
    for name, table in texts.items():
        before, rest = text.split(f"<!-- {name} -->\n")
        after = rest.split("<!-- end -->\n", 1)[1]
        text = f"{before}<!-- {name} -->\n\n{table}\n\n<!-- end -->\n{after}"
    page.write_text(text)


def _table(cells: Sequence[Cell]) -> str:
    """Returns test accuracies by mechanism and ε; settings of each are in `digits.json`."""
    found = {(cell["mechanism"], cell["epsilon"]): cell for cell in cells}
    mechanisms, epsilons = (list(dict.fromkeys(each)) for each in zip(*found, strict=True))
    lines = [
        "| test accuracy, % | " + " | ".join(f"ε = {epsilon:g}" for epsilon in epsilons) + " |",
        "|---|" + "---|" * len(epsilons),
    ]
    for mechanism in mechanisms:
        texts = [_accuracy(found[mechanism, epsilon]) for epsilon in epsilons]
        lines.append(f"| {mechanism} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def _accuracy(cell: Cell) -> str:
    mean, half = interval(list(cell["test"].values()))
    return f"{100 * mean:.1f} ± {100 * half:.1f}"


def _gaps(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    found = {(cell["mechanism"], cell["epsilon"]): cell["test"] for cell in cells}
    epsilons = dict.fromkeys(cell["epsilon"] for cell in cells)
    gaps = []
    for epsilon, (one, other) in itertools.product(epsilons, itertools.combinations(MECHANISMS, 2)):
        ours, theirs = found[one, epsilon], found[other, epsilon]
        mean, half = interval([ours[seed] - theirs[seed] for seed in ours])
        gaps.append({"epsilon": epsilon, "first": one, "second": other, "gap": mean, "half_width_95": half})
    return gaps


def _crossing_table(crossings: Sequence[Cell]) -> str:
    names = list(crossings[0]["crossing"])
    lines = ["| batch, epochs | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for each in crossings:
        texts = [f"{found:.1f}" if found else f"above {each['epsilons'][-1]:g}" for found in each["crossing"].values()]
        lines.append(f"| {each['batch_size']}, {each['epochs']} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def _crossing(levels: np.ndarray, ratio: np.ndarray) -> float | None:
    """Returns the ε at which a ratio that falls with ε is 1, between two levels by interpolation; `None` if nowhere."""
    logs = -np.log(ratio)
    if logs[0] > 0 or logs[-1] < 0:
        return None
    return float(np.exp(np.interp(0.0, logs, np.log(levels))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("runs/central-digits"))
    parser.add_argument("--seconds", type=float, default=float("inf"))
    arguments = parser.parse_args()
    study = Study(arguments.work, arguments.seconds)
    found = [cell(study, mechanism, epsilon) for epsilon in EPSILONS for mechanism in MECHANISMS]
    runs = list(study.runs.values())
    write(found, crossings(), runs, sum(run["cpu_seconds"] for run in runs))


if __name__ == "__main__":
    main()
