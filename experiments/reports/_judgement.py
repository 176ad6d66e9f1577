"""What the files of a run support: its assumptions, figures and findings, and the claim that follows from them."""

import dataclasses
import pathlib
from typing import Any

from ..privacy import statements
from . import _figures, _verdict
from ._assumptions import assess
from ._audited import NO_AUDIT, read_audit
from ._case import Case
from ._device_reports import device_findings
from ._figures import Figures
from ._findings import NOTE, Assumption, Finding
from ._summarised import summary_findings

_A_PLAN = Finding(
    severity=NOTE, field="rounds", text="a planned report: it is about the settings of the run, not about what it did"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judgement:
    """The part of a report that does not merely repeat a file.

    Attributes:
        assumptions: Each assumption of the guarantee, with its state.
        planned: Figures for the schema of the claim; `None` if there is no intact mechanism.
        seen: Figures for the observed rounds of the clients; `None` if there are none.
        figures: The figures that the report states.
        audit: What the report says about the audit.
        findings: Everything to know about the run.
        claim: What the headline states, with everything that may forbid it.
    """

    assumptions: list[Assumption]
    planned: Figures | None
    seen: Figures | None
    figures: Figures | None
    audit: Any
    findings: list[Finding]
    claim: statements.Claim


def judge(folder: pathlib.Path, case: Case, *, audited: bool, summarised: bool) -> Judgement:
    """Returns what the files of a run support.

    Args:
        folder: The run's folder.
        case: The content of its files.
        audited: Whether to read the audit.
        summarised: Whether to read the summary of a run that has ended.
    """
    record, evidence, realised = case.record, case.evidence, case.realised
    assumptions = assess(case)
    planned = None if evidence.mechanism is None else _figures.planned(record, evidence.mechanism)
    # A ledger that no run can have written supports no figures.
    seen = _figures.realised(record, evidence) if realised and not evidence.impossible else None
    figures = _figures.stated(record, evidence, planned, seen, realised=realised)
    contradiction = _figures.contradiction(record, evidence, planned, seen)
    audit, audit_findings = read_audit(folder, record, evidence.mechanism) if audited else (NO_AUDIT, [])
    findings = _verdict.findings_of(case, assumptions, figures, audit, contradiction=contradiction)
    findings += audit_findings + ([] if realised else [_A_PLAN])
    if realised and summarised:
        findings += summary_findings(folder, record, evidence, _verdict.critical(findings), case.answers)
    findings += device_findings(evidence)
    return Judgement(
        assumptions=assumptions,
        planned=planned,
        seen=seen,
        figures=figures,
        audit=audit,
        findings=findings,
        claim=_verdict.claim(case, figures, findings),
    )
