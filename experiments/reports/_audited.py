"""The audit in a run's folder: taken for the run's only if it names the run, and follows from what it measured."""

import pathlib
from collections.abc import Mapping
from typing import Any

import tff_mf
from tff_mf.errors import InputError

from .. import auditing
from ..output import strict_json
from ..output.files import file_hash
from ..run_folder.names import RUN_JSON
from ..run_folder.run_json import Configuration
from ._findings import CRITICAL, Finding

AUDIT = "audit.json"
_CLAIMED = (
    f"measured values are claimed by {AUDIT}: nothing here can measure the noise again; limits, verdicts and bounds "
    "were computed from them once more"
)


def audit_setting(configuration: Configuration, mechanism: tff_mf.Mechanism, **more: Any) -> auditing.Setting:
    """Returns what an audit of a run must be an audit of: all that it claims, with restarts and noised counts.

    Args:
        configuration: What the run is set to do.
        mechanism: Its mechanism.
        more: Further fields of the setting.
    """
    return auditing.Setting(
        mechanism=mechanism,
        rounds=configuration.rounds,
        participation=configuration.schema,
        noise_multiplier=configuration.noise_multiplier,
        delta=configuration.delta,
        insecure_seed=configuration.insecure_seed,
        restart_every=configuration.restart_every,
        adjacency=configuration.adjacency,
        count_stddev=configuration.adaptive_count_stddev,
        **more,
    )


def read_audit(
    folder: pathlib.Path, configuration: Configuration, mechanism: tff_mf.Mechanism | None
) -> tuple[Any, list[Finding]]:
    """Returns what a report says of the audit in a folder, and what is wrong with it.

    Args:
        folder: The run's folder.
        configuration: What the run is set to do.
        mechanism: Its mechanism, if there is one.
    """
    path = folder / AUDIT
    if not path.exists():
        return "none", []
    try:
        stored = strict_json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(stored, Mapping):
            raise ValueError("it holds no JSON object")
    except (OSError, ValueError, RecursionError) as error:
        return "damaged", [_finding(f"{AUDIT} is damaged: {error}")]
    if stored.get("passed") is False:
        # Believed as it is: a failure that somebody made up states no smaller ε.
        return {"passed": False, "tests": _tests(stored), "source": _CLAIMED}, []
    problems = _problems(folder, stored, configuration, mechanism)
    if problems:
        text = f"{AUDIT} is no audit of this run: {problems[0]}; run tff-mf audit again, or remove it"
        return "not of this run", [_finding(text)]
    about = {name: stored[name] for name in ("passed", "rounds", "coordinates", "claimed_epsilon")}
    shown = max(stored["canaries"]["epsilon"], stored["canaries"]["epsilon_gaussian"])
    return {**about, "shown_epsilon": shown, "tests": _tests(stored), "source": _CLAIMED}, []


def _problems(
    folder: pathlib.Path, stored: Mapping[str, Any], configuration: Configuration, mechanism: tff_mf.Mechanism | None
) -> list[str]:
    if stored.get("run_sha256") != file_hash(folder / RUN_JSON):
        return [f"it does not name the hash of {RUN_JSON}"]
    if mechanism is None or not configuration.noise_multiplier:
        return ["there is no noise to audit"]
    try:
        return auditing.disagreements(stored, audit_setting(configuration, mechanism))
    except InputError as error:
        return [str(error)]


def _tests(stored: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns name, verdict and figures of each test, as far as they are there: no words of the file's."""
    tests = stored.get("tests")
    names = ("name", "passed", "value", "limit")
    return [
        {name: test.get(name) for name in names if isinstance(test.get(name), str | bool | int | float)}
        for test in (tests if isinstance(tests, list) else [])
        if isinstance(test, Mapping)
    ]


def _finding(text: str) -> Finding:
    return Finding(severity=CRITICAL, field="audit", text=text)
