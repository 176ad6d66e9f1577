"""Puts a report together, as one JSON object."""

import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import tff_mf

from ..output.files import file_hash
from ..privacy import statements
from ..run_folder.ledger import LEDGER
from ..run_folder.names import MECHANISM, RUN_JSON
from ..run_folder.participation_log import PARTICIPATION
from ..run_folder.run_json import Configuration, read_configuration
from . import _figures, _verdict
from ._assumptions import assess
from ._audited import AUDIT, read_audit
from ._device_reports import DEVICE_REPORTS, device_findings, device_reports, published
from ._evidence import METRICS, Evidence, gather
from ._findings import NOTE, Finding
from ._summarised import MODEL, SUMMARY, summary_findings
from ._texts import ARITHMETIC, CAVEATS, NOT_COVERED, RANDOMNESS, SEVERITIES
from .questions import ANSWERS, QUESTIONS, read_answers

VERSION = 1

_PLANNED_FILES = (RUN_JSON, MECHANISM, ANSWERS)
_REALISED_FILES = (LEDGER, PARTICIPATION, METRICS, SUMMARY, MODEL, AUDIT, "configuration.toml", "vocabulary.json")
_NONE = ("none", list[Finding]())
_A_PLAN = Finding(
    severity=NOTE, field="rounds", text="a plan: what the run is set to do, whatever it did, and nothing of what it did"
)


def build(
    folder: pathlib.Path, *, realised: bool, answers: Mapping[str, Any] | None = None, audited: bool = True
) -> dict[str, Any]:
    """Returns the report of a run, recomputed from the files in its folder alone.

    Formal guarantee: the headline holds a finite ε only if every assumption of the report holds or is one that nobody
    can check, every question is answered, and no finding is critical; that ε is rounded up.

    Args:
        folder: The run's folder.
        realised: Whether the run is over, and its logs count; else what it was set to do.
        answers: Answers to take in place of those in the folder: a report that is older than they are is about others.
        audited: Whether to look for an audit.

    Raises:
        InputValueError: If the folder has no intact configuration, or answers that are none.
    """
    configuration = read_configuration(folder)
    evidence = gather(folder, configuration, realised=realised)
    answers = read_answers(folder) if answers is None else answers
    assumptions = assess(configuration, evidence, answers, realised=realised)
    planned = None if evidence.mechanism is None else _figures.planned(configuration, evidence.mechanism)
    # What no run can have done has no figures.
    seen = _figures.realised(configuration, evidence) if realised and not evidence.impossible else None
    figures = _figures.stated(configuration, evidence, planned, seen, realised=realised)
    audit, audit_findings = read_audit(folder, configuration, evidence.mechanism) if audited else _NONE
    contradiction = _figures.contradiction(configuration, evidence, planned, seen)
    findings = _verdict.findings(
        configuration, evidence, answers, assumptions, figures, audit, contradiction=contradiction
    )
    findings += audit_findings + ([] if realised else [_A_PLAN])
    findings += summary_findings(folder, configuration, evidence, _verdict.critical(findings)) if realised else []
    findings += device_findings(evidence)
    claim = _verdict.claim(configuration, answers, figures, findings, realised, evidence)
    report = {
        "report": VERSION,
        "kind": "realised" if realised else "planned",
        "headline": _planned_first(claim, realised),
        "statement": _verdict.statement(configuration, claim, realised),
        "setting": _setting(configuration, answers, evidence),
        "covered": _covered(configuration, answers),
        "unit": {"client": answers["unit"], "clients_of_one_person": answers["clients_of_one_person"]},
        "adjacency": configuration.adjacency,
        "participation": _participation(configuration, evidence, answers, realised),
        "mechanism": _mechanism(configuration, evidence),
        "clipping": {
            "clip_norm": configuration.clip_norm,
            "adaptive_count_stddev": configuration.adaptive_count_stddev,
            "restart_every": configuration.restart_every,
        },
        "noise": _noise(configuration, figures),
        "accountant": _accountant(configuration, answers, planned, seen, claim),
        "assumptions": [vars(each) for each in assumptions],
        "questions": [{"name": each.name, "text": each.text, "answer": answers[each.name]} for each in QUESTIONS],
        "findings": [vars(each) for each in findings],
        "randomness": {**RANDOMNESS, "insecure_seed": configuration.insecure_seed, "severities": SEVERITIES},
        "arithmetic": ARITHMETIC,
        "rounds": _rounds(configuration, evidence, realised),
        "utility": _utility(folder) if realised else None,
        "audit": audit,
        "caveats": CAVEATS,
        "settings": configuration.settings,
        "versions": configuration.versions,
        "command": list(configuration.command),
        "files": {
            name: file_hash(folder / name)
            for name in (*_PLANNED_FILES, *_REALISED_FILES)
            if (folder / name).is_file() and (realised or name in _PLANNED_FILES)
        },
        "ledger_head": evidence.ledger.head if evidence.ledger else None,
    }
    counts = device_reports(evidence)
    report |= {} if counts is None else {DEVICE_REPORTS: counts}
    report["digest"] = digest(report)
    return report


def _planned_first(claim: statements.Claim, realised: bool) -> str:
    line = statements.one_line(claim)
    return line if realised or line.startswith(statements.REFUSALS) else f"Planned: {line}"


def _tuning(runs: int | None) -> str:
    return "an unknown number of earlier runs" if runs is None else f"{runs} earlier runs, which chose the settings"


def digest(report: Mapping[str, Any]) -> str:
    """Returns the hash of all of a report that may be published, but the hash itself.

    Counts of devices' reports are not hashed here, so that a report has one digest with them and without. They follow
    from the ledger, whose last hash is in the report.
    """
    rest = {name: value for name, value in published(report).items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _accountant(
    configuration: Configuration,
    answers: Mapping[str, Any],
    planned: _figures.Figures | None,
    seen: _figures.Figures | None,
    claim: statements.Claim,
) -> dict[str, Any]:
    result: dict[str, Any] = {
        "name": "one Gaussian release, closed form (Balle and Wang 2018, theorem 8)",
        "version": f"tff-mf {tff_mf.__version__}",
        "conditional": "these figures suppose that every assumption holds",
        "planned": None if planned is None else _figures.currencies(planned.guarantee, configuration.delta),
        "realised": None if seen is None else _figures.currencies(seen.guarantee, configuration.delta),
        "tier": None,
        "epsilon_as_run": None,
        "epsilon_of_a_person": None,
    }
    several = answers["clients_of_one_person"]
    result["tier"] = statements.tier(claim, clients_of_one_person=several or 1)
    if claim.guarantee is not None and claim.guarantee.mu != float("inf"):
        result["epsilon_as_run"] = _figures.finite(claim.epsilon_as_run)
        if several is not None:
            result["epsilon_of_a_person"] = _figures.finite(claim.epsilon_of(several))
    return result


def _setting(configuration: Configuration, answers: Mapping[str, Any], evidence: Evidence) -> dict[str, Any]:
    return {
        "model": "central",
        "trusted": answers["trusted"],
        "simulation": configuration.simulation,
        "cohort": configuration.cohort,
        "clients_per_round": configuration.clients_per_round,
        "population": _verdict.population(configuration, answers, evidence),
    }


def _covered(configuration: Configuration, answers: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "covered": ["this one run: every noised sum, every intermediate model and the final model"],
        "not_covered": [
            *NOT_COVERED,
            _tuning(answers["tuning_runs"]),
        ],
        "pretraining": answers["pretraining"],
        "released_without_noise": list(configuration.released_without_noise),
        "other_releases": answers["other_releases"],
    }


def _participation(
    configuration: Configuration, evidence: Evidence, answers: Mapping[str, Any], realised: bool
) -> dict[str, Any]:
    return {
        "schema": configuration.participation,
        "rounds": configuration.rounds,
        "min_sep": configuration.min_sep,
        "max_participations": configuration.max_participations,
        "observed_rounds": evidence.rounds if realised else None,
        "observed_min_sep": evidence.min_sep if realised else None,
        "observed_max_participations": evidence.max_participations if realised else None,
        "sampler": configuration.sampler,
        "enforcement": answers["enforcement"],
    }


def _noise(configuration: Configuration, figures: _figures.Figures | None) -> dict[str, Any]:
    sensitivity = None if figures is None else figures.sensitivity
    return {
        "noise_multiplier": configuration.noise_multiplier,
        "sensitivity": None if sensitivity is None else sensitivity.value,
        "sensitivity_exact": None if sensitivity is None else sensitivity.exact,
        "sensitivity_rule": None if sensitivity is None else sensitivity.rule,
        **_scales(configuration),
    }


def _mechanism(configuration: Configuration, evidence: Evidence) -> dict[str, Any]:
    mechanism = evidence.mechanism
    optimized_for = None if mechanism is None else mechanism.optimized_for
    return {
        "kind": None if mechanism is None else mechanism.kind,
        "sha256": configuration.mechanism_sha256,
        "made_for": None if optimized_for is None else repr(optimized_for),
        "rounds_at_most": None if mechanism is None else mechanism.max_rounds,
    }


def _scales(configuration: Configuration) -> dict[str, float | None]:
    run = configuration.noise_multiplier * configuration.clients_per_round / configuration.cohort
    stddev = run * configuration.clip_norm
    return {
        "noise_multiplier_as_run": run,
        "stddev_of_z_in_the_sum": stddev,
        "stddev_of_z_in_the_mean": None if not configuration.divisor else stddev / configuration.divisor,
    }


def _rounds(configuration: Configuration, evidence: Evidence, realised: bool) -> dict[str, Any]:
    ledger = evidence.ledger
    sizes = list(_verdict.sizes(evidence).values())
    return {
        "planned": configuration.rounds,
        "released": len(ledger.released) if ledger else None,
        "computed_again": sum(times > 1 for times in ledger.attempts.values()) if ledger else None,
        "released_again": sum(times > 1 for times in ledger.released.values()) if ledger else None,
        "smallest_cohort": min(sizes, default=None),
        "largest_cohort": max(sizes, default=None),
        "divisor": configuration.divisor,
        "ended": ledger.ended if ledger else None,
        "not_finite": "updates that are not finite count as zero" if realised else None,
    }


def _utility(folder: pathlib.Path) -> dict[str, Any] | None:
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        of = f"claimed by {SUMMARY}, as {METRICS} has it: nothing here can evaluate the model again"
        return {**{name: summary[name] for name in ("accuracy", "loss")}, "source": of}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
