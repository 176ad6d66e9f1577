"""The audit in a run's folder: accepted only if it names the run and follows from its own measurements."""

import pathlib
from collections.abc import Mapping
from typing import Any

import tff_mf
from tff_mf.errors import InputError

from .. import auditing
from ..output import typed
from ..output.files import file_hash
from ..run_folder.names import AUDIT, RUN_JSON
from ..run_folder.run_record import RunRecord
from ._findings import CRITICAL, Finding

# What a report says about the audit of a run without one.
NO_AUDIT = "none"
_CLAIMED = (
    f"measured values are claimed by {AUDIT}: nothing here can measure the noise again; limits, verdicts and bounds "
    "were computed from them once more"
)


def audit_setting(record: RunRecord, mechanism: tff_mf.Mechanism, **more: Any) -> auditing.Setting:
    """Returns the setting of a run's audit: everything that the run claims, with restarts and noised counts.

    Args:
        record: The content of `run.json`.
        mechanism: The run's mechanism.
        more: Further fields of the setting.
    """
    return auditing.Setting(
        mechanism=mechanism,
        rounds=record.rounds,
        participation=record.schema,
        noise_multiplier=record.noise_multiplier,
        delta=record.delta,
        insecure_seed=record.insecure_seed,
        restart_every=record.restart_every,
        adjacency=record.adjacency,
        count_stddev=record.adaptive_count_stddev,
        grid=record.grid,
        dimension=record.dimension,
        **more,
    )


def read_audit(
    folder: pathlib.Path, record: RunRecord, mechanism: tff_mf.Mechanism | None
) -> tuple[Any, list[Finding]]:
    """Returns what a report says about the audit in a folder, and findings on the audit.

    Args:
        folder: The run's folder.
        record: The content of `run.json`.
        mechanism: The run's mechanism; `None` if the artifact is missing or damaged.
    """
    path = folder / AUDIT
    if not path.exists():
        return NO_AUDIT, []
    try:
        stored = typed.read(path, dict[str, Any], "audit")
    except InputError as error:
        return "damaged", [_finding(f"{AUDIT} is damaged: {error}")]
    if stored.get("passed") is False:
        # Not checked: a forged failure cannot lead to a smaller ε.
        return {"passed": False, "tests": _tests(stored), "source": _CLAIMED}, []
    problems = _problems(folder, stored, record, mechanism)
    if problems:
        text = f"{AUDIT} is not an audit of this run: {problems[0]}; run tff-mf audit again, or remove it"
        return "not of this run", [_finding(text)]
    about = {name: stored[name] for name in ("passed", "rounds", "coordinates", "claimed_epsilon")}
    shown = max(stored["canaries"]["epsilon"], stored["canaries"]["epsilon_gaussian"])
    return {**about, "shown_epsilon": shown, "tests": _tests(stored), "source": _CLAIMED}, []


def _problems(
    folder: pathlib.Path, stored: Mapping[str, Any], record: RunRecord, mechanism: tff_mf.Mechanism | None
) -> list[str]:
    if stored.get("run_sha256") != file_hash(folder / RUN_JSON):
        return [f"it does not name the hash of {RUN_JSON}"]
    if mechanism is None or not record.noise_multiplier:
        return ["there is no noise to audit"]
    try:
        return auditing.disagreements(stored, audit_setting(record, mechanism))
    except InputError as error:
        return [str(error)]


def _tests(stored: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the name, verdict and figures of each test, as far as the file has them, and no text of the file."""
    tests = stored.get("tests")
    names = ("name", "passed", "value", "limit")
    return [
        {name: test.get(name) for name in names if isinstance(test.get(name), str | bool | int | float)}
        for test in (tests if isinstance(tests, list) else [])
        if isinstance(test, Mapping)
    ]


def _finding(text: str) -> Finding:
    return Finding(severity=CRITICAL, field="audit", text=text)
