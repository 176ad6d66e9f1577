"""The demo: training with correlated and with independent noise at the same (ε, δ)."""

import dataclasses
import json
import pathlib
import time
from typing import Any

import msgspec
from msgspec.structs import replace

import tff_mf

from ..output import figures, files, progress
from ..output.text import up
from ..runs import statements
from ..runs.metrics import ROUND
from ..runs.names import SUMMARY
from ..runs.settings import ALL, RunSettings
from ..training import program, task
from ..training.datasets import pydoc
from ..training.program import TrainingResult

PICTURE = "accuracy.png"
# The style of a curve is chosen by what precedes the comma.
_LABELS = {"blt": "blt, correlated noise", "identity": "identity, independent noise"}
_PARTS = ("blt", "identity", SUMMARY, PICTURE)


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemoRun:
    """One of the demo's two trainings.

    Attributes:
        settings: Its settings.
        plan: Its mechanism and noise.
        result: What it trained, and how good that is.
    """

    settings: RunSettings
    plan: tff_mf.Plan
    result: TrainingResult

    @property
    def claim(self) -> statements.Claim:
        """Its guarantee."""
        return self.result.claim


@dataclasses.dataclass(frozen=True, kw_only=True)
class Demo:
    """What the demo compares.

    Attributes:
        blt: The training with correlated noise.
        identity: The training with independent noise.
        seconds: How long both took.
    """

    blt: DemoRun
    identity: DemoRun
    seconds: float

    @property
    def runs(self) -> dict[str, DemoRun]:
        """Both trainings by the names of their mechanisms."""
        return {"blt": self.blt, "identity": self.identity}

    @property
    def accuracy_gain(self) -> float:
        """How much more accurate the training with correlated noise is."""
        return self.blt.result.summary.accuracy - self.identity.result.summary.accuracy

    @property
    def cohort_note(self) -> str:
        """The cohorts that ε is for."""
        settings = self.blt.settings
        return (
            f"{settings.cohort} clients a round are simulated by {settings.clients_per_round}, with the noise scaled "
            "down in proportion; epsilon is for the large cohort, epsilon_as_run of a claim for those that trained."
        )

    def as_json(self) -> dict[str, Any]:
        """Returns the content of `summary.json`."""
        shared = ("rounds", "min_sep", "max_participations", "epsilon", "delta", "cohort", "clients_per_round")
        return {
            "mechanisms": {
                name: {**msgspec.to_builtins(run.result.summary), "claim": statements.facts(run.claim)}
                for name, run in self.runs.items()
            },
            **{name: getattr(self.blt.settings, name) for name in shared},
            "cohort_note": self.cohort_note,
            "server_learning_rates": {name: run.settings.server_learning_rate for name, run in self.runs.items()},
            "server_learning_rate_note": "Each mechanism's rate was chosen beforehand, on other seeds.",
            "model_note": "A light causal convolution stands in for the papers' LSTM.",
            "accuracy_gain": self.accuracy_gain,
            "seconds": self.seconds,
        }


def run_demo(out: pathlib.Path) -> Demo:
    """Trains with each mechanism and writes the folder `out`; an earlier demo there is replaced at the end.

    Args:
        out: The folder; files in it that are not of a demo stay.
    """
    start = time.perf_counter()
    data = pydoc.cached_pydoc()
    with files.replaced_parts(out, _PARTS) as staging:
        runs = {}
        for name, settings in RUNS.items():
            # In a folder like a run of `tff-mf train`: to repeat, and to export.
            plan = settings.privacy_plan(settings.build_mechanism())
            with progress.rounds(settings.rounds, name) as on_round:
                result = program.run(settings, plan, data=data, out=staging / name, on_round=on_round)
            runs[name] = DemoRun(settings=settings, plan=plan, result=result)
        demo = Demo(**runs, seconds=time.perf_counter() - start)
        files.write_atomically(staging / SUMMARY, json.dumps(demo.as_json(), indent=2) + "\n")
        _draw(demo, staging / PICTURE)
    return demo


def _draw(demo: Demo, path: pathlib.Path) -> None:
    settings = demo.blt.settings
    schema, rounds = settings.participation(), settings.rounds
    assert settings.epsilon is not None
    assert settings.cohort is not None
    noise = f"noise for ε of {up(settings.epsilon)} at δ = {settings.delta} with cohorts of {settings.cohort}"
    curves = [
        figures.Curve(
            name=_LABELS[name],
            points=[(row[ROUND], 100 * row[task.ACCURACY]) for row in run.result.history],
        )
        for name, run in demo.runs.items()
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
