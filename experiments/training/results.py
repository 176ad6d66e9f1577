"""What a run leaves in its folder when it has ended: model, vocabulary, summary and report."""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy

from .. import reports
from ..output import files
from ..privacy.summary import privacy_claims
from ..run_folder.names import MODEL, PARTICIPATION, SUMMARY, VOCABULARY
from ..run_folder.participation_log import read_observed
from .execution import TrainedRun
from .preparation import PreparedRun
from .summary import summarize


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
    claims = privacy_claims(
        prepared.privacy,
        read_observed(out / PARTICIPATION),
        prepared.in_secret,
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
        statement=report["headline"],
        history=trained.history,
        holds=claims["participation_within_assumed"],
        weights=trained.weights,
    )
