"""Whether a run's `summary.json` follows from its other files, and names the hash of its model."""

import hashlib
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tff_mf.base.errors import InputError

from ..output import agreement, typed
from ..runs import amplification, statements, summary
from ..runs.metrics import ACCURACY, ROUND, Metrics, smoothed
from ..runs.names import MODEL, SUMMARY
from ..runs.run_record import RunRecord
from ..runs.words import Reason
from ._evidence import CRITICAL, Evidence, Finding
from .questions import QUESTIONS

_COUNT, _NUMBER = (int,), (int, float)
_VALIDATED, _SMOOTHED = "validation_accuracy", "validation_accuracy_smoothed"
# These cannot be recomputed: no report repeats them as facts, and they must be numbers.
_CLAIMED: Mapping[str, tuple[type, ...]] = {
    _VALIDATED: _NUMBER,
    _SMOOTHED: _NUMBER,
    "validation_sentences": _COUNT,
    "test_sentences": _COUNT,
    "parameters": _COUNT,
    "dropped_participations": _COUNT,
    "seconds": _NUMBER,
    "accuracy": _NUMBER,
    # The loss of a model that diverged is null.
    "loss": (*_NUMBER, type(None)),
}
# With the commit of a checkout at the end. Only ASCII digits: some Unicode digits reorder the line they are in.
RELEASE = r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}((a|b|rc|\.dev|\.post)[0-9]{1,6})?(\+g[0-9a-f]{7,40}(\.d[0-9]{8})?)?"
# The privacy of the run if its cohorts were secret.
_AMPLIFIED = ("amplified_epsilon", "amplified_claim")
_MADE_BY = "tff_mf_version"


def summary_findings(
    folder: pathlib.Path,
    record: RunRecord,
    evidence: Evidence,
    violations: Sequence[Reason],
    answers: Mapping[str, Any],
) -> list[Finding]:
    """Returns findings where the summary of a run that has ended does not follow from its other files.

    Args:
        folder: The run's folder.
        record: The content of `run.json`.
        evidence: The content of the other files.
        violations: The critical findings of its report; some of them may be newer than the summary.
        answers: The operator's answers, `None` for open questions.
    """
    path = folder / SUMMARY
    if not path.exists():
        return []
    try:
        stored = typed.read(path, dict[str, Any], "summary")
    except InputError as error:
        return [_finding("summary_damaged", why=str(error))]
    try:
        expected = {
            **_of_settings(record),
            **_validated(evidence.metrics),
            **_claims(stored, record, evidence, violations, answers),
        }
    except (InputError, TypeError, KeyError) as error:
        return [_finding("summary_incomparable", participation=record.participation, why=str(error))]
    found = [
        # Without the value: it may be an ε, and findings are part of a headline that must not state one.
        _finding("summary_other", name=name)
        for name, value in stored.items()
        if name in expected and not _agrees(name, value, expected[name])
    ]
    unknown = [name for name in stored if name not in {*expected, *_CLAIMED, *_AMPLIFIED, "model_sha256", _MADE_BY}]
    found += [_finding("summary_unknown", name=name) for name in unknown[:1]]
    return found + _claimed(stored, expected) + _model(folder / MODEL, stored)


def _claims(
    stored: Mapping[str, Any],
    record: RunRecord,
    evidence: Evidence,
    violations: Sequence[Reason],
    answers: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns the fields that state a guarantee, as training writes them.

    If the summary refuses to state ε, it must do so for the findings of now. If a later answer or audit is critical,
    the summary is older, and the report states no ε in any case.
    """
    if evidence.mechanism is None or evidence.impossible:
        return dict.fromkeys(("epsilon", "epsilon_as_run", *_AMPLIFIED))
    privacy = record.plan(evidence.mechanism)
    clients = None if record.resolved is None else record.resolved.training_clients
    in_secret, drawn = None, record.drawn
    simulated = stored.get("amplified_epsilon") is not None and clients is not None and not record.is_secret
    if simulated and drawn and drawn.sampler == record.sampler and clients <= (record.population or 0):
        in_secret = amplification.amplified(privacy, drawn, clients)
    claim = stored.get("claim")
    said: Mapping[str, Any] = claim if isinstance(claim, Mapping) else {}
    open_then = said.get("open_questions") or ()
    claims = summary.privacy_claims(
        privacy,
        evidence.observed,
        in_secret,
        population=record.population,
        violations=violations if said.get("state") == statements.REFUSED else (),
        # Those that were open when the run ended, and all that are open still.
        unanswered=[each.name for each in QUESTIONS if each.name in open_then or answers[each.name] is None],
        secret=None if record.amplified_epsilon is None or drawn is None else (record.amplified_epsilon, drawn),
    )
    if clients is None:
        # The amplified ε of a deployment does not follow from these files.
        claims |= dict.fromkeys(_AMPLIFIED)
    return claims


def _of_settings(record: RunRecord) -> dict[str, Any]:
    """Returns the fields that name settings, as training writes them."""
    if record.settings is None:
        return {"clip_norm": record.clip_norm}
    return {**summary.of_settings(record.training), "validation_split": record.settings.validation_split}


def _validated(metrics: Metrics) -> dict[str, Any]:
    """Returns the validation accuracies that follow from the metrics.

    It returns nothing if the metrics are damaged, for which there is another finding.
    """
    try:
        curve = [(int(row[ROUND]), float(row[ACCURACY])) for row in metrics.rows if row.get(ACCURACY)]
        return {_VALIDATED: curve[-1][1], _SMOOTHED: smoothed(curve)} if curve else {}
    except ValueError:
        return {}


def _model(path: pathlib.Path, stored: Mapping[str, Any]) -> list[Finding]:
    if "model_sha256" not in stored:
        return []
    found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"
    if stored["model_sha256"] == found:
        return []
    values = {"file": MODEL, "summary": SUMMARY}
    return [Finding(severity=CRITICAL, field="model", code="model_other", values=values)]


def _claimed(stored: Mapping[str, Any], expected: Mapping[str, Any]) -> list[Finding]:
    """Returns findings on the fields that cannot be recomputed: each must have its type."""
    found = [
        _finding("summary_no_number", name=f"{name}={value!r:.80}")
        for name, types in _CLAIMED.items()
        for value in [stored.get(name)]
        if name in stored and (not isinstance(value, types) or isinstance(value, bool))
    ]
    version = stored.get(_MADE_BY, "0.0")
    if not isinstance(version, str) or not re.fullmatch(RELEASE, version):
        found.append(_finding("summary_no_version", name=f"{_MADE_BY}={version!r:.80}"))
    return found + [
        _finding("summary_unproved", name=f"{name}={stored[name]!r:.80}")
        for name in _AMPLIFIED
        if stored.get(name) is not None and name not in expected
    ]


def _agrees(name: str, value: Any, expected: Any) -> bool:
    if name in (_VALIDATED, _SMOOTHED):
        numbers = all(isinstance(each, float) for each in (value, expected))
        return agreement.close(value, expected) if numbers else agreement.same(value, expected)
    return agreement.agrees(name, value, expected)


def _finding(code: str, **values: str) -> Finding:
    return Finding(severity=CRITICAL, field="summary", code=code, values={"file": SUMMARY, **values})
