"""Time of a run that evaluates its model while the next round trains, and of one that waits for the evaluation.

    python benchmarks/overlap.py [--rounds N] [--evaluate-every N] [--turns N]

Model and cohorts are those of the preset `pydoc-light`. Runs of both kinds take turns; times are from the release of
round 5 to that of the last round, and CPU seconds are those of Python and of TFF's worker together. Their models and
metrics must be the same bit for bit.
"""

import argparse
import os
import pathlib
import statistics
import tempfile
import time
import unittest.mock
from collections.abc import Mapping

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import psutil
from _common import header, row, worker

import tff_mf
from tff_mf.experiments.configuration.settings import ExecutionSettings, ModelConfig, TrainingSettings
from tff_mf.experiments.datasets import named_data
from tff_mf.experiments.privacy.plan import plan_privacy
from tff_mf.experiments.training import checkpoints, program, rounds

MEANWHILE, WAITING = "evaluated while the next round trains", "evaluated before it"
# Before, graphs are traced.
FIRST = 5
_ADD = rounds.Releases.add


def waiting(released: rounds.Releases, progress: checkpoints.Progress, evaluate: rounds.Evaluate | None) -> None:
    """Adds a round, and waits until it is released."""
    _ADD(released, progress, evaluate)
    released.finish()


def trained(rounds: int, evaluate_every: int) -> tuple[float, float, program.TrainingResult]:
    """Returns the wall and CPU seconds of a run, and its result."""
    settings = TrainingSettings(
        model=ModelConfig(architecture="conv", vocab_size=2000, embedding_size=32, units=32),
        clip_norm=0.3,
        batch_size=16,
        max_examples=16,
        evaluate_every=evaluate_every,
        evaluation_examples=3000,
        test_examples=1000,
    )
    privacy = plan_privacy(
        mechanism=tff_mf.BLT.production("b400"),
        rounds=rounds,
        clients_per_round=20,
        noise_multiplier=1.0,
        participation=tff_mf.MinSep(min_sep=rounds // 2, max_participations=2),
        delta=1e-6,
        insecure_seed=1,
    )
    times: dict[int, tuple[float, float]] = {}

    def on_round(number: int, metrics: Mapping[str, float]) -> None:
        del metrics
        if number in (FIRST, rounds):
            of_worker = worker().cpu_times()
            times[number] = time.perf_counter(), time.process_time() + of_worker.user + of_worker.system

    with tempfile.TemporaryDirectory() as folder:
        result = program.run(
            settings,
            privacy,
            data=named_data.data_file("pydoc"),
            out=pathlib.Path(folder),
            on_round=on_round,
            execution=ExecutionSettings(checkpoint_every=0),
            without_epsilon=True,
        )
    wall, cpu = np.subtract(times[rounds], times[FIRST])
    return float(wall), float(cpu), result


def same(one: program.TrainingResult, other: program.TrainingResult) -> bool:
    return one.history == other.history and all(map(np.array_equal, one.weights, other.weights))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--evaluate-every", type=int, default=5)
    parser.add_argument("--turns", type=int, default=2)
    given = parser.parse_args()
    print(f"load of {os.cpu_count()} cores before: {psutil.getloadavg()[0]:.1f}")
    found: dict[str, list[tuple[float, float, program.TrainingResult]]] = {MEANWHILE: [], WAITING: []}
    for _ in range(given.turns):
        found[MEANWHILE].append(trained(given.rounds, given.evaluate_every))
        with unittest.mock.patch.object(rounds.Releases, "add", waiting):
            found[WAITING].append(trained(given.rounds, given.evaluate_every))
    header(f"{given.rounds - FIRST} rounds, evaluated every {given.evaluate_every}", "median")
    for way, runs in found.items():
        walls, cpus = ([run[column] for run in runs] for column in range(2))
        row(way, f"{statistics.median(walls):.1f} s, CPU {statistics.median(cpus):.1f} s")
    for column, name in enumerate(("wall", "CPU")):
        ratios = [one[column] / other[column] for one, other in zip(found[MEANWHILE], found[WAITING], strict=True)]
        row(f"{name}: the first over the second", f"{statistics.median(ratios):.2f}")
    alike = all(same(runs[2], found[MEANWHILE][0][2]) for way in found.values() for runs in way)
    row("the same model and metrics, bit for bit", "yes" if alike else "NO", "yes")


if __name__ == "__main__":
    main()
