"""The privacy report of a run: what its files support, as JSON, Markdown and a web page, and the check of a stored one.

Everything follows from `run.json`, the artifact, the ledger, the metrics and the model in the folder of a run. Whoever
owns the folder is trusted: a check finds mistakes, and no forgery.
"""

import base64
import collections
import dataclasses
import datetime
import functools
import html as html_text
import io
import itertools
import json
import math
import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import jinja2
import markdown as python_markdown
import msgspec
import safetensors
from msgspec import UNSET, UnsetType

import tff_mf
from tff_mf.accounting import Question, grid_charge
from tff_mf.base import files as base_files
from tff_mf.base import strict_json
from tff_mf.base.errors import InputError
from tff_mf.base.strict_json import finite
from tff_mf.numerics import digits
from tff_mf.planning import deployed_population
from tff_mf.sensitivities.losses import round_errors

from .output import typed
from .output.files import FOLDER_LOCK, file_hash, write_atomically
from .output.text import seen as visible
from .output.text import up
from .output.typed import Record
from .runs import amplification, model_file, names, statements
from .runs.folders import read_evaluated
from .runs.ledger import LedgerRecord, ReportCounts, cohort_digest, read_ledger
from .runs.metrics import ALSO_TRAINING, HARMLESS, NOT_TRAINING, Metrics, read_metrics
from .runs.rules import Rules, named

# Pipelines of others read and write run.json by these names.
from .runs.run_record import RunRecord as RunRecord
from .runs.run_record import check_fields as check_fields
from .runs.run_record import read_record as read_record
from .runs.run_record import write_record as write_record
from .runs.settings import FILES
from .runs.statements import REFUSED, Claim, Reason
from .sampling import ObservedParticipation

VERSION = 4
State = Literal["holds", "assumed", "violated"]
HOLDS: State = "holds"
ASSUMED: State = "assumed"
VIOLATED: State = "violated"
# By how much of itself a stored claim may be smaller than the recomputed one, and how far apart other floats may be:
# last bits differ between processors.
TOO_SMALL, APART = 1e-9, 1e-6
# Numbers in which a claim gets weaker as they grow.
_CLAIMS = frozenset(
    {
        *("epsilon", "epsilon_as_run", "epsilon_of_a_person", "epsilon_by_pld", "delta", "mu", "zcdp_rho", "tail"),
        *("sensitivity", "error", "log_ratio"),
    }
)
_INPUTS = frozenset({"noise_multiplier", "noise_multiplier_as_run"})
# What a check does not compare: words, which may change, and who wrote them.
_WORDS = frozenset({"text", "warnings", "not_checked", "made_by"})
# A bound on rounding errors has last bits that are as large as what it bounds.
_ROUNDING_APART = 1e-12
# Above the rounding of two sensitivities, or two values of μ, that are compared.
_ROUNDING = 1e-9
# Largest difference of the two accountants, relative where ε is above 1.
_ACCOUNTANTS_APART = 1e-6
# Up to this number of rounds the pattern of every client is evaluated, with a matrix of as many rows: in seconds.
_MOST_ROUNDS_BY_PATTERN = 4096
# Part of a round's device reports above which bad ones are a warning.
_MANY = 0.1
_TEMPLATES = jinja2.FileSystemLoader(pathlib.Path(__file__).parent)
_PLANNED_FILES = (names.RUN_JSON, names.PLAN, names.MECHANISM)
_FINAL_FILES = (
    *(*_PLANNED_FILES, names.LEDGER, names.METRICS, names.SUMMARY, names.MODEL),
    *(names.EVALUATED, names.SETTINGS_TOML, names.VOCABULARY),
)
# What a run writes once it has begun.
_OF_A_RUN = (
    *(names.LEDGER, names.METRICS, names.SUMMARY, names.MODEL),
    *(names.REPORT, names.REPORT_TEXT, names.CHECKPOINTS, FOLDER_LOCK),
)


class Check(Record, kw_only=True):
    """A rule that a guarantee rests on, and what the files say of it.

    Attributes:
        name: Name of the rule.
        state: "holds" if it was checked, "assumed" if nothing here can check it, or not yet, or "violated".
        text: What was seen.
    """

    name: str
    state: State
    text: str


class About(Record, kw_only=True):
    """What is known of the data and the time of a run; nothing checks the facts of other pipelines.

    Attributes:
        clients: Clients that cohorts are drawn from.
        examples: Their examples.
        started: By the clock of the machine, as `ended`, which is not written of secret cohorts.
        seconds: Between both; `None` if the clock was set back.
    """

    dataset: str | None
    dataset_sha256: str | None
    clients: int | None
    examples: int | None
    started: str | None
    ended: str | None
    seconds: int | None


class Participation(Record, kw_only=True):
    """The schema of the claim, and what the log shows of it; `None` before the run, and of secret cohorts."""

    schema: str
    rounds: int
    min_sep: int
    max_participations: int
    observed_rounds: int | None
    observed_min_sep: int | None
    observed_max_participations: int | None
    sampler: str


class Rounds(Record, kw_only=True):
    """What the ledger says of the rounds; `None` without one.

    Attributes:
        computed_again: Rounds with several attempts, at most one of which was released.
        divisor: The constant by which sums are divided.
    """

    released: int | None
    computed_again: int | None
    smallest_cohort: int | None
    largest_cohort: int | None
    divisor: float | None
    ended: bool | None


class Artifact(Record, kw_only=True):
    """The mechanism.

    Attributes:
        kind: Its kind.
        sha256: Hash of the file that `run.json` names.
        rounds_at_most: Rounds that it is defined for.
        made_for: Rounds and schema that it was optimized for.
    """

    kind: str
    sha256: str
    rounds_at_most: int | None
    made_for: dict[str, Any] | None


class Noise(Record, kw_only=True):
    """The noise, and the sensitivity that it is measured by: the one of the stated figures."""

    noise_multiplier: float
    noise_multiplier_as_run: float
    sensitivity: float | None
    sensitivity_exact: bool | None
    clip_norm: float
    adaptive_count_stddev: float | None
    restart_every: int | None
    generator: str
    insecure_seed: int | None


class GridFacts(Record, kw_only=True):
    """The grid of a run, and what its integers cost in the guarantee: see `GridCharge`."""

    bits: int
    max_clients: int
    integers: str
    dimension: int | None
    mu: float | None
    tail: float | None
    error: float | None
    log_ratio: float | None
    added_sensitivity: float | None


class Measures(Record, kw_only=True):
    """A guarantee in each privacy measure; infinite values are `None`."""

    delta: float
    epsilon: float | None
    epsilon_by_pld: float | None
    zcdp_rho: float | None
    mu: float | None


class Accountant(Record, kw_only=True):
    """Figures for every client that keeps to the schema (`planned`), and for those in the log (`realised`)."""

    planned: Measures | None
    realised: Measures | None


class Quality(Record, kw_only=True):
    """How good the final model is, by `summary.json`."""

    accuracy: float | None = None
    loss: float | None = None
    test_sentences: int | None = None


class DeviceReports(ReportCounts, kw_only=True):
    """Exact counts of the devices' reports, and what to warn the operator of: they are not for publication."""

    rounds: int
    warnings: Sequence[str]


class Report(Record, kw_only=True):
    """The content of `report.json`, and before the run of `planned.json`; `docs/report.md` describes it.

    As text it is the guarantee in one line, or how far a run is that has not ended.

    Attributes:
        report: Version of the format.
        kind: "realised", from the log of the run, or "planned".
        made_by: The release that wrote it.
        claim: What is stated, or why nothing is.
        about: Data and time.
        checks: Every rule that the guarantee rests on.
        warnings: What a reader needs to know, and what voids nothing.
        released_without_noise: Each release without noise, with the clients on whose data it is computed.
        accuracies: Round and validation accuracy of each evaluation.
        settings: What was asked for, and the facts of other pipelines.
        versions: Versions of the packages that the run depends on.
        command: The command line.
        files: SHA-256 of each file that the report follows from.
        device_reports: Counts of the devices' reports, if they were counted.
    """

    report: int
    kind: Literal["planned", "realised"]
    made_by: str
    claim: Claim
    about: About
    participation: Participation
    rounds: Rounds
    mechanism: Artifact
    noise: Noise
    grid: GridFacts | None
    accountant: Accountant
    checks: Sequence[Check]
    warnings: Sequence[str]
    released_without_noise: Sequence[dict[str, str]]
    quality: Quality | None
    accuracies: Sequence[tuple[int, float]]
    settings: dict[str, Any]
    versions: dict[str, str]
    command: Sequence[str]
    files: dict[str, str]
    device_reports: DeviceReports | UnsetType = UNSET

    def __str__(self) -> str:
        if self.kind == "planned" or self.rounds.ended is not False:
            return self.headline
        return (
            f"{self.rounds.released} of {self.participation.rounds} rounds are released, and the run has not ended: go "
            "on with training.cohorts(clients), or end it here with training.report(end=True), which states the ε."
        )

    @property
    def headline(self) -> str:
        """The guarantee that is stated in one line, or why none is."""
        planned = self.kind == "planned" and self.claim.state != REFUSED
        return f"{'Planned: ' if planned else ''}{statements.line(self.claim)}"

    def state_of(self, rule: str) -> State:
        """Returns the state of a rule."""
        return next(check.state for check in self.checks if check.name == rule)

    def published(self) -> "Report":
        """Returns the report for publication: without the exact counts of device reports."""
        return msgspec.structs.replace(self, device_reports=UNSET)

    def as_json(self) -> dict[str, Any]:
        """Returns the content of `report.json`."""
        return msgspec.json.decode(msgspec.json.encode(self))

    def as_text(self) -> str:
        """Returns the text of `report.json`."""
        return json.dumps(self.as_json(), indent=1, ensure_ascii=False) + "\n"


def read(path: pathlib.Path) -> Report:
    """Returns the report in a file: `report.json`, or `planned.json`.

    Raises:
        InputValueError: If it is none; the message names the field.
    """
    return typed.read(path, Report, "report")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figures:
    """A guarantee that holds if every rule does, and the sensitivity that it follows from.

    Attributes:
        reached: A sensitivity that a client in the log attains; 0 if none is known.
        charge: What the integers of a grid cost, which is part of the guarantee; `None` in floating point.
    """

    guarantee: tff_mf.Guarantee
    sensitivity: tff_mf.SensitivityResult
    reached: float = 0.0
    charge: grid_charge.GridCharge | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """The content of a run's folder, as far as it is intact, and the figures that follow from it.

    Attributes:
        realised: Whether the logs count, for the final report; without them it is about the plan.
        edited: Files of the plan that are not those of `run.json`.
        wrong_log: What is wrong with the files of the log.
    """

    folder: pathlib.Path
    realised: bool
    record: RunRecord
    edited: Sequence[str]
    ledger: LedgerRecord | None
    metrics: Metrics
    wrong_log: Sequence[str]

    @property
    def rounds(self) -> int:
        """The last round that began."""
        return max(self.ledger.attempts, default=0) if self.ledger else 0

    @property
    def sizes(self) -> Mapping[int, int]:
        """The number of clients of each round, by the ledger."""
        return self.ledger.sizes if self.ledger else {}

    @property
    def last_round(self) -> int:
        """The last released round that has clients, or, of secret cohorts, may have."""
        released = self.ledger.last_released if self.ledger else 0
        if self.record.is_secret:
            return released
        return max((number for number, size in self.sizes.items() if size and number <= released), default=0)

    @functools.cached_property
    def attempts(self) -> Mapping[tuple[int, int], Sequence[str]]:
        """Clients of each attempt of each round, both counted from 1."""
        return {(line.round, line.attempt): line.clients for line in self.ledger.begun} if self.ledger else {}

    @functools.cached_property
    def repeated(self) -> list[int]:
        """Rounds with a client that is listed twice in one attempt."""
        return sorted({number for (number, _), clients in self.attempts.items() if len(set(clients)) < len(clients)})

    @functools.cached_property
    def rounds_by_client(self) -> dict[str, list[int]]:
        """The rounds of each client: see `rounds_by_client`."""
        return rounds_by_client(self.attempts)

    @functools.cached_property
    def observed(self) -> ObservedParticipation:
        """How often, and how far apart, clients took part: 0 apart if one is listed twice in a round."""
        return observed(self.rounds_by_client.values())

    @property
    def population(self) -> int | None:
        """The number of clients: as in `run.json` or as observed in the log, whichever is larger.

        δ is compared with 1 / population, so a smaller number than the log shows would let a δ pass that is too large.
        If clients stand for a larger cohort, the number comes from `deployed_population`.
        """
        record = self.record
        deployed = deployed_population(
            len(self.rounds_by_client),
            cohort=record.plan.cohort,
            clients_per_round=record.plan.clients_per_round,
            rounds=record.plan.rounds,
            participation=record.plan.participation,
        )
        return max(deployed, record.population or 0) or None

    @functools.cached_property
    def planned(self) -> Figures:
        """The figures for the schema of the claim."""
        return planned_figures(self.record)

    @functools.cached_property
    def seen(self) -> Figures | None:
        """The figures for the observed rounds of the clients; `None` if they cannot be computed.

        Formal guarantee: the sensitivity is the largest over the clients in the log, or an upper bound: the smaller one
        of the sensitivities of the observed patterns and of a schema that has all of them: the `MinSep` of the observed
        b and k, or, of a run in fixed epochs, the `FixedEpoch` of the observed steps. If a client is listed twice in a
        round, there are no figures, nor of a ledger that no run can have written.
        """
        if not self.rounds or self.repeated or (self.ledger and self.ledger.impossible):
            return None
        if self.record.is_secret:
            # No log has them: all that is known is what the sampling keeps.
            return self.planned
        try:
            return _seen(self)
        except InputError:
            return None

    @functools.cached_property
    def stated(self) -> Figures | None:
        """The figures that a report states: the observed ones, or the planned ones before the run.

        Formal guarantee: at least the figures of the observed participation. If the run was stopped early, at least the
        planned figures too: the decision to stop may depend on released results, and then the guarantee follows from
        the run that could have continued.
        """
        planned, seen = self.planned, self.seen
        if not self.realised:
            return planned
        if seen is None or self.last_round >= self.record.plan.rounds:
            return seen
        if planned.guarantee.mu < seen.guarantee.mu * (1 - _ROUNDING):
            return seen
        # Where both are equal but for rounding, every machine names the same sensitivity.
        larger = max(planned.guarantee, seen.guarantee, key=lambda guarantee: guarantee.mu)
        return dataclasses.replace(planned, guarantee=larger)


def rounds_by_client(attempts: Mapping[tuple[int, Any], Iterable[str]]) -> dict[str, list[int]]:
    """Returns the rounds of each client, counted from 1, in order.

    Formal guarantee: a client in several attempts of a round took part in it once, since at most one attempt is
    released; one in an abandoned attempt took part all the same. If a client is listed twice in one attempt, its round
    is listed twice.

    Example:
        >>> rounds_by_client({(1, 1): ["ann"], (1, 2): ["ann"], (3, 1): ["ann", "bob"]})
        {'ann': [1, 3], 'bob': [3]}
    """
    times: dict[str, dict[int, int]] = {}
    for (number, _), clients in sorted(attempts.items(), key=lambda item: item[0][0]):
        for client, count in collections.Counter(clients).items():
            of_client = times.setdefault(client, {})
            of_client[number] = max(count, of_client.get(number, 0))
    return {
        client: [number for number, count in rounds.items() for _ in range(count)] for client, rounds in times.items()
    }


def observed(patterns: Iterable[Sequence[int]]) -> ObservedParticipation:
    """Returns how often, how far apart and in which steps clients took part.

    Example:
        >>> observed([[1, 3], [3]])
        ObservedParticipation(min_sep=2, max_participations=2)
    """
    patterns = [rounds for rounds in patterns if rounds]
    apart = {b - a for rounds in patterns for a, b in itertools.pairwise(rounds)}
    most = max(map(len, patterns), default=0)
    if not apart:
        return ObservedParticipation(min_sep=None, max_participations=most)
    return ObservedParticipation(
        min_sep=min(apart),
        max_participations=most,
        common_step=math.gcd(*apart),
        span=max(rounds[-1] - rounds[0] for rounds in patterns),
    )


def gather(folder: pathlib.Path, *, realised: bool) -> Evidence:
    """Returns what a run's folder contains; what is wrong with files but those of its record is collected."""
    record = read_record(folder)
    of_run = {names.PLAN: record.plan_sha256, names.MECHANISM: record.mechanism_sha256}
    edited = [name for name, digest in of_run.items() if file_hash(folder / name) != digest]
    ledger, metrics, wrong_log = None, Metrics(), []
    if realised:
        try:
            ledger = read_ledger(folder / names.LEDGER)
            wrong_log += [f"{names.LEDGER}: {problem}" for problem in ledger.problems]
            if ledger.bound_to is None:
                wrong_log.append(f"{names.LEDGER} does not contain the hash of {names.RUN_JSON}")
            elif ledger.bound_to != file_hash(folder / names.RUN_JSON):
                wrong_log.append(f"{names.RUN_JSON} was edited after the run began")
        except InputError as error:
            wrong_log.append(str(error))
        try:
            metrics = read_metrics(folder / names.METRICS)
            damage = "".join(metrics.problems[:1])
        except InputError as error:
            damage = str(error)
        if damage:
            metrics = Metrics()
            wrong_log.append(f"{names.METRICS} is missing or damaged: {damage}")
    return Evidence(
        folder=folder,
        realised=realised,
        record=record,
        edited=edited,
        ledger=ledger,
        metrics=metrics,
        wrong_log=wrong_log,
    )


def _participation(evidence: Evidence) -> tuple[State, str]:
    """The rounds of each client are a pattern of the schema, which is that of the sampling."""
    record, came = evidence.record, evidence.observed
    b, k = record.plan.participation.min_sep, record.plan.participation.max_participations
    claimed = f"rounds of a client are at least {b} apart, and at most {k}"
    if isinstance(record.plan.participation, tff_mf.FixedEpoch):
        claimed += f", in the same place of {k} epochs that follow each other"

    def check(state: State, text: str) -> tuple[State, str]:
        return state, f"{claimed}; {text}"

    if (text := _other_sampling(record)) is not None:
        return check(VIOLATED, text)
    if record.is_secret:
        return check(ASSUMED, "by the sampler, as cohorts are secret and no log has them")
    if not evidence.realised:
        return check(ASSUMED, "to be checked in the log")
    if evidence.repeated:
        return check(VIOLATED, f"a client is listed twice in round {evidence.repeated[0]}")
    logged = statements.seen(came.min_sep, came.max_participations)
    if came.min_sep is not None and k > 1 and came.min_sep < b:
        return check(VIOLATED, f"{logged}: a client came back too soon")
    if came.max_participations > k:
        return check(VIOLATED, f"{logged}: a client came too often")
    # Some schemas restrict more than the number and distance of rounds. Rounds are counted from 1, as in the log.
    for rounds in evidence.rounds_by_client.values():
        if not record.plan.participation.allows(rounds):
            listed = ", ".join(map(str, rounds))
            return check(VIOLATED, f"a client took part in rounds {listed}, which the schema does not allow")
    return check(HOLDS, logged)


def _other_sampling(record: RunRecord) -> str | None:
    """Returns how the sampling of a run differs from the claim's; `None` if it does not, or nothing says how it is.

    A log cannot show it of rounds that were planned and did not run, nor of clients that came once by chance.
    """
    drawn = record.drawn
    if drawn is None:
        return None
    try:
        schema = drawn.schema(record.plan.rounds)
    except InputError as error:
        return str(error)
    if schema != record.plan.participation:
        return f"sampling={drawn.sampling!r} of its settings keeps another schema: clients may come otherwise"
    # Others name the sampler of a deployment in words of their own.
    if drawn.sampler != record.sampler and (record.is_secret or record.sampler.startswith("tff_mf.")):
        return f"sampling={drawn.sampling!r} of its settings is not the sampler, {record.sampler}"
    return None


def _sampler(evidence: Evidence) -> tuple[State, str]:
    """The cohorts in the log are the planned ones, and secret cohorts are not in it."""
    record = evidence.record

    def check(state: State, text: str) -> tuple[State, str]:
        return state, f"cohorts by {record.sampler}{text}"

    if record.is_secret != record.draws_in_secret:
        return check(VIOLATED, f", and {names.RUN_JSON} contradicts itself on whether they are secret")
    if record.is_secret:
        if any(evidence.attempts.values()):
            return check(VIOLATED, " are claimed to be secret, and the log lists clients")
        return check(ASSUMED, " from the system's randomness")
    if not record.cohorts:
        return check(ASSUMED, "; no planned cohorts to compare the log with")
    if not evidence.realised:
        return check(ASSUMED, ", as planned; to be checked in the log")
    planned = dict(enumerate(record.cohorts, start=1))
    for (number, _), clients in sorted(evidence.attempts.items()):
        if planned.get(number) != cohort_digest(clients):
            return check(VIOLATED, f": round {number} had another cohort than planned: the sampler was changed")
    return check(HOLDS, ", as planned")


def _log(evidence: Evidence) -> tuple[State, str]:
    """The log is complete."""
    if not evidence.realised:
        return ASSUMED, "every round will be in the log before it runs"
    record, ledger, rounds, metrics = evidence.record, evidence.ledger, evidence.rounds, evidence.metrics
    against = [*evidence.wrong_log]
    if ledger is not None and not against:
        released = ledger.last_released
        if sorted(ledger.attempts) != list(range(1, len(ledger.attempts) + 1)):
            against.append(f"rounds are missing in {names.LEDGER}")
        if metrics.last_round > rounds:
            against.append(f"{names.METRICS} has round {metrics.last_round}, the log ends at {rounds}")
        if metrics.last_evaluated > released:
            against.append(
                f"{names.METRICS} has an evaluation of round {metrics.last_evaluated}, and {names.LEDGER} has releases "
                f"up to round {released}"
            )
        if not ledger.ended:
            against.append(f"{names.LEDGER} does not say that the run ended: later rounds may be missing")
        if rounds > record.plan.rounds:
            against.append(f"{rounds} rounds ran, {record.plan.rounds} were accounted for")
    if against:
        return VIOLATED, "; ".join(against)
    return HOLDS, f"all {rounds} rounds are in the log, with every attempt"


def _releases(evidence: Evidence) -> tuple[State, str]:
    """Each round was released at most once, in order."""
    ledger = evidence.ledger
    if ledger is None:
        return ASSUMED, "each round is released once"
    twice = [number for number, times in ledger.released.items() if times > 1]
    if twice:
        text = f"round {twice[0]} was released more than once: two results of a round are two releases"
        return VIOLATED, text
    if ledger.impossible:
        return VIOLATED, f"{ledger.impossible[0]}: no run has such a ledger"
    again = sum(times > 1 for times in ledger.attempts.values())
    computed = f"; {again} were computed again before any result was released" if again else ""
    return HOLDS, f"each once, in order, by its newest attempt{computed}"


def _plan(evidence: Evidence) -> tuple[State, str]:
    """The plan is the one that the run began with."""
    if names.PLAN in evidence.edited:
        return VIOLATED, f"{names.PLAN} was edited after the run began: its hash is not the one in {names.RUN_JSON}"
    return HOLDS, "its hash is right"


def _artifact(evidence: Evidence) -> tuple[State, str]:
    """The artifact is the one in `run.json`."""
    if names.MECHANISM in evidence.edited:
        return VIOLATED, f"the artifact is not the one of {names.RUN_JSON}: its hash differs"
    return HOLDS, "its hash is right, and its sensitivity was computed again"


def _without_noise(evidence: Evidence) -> tuple[State, str]:
    """Nothing of the training clients is released without noise, as far as files show it."""
    record, on = evidence.record, NOT_TRAINING
    for release in record.released_without_noise:
        if release.get("of") not in (NOT_TRAINING, ALSO_TRAINING):
            return VIOLATED, f"{release.get('name')}, of {release.get('of')}"
        on = ALSO_TRAINING if release["of"] == ALSO_TRAINING else on
    if not evidence.realised:
        return ASSUMED, f"the evaluation, on {on}"
    unknown = sorted(set(evidence.metrics.columns) - HARMLESS - set(record.evaluation_columns))
    if unknown:
        return VIOLATED, f"{names.METRICS} has {unknown[0]}, which {names.RUN_JSON} does not name"
    # Nothing says on whose data the columns of other tables were computed.
    tables = sorted(path.name for path in evidence.folder.iterdir() if path.suffix.lower() == ".csv")
    if others := [name for name in tables if name != names.METRICS]:
        return VIOLATED, f"{others[0]!a} is not a file of a run, and nothing says on whose data it was computed"
    try:
        both = len(read_evaluated(evidence.folder) & evidence.rounds_by_client.keys())
    except InputError as error:
        return VIOLATED, f"{names.EVALUATED} is missing or damaged: {error}"
    if both:
        return VIOLATED, f"{names.EVALUATED} has {both} of the clients in the log: metrics on clients that train"
    return ASSUMED, f"the evaluation, on {on}"


def _divisor(evidence: Evidence) -> tuple[State, str]:
    """The noised sums were divided by a constant."""
    divisor = evidence.record.plan.clients_per_round
    logged = evidence.ledger.divisors if evidence.ledger else []
    if logged and logged != [divisor]:
        listed = ", ".join(map(str, logged[:3]))
        text = f"sums were divided by {listed}, not by the constant {divisor}: that changes the sensitivity"
        return VIOLATED, text
    return HOLDS if logged else ASSUMED, f"sums are divided by the constant {divisor}"


def _cohort(evidence: Evidence) -> tuple[State, str]:
    """The noise was scaled for the clients that train."""
    cohort, clients = evidence.record.plan.cohort, evidence.record.plan.clients_per_round
    if cohort == clients:
        return HOLDS, f"the noise is that of the {clients} clients of a round"
    if cohort < clients or not evidence.record.simulation:
        text = (
            f"the noise was scaled for cohorts of {cohort}, and {clients} real clients train in a round: only a "
            "simulation, which no client depends on, may stand for a larger cohort"
        )
        return VIOLATED, text
    return HOLDS, f"a simulation of cohorts of {cohort} by {clients} clients"


def _clipping(evidence: Evidence) -> tuple[State, str]:
    """Every update was clipped to the norm in `run.json`, which changes with a restart only."""
    record, ledger = evidence.record, evidence.ledger
    norms = ledger.clip_norms if ledger else []
    if record.plan.adaptive_count_stddev is None:
        if norms and norms != [record.plan.clip_norm]:
            text = f"the clip norm was {norms[0]} to {norms[-1]}, and {record.plan.clip_norm} was accounted for"
            return VIOLATED, text
        text = f"every update is clipped to L2 norm {record.plan.clip_norm}; one that is not finite counts as zero"
        return HOLDS, text
    last = {entry.round: entry.clip_norm for entry in ledger.begun} if ledger else {}
    changed = {number for number, norm in last.items() if last.get(number - 1, norm) != norm}
    if without := sorted(changed - set(ledger.restarts if ledger else ())):
        text = f"the clip norm changed in round {without[0]}, without a restart: noise of two norms does not cancel"
        return VIOLATED, text
    text = "the clip norm adapts, restarts come with it, and its counts are accounted for"
    return HOLDS if norms else ASSUMED, text


def _restarts(evidence: Evidence) -> tuple[State, str]:
    """The noise started anew in the planned rounds."""
    record, ledger, every = evidence.record, evidence.ledger, evidence.record.plan.restart_every
    noise = "noise runs without restart" if every is None else f"noise starts anew every {every} rounds"
    if ledger is None:
        return ASSUMED, noise
    planned = [number for number in range(1, evidence.rounds + 1) if Rules.of(record.plan).restarts_in(number)]
    if ledger.restarts != planned:
        other = min(set(ledger.restarts) ^ set(planned))
        return VIOLATED, f"{noise}, was accounted for, and round {other} differs"
    return HOLDS, noise


def _initial_model(evidence: Evidence) -> tuple[State, str]:
    """A model that training started from is of other data.

    Formal guarantee: the guarantee of a run is for an initial model that does not depend on its clients. For one that
    was trained on them, the μ of both runs compose to √(μ₁² + μ₂²), and no ε of one run alone is stated.
    """
    given, copy = evidence.record.initial_model, evidence.folder / names.INITIAL_MODEL
    if given is None:
        if not copy.is_file():
            return HOLDS, "none was given"
        return VIOLATED, f"the run has {names.INITIAL_MODEL}, and {names.RUN_JSON} names none"
    named = f"the one with SHA-256 {given.sha256:.16}…"
    if evidence.realised and not (copy.is_file() and file_hash(copy) == given.sha256):
        return VIOLATED, f"{names.INITIAL_MODEL} is missing, or is not {named}"
    if given.same_data:
        return VIOLATED, f"{named} is of a run on the same data set: their guarantees compose to a larger ε"
    return ASSUMED, f"{named} is public, or its training on these clients is accounted for"


def _arithmetic(evidence: Evidence) -> tuple[State, str]:
    """The guarantee is about the numbers that are released, or about the real numbers behind floats."""
    dimension = evidence.record.plan.dimension
    if evidence.record.plan.grid is None or dimension is None:
        return ASSUMED, "not covered: sums and noise are floats"
    if not evidence.realised:
        return HOLDS, "covered, cost included"
    try:
        # Those that train, which alone are noised.
        with safetensors.safe_open(evidence.folder / names.MODEL, "np") as model:
            trainable, _ = model_file.names(model.metadata(), model.keys())
            parameters = sum(math.prod(model.get_slice(name).get_shape()) for name in trainable)
    except (OSError, safetensors.SafetensorError, ValueError, TypeError):
        text = f"covered, cost included, for at most {dimension} parameters; no model is here to count them"
        return ASSUMED, text
    if parameters > dimension:
        text = f"the model has {parameters} parameters, and what the grid costs was accounted for {dimension}"
        return VIOLATED, text
    return HOLDS, "covered, cost included"


def _secrecy(evidence: Evidence) -> tuple[State, str] | None:
    """The ε of secret cohorts is no smaller than the one that follows from the settings; `None` of known cohorts."""
    record = evidence.record
    if record.amplified_epsilon is None:
        return None
    try:
        level = amplification.own(record.plan, record.drawn, record.population)
    except InputError as error:
        return VIOLATED, f"no amplified ε follows from {names.RUN_JSON}: {error}"
    if level.epsilon > record.amplified_epsilon:
        text = f"a larger ε than that of {names.RUN_JSON} follows from its settings"
        return VIOLATED, text
    return HOLDS, "the amplified ε follows from the settings"


def _randomness(evidence: Evidence) -> tuple[State, str]:
    """The noise has fresh keys."""
    if evidence.record.plan.insecure_seed is not None:
        text = "TEST ONLY: the noise has a fixed seed, so that anybody can remove it"
        return VIOLATED, text
    return HOLDS, "a fresh key of 128 bits from the system for every round"


def _accountant(evidence: Evidence) -> tuple[State, str]:
    """There are figures, the log refutes none, and two accountants agree on them."""
    record, stated, planned, seen = evidence.record, evidence.stated, evidence.planned, evidence.seen
    if stated is None:
        return VIOLATED, "no sensitivity can be computed from the files"
    if seen is not None:
        plan = record.plan
        within = evidence.rounds <= plan.rounds and all(map(plan.participation.allows, _patterns(evidence)))
        if within and seen.reached > planned.sensitivity.value * (1 + _ROUNDING):
            return VIOLATED, "clients that follow the schema attain a larger sensitivity than the planned one"
    epsilon, by_pld = stated.guarantee.epsilon(record.plan.delta), stated.guarantee.epsilon_by_pld(record.plan.delta)
    if math.isfinite(epsilon) and abs(epsilon - by_pld) > _ACCOUNTANTS_APART * max(1.0, epsilon):
        return VIOLATED, "the closed form of ε and privacy loss distributions disagree"
    return HOLDS, "two accountants agree on the figures"


def _model(evidence: Evidence) -> tuple[State, str] | None:
    """The model is the one of the run's summary, and the folder was not mixed from two runs."""
    stated = _summary(evidence.folder).get("model_sha256") if evidence.realised else None
    if stated is None:
        return None
    model = evidence.folder / names.MODEL
    if model.is_file() and file_hash(model) == stated:
        return HOLDS, f"its hash is the one in {names.SUMMARY}"
    return VIOLATED, f"{names.MODEL} is missing, or its hash is not the one in {names.SUMMARY}"


# Every rule that a guarantee rests on; one that returns `None` is of other runs.
_RULES = {
    "participation": _participation,
    "sampler": _sampler,
    "log": _log,
    "one release a round": _releases,
    "plan": _plan,
    "mechanism": _artifact,
    "randomness": _randomness,
    "released without noise": _without_noise,
    "divisor": _divisor,
    "cohort": _cohort,
    "clipping": _clipping,
    "restarts": _restarts,
    "initial model": _initial_model,
    "finite precision": _arithmetic,
    "secrecy": _secrecy,
    "accountant": _accountant,
    "model": _model,
}


def checks(evidence: Evidence) -> list[Check]:
    """Returns every rule that a guarantee rests on, and whether the files keep it."""
    judged = [(name, rule(evidence)) for name, rule in _RULES.items()]
    return [Check(name=name, state=seen[0], text=seen[1]) for name, seen in judged if seen is not None]


def planned_figures(record: RunRecord) -> Figures:
    """Returns the figures for the participation schema of the run."""
    plan = record.plan
    every, run = plan.restart_every or plan.rounds, plan.mechanism.cast_to_float32()
    sensitivity = tff_mf.restart_sensitivity(run, plan.rounds, plan.participation, restart_every=every)
    return _figures(record, sensitivity, plan.participation, rounds=plan.rounds)


def planned_epsilon(record: RunRecord) -> float | None:
    """Returns ε of a run as planned; `None` if it is infinite, or may not be stated at this δ."""
    epsilon = planned_figures(record).guarantee.epsilon(record.plan.delta)
    return None if statements.violations(epsilon, record.plan.delta, record.population) else epsilon


def _seen(evidence: Evidence) -> Figures:
    """Returns the figures of the observed participation: see `Evidence.seen`."""
    record, rounds, came = evidence.record, evidence.rounds, evidence.observed
    every = min(record.plan.restart_every or rounds, rounds)
    run, reached = record.plan.mechanism.cast_to_float32(), 0.0
    # The narrowest that has all observed patterns.
    schema = tff_mf.MinSep(min_sep=came.min_sep or rounds, max_participations=max(1, came.max_participations))
    schemas: list[tff_mf.Participation] = [schema]
    if isinstance(record.plan.participation, tff_mf.FixedEpoch) and came.common_step and came.span is not None:
        # The same of those that the run claims.
        most = came.span // came.common_step + 1
        schemas.append(tff_mf.FixedEpoch(min_sep=came.common_step, max_participations=most))
    bounds = [tff_mf.restart_sensitivity(run, rounds, each, restart_every=every) for each in schemas]
    if rounds <= _MOST_ROUNDS_BY_PATTERN:
        exact = tff_mf.pattern_sensitivity(run, rounds, _patterns(evidence), restart_every=every)
        reached = exact.value if exact.exact else 0.0
        bounds.insert(0, exact)
    # The first of those that are equal but for rounding, so that every machine takes the same.
    smallest = min(bound.value for bound in bounds)
    sensitivity = next(bound for bound in bounds if bound.value <= smallest * (1 + _ROUNDING))
    # A log of more rounds than were planned, which voids the claim, has their cost too.
    return _figures(record, sensitivity, schema, rounds=max(record.plan.rounds, rounds), reached=reached)


def _patterns(evidence: Evidence) -> list[tuple[int, ...]]:
    """Returns the rounds of each client, counted from 0."""
    return [tuple(number - 1 for number in rounds) for rounds in evidence.rounds_by_client.values()]


def _figures(
    record: RunRecord,
    sensitivity: tff_mf.SensitivityResult,
    schema: tff_mf.Participation,
    *,
    rounds: int,
    reached: float = 0.0,
) -> Figures:
    question = Question(
        mechanism=record.plan.mechanism,
        rounds=rounds,
        sampling=schema,
        restart_every=record.plan.restart_every,
        adaptive_count_stddev=record.plan.adaptive_count_stddev,
        adjacency=record.adjacency,
        grid=record.plan.grid,
        dimension=record.plan.dimension,
    )
    sigma = record.plan.noise_multiplier
    if record.plan.insecure_seed is not None or not sigma:
        guarantee = tff_mf.Guarantee(mu=math.inf, adjacency=record.adjacency)
    else:
        guarantee = question.answered(sigma, sensitivity)
    return Figures(guarantee=guarantee, sensitivity=sensitivity, reached=reached, charge=question.charge(sigma))


def claim_of(evidence: Evidence, rules: Sequence[Check]) -> Claim:
    """Returns what the files of a run support, by what its rules found."""
    record, stated, came = evidence.record, evidence.stated, evidence.observed
    given: dict[str, Any] = {
        "guarantee": None if stated is None else stated.guarantee,
        "rounds": evidence.rounds if evidence.realised else record.plan.rounds,
        "participation": statements.seen(came.min_sep, came.max_participations)
        if evidence.realised
        else statements.bound_to(record.plan.participation),
    }
    if record.amplified_epsilon is not None and record.drawn is not None and stated is not None:
        given |= amplification.of_own_cohorts(
            record.amplified_epsilon,
            record.drawn,
            rounds=given["rounds"],
            clients_per_person=record.clients_per_person,
        )
    return statements.claim(
        **given,
        delta=record.plan.delta,
        population=evidence.population,
        cohort=record.plan.cohort,
        clients_per_round=record.plan.clients_per_round,
        clients_per_person=record.clients_per_person,
        simulation=record.simulation,
        test_only=record.plan.insecure_seed is not None,
        reasons=[Reason(field=rule.name, text=rule.text) for rule in rules if rule.state == VIOLATED],
        grid=record.plan.grid is not None,
    )


def _summary(folder: pathlib.Path) -> dict[str, Any]:
    try:
        found = strict_json.read(folder / names.SUMMARY, "summary")
    except (InputError, OSError):
        return {}
    return found if isinstance(found, dict) else {}


def _warnings(evidence: Evidence, claim: Claim) -> list[str]:
    """Returns what a reader needs to know, and what voids nothing."""
    record, ledger = evidence.record, evidence.ledger
    warnings = []
    if not evidence.realised:
        warnings.append("this is a plan: it is about the settings of the run, not about what it did")
    if all(reason.field != "delta" for reason in claim.reasons):
        warnings.append(statements.uncustomary_delta(record.plan.delta, claim.population))
    if ledger is not None and evidence.last_round < record.plan.rounds:
        warnings.append(
            f"stopped after {evidence.last_round} of {record.plan.rounds} rounds, the last released round with "
            "clients: the larger of the planned and the final figures is stated, since the decision may depend on what "
            "was released"
        )
    clients = record.plan.clients_per_round
    other = [number for number, size in evidence.sizes.items() if size != clients]
    if other and not record.is_secret:
        warnings.append(f"{len(other)} rounds had other than {clients} clients, round {other[0]} first")
    drawn = record.drawn
    if drawn is not None and drawn.is_secret and not record.is_secret:
        warnings.append(
            f"sampling={drawn.sampling!r} amplifies only where cohorts stay secret; here they follow from a seed, and "
            "are logged: the ε is that of known cohorts"
        )
    return [warning for warning in warnings if warning]


def build(folder: pathlib.Path, *, realised: bool) -> Report:
    """Returns the report of a run, computed from the files in its folder alone.

    Formal guarantee: the report contains a finite ε only if no rule is violated and nothing forbids its claim; the ε is
    rounded up in texts.

    Args:
        folder: The run's folder.
        realised: Whether to build the final report, from the logs of the run; else the planned report.
    """
    evidence = gather(folder, realised=realised)
    rules = checks(evidence)
    record, ledger, claim, stated = evidence.record, evidence.ledger, claim_of(evidence, rules), evidence.stated
    mechanism, came = record.plan.mechanism, None if record.is_secret or not realised else evidence.observed
    summary = _summary(folder)
    report = Report(
        report=VERSION,
        kind="realised" if realised else "planned",
        made_by=f"tff-mf {tff_mf.__version__}",
        claim=claim,
        about=_about(evidence),
        participation=Participation(
            schema=type(record.plan.participation).__name__,
            rounds=record.plan.rounds,
            min_sep=record.plan.participation.min_sep,
            max_participations=record.plan.participation.max_participations,
            observed_rounds=evidence.rounds if came else None,
            observed_min_sep=came.min_sep if came else None,
            observed_max_participations=came.max_participations if came else None,
            sampler=record.sampler,
        ),
        rounds=Rounds(
            released=len(ledger.released) if ledger else None,
            computed_again=sum(times > 1 for times in ledger.attempts.values()) if ledger else None,
            smallest_cohort=min(evidence.sizes.values(), default=None),
            largest_cohort=max(evidence.sizes.values(), default=None),
            divisor=record.plan.clients_per_round,
            ended=ledger.ended if ledger else None,
        ),
        mechanism=Artifact(
            kind=mechanism.kind,
            sha256=record.mechanism_sha256,
            rounds_at_most=mechanism.max_rounds,
            made_for=_made_for(mechanism),
        ),
        noise=Noise(
            noise_multiplier=record.plan.noise_multiplier,
            noise_multiplier_as_run=record.plan.noise_multiplier_as_run,
            sensitivity=stated.sensitivity.value if stated else None,
            sensitivity_exact=stated.sensitivity.exact if stated else None,
            clip_norm=record.plan.clip_norm,
            adaptive_count_stddev=record.plan.adaptive_count_stddev,
            restart_every=record.plan.restart_every,
            generator=_generator(record),
            insecure_seed=record.plan.insecure_seed,
        ),
        grid=_grid(record, stated),
        accountant=Accountant(
            planned=None if claim.state == REFUSED else _measures(evidence.planned, record.plan.delta),
            realised=None if claim.state == REFUSED else _measures(evidence.seen, record.plan.delta),
        ),
        checks=rules,
        warnings=_warnings(evidence, claim),
        released_without_noise=record.released_without_noise,
        quality=Quality(**{name: summary.get(name) for name in Quality.__struct_fields__}) if realised else None,
        accuracies=evidence.metrics.accuracies,
        settings=_settings(record),
        versions=record.versions,
        command=record.command,
        files={
            name: file_hash(folder / name)
            for name in (_FINAL_FILES if realised else _PLANNED_FILES)
            if (folder / name).is_file()
        },
        device_reports=_device_reports(ledger) if ledger is not None and ledger.reports else UNSET,
    )
    # As a file has it, each field of its type.
    return typed.convert(report.as_json(), Report, "report")


def _about(evidence: Evidence) -> About:
    record, ledger = evidence.record, evidence.ledger
    name = record.about.get("dataset") if record.settings is None else record.settings.dataset
    started, ended = (ledger.started, ledger.finished) if ledger else (None, None)
    took = ended - started if started and ended else None
    return About(
        dataset=_without_folder(name) if isinstance(name, str) else None,
        dataset_sha256=record.about.get("dataset_sha256"),
        clients=record.training_clients,
        examples=record.about.get("training_examples"),
        started=started.isoformat() if started else None,
        ended=ended.isoformat() if ended else None,
        # A clock may be set back.
        seconds=int(took.total_seconds()) if took is not None and took >= datetime.timedelta() else None,
    )


def _without_folder(name: str) -> str:
    """Returns the name of a file without its folder, since a report is published; a word stays as it is.

    Example:
        >>> _without_folder("sqlite:/home/ann/data.sqlite")
        'sqlite:data.sqlite'
    """
    return re.sub("[^:/]*/", "", name)


def _settings(record: RunRecord) -> dict[str, Any]:
    """Returns all settings that a report repeats, without the folders of files: it is published."""
    asked = {} if record.settings is None else msgspec.to_builtins(record.settings)
    placed = {name: _without_folder(asked[name]) for name in FILES if asked.get(name) is not None}
    given = {**asked, **placed, "server_learning_rate": record.server_learning_rate}
    return {**{name: value for name, value in given.items() if value is not None}, **record.about}


def _device_reports(ledger: LedgerRecord) -> DeviceReports:
    counts = dict(sorted(ledger.reports.items()))
    empty = [number for number, count in counts.items() if not count.in_the_model]
    bad = [number for number, count in counts.items() if count.bad > _MANY * count.came]
    warnings = []
    if empty:
        warnings.append(f"{len(empty)} rounds have no update in them, round {empty[0]} first: noise alone")
    if bad:
        warnings.append(f"in {len(bad)} rounds, round {bad[0]} first, many reports were refused, scaled or zeroed")
    total = functools.reduce(lambda one, other: one + other, counts.values())
    return DeviceReports(rounds=len(counts), **msgspec.structs.asdict(total), warnings=warnings)


def _made_for(mechanism: tff_mf.Mechanism) -> dict[str, Any] | None:
    setting = mechanism.optimized_for
    return None if setting is None else {"rounds": setting.rounds, **named(setting.participation)}


def _generator(record: RunRecord) -> str:
    """Returns the generator of the noise: TensorFlow's in its graphs, or one of the streams in NumPy."""
    if record.about.get("engine") != "flwr" and "generator" not in record.about:
        return "tensorflow graph"
    # Without the fact, the defaults of the streams.
    return str(record.about.get("generator", "tensorflow" if record.plan.grid is not None else "philox"))


def _grid(record: RunRecord, figures: Figures | None) -> GridFacts | None:
    """Returns the grid of a run and what it costs; `None` in floating point."""
    if record.plan.grid is None:
        return None
    charge = figures.charge if figures else None
    return GridFacts(
        bits=record.plan.grid.bits,
        max_clients=record.plan.grid.max_clients,
        integers=record.plan.grid.integers,
        dimension=record.plan.dimension,
        mu=finite(charge.mu) if charge else None,
        tail=finite(charge.tail) if charge else None,
        error=finite(charge.error) if charge else None,
        log_ratio=finite(charge.log_ratio) if charge else None,
        added_sensitivity=finite(charge.sensitivity) if charge else None,
    )


def _measures(figures: Figures | None, delta: float) -> Measures | None:
    if figures is None:
        return None
    guarantee = figures.guarantee
    return Measures(
        delta=delta,
        epsilon=finite(guarantee.epsilon(delta)),
        epsilon_by_pld=finite(guarantee.epsilon_by_pld(delta)),
        zcdp_rho=finite(guarantee.zcdp_rho),
        mu=finite(guarantee.mu),
    )


@functools.cache
def _page() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=_TEMPLATES,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # Texts of others are no markup, and neither hide nor reorder what is around them.
        finalize=lambda value: _plain(value) if isinstance(value, str) else value,
        autoescape=False,
    )
    environment.filters.update(
        up=up,
        bound=functools.partial(digits.upwards, digits=3),
        down=digits.downwards,
        sensitivity=functools.partial(digits.upwards, digits=6),
    )
    return environment.get_template("report.md.j2")


def _plain(text: str) -> str:
    """Returns a text of others for Markdown, in which no character of it is markup."""
    return re.sub(r"([\\`*\[\]|])", r"\\\1", html_text.escape(visible(text), quote=False))


def markdown(report: Report, *, appendix: bool = True) -> str:
    """Returns the page of a report, without what is not for publication; its appendix has the settings."""
    columns = [name for name in ("planned", "realised") if getattr(report.accountant, name) is not None]
    page = _page().render(**msgspec.structs.asdict(report), headline=report.headline, columns=columns)
    if not appendix:
        return page
    listed = {name: report.as_json()[name] for name in ("settings", "versions", "files", "mechanism", "grid")}
    # Characters beyond ASCII are escaped: none hides or reorders others, and a block of code has no markup.
    code = json.dumps({**listed, "command": " ".join(report.command)}, indent=1).splitlines()
    return f"{page}\n## Appendix\n\n" + "".join(f"    {line}\n" for line in code)


def html(report: Report, pictures: Mapping[str, bytes]) -> str:
    """Returns the page of a report as one HTML file that runs and loads nothing, with pictures by their titles."""
    page = jinja2.Environment(loader=_TEMPLATES, autoescape=False).get_template("report.html.j2")
    return page.render(
        body=python_markdown.markdown(markdown(report), extensions=["tables"]),
        pictures={title: base64.b64encode(content).decode() for title, content in pictures.items()},
    )


def pictures(folder: pathlib.Path, report: Report) -> dict[str, bytes]:
    """Returns PNG files by their titles: the error of each round, and the accuracy, where they are known.

    The error is the standard deviation of the noise in a parameter of the sum of all released updates so far.
    """
    import matplotlib.figure

    evidence = gather(folder, realised=False)
    plan = evidence.record.plan
    rounds = min(plan.rounds, plan.mechanism.max_rounds or plan.rounds)
    errors = round_errors(plan.mechanism, rounds, restart_every=min(plan.restart_every or rounds, rounds))
    scaled = errors * plan.noise_multiplier_as_run * plan.clip_norm / plan.clients_per_round
    curves: dict[str, Sequence[tuple[float, float]]] = {
        "Noise in the sum of all updates so far": list(enumerate(map(float, scaled), start=1))
    }
    if report.accuracies:
        curves["Validation accuracy"] = report.accuracies
    drawn = {}
    for title, points in curves.items():
        figure = matplotlib.figure.Figure(figsize=(6, 3), layout="constrained")
        axes = figure.subplots()
        axes.plot(*zip(*points, strict=True), color="#0072B2", marker="o" if len(points) < 30 else "")
        axes.set(xlabel="round", ylabel=title, ylim=(0, None))
        axes.grid(alpha=0.3)
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=150)
        drawn[title] = content.getvalue()
    return drawn


def write(folder: pathlib.Path, *, realised: bool) -> Report:
    """Builds a run's report, writes it as JSON and as Markdown, and returns it.

    A report that is there and agrees with the files stays as it is: on another machine its figures have other last
    bits.

    Args:
        folder: The run's folder, with `run.json` and, for the final report, its logs.
        realised: Whether to write the final report; else the planned report.
    """
    report = build(folder, realised=realised)
    as_json, as_markdown = _names(realised=realised)
    stored, _ = _compared(folder / as_json, report)
    if stored is not None:
        report = msgspec.structs.replace(stored, made_by=report.made_by, checks=report.checks, warnings=report.warnings)
    write_atomically(folder / as_json, report.as_text())
    write_atomically(folder / as_markdown, markdown(report))
    return report


def _names(*, realised: bool) -> tuple[str, str]:
    return (names.REPORT, names.REPORT_TEXT) if realised else (names.PLANNED, names.PLANNED_TEXT)


def has_begun(folder: pathlib.Path) -> bool:
    """Returns whether a folder has a file that a run writes once it begins."""
    return any(os.path.lexists(folder / name) for name in _OF_A_RUN)


def differing(stored: Any, recomputed: Any, name: str = "") -> list[str]:
    """Returns the fields in which a stored report does not agree with the one that follows from the files.

    Formal guarantee: if there are none, no ε, δ, μ, ρ or sensitivity of the stored report is smaller than the
    recomputed one by more than 1e-9 of it, σ differs by no more, no other float is further away than 1e-6 of it or
    1e-12, and hashes, names and whole numbers are equal. Words are not compared.

    Example:
        >>> differing({"claim": {"epsilon": 7.9}, "rounds": 3}, {"claim": {"epsilon": 8.0}, "rounds": 3})
        ['claim.epsilon']
    """
    if isinstance(recomputed, Mapping) and isinstance(stored, Mapping):
        found = []
        for key in dict.fromkeys([*recomputed, *stored]):
            if key not in _WORDS:
                path = f"{name}.{key}".removeprefix(".")
                both = key in stored and key in recomputed
                found += differing(stored[key], recomputed[key], path) if both else [path]
        return found
    if isinstance(recomputed, list) and isinstance(stored, list) and len(stored) == len(recomputed):
        found = [differing(*pair, name) for pair in zip(stored, recomputed, strict=True)]
        return [name] if any(found) else []
    return [] if _agrees(name.rpartition(".")[2], stored, recomputed) else [name]


def _agrees(name: str, stored: Any, recomputed: Any) -> bool:
    if type(stored) is not type(recomputed) or not isinstance(recomputed, float):
        return type(stored) is type(recomputed) and stored == recomputed
    if name in _INPUTS:
        return math.isclose(stored, recomputed, rel_tol=TOO_SMALL)
    if name in _CLAIMS:
        return math.isclose(stored, recomputed, rel_tol=APART) and stored >= recomputed * (1 - TOO_SMALL)
    return math.isclose(stored, recomputed, rel_tol=APART, abs_tol=_ROUNDING_APART)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """What a check found.

    Attributes:
        report: The report that follows from the files now.
        differs: Fields of the stored report that differ from it, or what is wrong with its file.
        warnings: What a reader needs to know, and what voids nothing.
    """

    report: Report
    differs: Sequence[str]
    warnings: Sequence[str]

    @property
    def problems(self) -> list[str]:
        """Where the stored report differs, and why no ε is stated; empty if one is, by a report that follows."""
        differs = [f"report: {name}" for name in self.differs]
        return [*differs, *(f"{reason.field}: {reason.text}" for reason in self.report.claim.reasons)]


def check(folder: pathlib.Path) -> Checked:
    """Returns whether the stored report of a run follows from its files, and what they support.

    Formal guarantee: there are no `problems` only if no rule is violated, and the stored report, if there is one,
    agrees with the files as `differing` says. Whoever rewrites the whole folder is not detected: `sha256sum` protects a
    folder that is handed on.

    Args:
        folder: The run's folder. If it has a log, the run has ended or was interrupted.

    Raises:
        InputValueError: If `run.json` is missing or damaged.
    """
    begun = has_begun(folder)
    report = build(folder, realised=begun)
    warnings = [*report.warnings, *(report.device_reports.warnings if report.device_reports else ())]
    if not begun:
        warnings.insert(0, "no file of a run that began is here: a run whose files were removed looks the same")
    if unfinished := sorted(str(path.relative_to(folder)) for path in base_files.unfinished(folder, subfolders=True)):
        warnings.append(
            f"a killed process left {', '.join(unfinished)}, which may have keys of the noise: delete it, or resume "
            "the run, which deletes it"
        )
    as_json, as_markdown = _names(realised=begun)
    if not begun and not (folder / as_json).exists():
        return Checked(report=report, differs=[], warnings=[*warnings, "there is no report to check"])
    stored, differs = _compared(folder / as_json, report)
    if stored is not None:
        page = folder / (names.REPORT_PAGE if begun else names.PLANNED_PAGE)
        differs = [file for file in (as_markdown, page.name) if not _is_page_of(stored, folder / file)]
    return Checked(report=report, differs=differs, warnings=warnings)


def _is_page_of(report: Report, path: pathlib.Path) -> bool:
    """Returns whether a page, in Markdown or HTML, is that of a report; one in HTML may be missing.

    A page of another release may have other words, and other releases of libraries make other HTML: of these, the
    headline must be the report's.
    """
    is_html = path.suffix == ".html"
    try:
        page = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return is_html
    except (OSError, ValueError):
        return False
    if is_html:
        return visible(report.headline) in html_text.unescape(re.sub("<[^>]*>", "", page))
    if report.made_by != f"tff-mf {tff_mf.__version__}":
        return _plain(report.headline) in page
    return page == markdown(report)


def _compared(path: pathlib.Path, report: Report) -> tuple[Report | None, list[str]]:
    """Returns the stored report if it agrees with the one that follows from the files; and where it does not."""
    try:
        stored = strict_json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None, [f"{path.name} is missing"]
    except (OSError, ValueError, RecursionError) as error:
        return None, [f"{path.name} is damaged: {error}"]
    version = stored.get("report") if isinstance(stored, dict) else None
    if version != VERSION:
        return None, [f"{path.name} has version {version!r:.20}, and this release checks {VERSION}: write it again"]
    if differs := differing(stored, report.as_json()):
        return None, differs
    try:
        return typed.convert(stored, Report, path.name), []
    except InputError as error:
        return None, [str(error)]
