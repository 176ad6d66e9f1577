"""Size, time and memory of an exported server update at the size of the papers.

    python benchmarks/export.py                    # LSTM of 4,050,748 parameters, banded by 342: 5.5 GB of state
    python benchmarks/export.py --bands 8 --small  # the same in seconds

The rows of the state are random numbers and the noise is repeatable: nothing here is private.
"""

import argparse
import json
import pathlib
import resource
import statistics
import tempfile
import time

import _settings
import numpy as np
import safetensors.numpy
import tensorflow as tf
from _common import seconds

import tff_mf
from tff_mf.experiments.bundles.runner import Stages
from tff_mf.experiments.runs.settings import RunSettings
from tff_mf.experiments.training import learning_process
from tff_mf.experiments.training.task import Task, build_task

SMALL = {"vocab_size": 500, "embedding_size": 16, "units": 32}
ROWS = "__noise__rows__"


def banded(rounds: int, bands: int) -> tff_mf.Banded:
    """Returns an arbitrary banded matrix: its values do not affect the time of a round."""
    values = np.random.default_rng(0).normal(scale=0.1 / bands, size=(bands, rounds))
    values[0] = 1.0
    return tff_mf.Banded(values=values)


def peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def privacy_of(bands: int, rounds: int) -> tff_mf.Plan:
    return tff_mf.plan(
        mechanism=banded(rounds, bands),
        rounds=rounds,
        sampling=tff_mf.MinSep(min_sep=min(bands, rounds), max_participations=max(1, rounds // bands)),
        delta=1e-6,
        clients_per_round=100,
        noise_multiplier=1.0,
        insecure_seed=1,
    )


def exported(folder: pathlib.Path, settings: RunSettings, privacy: tff_mf.Plan, task: Task) -> tuple[dict, dict]:
    """Exports a process, and returns its description, and what was measured of the export."""
    from tff_mf import aggregators

    begin = time.perf_counter()
    process, _ = learning_process.build_process(settings, privacy, task, loop=learning_process.DEVICE_LOOP)
    built = time.perf_counter()
    description = aggregators.export_process(
        process, folder, initial_weights=task.initial_weights, batch_size=settings.batch_size
    )
    done = time.perf_counter()
    initial = folder / "server" / "initial.safetensors"
    return description, {
        "initial_mb": initial.stat().st_size / 1e6,
        "initial_tensors": len(safetensors.numpy.load_file(initial)),
        "graph_mb": {name: each["graph_bytes"] / 1e6 for name, each in description["stages"].items()},
        "saved_model_mb": {
            name: (folder / each["path"] / "saved_model.pb").stat().st_size / 1e6
            for name, each in description["stages"].items()
        },
        "lite": description["lite"],
        "process_seconds": built - begin,
        "export_seconds": done - built,
    }


def updated(stages: Stages, parameters: int, steps: int) -> dict:
    """Runs the exported server update on a state of random rows, and returns what was measured."""
    before = peak_gb()
    state = stages.initialize()
    for row in [name for name in state if ROWS in name]:
        state[row] = tf.random.normal(state[row].shape)
    size = sum(value.numpy().nbytes for value in state.values() if value.dtype.is_floating)
    report = stages.report(stages.zero())
    updates = []
    for _ in range(steps + 1):
        start = time.perf_counter()
        state, _ = stages.update(state, report)
        updates.append(time.perf_counter() - start)
    one = statistics.median(
        seconds(lambda step=step: tf.random.stateless_normal([parameters], seed=[step, 0], alg="philox").numpy())
        for step in range(5)
    )
    return {
        "state_gb": size / 1e9,
        "first_update_seconds": updates[0],
        "update_seconds": updates[1:],
        "update_over_one_draw": {"median": statistics.median(updates[1:]) / one, "worst": max(updates[1:]) / one},
        "peak_gb_beside_export": peak_gb() - before,
        "peak_over_state": (peak_gb() - before) / (size / 1e9),
    }


def measure(bands: int, rounds: int, settings: RunSettings, steps: int) -> dict:
    from tff_mf import aggregators

    task = build_task(settings, [f"word{index}" for index in range(settings.vocab_size)])
    with tempfile.TemporaryDirectory() as name, aggregators.tff_session():
        folder = pathlib.Path(name) / "out"
        description, measured = exported(folder, settings, privacy_of(bands, rounds), task)
        stages = Stages(folder, description)
        return {"parameters": task.parameters, "bands": bands, **measured, **updated(stages, task.parameters, steps)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bands", type=int, default=342)
    parser.add_argument("--rounds", type=int, default=2052)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    settings = _settings.of_model(**(SMALL if options.small else {}))
    print(json.dumps(measure(options.bands, options.rounds, settings, options.steps), indent=1))


if __name__ == "__main__":
    main()
