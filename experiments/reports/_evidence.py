"""What the files of a run say that it did."""

import csv
import dataclasses
import functools
import itertools
import pathlib

import tff_mf
from tff_mf.errors import InputError

from ..ledger import LEDGER, LedgerRecord, cohort_digest, read_ledger
from ._configuration import CONFIGURATION, MECHANISM, Configuration, file_hash

PARTICIPATION = "participation.csv"
METRICS = "metrics.csv"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was found in a run's folder.

    Attributes:
        mechanism: The mechanism of the artifact, or `None` if there is none that is intact.
        mechanism_sha256: Hash of the artifact.
        ledger: The ledger, or `None`.
        cohorts: Clients of each round, by participation.csv, counted from 1.
        repeated: Rounds in which a client is listed more often than the round was attempted.
        metrics: Columns of metrics.csv.
        metrics_rounds: The last round in metrics.csv, 0 if there is none.
        problems: What is wrong with the files, by field of the report.
    """

    mechanism: tff_mf.Mechanism | None
    mechanism_sha256: str
    ledger: LedgerRecord | None
    cohorts: dict[int, set[str]]
    repeated: list[int]
    metrics: list[str]
    metrics_rounds: int
    problems: list[tuple[str, str]]

    @property
    def rounds(self) -> int:
        """The last round that anything says began."""
        begun = self.ledger.attempts if self.ledger else {}
        return max([0, *self.cohorts, *begun])

    @functools.cached_property
    def patterns(self) -> list[tuple[int, ...]]:
        """Rounds of each client, counted from 0."""
        found: dict[str, list[int]] = {}
        for number, clients in sorted(self.cohorts.items()):
            for client in clients:
                found.setdefault(client, []).append(number - 1)
        return [tuple(rounds) for rounds in found.values()]

    @functools.cached_property
    def min_sep(self) -> int | None:
        """Smallest difference of two rounds of a client, 0 if it is twice in one; `None` if nobody came twice."""
        apart = [b - a for pattern in self.patterns for a, b in itertools.pairwise(pattern)]
        return 0 if self.repeated else min(apart, default=None)

    @property
    def max_participations(self) -> int:
        """Largest number of rounds of a client."""
        return max(map(len, self.patterns), default=0)


def gather(folder: pathlib.Path, configuration: Configuration, *, realised: bool) -> Evidence:
    """Reads what a run's folder has; what is missing or damaged is noted, not raised."""
    problems: list[tuple[str, str]] = []
    mechanism, digest = None, ""
    try:
        digest = file_hash(folder / MECHANISM)
        mechanism = tff_mf.load(folder / MECHANISM)
    except (OSError, InputError) as error:
        problems.append(("mechanism", f"{MECHANISM} is missing or damaged: {error}"))
    ledger = None
    cohorts: dict[int, set[str]] = {}
    repeated: list[int] = []
    metrics: list[str] = []
    metrics_rounds = 0
    if realised:
        try:
            ledger = read_ledger(folder / LEDGER)
            problems += [("log", f"{LEDGER}: {problem}") for problem in ledger.problems]
            if ledger.configuration not in (None, file_hash(folder / CONFIGURATION)):
                problems.append(("log", f"{CONFIGURATION} is another than when the run began: it was edited"))
        except InputError as error:
            problems.append(("log", str(error)))
        cohorts, repeated = _cohorts(folder / PARTICIPATION, ledger, problems)
        if (folder / METRICS).exists():
            metrics, metrics_rounds = _metrics(folder / METRICS, problems)
    return Evidence(
        mechanism=mechanism,
        mechanism_sha256=digest,
        ledger=ledger,
        cohorts=cohorts,
        repeated=repeated,
        metrics=metrics,
        metrics_rounds=metrics_rounds,
        problems=problems,
    )


def digests(cohorts: dict[int, set[str]]) -> dict[int, str]:
    """Returns the hash of each round's clients."""
    return {number: cohort_digest(sorted(clients)) for number, clients in cohorts.items()}


def _metrics(path: pathlib.Path, problems: list[tuple[str, str]]) -> tuple[list[str], int]:
    """Returns the columns of metrics.csv, and the last round in it."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            numbers = [row.get("round") or "" for row in reader]
            last = max((int(number) for number in numbers if number.isdecimal()), default=0)
            return list(reader.fieldnames or []), last
    except (OSError, ValueError, csv.Error) as error:
        problems.append(("log", f"{METRICS} is damaged: {error}"))
        return [], 0


def _cohorts(
    path: pathlib.Path, ledger: LedgerRecord | None, problems: list[tuple[str, str]]
) -> tuple[dict[int, set[str]], list[int]]:
    """Returns clients by round, and rounds with a client that is listed more often than the round was attempted."""
    listed: dict[tuple[int, str], int] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if reader.fieldnames != ["round", "client"]:
                raise ValueError("it must have the columns round and client")
            for row in reader:
                key = int(row["round"]), row["client"]
                if key[1] is None:
                    raise ValueError("a line has no client")
                listed[key] = listed.get(key, 0) + 1
    except (OSError, ValueError, TypeError, csv.Error) as error:
        problems.append(("log", f"{PARTICIPATION} is missing or damaged: {error}"))
    cohorts: dict[int, set[str]] = {}
    repeated = set()
    for (number, client), times in listed.items():
        cohorts.setdefault(number, set()).add(client)
        if times > (ledger.attempts.get(number, 1) if ledger else 1):
            repeated.add(number)
    return cohorts, sorted(repeated)
