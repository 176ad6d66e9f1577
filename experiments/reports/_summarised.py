"""Whether a run's `summary.json`, how good its model is, follows from its other files and names the model's hash."""

import hashlib
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from tff_mf.base.errors import InputError

from ..output import agreement, typed
from ..runs.metrics import ACCURACY, ROUND, Metrics, smoothed
from ..runs.names import MODEL, SUMMARY
from ..runs.run_record import RunRecord
from ._evidence import CRITICAL, Finding

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
    "baseline_accuracy": _NUMBER,
    # The loss of a model that diverged is null.
    "loss": (*_NUMBER, type(None)),
}
# With the commit of a checkout at the end. Only ASCII digits: some Unicode digits reorder the line they are in.
RELEASE = r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}((a|b|rc|\.dev|\.post)[0-9]{1,6})?(\+g[0-9a-f]{7,40}(\.d[0-9]{8})?)?"
_MADE_BY = "tff_mf_version"


def summary_findings(folder: pathlib.Path, record: RunRecord, metrics: Metrics) -> list[Finding]:
    """Returns findings where the summary of a run that has ended does not follow from its other files.

    It states no guarantee: a field with one is none of a summary.

    Args:
        folder: The run's folder.
        record: The content of `run.json`.
        metrics: The content of `metrics.csv`.
    """
    path = folder / SUMMARY
    if not path.exists():
        return []
    try:
        stored = typed.read(path, dict[str, Any], "summary")
    except InputError as error:
        return [_finding("summary_damaged", why=str(error))]
    expected = _validated(metrics)
    if record.settings is not None:
        expected["validation_split"] = record.settings.validation_split
    found = [
        # Without the value: it may be an ε, and findings are part of a headline that must not state one.
        _finding("summary_other", name=name)
        for name, value in stored.items()
        if name in expected and not _agrees(value, expected[name])
    ]
    unknown = [name for name in stored if name not in {*expected, *_CLAIMED, "model_sha256", _MADE_BY}]
    found += [_finding("summary_unknown", name=name) for name in unknown[:1]]
    return found + _claimed(stored) + _model(folder / MODEL, stored)


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


def _claimed(stored: Mapping[str, Any]) -> list[Finding]:
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
    return found


def _agrees(value: Any, expected: Any) -> bool:
    numbers = all(isinstance(each, float) for each in (value, expected))
    return agreement.close(value, expected) if numbers else agreement.same(value, expected)


def _finding(code: str, **values: str) -> Finding:
    return Finding(severity=CRITICAL, field="summary", code=code, values={"file": SUMMARY, **values})
