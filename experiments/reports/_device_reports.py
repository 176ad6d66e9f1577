"""Counts of device reports: exact counts for the operator, which published reports leave out."""

from collections.abc import Mapping
from typing import Any

import msgspec

from ..runs.report_counts import ReportCounts
from ._evidence import WARNING, Evidence, Finding, found

DEVICE_REPORTS = "device_reports"


# Share of a round's reports above which they are a finding.
_SHARE = 0.1


def device_reports(evidence: Evidence) -> dict[str, Any] | None:
    """Returns the counts over all rounds, as JSON; `None` if no reports were counted."""
    counts = _counts(evidence)
    if not counts:
        return None
    return {
        "rounds": len(counts),
        "rounds_without_updates": sum(not each.in_the_model for each in counts.values()),
        **msgspec.to_builtins(_together(counts)),
    }


def device_findings(evidence: Evidence) -> list[Finding]:
    """Returns findings on the device reports: rounds without an update, and rounds with many bad reports."""
    counts = _counts(evidence)
    empty = [number for number, each in counts.items() if not each.in_the_model]
    many = [number for number, each in counts.items() if each.bad > _SHARE * each.came]
    said = []
    if empty:
        said.append(found(WARNING, DEVICE_REPORTS, "rounds_without_updates", rounds=len(empty), first=empty[0]))
    if many:
        total = _together(counts)
        reasons = {**total.refused, "above the clip norm": total.clipped, "not finite": total.zeroed}
        values = {"rounds": len(many), "first": many[0], "came": total.came, "reasons": reasons}
        said.append(found(WARNING, DEVICE_REPORTS, "bad_reports", **values))
    return said


def published(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a report for publication: without the counts of device reports, and with the same digest."""
    rest = {name: value for name, value in report.items() if name != DEVICE_REPORTS}
    if isinstance(rest.get("findings"), list):
        rest["findings"] = [
            each for each in rest["findings"] if not isinstance(each, Mapping) or each.get("field") != DEVICE_REPORTS
        ]
    return rest


def _counts(evidence: Evidence) -> Mapping[int, ReportCounts]:
    return dict(sorted(evidence.ledger.reports.items())) if evidence.ledger else {}


def _together(counts: Mapping[int, ReportCounts]) -> ReportCounts:
    first, *others = counts.values()
    for each in others:
        first = first + each
    return first
