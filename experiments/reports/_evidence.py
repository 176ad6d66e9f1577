"""The content of a run's files: what the run did."""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Mapping, Sequence

import tff_mf
from tff_mf.errors import InputError

from ..output.files import file_hash
from ..run_folder.ledger import LedgerRecord, read_ledger
from ..run_folder.metrics import Metrics, read_metrics
from ..run_folder.names import INITIAL_MODEL, LEDGER, MECHANISM, METRICS, MODEL, PARTICIPATION, RUN_JSON
from ..run_folder.participation_log import observed, read_entries, rounds_by_client
from ..sampling import ObservedParticipation


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
        """The rounds of each client, counted from 1, see `participation_log.rounds_by_client`."""
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
