"""The end of a run in its folder, planned before it starts: model, vocabulary, summary and report."""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy

import tff_mf

from .. import reports
from ..output import files
from ..runs import amplification, run_record
from ..runs.folders import versions
from ..runs.names import MODEL, PARTICIPATION, RUN_JSON, SUMMARY, VOCABULARY
from ..runs.observed_participation import read_observed
from ..runs.run_record import Resolved
from ..runs.settings import RunSettings
from ..runs.summary import of_settings, privacy_claims
from .execution import TrainedRun
from .preparation import PreparedRun
from .task import METRICS


def summarize(
    prepared: PreparedRun,
    *,
    measured: Mapping[str, Any],
    claims: Mapping[str, Any],
    model_sha256: str,
    seconds: float,
) -> dict[str, Any]:
    """Returns the summary of a run that has ended.

    Args:
        prepared: The run.
        measured: The fields that say how good the final model is: `measurement.Measurement.conclude`.
        claims: The fields that state the guarantee: `privacy.summary.privacy_claims`.
        model_sha256: Hash of the file with the final model.
        seconds: How long the rounds took.
    """
    return {
        **measured,
        **claims,
        "model_sha256": model_sha256,
        **of_settings(prepared.settings),
        "parameters": prepared.language_task.parameters,
        "dropped_participations": prepared.dropped_participations,
        "seconds": seconds,
        "tff_mf_version": tff_mf.__version__,
    }


def write_plan(prepared: PreparedRun, asked: RunSettings, resolved: Resolved, folder: pathlib.Path) -> None:
    """Writes `run.json`, the mechanism's artifact and the planned report of a run.

    Args:
        prepared: The run.
        asked: Its settings as they were asked for.
        resolved: What they came to.
        folder: Its folder.

    Raises:
        InputValueError: If the folder holds a run with another mechanism or other settings.
    """
    cohorts = prepared.cohorts
    reports.write_configuration(
        folder,
        prepared.privacy,
        clip_norm=asked.clip_norm,
        cohorts=[] if asked.secret_cohorts else [cohorts.cohort(t) for t in range(cohorts.rounds)],
        amplified_epsilon=_amplified_epsilon(prepared, folder),
        sampler=asked.sampling_settings().sampler,
        simulation=True,
        population=prepared.population,
        released_without_noise=[{"name": "metrics of evaluation", "of": prepared.measured_on}],
        evaluation_columns=METRICS,
        settings=asked,
        resolved=resolved,
        versions=versions(),
    )
    reports.write(folder, realised=False)


def _amplified_epsilon(prepared: PreparedRun, folder: pathlib.Path) -> float | None:
    """Returns the ε of a run with secret cohorts, which it states from its beginning on."""
    if not prepared.settings.secret_cohorts:
        return None
    if (folder / RUN_JSON).exists():
        # Computed again, a certificate by samples would differ.
        return run_record.read_record(folder).amplified_epsilon
    assert prepared.in_secret is not None
    return amplification.stated_epsilon(prepared.in_secret.level)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """The result of a run that has ended.

    Attributes:
        summary: The content of `summary.json`: metrics of the final model, the privacy plan's numbers and the observed
            participation.
        statement: The guarantee in one line: the headline of the report.
        history: Metrics of each evaluated round.
        holds: Whether the observed participation is within the assumed one.
        weights: The trained model's parameters.
    """

    summary: Mapping[str, Any]
    statement: str
    history: list[dict[str, float]]
    holds: bool
    weights: list[np.ndarray]


def write_results(prepared: PreparedRun, trained: TrainedRun, out: pathlib.Path) -> TrainingResult:
    """Writes model, vocabulary, summary and report of a run, deletes its checkpoints, and returns its result.

    Args:
        prepared: The run.
        trained: The run after its last round.
        out: Its folder.
    """
    stated = run_record.read_record(out).amplified_epsilon
    claims = privacy_claims(
        prepared.privacy,
        read_observed(out / PARTICIPATION),
        None if stated else prepared.in_secret,
        secret=None if stated is None else (stated, prepared.settings.sampling_settings()),
        population=prepared.population,
        violations=reports.violations(out),
        unanswered=reports.open_questions(out),
    )
    model = safetensors.numpy.save({str(i): weight for i, weight in enumerate(trained.weights)})
    summary = summarize(
        prepared,
        measured=trained.measured,
        claims=claims,
        model_sha256=hashlib.sha256(model).hexdigest(),
        seconds=trained.seconds,
    )
    files.write_atomically(out / VOCABULARY, json.dumps(prepared.vocabulary, ensure_ascii=False) + "\n")
    files.write_atomically(out / MODEL, model)
    files.write_atomically(out / SUMMARY, json.dumps(summary, indent=2) + "\n")
    report = reports.write(out, realised=True)
    trained.saved.finish()
    return TrainingResult(
        summary=summary,
        statement=reports.headline(report),
        history=trained.history,
        holds=claims["participation_within_assumed"],
        weights=trained.weights,
    )
