"""Whether a run's `summary.json` follows from its other files, and names the hash of its model."""

import hashlib
import math
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tff_mf.errors import InputError

from ..output import strict_json
from ..privacy import amplification, statements, summary
from ..run_folder.metrics import ACCURACY, LOSS, ROUND, Metrics, smoothed
from ..run_folder.names import MODEL, SUMMARY
from ..run_folder.run_record import RunRecord
from ..sampling.settings import SamplingSettings
from ._evidence import Evidence
from ._findings import CRITICAL, Finding
from ._run_record import plan_of

_COUNT, _NUMBER = (int,), (int, float)
_EVALUATED = {"accuracy": ACCURACY, "loss": LOSS}
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
    "loss": _NUMBER,
}
# With the commit of a checkout at the end. Only ASCII digits: some Unicode digits reorder the line they are in.
VERSION = r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}((a|b|rc|\.dev|\.post)[0-9]{1,6})?(\+g[0-9a-f]{7,40}(\.d[0-9]{8})?)?"
# The privacy of the run if its cohorts were secret.
_AMPLIFIED = ("amplified_epsilon", "amplified_statement")
_MADE_BY = "tff_mf_version"
_TOLERANCE = 1e-6


def summary_findings(
    folder: pathlib.Path, record: RunRecord, evidence: Evidence, violations: Sequence[str]
) -> list[Finding]:
    """Returns findings where the summary of a run that has ended does not follow from its other files.

    Args:
        folder: The run's folder.
        record: The content of `run.json`.
        evidence: The content of the other files.
        violations: The critical findings of its report; some of them may be newer than the summary.
    """
    path = folder / SUMMARY
    if not path.exists():
        return []
    try:
        stored = strict_json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(stored, Mapping):
            raise ValueError("it holds no JSON object")
    except (OSError, ValueError, RecursionError) as error:
        return [_finding(f"is damaged: {error}")]
    try:
        expected = {
            **_of_settings(record),
            **_evaluated(evidence.metrics, record),
            **_claims(stored, record, evidence, violations),
        }
    except (InputError, TypeError, KeyError) as error:
        return [_finding(f"cannot be compared with {record.participation} and the settings: {error}")]
    found = [
        _finding(f"has {name}={value!r}, and {expected[name]!r} follows from the other files")
        for name, value in stored.items()
        if name in expected and not _same(value, expected[name])
    ]
    unknown = [name for name in stored if name not in {*expected, *_CLAIMED, *_AMPLIFIED, "model_sha256", _MADE_BY}]
    found += [
        _finding(f"has {name}, which is not a field of a summary or does not follow from the other files")
        for name in unknown[:1]
    ]
    return found + _claimed(stored, expected) + _model(folder / MODEL, stored)


def _claims(
    stored: Mapping[str, Any], record: RunRecord, evidence: Evidence, violations: Sequence[str]
) -> dict[str, Any]:
    """Returns the fields that state a guarantee, as training writes them.

    If the summary refuses to state ε, it must do so for the findings of now. If a later answer or audit is critical,
    the summary is older, and the report states no ε in any case.
    """
    if evidence.mechanism is None or evidence.impossible:
        return dict.fromkeys(("epsilon", "epsilon_as_run", *_AMPLIFIED))
    privacy = plan_of(record, evidence.mechanism)
    clients = record.settings.get("training_clients")
    in_secret = None
    if stored.get("amplified_epsilon") is not None and clients is not None:
        kind = SamplingSettings(**record.settings["sampling"])
        in_secret = amplification.amplified(privacy, kind, clients)
    refused = str(stored.get("statement")).startswith(statements.REFUSED)
    claims = summary.privacy_claims(
        privacy,
        evidence.observed,
        in_secret,
        population=record.population,
        violations=violations if refused else (),
    )
    if clients is None:
        # The amplified ε of a deployment does not follow from these files.
        claims |= dict.fromkeys(_AMPLIFIED)
    return claims


def _of_settings(record: RunRecord) -> dict[str, Any]:
    settings = record.settings
    names = (
        "algorithm",
        "model",
        "sampling",
        "dropout",
        "seed",
        "zeroing",
        "client_learning_rate",
        "server_learning_rate",
    )
    names += ("server_momentum", "server_warmup", "server_cooldown", "server_optimizer")
    names += ("adaptive_clipping", "adaptive_learning_rate", "validation_split")
    return {**{name: settings[name] for name in names if name in settings}, "clip_norm": record.clip_norm}


def _evaluated(metrics: Metrics, record: RunRecord) -> dict[str, Any]:
    """Returns what the metrics say of the summary; nothing if they are damaged, for which there is another finding.

    They are of validation sentences. In runs of earlier releases they are of test clients, as accuracy and loss are.
    """
    last = next((row for row in reversed(metrics.rows) if row.get(LOSS)), {})
    try:
        if record.measured_earlier:
            return {name: float(last[column]) for name, column in _EVALUATED.items() if last.get(column)}
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
    text = f"{MODEL} is missing, or its hash is not the one in {SUMMARY}"
    return [Finding(severity=CRITICAL, field="model", text=text)]


def _claimed(stored: Mapping[str, Any], expected: Mapping[str, Any]) -> list[Finding]:
    """Returns findings on the fields that cannot be recomputed: each must have its type."""
    found = [
        _finding(f"has {name}={value!r:.80}, which is not a number")
        for name, types in _CLAIMED.items()
        for value in [stored.get(name)]
        if name in stored and (not isinstance(value, types) or isinstance(value, bool))
    ]
    version = stored.get(_MADE_BY, "0.0")
    if not isinstance(version, str) or not re.fullmatch(VERSION, version):
        found.append(_finding(f"has {_MADE_BY}={version!r:.80}, which is not a version"))
    return found + [
        _finding(f"has {name}={stored[name]!r:.80}, which cannot be recomputed here")
        for name in _AMPLIFIED
        if stored.get(name) is not None and name not in expected
    ]


def _same(one: Any, other: Any) -> bool:
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (one, other))
    if numbers and math.isfinite(one) and math.isfinite(other):
        return math.isclose(one, other, rel_tol=_TOLERANCE)
    return type(one) is type(other) and one == other


def _finding(text: str) -> Finding:
    return Finding(severity=CRITICAL, field="summary", text=f"{SUMMARY} {text}")
