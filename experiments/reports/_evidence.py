"""The evidence on a run: what its files say, and which of them do not fit."""

import dataclasses
import functools
import itertools
import math
import pathlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import tff_mf
from tff_mf.base.errors import InputError

from ..output.files import file_hash
from ..runs.folders import read_evaluated
from ..runs.ledger import LedgerRecord, read_ledger
from ..runs.metrics import Metrics, read_metrics
from ..runs.names import EVALUATED, INITIAL_MODEL, LEDGER, MECHANISM, METRICS, MODEL, RUN_JSON
from ..runs.run_record import RunRecord, read_record
from ..runs.words import Reason, Said
from ..sampling import ObservedParticipation
from .questions import read_answers

HOLDS, ASSUMED, VIOLATED = "holds", "assumed", "violated"
CRITICAL, WARNING, NOTE = "critical", "warning", "note"

State = Literal["holds", "assumed", "violated"]


class Assumption(Said, kw_only=True):
    """An assumption of the guarantee, and what was found of it.

    Attributes:
        name: Name of the assumption.
        state: "holds" if it was checked, "assumed" if it cannot be checked, or "violated".
    """

    name: str
    state: State


class Finding(Said, kw_only=True):
    """A fact about a run that its reader needs to know.

    Attributes:
        severity: "critical" if no finite ε may be stated, "warning", or "note".
        field: The field of the report that the finding is about.
    """

    severity: Literal["critical", "warning", "note"]
    field: str


def found(severity: Any, field: str, code: str, **values: Any) -> Finding:
    """Returns a finding."""
    return Finding(severity=severity, field=field, code=code, values=values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """The content of a run's folder, as far as it is intact; of its logs only for the final report (`realised`).

    Attributes:
        attempts: Clients of each attempt of each round, both counted from 1, from the ledger.
        problems: What is wrong with the files, with the field of the report that it is about.
        initial_model_sha256: Hash of the copy of the initial model; empty if there is none.
        parameters: Number of values in the trained model.
        evaluated: Clients that a private training was evaluated on.
    """

    folder: pathlib.Path
    realised: bool
    record: RunRecord
    answers: Mapping[str, Any]
    mechanism: tff_mf.Mechanism | None
    mechanism_sha256: str
    ledger: LedgerRecord | None
    attempts: Mapping[tuple[int, int], Sequence[str]]
    metrics: Metrics
    problems: list[Reason]
    initial_model_sha256: str = ""
    parameters: int | None = None
    evaluated: frozenset[str] = frozenset()

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
        released = self.ledger.last_released
        return max((number for number, size in self.ledger.sizes.items() if size and number <= released), default=0)

    @property
    def sizes(self) -> dict[int, int]:
        """The number of clients of each round, by the ledger."""
        return self.ledger.sizes if self.ledger else {}

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

    @functools.cached_property
    def rounds_by_client(self) -> dict[str, list[int]]:
        """The rounds of each client: see `rounds_by_client`."""
        return rounds_by_client(self.attempts)

    @functools.cached_property
    def patterns(self) -> list[tuple[int, ...]]:
        """The rounds of each client, counted from 0."""
        return [tuple(number - 1 for number in rounds) for rounds in self.rounds_by_client.values()]

    @functools.cached_property
    def observed(self) -> ObservedParticipation:
        """How often, and how far apart, clients took part: 0 apart if one is listed twice in a round."""
        return observed(self.rounds_by_client.values())


def gather(folder: pathlib.Path, *, realised: bool) -> Evidence:
    """Returns what a run's folder contains; problems of files other than the first two are collected, not raised."""
    answers, record = read_answers(folder), read_record(folder)
    problems: list[Reason] = []
    mechanism, digest = None, ""
    try:
        digest = file_hash(folder / MECHANISM)
        mechanism = tff_mf.load(folder / MECHANISM)
    except (OSError, InputError) as error:
        problems.append(_damaged("mechanism", MECHANISM, error))
    ledger = _ledger(folder, problems) if realised else None
    attempts = {(line.round, line.attempt): line.clients for line in ledger.begun} if ledger else {}
    metrics = _metrics(folder / METRICS, problems) if realised else Metrics()
    # Nothing says on whose data the columns of other tables were computed.
    tables = {each.name for each in folder.iterdir() if each.suffix.lower() == ".csv"} if realised else set()
    for name in sorted(tables - {METRICS}):
        problems.append(Reason(field="released without noise", code="foreign_table", values={"file": name}))
    return Evidence(
        folder=folder,
        realised=realised,
        record=record,
        answers=answers,
        mechanism=mechanism,
        mechanism_sha256=digest,
        ledger=ledger,
        attempts=attempts,
        metrics=metrics,
        problems=problems,
        initial_model_sha256=file_hash(folder / INITIAL_MODEL) if (folder / INITIAL_MODEL).is_file() else "",
        parameters=_parameters(folder / MODEL) if realised else None,
        evaluated=_evaluated(folder, problems) if realised else frozenset(),
    )


def _ledger(folder: pathlib.Path, problems: list[Reason]) -> LedgerRecord | None:
    def wrong(code: str, **values: str) -> None:
        problems.append(Reason(field="log", code=code, values=values))

    try:
        ledger = read_ledger(folder / LEDGER)
    except InputError as error:
        wrong("log_reader", why=str(error))
        return None
    for each in ledger.problems:
        wrong("log_reader", why=f"{LEDGER}: {each}")
    if ledger.bound_to is None:
        wrong("log_without_record", file=LEDGER, record=RUN_JSON)
    elif ledger.bound_to != file_hash(folder / RUN_JSON):
        wrong("log_other_record", file=LEDGER, record=RUN_JSON)
    return ledger


def _parameters(path: pathlib.Path) -> int | None:
    """Returns the number of the model's parameters that train, which alone are summed and noised."""
    # Imported here: reports of runs without a model need no such file.
    import safetensors

    from ..runs import model_file

    try:
        with safetensors.safe_open(path, "np") as model:
            trainable, _ = model_file.names(model.metadata(), model.keys())
            return sum(math.prod(model.get_slice(name).get_shape()) for name in trainable)
    except (OSError, safetensors.SafetensorError, ValueError, TypeError):
        return None


def _metrics(path: pathlib.Path, problems: list[Reason]) -> Metrics:
    """Returns the metrics of a run; a damaged file is one problem, and none of its content is used."""
    try:
        found = read_metrics(path)
        damage = found.problems[0] if found.problems else ""
    except InputError as error:
        found, damage = Metrics(), str(error)
    if not damage:
        return found
    problems.append(_damaged("log", METRICS, damage))
    return Metrics()


def _evaluated(folder: pathlib.Path, problems: list[Reason]) -> frozenset[str]:
    try:
        return read_evaluated(folder)
    except InputError as error:
        problems.append(_damaged("released without noise", EVALUATED, error))
        return frozenset()


def _damaged(field: str, file: str, error: object) -> Reason:
    return Reason(field=field, code="file_damaged", values={"file": file, "why": str(error)})


def rounds_by_client(attempts: Mapping[tuple[int, Any], Iterable[str]]) -> dict[str, list[int]]:
    """Returns the rounds of each client, counted from 1, in order.

    Formal guarantee: a client in several attempts of a round took part in it once, since at most one attempt is
    released; one in an abandoned attempt took part all the same. If a client is listed twice in one attempt, its round
    is listed twice.

    Example:
        >>> rounds_by_client({(1, 1): ["ann"], (1, 2): ["ann"], (3, 1): ["ann", "bob"]})
        {'ann': [1, 3], 'bob': [3]}
    """
    found: dict[str, dict[int, int]] = {}
    for (number, _), clients in sorted(attempts.items(), key=lambda each: each[0][0]):
        for client, times in Counter(clients).items():
            of_client = found.setdefault(client, {})
            of_client[number] = max(times, of_client.get(number, 0))
    return {
        client: [number for number, times in rounds.items() for _ in range(times)] for client, rounds in found.items()
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
