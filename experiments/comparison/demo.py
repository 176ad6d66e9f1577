"""The demo: training with correlated and with independent noise at the same (ε, δ)."""

import dataclasses
import json
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import tff_mf

from ..configuration import layers, toml_file
from ..configuration.run import FIELDS
from ..configuration.settings import AUTO, ModelConfig, TrainingSettings, dimension_of, grid_of
from ..datasets import pydoc
from ..output import figures, files, progress
from ..privacy import statements
from ..run_folder.metrics import ROUND
from ..run_folder.names import SUMMARY
from ..training import program, task
from ..training.results import TrainingResult

_PICTURE = "accuracy.png"
# The style of a curve is chosen by what precedes the comma.
_LABELS = {"blt": "blt, correlated noise", "identity": "identity, independent noise"}
_PARTS = ("blt", "identity", SUMMARY, _PICTURE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """Settings that the two runs share, and the server's learning rate of each.

    Each rate was chosen beforehand, as the best of a grid of 1.7^i by validation accuracy on other seeds, see
    `docs/demo.md`; the demo chooses nothing by its results. A light model stands in for the papers' LSTM, and
    `clients_per_round` clients simulate a cohort of `cohort`, with the noise scaled down in proportion, as in the
    papers.
    """

    rounds: int = 240
    clients_per_round: int = 20
    cohort: int = 200
    participation: tff_mf.MinSep = dataclasses.field(
        default_factory=lambda: tff_mf.MinSep(min_sep=120, max_participations=2)
    )
    epsilon: float = 2.0
    delta: float = 1e-6
    buffers: int = 3
    model: ModelConfig = dataclasses.field(
        default_factory=lambda: ModelConfig(architecture="conv", vocab_size=2000, embedding_size=32, units=32)
    )
    server_learning_rates: Mapping[str, float] = dataclasses.field(
        default_factory=lambda: {"blt": 1.7, "identity": 0.346}
    )
    server_momentum: float = 0.9
    server_warmup: float = 0.0
    server_cooldown: float = 0.25
    client_learning_rate: float = 1.0
    clip_norm: float = 0.3
    batch_size: int = 16
    max_examples: int = 16
    evaluate_every: int = 25
    evaluation_examples: int = 3000
    test_examples: int | str = "all"
    seed: int = 20240816
    grid: int | str = AUTO


def run_demo(settings: DemoSettings, out: pathlib.Path, data: pathlib.Path | None = None) -> dict[str, Any]:
    """Trains with each mechanism and writes the folder `out`; an earlier demo there is replaced at the end.

    Args:
        settings: The settings of both runs.
        out: The folder; files in it that are not of a demo stay.
        data: Data set in the file format of StackOverflow; the docstrings of `pydoc` if not given.

    Returns:
        The content of `summary.json`.
    """
    start = time.perf_counter()
    dataset = "pydoc" if data is None else f"sqlite:{data}"
    data = pydoc.cached_pydoc() if data is None else data
    with files.replaced_parts(out, _PARTS) as staging:
        results = _trained(settings, dataset, data, staging)
        summary = _summary(settings, results, time.perf_counter() - start)
        files.write_atomically(staging / SUMMARY, json.dumps(summary, indent=2) + "\n")
        _draw(settings, results, staging / _PICTURE)
    return summary


def _trained(
    settings: DemoSettings, dataset: str, data: pathlib.Path, folder: pathlib.Path
) -> dict[str, TrainingResult]:
    """Trains with each mechanism, in a folder of its own, like a run of `tff-mf train`: to repeat, and to export."""
    results = {}
    for name, plan in _plans(settings).items():
        own = folder / name
        own.mkdir()
        toml_file.write(_layer(settings, name, dataset), own)
        with progress.rounds(settings.rounds, name) as on_round:
            results[name] = program.run(_training_settings(settings, name), plan, data=data, out=own, on_round=on_round)
    return results


def _summary(settings: DemoSettings, results: Mapping[str, TrainingResult], seconds: float) -> dict[str, Any]:
    mechanisms = {name: dict(result.summary) for name, result in results.items()}
    return {
        "mechanisms": mechanisms,
        "rounds": settings.rounds,
        "min_sep": settings.participation.min_sep,
        "max_participations": settings.participation.max_participations,
        "epsilon": settings.epsilon,
        "delta": settings.delta,
        "cohort": settings.cohort,
        "clients_per_round": settings.clients_per_round,
        "cohort_note": (
            f"{settings.cohort} clients a round are simulated by {settings.clients_per_round}, with the noise scaled "
            f"down in proportion; epsilon is for the large cohort, epsilon_as_run for the clients that trained."
        ),
        "server_learning_rates": dict(settings.server_learning_rates),
        "server_learning_rate_note": "Each mechanism's rate was chosen beforehand, on other seeds.",
        "model_note": "A light causal convolution stands in for the papers' LSTM.",
        "accuracy_gain": mechanisms["blt"]["accuracy"] - mechanisms["identity"]["accuracy"],
        "seconds": seconds,
    }


def _draw(settings: DemoSettings, results: Mapping[str, TrainingResult], path: pathlib.Path) -> None:
    noise = statements.calibrated_to(settings.epsilon, settings.delta, cohort=settings.cohort)
    curves = [
        figures.Curve(
            name=_LABELS.get(name, name),
            points=[(row[ROUND], 100 * row[task.ACCURACY]) for row in result.history],
        )
        for name, result in results.items()
    ]
    chart = figures.Chart(
        name="accuracy",
        title=f"Next word on pydoc, {figures.setting(settings.rounds, settings.participation)}\n{noise}",
        x=figures.Axis(
            label="round",
            from_zero=True,
            whole=True,
            ticks=figures.round_ticks(settings.participation.min_sep, settings.rounds),
        ),
        y=figures.Axis(label="accuracy, known words (%)", from_zero=True),
        curves=curves,
    )
    with figures.picture(path, size=(figures.COLUMN, 2.7)) as (drawn, panels):
        figures.draw(panels[0, 0], chart)
        drawn.suptitle(chart.title)
        panels[0, 0].legend()


def _plans(settings: DemoSettings) -> dict[str, tff_mf.Plan]:
    mechanisms: dict[str, tff_mf.Mechanism] = {
        "blt": tff_mf.optimize_blt(
            rounds=settings.rounds, participation=settings.participation, buffers=settings.buffers, objective="max"
        ),
        "identity": tff_mf.Identity(),
    }
    dimension = dimension_of(settings.model)
    grid = grid_of(settings.grid, dimension=dimension, cohort=settings.cohort)
    return {
        name: tff_mf.plan(
            mechanism=mechanism,
            rounds=settings.rounds,
            sampling=settings.participation,
            delta=settings.delta,
            epsilon=settings.epsilon,
            clients_per_round=settings.clients_per_round,
            cohort=settings.cohort,
            grid=grid,
            dimension=None if grid is None else dimension,
        )
        for name, mechanism in mechanisms.items()
    }


def _training_settings(settings: DemoSettings, name: str) -> TrainingSettings:
    shared = TrainingSettings.__struct_fields__
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    return TrainingSettings(
        server_learning_rate=settings.server_learning_rates[name],
        **{key: value for key, value in values.items() if key in shared},
    )


def _layer(settings: DemoSettings, name: str, dataset: str) -> layers.Layer:
    """Returns the settings of one of the runs, as `tff-mf train --config` takes them."""
    shared = {key: value for key, value in vars(settings).items() if key in FIELDS and key not in ("model", "buffers")}
    values = {
        **shared,
        "dataset": dataset,
        "mechanism": name,
        **({"buffers": settings.buffers} if name == "blt" else {}),
        "min_sep": settings.participation.min_sep,
        "max_participations": settings.participation.max_participations,
        "model": settings.model.architecture,
        "vocab_size": settings.model.vocab_size,
        "embedding_size": settings.model.embedding_size,
        "units": settings.model.units,
        "server_learning_rate": settings.server_learning_rates[name],
    }
    return layers.Layer.of(values, "demo")
