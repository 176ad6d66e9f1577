"""What the files of a run say that it did."""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Mapping, Sequence

import tff_mf
from tff_mf.errors import InputError

from ..output.files import file_hash
from ..run_folder.ledger import LEDGER, LedgerRecord, read_ledger
from ..run_folder.names import MECHANISM, RUN_JSON
from ..run_folder.participation_log import PARTICIPATION, read_entries
from ..run_folder.run_json import Configuration
from ._metrics import HARMLESS as HARMLESS
from ._metrics import METRICS as METRICS
from ._metrics import other_tables, read_metrics


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was found in a run's folder.

    Attributes:
        mechanism: The mechanism of the artifact, or `None` if there is none that is intact.
        mechanism_sha256: Hash of the artifact.
        ledger: The ledger, or `None`.
        attempts: Clients of each attempt of each round, both counted from 1, by participation.csv; of attempts that
            the ledger says had nobody, too.
        metrics: Columns of metrics.csv.
        metrics_rounds: The last round in metrics.csv, 0 if there is none.
        metrics_evaluated: The last round of which metrics.csv says what was computed from its model.
        problems: What is wrong with the files, by field of the report.
    """

    mechanism: tff_mf.Mechanism | None
    mechanism_sha256: str
    ledger: LedgerRecord | None
    attempts: Mapping[tuple[int, int], Sequence[str]]
    metrics: list[str]
    metrics_rounds: int
    metrics_evaluated: int
    problems: list[tuple[str, str]]

    @property
    def rounds(self) -> int:
        """The last round that anything says began."""
        begun = self.ledger.attempts if self.ledger else {}
        return max([0, *self.cohorts, *begun])

    @property
    def last_round(self) -> int:
        """The last round that was released and had anybody in it: a run that began more may have been stopped there."""
        if self.ledger is None:
            return self.rounds
        released = self.ledger.sequence.released
        return max((number for number, size in self.ledger.sizes.items() if size and number <= released), default=0)

    @functools.cached_property
    def cohorts(self) -> dict[int, set[str]]:
        """Clients of each round, of whatever attempt: one that was given up may have been seen by somebody."""
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
        """What no run can have done, by the ledger as a sequence."""
        return self.ledger.impossible if self.ledger else []

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
    attempts: dict[tuple[int, int], list[str]] = {}
    metrics: list[str] = []
    metrics_rounds = metrics_evaluated = 0
    if realised:
        try:
            ledger = read_ledger(folder / LEDGER)
            problems += [("log", f"{LEDGER}: {problem}") for problem in ledger.problems]
            if ledger.configuration is None:
                problems.append(("log", f"{LEDGER} does not name the {RUN_JSON} that its run began with"))
            elif ledger.configuration != file_hash(folder / RUN_JSON):
                problems.append(("log", f"{RUN_JSON} is another than when the run began: it was edited"))
        except InputError as error:
            problems.append(("log", str(error)))
        attempts = _attempts(folder / PARTICIPATION, ledger, problems)
        metrics, metrics_rounds, metrics_evaluated = read_metrics(folder / METRICS, problems)
        problems += other_tables(folder)
    return Evidence(
        mechanism=mechanism,
        mechanism_sha256=digest,
        ledger=ledger,
        attempts=attempts,
        metrics=metrics,
        metrics_rounds=metrics_rounds,
        metrics_evaluated=metrics_evaluated,
        problems=problems,
    )


def _attempts(
    path: pathlib.Path, ledger: LedgerRecord | None, problems: list[tuple[str, str]]
) -> dict[tuple[int, int], list[str]]:
    """Returns the clients of each attempt.

    A log of format 1, without attempts, is taken for the log of every attempt of its rounds: hashes of the ledger tell
    where that is wrong.
    """
    found: dict[tuple[int, int], list[str]] = {}
    times: Mapping[int, int] = ledger.attempts if ledger else {}
    try:
        for entry in read_entries(path):
            number, attempt = entry.round_number, entry.attempt
            for each in range(1, times.get(number, 1) + 1) if attempt is None else [attempt]:
                found.setdefault((number, each), []).append(entry.client)
    except (OSError, InputError) as error:
        problems.append(("log", f"{PARTICIPATION} is missing or damaged: {error}"))
    for begun in ledger.begun if ledger else ():
        if not begun.clients:
            found.setdefault((begun.round_number, begun.attempt), [])
    return found
