"""Counts of device reports: exact counts for the operator, which published reports leave out."""

from collections.abc import Mapping
from typing import Any

from ..run_folder.report_counts import ReportCounts
from ._evidence import WARNING, Evidence, Finding

DEVICE_REPORTS = "device_reports"


WITHHELD_NOTE = (
    "exact counts, without noise and outside the guarantee: whether an update was scaled or zeroed depends on a "
    "device's data. For the operator's eyes: tff-mf export-model leaves them out"
)


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
        **_together(counts).as_json(),
        "note": WITHHELD_NOTE,
    }


def device_findings(evidence: Evidence) -> list[Finding]:
    """Returns findings on the device reports: rounds without an update, and rounds with many bad reports."""
    counts = _counts(evidence)
    empty = [number for number, each in counts.items() if not each.in_the_model]
    many = [number for number, each in counts.items() if each.bad > _SHARE * each.came]
    texts = []
    if empty:
        texts.append(
            f"{len(empty)} rounds have no update in them, round {empty[0]} first: their models got noise alone"
        )
    if many:
        total = _together(counts)
        reasons = {**total.refused, "above the clip norm": total.clipped, "not finite": total.zeroed}
        listed = ", ".join(f"{number} {reason}" for reason, number in reasons.items() if number)
        texts.append(
            f"in {len(many)} rounds more than a tenth of the reports were refused, scaled or zeroed, round {many[0]} "
            f"first; in all, of {total.came}: {listed}"
        )
    return [Finding(severity=WARNING, field=DEVICE_REPORTS, text=text) for text in texts]


def published(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a report for publication: without the counts of device reports, and with the same digest."""
    found = {name: value for name, value in report.items() if name != DEVICE_REPORTS}
    if isinstance(found.get("findings"), list):
        found["findings"] = [
            each for each in found["findings"] if not isinstance(each, Mapping) or each.get("field") != DEVICE_REPORTS
        ]
    return found


def _counts(evidence: Evidence) -> Mapping[int, ReportCounts]:
    return dict(sorted(evidence.ledger.reports.items())) if evidence.ledger else {}


def _together(counts: Mapping[int, ReportCounts]) -> ReportCounts:
    first, *others = counts.values()
    for each in others:
        first = first + each
    return first
