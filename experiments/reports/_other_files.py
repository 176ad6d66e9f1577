"""Findings on files that no claim follows from: the summary, counts of device reports, leftovers."""

import functools
import operator
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tff_mf.base import files
from tff_mf.base.errors import InputError

from ..output import agreement, typed
from ..output.files import file_hash
from ..runs.ledger import ReportCounts
from ..runs.metrics import smoothed
from ..runs.names import ANSWERS, METRICS, MODEL, SUMMARY
from ._evidence import CRITICAL, WARNING, Evidence, Finding, found

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


def summary_findings(evidence: Evidence) -> list[Finding]:
    """Returns findings where the summary of a run that has ended does not follow from its other files.

    It states no guarantee: a field with one is none of a summary.
    """
    path, record = evidence.folder / SUMMARY, evidence.record
    if not path.exists():
        return []
    try:
        stored = typed.read(path, dict[str, Any], "summary")
    except InputError as error:
        return [_finding("summary_damaged", why=str(error))]
    expected = _validated(evidence.metrics.accuracies)
    if record.settings is not None:
        expected["validation_split"] = record.settings.validation_split
    known = {*expected, *_CLAIMED, "model_sha256", _MADE_BY}
    wrong = [
        # Without the value: it may be an ε, and findings are part of a headline that must not state one.
        *(
            _finding("summary_other", name=name)
            for name, value in stored.items()
            if name in expected and not agreement.agrees(name, value, expected[name])
        ),
        *[_finding("summary_unknown", name=name) for name in stored if name not in known][:1],
        *(
            _finding("summary_no_number", name=f"{name}={stored[name]!r:.80}")
            for name, types in _CLAIMED.items()
            if name in stored and (not isinstance(stored[name], types) or isinstance(stored[name], bool))
        ),
    ]
    version = stored.get(_MADE_BY, "0.0")
    if not isinstance(version, str) or not re.fullmatch(RELEASE, version):
        wrong.append(_finding("summary_no_version", name=f"{_MADE_BY}={version!r:.80}"))
    model = evidence.folder / MODEL
    hashed = file_hash(model) if model.is_file() else "missing"
    if stored.get("model_sha256", hashed) != hashed:
        wrong.append(found(CRITICAL, "model", "model_other", file=MODEL, summary=SUMMARY))
    return wrong


def _validated(curve: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """Returns the validation accuracies that follow from the metrics; none if they have no mean."""
    try:
        return {_VALIDATED: curve[-1][1], _SMOOTHED: smoothed(curve)} if curve else {}
    except (ValueError, OverflowError):
        return {}


def _finding(code: str, **values: str) -> Finding:
    return found(CRITICAL, "summary", code, file=SUMMARY, **values)


DEVICE_REPORTS = "device_reports"
# Share of a round's reports above which they are a finding.
_SHARE = 0.1


def device_reports(evidence: Evidence) -> dict[str, Any] | None:
    """Returns the counts over all rounds, as JSON; `None` if no reports were counted."""
    counts, total = _counts(evidence)
    if total is None:
        return None
    empty = sum(not each.in_the_model for each in counts.values())
    return {"rounds": len(counts), "rounds_without_updates": empty, **msgspec.to_builtins(total)}


def device_findings(evidence: Evidence) -> list[Finding]:
    """Returns findings on the device reports: rounds without an update, and rounds with many bad reports."""
    counts, total = _counts(evidence)
    empty = [number for number, each in counts.items() if not each.in_the_model]
    many = [number for number, each in counts.items() if each.bad > _SHARE * each.came]
    said = []
    if empty:
        said.append(found(WARNING, DEVICE_REPORTS, "rounds_without_updates", rounds=len(empty), first=empty[0]))
    if many and total is not None:
        reasons = {**total.refused, "above the clip norm": total.clipped, "not finite": total.zeroed}
        values = {"rounds": len(many), "first": many[0], "came": total.came, "reasons": reasons}
        said.append(found(WARNING, DEVICE_REPORTS, "bad_reports", **values))
    return said


def published(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a report for publication: without the counts of device reports."""
    rest = {name: value for name, value in report.items() if name != DEVICE_REPORTS}
    if isinstance(rest.get("findings"), list):
        rest["findings"] = [
            each for each in rest["findings"] if not isinstance(each, Mapping) or each.get("field") != DEVICE_REPORTS
        ]
    return rest


def _counts(evidence: Evidence) -> tuple[Mapping[int, ReportCounts], ReportCounts | None]:
    """Returns the counts of each round, and of all rounds together if there are any."""
    counts = dict(sorted(evidence.ledger.reports.items())) if evidence.ledger else {}
    return counts, functools.reduce(operator.add, counts.values()) if counts else None


# The csv module ends lines with \r\n, all other writers of a run with \n.
_TABLES = (METRICS,)
_TEXTS = (".json", ".jsonl", ".md", ".toml")


def on_folder(folder: pathlib.Path) -> list[Finding]:
    """Returns findings on files that a killed process left unfinished, and on line ends that a copy has changed.

    An unfinished checkpoint has keys too.
    """
    unfinished = sorted(str(path.relative_to(folder)) for path in files.unfinished(folder, subfolders=True))
    changed = sorted(path.name for path in folder.iterdir() if path.is_file() and _has_other_ends(path))
    said = {"unfinished_files": unfinished, "line_ends": changed}
    return [found(WARNING, "files", code, names=names) for code, names in said.items() if names]


def _has_other_ends(path: pathlib.Path) -> bool:
    if path.name in _TABLES:
        return b"\n" in path.read_bytes().replace(b"\r\n", b"")
    # People write their answers with any editor.
    return path.suffix in _TEXTS and path.name != ANSWERS and b"\r\n" in path.read_bytes()
