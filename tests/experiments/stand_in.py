"""Stands for the rounds of `tff-mf train`: everything else is what the command does, and a run takes a second."""

import contextlib
import types

import numpy as np
import pytest

from tff_mf import aggregators
from tff_mf.experiments.cli._options import MORE
from tff_mf.experiments.training import evaluation, preparation, task

from .shared import drawn, invoke

ROUNDS, STOPPED_IN = 8, 5


def put_in_place(patch: pytest.MonkeyPatch, **more) -> None:
    """Replaces what builds and runs TFF computations, in parts by others that are given."""
    patch.setattr(preparation, "build_task", more.get("build_task", build_task))
    patch.setattr(preparation, "build_process", more.get("build_process", build_process))
    patch.setattr(aggregators, "resident_context", lambda **more: contextlib.nullcontext())


class Counting:
    """Stands for a learning process: its state is the number of the round, and its model never changes."""

    stop_in = 0

    def initialize(self):
        return np.zeros(1)

    def set_model_weights(self, state, weights):
        return state

    def get_model_weights(self, state):
        return types.SimpleNamespace(trainable=[np.zeros(3, np.float32)])

    def next(self, state, datasets):
        if state[0] + 1 == Counting.stop_in:
            raise KeyboardInterrupt
        return types.SimpleNamespace(state=state + 1)


def build_task(settings, vocabulary):
    metrics = evaluation.Measured(metrics=dict.fromkeys(task.METRICS, 0.25), sentences=20)
    evaluator = types.SimpleNamespace(tokens=lambda chunks: [], measure=lambda weights, chunks: metrics)
    return types.SimpleNamespace(
        build_batches=lambda sentences: types.SimpleNamespace(of=lambda clients: []),
        build_evaluator=lambda: evaluator,
        initial_weights=None,
        weight_names=["kernel"],
        parameters=3,
    )


def build_process(settings, privacy, language_task):
    return Counting(), aggregators.MFAggregationFactory.of_plan(privacy, clip_norm=settings.clip_norm)


LINE = f"""--rounds {ROUNDS} --clients-per-round 3 --delta 1e-6 --model conv --vocab-size 60 --embedding-size 4
--units 4 --max-examples 2 --batch-size 2 --evaluate-every 4 --evaluation-examples 20 --checkpoint-every 2"""


def arguments(folder, data, flags):
    """Returns the command line of a run of 8 rounds; of an option that is given twice, the last counts."""
    parameters = drawn(flags[flags.index("--sampling") + 1] if "--sampling" in flags else "min-sep").parameters
    for name, value in parameters.items():
        flag = f"--{name.replace('_', '-')}"
        typed = ["--set", f"{name}={value}"] if name in MORE else [flag, value]
        flags = flags if flag in flags or f"{name}=" in " ".join(map(str, flags)) else [*typed, *flags]
    level = [] if "--epsilon" in flags else ["--noise-multiplier", 6]
    return ["train", "--force", "--dataset", f"sqlite:{data}", "--out", folder, *LINE.split(), *level, *flags]


def trained(folder, data, flags, *, first_only=(), between=lambda: None):
    """Trains, is interrupted and goes on, and returns what was printed."""
    command = arguments(folder, data, flags)
    resumes = "0" not in flags
    Counting.stop_in = STOPPED_IN if resumes else 0
    first = invoke(*command, *first_only, catch_exceptions=True)
    Counting.stop_in = 0
    if not resumes:
        return first
    assert first.exit_code == 1
    assert (folder / "ledger.jsonl").exists()
    between()
    return invoke(*command, "--resume", catch_exceptions=True)
