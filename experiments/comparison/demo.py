"""The demo: training with correlated and with independent noise at the same (ε, δ)."""

import json
import pathlib
import time
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ..output import figures, files, progress
from ..output.text import up
from ..runs.metrics import ROUND
from ..runs.names import SUMMARY
from ..runs.settings import ALL, RunSettings
from ..training import program, task
from ..training.datasets import pydoc
from ..training.program import TrainingResult

_PICTURE = "accuracy.png"
# The style of a curve is chosen by what precedes the comma.
_LABELS = {"blt": "blt, correlated noise", "identity": "identity, independent noise"}
_PARTS = ("blt", "identity", SUMMARY, _PICTURE)


# The settings that both runs share. A light model stands in for the papers' LSTM, and 20 clients simulate a cohort of
# 200, with the noise scaled down in proportion, as in the papers.
_SHARED = RunSettings(
    rounds=240,
    clients_per_round=20,
    cohort=200,
    min_sep=120,
    max_participations=2,
    epsilon=2.0,
    delta=1e-6,
    model="conv",
    vocab_size=2000,
    embedding_size=32,
    units=32,
    server_momentum=0.9,
    server_warmup=0.0,
    clip_norm=0.3,
    max_examples=16,
    evaluation_examples=3000,
    test_examples=ALL,
    seed=20240816,
)
# Each rate was chosen beforehand, as the best of a grid of 1.7^i by validation accuracy on other seeds, see
# `docs/results.md`; the demo chooses nothing by its results.
RUNS = {
    "blt": replace(_SHARED, mechanism="blt", buffers=3, objective="max", server_learning_rate=1.7),
    "identity": replace(_SHARED, mechanism="identity", server_learning_rate=0.346),
}


def run_demo(
    out: pathlib.Path, data: pathlib.Path | None = None, runs: Mapping[str, RunSettings] = RUNS
) -> dict[str, Any]:
    """Trains with each mechanism and writes the folder `out`; an earlier demo there is replaced at the end.

    Args:
        out: The folder; files in it that are not of a demo stay.
        data: Data set in the file format of StackOverflow; the docstrings of `pydoc` if not given.
        runs: The settings of both runs, which differ in the mechanism and the server's rate alone.

    Returns:
        The content of `summary.json`.
    """
    start = time.perf_counter()
    dataset = "pydoc" if data is None else f"sqlite:{data}"
    data = pydoc.cached_pydoc() if data is None else data
    with files.replaced_parts(out, _PARTS) as staging:
        results = {}
        for name, settings in runs.items():
            # In a folder like a run of `tff-mf train`: to repeat, and to export.
            own = replace(settings, dataset=dataset)
            plan = own.privacy_plan(own.build_mechanism())
            with progress.rounds(own.rounds, name) as on_round:
                results[name] = program.run(own, plan, data=data, out=staging / name, on_round=on_round)
        summary = _summary(runs, results, time.perf_counter() - start)
        files.write_atomically(staging / SUMMARY, json.dumps(summary, indent=2) + "\n")
        _draw(runs["blt"], results, staging / _PICTURE)
    return summary


def _summary(runs: Mapping[str, RunSettings], results: Mapping[str, TrainingResult], seconds: float) -> dict[str, Any]:
    mechanisms = {name: {**result.summary, "claim": result.report["claim"]} for name, result in results.items()}
    shared = ("rounds", "min_sep", "max_participations", "epsilon", "delta", "cohort", "clients_per_round")
    settings = runs["blt"]
    return {
        "mechanisms": mechanisms,
        **{name: getattr(settings, name) for name in shared},
        "cohort_note": (
            f"{settings.cohort} clients a round are simulated by {settings.clients_per_round}, with the noise scaled "
            "down in proportion; epsilon is for the large cohort, epsilon_as_run of a claim for those that trained."
        ),
        "server_learning_rates": {name: each.server_learning_rate for name, each in runs.items()},
        "server_learning_rate_note": "Each mechanism's rate was chosen beforehand, on other seeds.",
        "model_note": "A light causal convolution stands in for the papers' LSTM.",
        "accuracy_gain": mechanisms["blt"]["accuracy"] - mechanisms["identity"]["accuracy"],
        "seconds": seconds,
    }


def _draw(settings: RunSettings, results: Mapping[str, TrainingResult], path: pathlib.Path) -> None:
    schema, rounds = settings.participation(), settings.rounds
    assert settings.epsilon is not None
    assert settings.cohort is not None
    noise = f"noise for ε of {up(settings.epsilon)} at δ = {settings.delta} with cohorts of {settings.cohort}"
    curves = [
        figures.Curve(
            name=_LABELS.get(name, name),
            points=[(row[ROUND], 100 * row[task.ACCURACY]) for row in result.history],
        )
        for name, result in results.items()
    ]
    chart = figures.Chart(
        name="accuracy",
        title=f"Next word on pydoc, {figures.setting(rounds, schema)}\n{noise}",
        x=figures.Axis(
            label="round",
            from_zero=True,
            whole=True,
            ticks=figures.round_ticks(schema.min_sep, rounds),
        ),
        y=figures.Axis(label="accuracy, known words (%)", from_zero=True),
        curves=curves,
    )
    with figures.picture(path, size=(figures.COLUMN, 2.7)) as (drawn, panels):
        figures.draw(panels[0, 0], chart)
        drawn.suptitle(chart.title)
        panels[0, 0].legend()
