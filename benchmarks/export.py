"""Measures an exported server update at the size of the papers: graphs, state, time and memory.

    python benchmarks/export.py                    # LSTM of 4,050,748 parameters, banded by 342: 5.5 GB of state
    python benchmarks/export.py --bands 8 --small  # the same in seconds

The rows of the state are random numbers, and noise is not fresh: nothing here is private.
"""

import argparse
import json
import pathlib
import resource
import tempfile
import time

import numpy as np
import safetensors.numpy
import tensorflow as tf

import tff_mf
from tff_mf.experiments.bundles.stages import Stages
from tff_mf.experiments.configuration.settings import ModelConfig, TrainingSettings
from tff_mf.experiments.privacy.plan import plan_privacy
from tff_mf.experiments.training import learning_process

SMALL = ModelConfig(vocab_size=500, embedding_size=16, units=32)
ROWS = "__noise__rows__"


class _Bare(Stages):
    """The stages of a folder that is no whole bundle."""

    def __init__(self, folder: pathlib.Path, stages: dict) -> None:
        self.folder, self.described, self._loaded = folder, stages, {}


def banded(rounds: int, bands: int) -> tff_mf.Banded:
    """A matrix of no special kind: how long a round takes does not depend on its numbers."""
    values = np.random.default_rng(0).normal(scale=0.1 / bands, size=(bands, rounds))
    values[0] = 1.0
    return tff_mf.Banded(values=values)


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def measure(bands: int, rounds: int, model: ModelConfig, steps: int) -> dict:
    from tff_mf import aggregators

    settings = TrainingSettings(model=model)
    privacy = plan_privacy(
        mechanism=banded(rounds, bands),
        rounds=rounds,
        participation=tff_mf.MinSep(min_sep=min(bands, rounds), max_participations=max(1, rounds // bands)),
        delta=1e-6,
        clients_per_round=100,
        noise_multiplier=1.0,
        insecure_seed=1,
    )
    task = learning_process.build_task(settings, [f"word{index}" for index in range(model.vocab_size)])
    with tempfile.TemporaryDirectory() as name, aggregators.tff_session():
        folder = pathlib.Path(name)
        begin = time.perf_counter()
        process, _ = learning_process.build_process(settings, privacy, task, loop=learning_process.DEVICE_LOOP)
        built = time.perf_counter()
        exported = aggregators.export_process(
            process, folder / "out", initial_weights=task.initial_weights, batch_size=settings.batch_size
        )
        done = time.perf_counter()
        stages = _Bare(folder / "out", exported["stages"])
        saved = {
            name: (folder / "out" / each["path"] / "saved_model.pb").stat().st_size
            for name, each in exported["stages"].items()
        }
        before = peak()
        state = stages.initialize()
        for row in [name for name in state if ROWS in name]:
            state[row] = tf.random.normal(state[row].shape)
        size = sum(value.numpy().nbytes for value in state.values() if value.dtype.is_floating)
        report = stages.report(stages.zero())
        seconds = []
        for _ in range(steps + 1):
            start = time.perf_counter()
            state, _ = stages.update(state, report)
            seconds.append(time.perf_counter() - start)
        normals = []
        for step in range(5):
            start = time.perf_counter()
            tf.random.stateless_normal([task.parameters], seed=[step, 0], alg="philox").numpy()
            normals.append(time.perf_counter() - start)
        initial = (folder / "out" / "server" / "initial.safetensors").stat().st_size
        tensors = safetensors.numpy.load_file(folder / "out" / "server" / "initial.safetensors")
    one = float(np.median(normals))
    return {
        "parameters": task.parameters,
        "bands": bands,
        "state_gb": size / 1e9,
        "initial_mb": initial / 1e6,
        "initial_tensors": len(tensors),
        "graph_mb": {name: each["graph_bytes"] / 1e6 for name, each in exported["stages"].items()},
        "saved_model_mb": {name: size / 1e6 for name, size in saved.items()},
        "lite": exported["lite"],
        "process_seconds": built - begin,
        "export_seconds": done - built,
        "first_update_seconds": seconds[0],
        "update_seconds": seconds[1:],
        "update_over_one_draw": {"median": float(np.median(seconds[1:])) / one, "worst": max(seconds[1:]) / one},
        "peak_gb_beside_export": peak() - before,
        "peak_over_state": (peak() - before) / (size / 1e9),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bands", type=int, default=342)
    parser.add_argument("--rounds", type=int, default=2052)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    model = SMALL if options.small else ModelConfig()
    print(json.dumps(measure(options.bands, options.rounds, model, options.steps), indent=1))


if __name__ == "__main__":
    main()
