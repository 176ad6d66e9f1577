"""The evidence on a run: what its files say, who answered for it, its audit, and files that do not fit."""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import tff_mf
from tff_mf.base import files
from tff_mf.base.errors import InputError

from .. import auditing
from ..output import typed
from ..output.files import file_hash
from ..run_folder.ledger import LedgerRecord, read_ledger
from ..run_folder.metrics import Metrics, read_metrics
from ..run_folder.names import ANSWERS, AUDIT, INITIAL_MODEL, LEDGER, MECHANISM, METRICS, MODEL, PARTICIPATION, RUN_JSON
from ..run_folder.observed_participation import observed, rounds_by_client
from ..run_folder.participation_log import read_entries
from ..run_folder.run_record import RunRecord
from ..sampling import ObservedParticipation

HOLDS, ASSUMED, VIOLATED = "holds", "assumed", "violated"
CRITICAL, WARNING, NOTE = "critical", "warning", "note"

# A state and what was found.
Judged = tuple[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assumption:
    """An assumption of the guarantee.

    Attributes:
        name: Name of the assumption.
        state: "holds" if it was checked, "assumed" if it cannot be checked, or "violated".
        text: What was assumed, and what was observed.
    """

    name: str
    state: str
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """A fact about a run that its reader needs to know.

    Attributes:
        severity: "critical" if no finite ε may be stated, "warning", or "note".
        field: The field of the report that the finding is about.
        text: What was found and what to do.
    """

    severity: str
    field: str
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """The content of a run's folder.

    Attributes:
        mechanism: The mechanism of the artifact; `None` if the artifact is missing or damaged.
        mechanism_sha256: Hash of the artifact.
        ledger: The ledger; `None` if it is missing, or in a planned report.
        attempts: Clients of each attempt of each round, both counted from 1, from participation.csv, including
            attempts without clients that are in the ledger only.
        metrics: The content of metrics.csv; empty if it is damaged.
        problems: What is wrong with the files, by field of the report.
        initial_model_sha256: Hash of the copy of the initial model; empty if there is none.
        parameters: Number of values in the trained model; `None` if it is missing or damaged, or in a planned report.
    """

    mechanism: tff_mf.Mechanism | None
    mechanism_sha256: str
    ledger: LedgerRecord | None
    attempts: Mapping[tuple[int, int], Sequence[str]]
    metrics: Metrics
    problems: list[tuple[str, str]]
    initial_model_sha256: str = ""
    parameters: int | None = None

    @property
    def rounds(self) -> int:
        """The last round that began according to any file."""
        begun = self.ledger.attempts if self.ledger else {}
        return max([0, *self.cohorts, *begun])

    @property
    def last_round(self) -> int:
        """The last released round with at least one client: a run that began more may have been stopped there."""
        if self.ledger is None:
            return self.rounds
        released = self.ledger.sequence.released
        return max((number for number, size in self.ledger.sizes.items() if size and number <= released), default=0)

    @functools.cached_property
    def cohorts(self) -> dict[int, set[str]]:
        """Clients of each round, over all of its attempts: the result of an abandoned attempt may have been seen."""
        found: dict[int, set[str]] = {}
        for (number, _), clients in sorted(self.attempts.items()):
            found.setdefault(number, set()).update(clients)
        return found

    @functools.cached_property
    def repeated(self) -> list[int]:
        """Rounds with a client that is listed twice in one attempt."""
        return sorted({number for (number, _), clients in self.attempts.items() if len(set(clients)) < len(clients)})

    @property
    def impossible(self) -> list[str]:
        """Entries of the ledger that no run can have written in this order."""
        return self.ledger.impossible if self.ledger else []

    @functools.cached_property
    def rounds_by_client(self) -> dict[str, list[int]]:
        """The rounds of each client, counted from 1, see `observed_participation.rounds_by_client`."""
        return rounds_by_client(self.attempts)

    @functools.cached_property
    def patterns(self) -> list[tuple[int, ...]]:
        """The rounds of each client, counted from 0."""
        return [tuple(number - 1 for number in rounds) for rounds in self.rounds_by_client.values()]

    @functools.cached_property
    def observed(self) -> ObservedParticipation:
        """How often, and how far apart, clients took part."""
        return observed(self.rounds_by_client.values())

    @property
    def min_sep(self) -> int | None:
        """Smallest distance of two rounds of a client, 0 if it is listed twice in one; `None` if there are none."""
        return self.observed.min_sep

    @property
    def max_participations(self) -> int:
        """Largest number of rounds of a client."""
        return self.observed.max_participations


def gather(folder: pathlib.Path, *, realised: bool) -> Evidence:
    """Returns what a run's folder contains; problems are collected, not raised.

    Args:
        folder: The run's folder.
        realised: Whether to read the logs of the run too.
    """
    problems: list[tuple[str, str]] = []
    mechanism, digest = None, ""
    try:
        digest = file_hash(folder / MECHANISM)
        mechanism = tff_mf.load(folder / MECHANISM)
    except (OSError, InputError) as error:
        problems.append(("mechanism", f"{MECHANISM} is missing or damaged: {error}"))
    ledger = _ledger(folder, problems) if realised else None
    attempts = _attempts(folder / PARTICIPATION, ledger, problems) if realised else {}
    metrics = _metrics(folder / METRICS, problems) if realised else Metrics()
    problems += _other_tables(folder) if realised else []
    return Evidence(
        mechanism=mechanism,
        mechanism_sha256=digest,
        ledger=ledger,
        attempts=attempts,
        metrics=metrics,
        problems=problems,
        initial_model_sha256=file_hash(folder / INITIAL_MODEL) if (folder / INITIAL_MODEL).is_file() else "",
        parameters=_parameters(folder / MODEL) if realised else None,
    )


def _ledger(folder: pathlib.Path, problems: list[tuple[str, str]]) -> LedgerRecord | None:
    try:
        ledger = read_ledger(folder / LEDGER)
    except InputError as error:
        problems.append(("log", str(error)))
        return None
    problems += [("log", f"{LEDGER}: {problem}") for problem in ledger.problems]
    if ledger.configuration is None:
        problems.append(("log", f"{LEDGER} does not contain the hash of {RUN_JSON}"))
    elif ledger.configuration != file_hash(folder / RUN_JSON):
        problems.append(("log", f"{RUN_JSON} was edited after the run began"))
    return ledger


def _parameters(path: pathlib.Path) -> int | None:
    # Imported here: reports of runs without a model need no such file.
    import safetensors

    try:
        with safetensors.safe_open(path, "np") as model:
            return sum(math.prod(model.get_slice(name).get_shape()) for name in model.keys())  # noqa: SIM118
    except (OSError, safetensors.SafetensorError):
        return None


def _metrics(path: pathlib.Path, problems: list[tuple[str, str]]) -> Metrics:
    """Returns the metrics of a run; a damaged file is one problem, and none of its content is used."""
    try:
        found = read_metrics(path)
        damage = found.problems[0] if found.problems else ""
    except InputError as error:
        found, damage = Metrics(), str(error)
    if not damage:
        return found
    problems.append(("log", f"{METRICS} is damaged: {damage}"))
    return Metrics()


def _other_tables(folder: pathlib.Path) -> list[tuple[str, str]]:
    """Returns the tables that do not belong to a run: nothing says on whose data their columns were computed."""
    known = (METRICS, PARTICIPATION)
    names = sorted(each.name for each in folder.iterdir() if each.suffix.lower() == ".csv" and each.name not in known)
    text = "is not a file of a run, and nothing says on whose data it was computed: released without noise"
    return [("released without noise", f"{name!a} {text}") for name in names]


def _attempts(
    path: pathlib.Path, ledger: LedgerRecord | None, problems: list[tuple[str, str]]
) -> dict[tuple[int, int], list[str]]:
    """Returns the clients of each attempt."""
    found: dict[tuple[int, int], list[str]] = {}
    try:
        for entry in read_entries(path):
            found.setdefault((entry.round_number, entry.attempt), []).append(entry.client)
    except (OSError, InputError) as error:
        problems.append(("log", f"{PARTICIPATION} is missing or damaged: {error}"))
    for begun in ledger.begun if ledger else ():
        if not begun.clients:
            found.setdefault((begun.round, begun.attempt), [])
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """The input of a report.

    Attributes:
        record: The content of `run.json`.
        evidence: The content of the other files.
        answers: The operator's answers, `None` for open questions.
        realised: Whether the report is the final one; else the planned one.
    """

    record: RunRecord
    evidence: Evidence
    answers: Mapping[str, Any]
    realised: bool


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


# The csv module ends lines with \r\n, all other writers of a run with \n.
_TABLES = (METRICS, PARTICIPATION)
_TEXTS = (".json", ".jsonl", ".md", ".toml")


def on_folder(folder: pathlib.Path) -> list[Finding]:
    """Returns findings on files that a killed process left unfinished, and on line ends that a copy has changed.

    An unfinished checkpoint has keys too.
    """
    found = []
    unfinished = sorted(str(path.relative_to(folder)) for path in files.unfinished(folder, subfolders=True))
    if unfinished:
        found.append(
            f"a killed process left {', '.join(unfinished)}, which may have keys of the noise: delete it, or resume "
            "the run, which deletes it"
        )
    changed = sorted(path.name for path in folder.iterdir() if path.is_file() and _has_other_ends(path))
    if changed:
        found.append(
            f"{', '.join(changed)}: not the line ends that tff-mf writes, as after git with core.autocrlf: "
            "copy the run as it was written (git: `* -text` in .gitattributes)"
        )
    return [Finding(severity=WARNING, field="files", text=text) for text in found]


def _has_other_ends(path: pathlib.Path) -> bool:
    if path.name in _TABLES:
        return b"\n" in path.read_bytes().replace(b"\r\n", b"")
    # People write their answers with any editor.
    return path.suffix in _TEXTS and path.name != ANSWERS and b"\r\n" in path.read_bytes()
