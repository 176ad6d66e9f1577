"""The rounds of one run on its server: begin, work, save, release, report, whatever computes them and keeps the states.

Every engine calls a guard: TFF's training, Flower's strategy, and pipelines of others with their own sampler and loop.
The result is a folder whose guarantee `tff-mf report` states and checks. See docs/swap-in-tff.md.
"""

import bisect
import contextlib
import dataclasses
import itertools
import json
import math
import pathlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

import tff_mf
from tff_mf.base import checkpoint_files, validation
from tff_mf.base.errors import InputTypeError, InputValueError

from .. import reports as run_reports
from ..output import files, typed
from ..runs import folders, ledger, names, statements
from ..runs.folders import Storage
from ..runs.ledger import RefusedCohortError as RefusedCohortError
from ..runs.ledger import ReportCounts, Rules, refusal
from ..sampling import CohortPlan, SamplingSettings, checked_ids, secret_cohorts

if TYPE_CHECKING:
    from ...aggregators import MFAggregationFactory

# What a run leaves behind, besides its checkpoints.
_REMAINS = (names.REPORT, names.MODEL, names.METRICS, names.SUMMARY)


class RunGuard:
    """The rounds of one run, in files that survive a kill at any moment. Made by `open_guard`.

    An engine calls `resume` with its storage once. Then it begins a round, computes it from the state of the round
    before, and passes the new state to `finish`. Only then it publishes anything of the round.

    Formal guarantee, for one process at a time in the folder:

    * Before `begin` returns, the clients of the round are on disk, and none of them exceeds the schema of the rules,
      counting all rounds that were ever begun in the folder, also by processes that were killed and in attempts that
      were given up. If `begin` raises, nothing was written.
    * `finish` records a round as released only once its state is on disk. Rounds are released in order, each once, by
      its newest attempt; a released round is never begun again, and a round that was not begun is never released.
    * After a kill at any point, `resume` continues with the newest state. If the round of that state was not recorded
      as released, it is now, since it may have been seen; no other round was, and their clients count all the same.
    * A run whose newest state is older than its ledger, or than what it published, is refused, and so is a ledger that
      does not begin with all that the state saw. That the whole folder was replaced by an older copy cannot be noticed.
    * Where the storage knows the noise of a state, a round is released only with a state whose noise was drawn exactly
      once for each round up to it, by the state's own count, and is the aggregator's if there is one. After a state
      with other noise, nothing is begun or released until the run went back to the last released round.
    * If cohorts are drawn beforehand, a round is begun with no client that is not in its own cohort. If they are
      secret, that alone bounds who takes part, and nothing of a cohort is written but the key that all follow from, in
      the folder of the checkpoints, until the run has ended. The amplified ε holds if nobody else learns a cohort.
    * After a write that failed, no round is begun until the run is opened again. A forked process begins and releases
      nothing.

    Threads may share a guard.

    Attributes:
        folder: The run's folder.

    Args:
        folder: The run's folder.
        rules: What its plan allows.
        book: Its ledger.
        plan: The plan that draws the cohorts; `None` if something else does.
        drawn: The cohorts, where they are drawn already.
        noise: The fingerprint of the aggregator, if it is known.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        rules: Rules,
        book: ledger.Ledger,
        *,
        plan: tff_mf.Plan | None = None,
        drawn: CohortPlan | None = None,
        noise: str | None = None,
    ) -> None:
        self.folder, self._rules, self._book = folder, rules, book
        self._plan, self._given, self._drawn, self._noise = plan, drawn, drawn, noise
        self._lock = threading.RLock()
        self._storage: Storage | None = None
        # Whether a state was seen whose noise was drawn for other rounds than were begun.
        self._mixed = False
        self._past: dict[str, list[int]] = {}
        for begun in book.record.begun:
            self._remember(begun.clients, begun.round)
        # Only the engine knows whether the rounds of an earlier process are in a state.
        self._last = None if book.record.begun else 0

    @property
    def run(self) -> str:
        """Random identifier of the run: keep it with its states."""
        return self._book.record.run

    @property
    def rounds(self) -> int:
        """Number of rounds that were accounted for."""
        return self._rules.rounds

    @property
    def last_released(self) -> int:
        """The last round that was released, 0 before the first."""
        return self._book.record.last_released

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended, so that no round follows."""
        return self._book.record.ended

    @property
    def next_round(self) -> int:
        """The next round, counted from 1.

        Raises:
            InputValueError: If the run was stopped, and `resume` was not called yet.
        """
        if self._last is None:
            raise InputValueError(
                f"out={str(self.folder)!r} holds a run that was stopped: call resume with the storage of its states."
            )
        return self._last + 1

    @property
    def last_round(self) -> int:
        """The round that was begun last, or after which the run was resumed; 0 before the first."""
        return self._last or 0

    def rounds_of(self, client: str) -> list[int]:
        """Returns the rounds that a client was chosen for, also in attempts that were given up."""
        return list(self._past.get(client, ()))

    def draws_from(self, clients: Iterable[str]) -> CohortPlan:
        """Draws the cohorts of all rounds by the plan's sampling, or takes up the cohorts of a run that is resumed.

        Args:
            clients: Ids of all clients, in any order; a resumed run needs the same.

        Raises:
            InputTypeError: If an id is not a string.
            InputValueError: If something else draws the cohorts, there are other clients than planned or than the run
                began with, too few for the cohorts, or the key of a run that is resumed is lost.
        """
        if self._plan is None:
            raise InputValueError("sampler= was given to open_guard, so that it draws the cohorts: leave it out there.")
        with self._lock:
            if self._given is not None:
                if set(checked_ids(clients)) != set(self._given.client_ids):
                    raise InputValueError("clients are not those that the cohorts of the run were drawn from.")
                return self._given
            # By a key in the folder of the checkpoints.
            checkpoint_files.make_private(self.folder / names.CHECKPOINTS)
            drawn = secret_cohorts(
                self.folder / names.CHECKPOINTS / names.COHORTS,
                run=self.run,
                begun=bool(self._book.record.begun),
                client_ids=checked_clients(self._plan, clients),
                rounds=self._plan.rounds,
                sampling=self._plan.sampling,
                clients_per_round=self._plan.clients_per_round,
            )
            grid = self._plan.grid
            if grid is not None and drawn.clients_per_round > grid.max_clients:
                raise InputValueError(f"grid={grid} has less room than a cohort needs: take a Grid of more clients.")
            self._drawn = drawn
            return drawn

    def allowed(self, clients: Iterable[str]) -> list[str]:
        """Returns the clients that may take part in the next round: of drawn cohorts, those in its own."""
        allowed = [client for client in clients if not self._refusal(client)]
        if self._plan is None:
            return allowed
        drawn = self._cohort_of()
        return [client for client in allowed if client in drawn]

    def begin(self, clients: Sequence[str], *, clip_norm: float | None = None) -> int:
        """Records the clients of the next round, of secret cohorts none, and returns the round, counted from 1.

        Args:
            clients: Ids of all chosen clients, including those that may never report; may be empty. If cohorts are
                drawn, clients of the round's own cohort, all or some.
            clip_norm: Clip norm of this round, if it adapts; the rules' if not given.

        Raises:
            RefusedCohortError: If the schema forbids the round to a client, or it is not in the cohort that was drawn.
            InputTypeError: If an id is not a string.
            InputValueError: If a client is listed twice, an id cannot be written, the run has ended, all rounds were
                begun, or `draws_from` was not called.
        """
        read = checked_ids(clients)
        with self._lock:
            number = self.next_round
            self._check_unmixed()
            if number > self.rounds:
                raise InputValueError(f"round={number} is beyond the rounds={self.rounds} that were accounted for.")
            if self._plan is not None:
                self._check_drawn_cohort(number, read)
                read = [] if self._plan.secret_cohorts else read
            self._check_schema(number, read)
            norm = self._rules.clip_norm if clip_norm is None else validation.positive("clip_norm", clip_norm)
            restarts = self._rules.restarts_in(number)
            self._book.begin(number, read, divisor=self._rules.divisor, clip_norm=norm, restarts=restarts)
            self._remember(read, number)
            self._last = number
            return number

    def cohorts(self, cohorts: Iterable[Sequence[str]] | None = None) -> Iterator[tuple[int, list[str]]]:
        """Yields the round and the clients of each cohort, once it is recorded, up to the last round.

        Args:
            cohorts: Any iterable of cohorts, from the next round on; each is taken from it when its round begins. Not
                given if the plan's sampling draws them: call `draws_from` first.

        Raises:
            RefusedCohortError: If the schema forbids a cohort.
        """
        rounds = (sorted(self._cohort_of()) for _ in itertools.count()) if cohorts is None else iter(cohorts)
        while self.next_round <= self.rounds:
            clients = next(rounds, None)
            if clients is None:
                return
            read = checked_ids(clients)
            yield self.begin(read), read

    def finish(
        self, state: Any, *, reports: ReportCounts | None = None, facts: Mapping[str, Any] | None = None
    ) -> None:
        """Saves the state after the round that was begun last, and then records the round as released.

        Args:
            state: What the storage keeps.
            reports: Counts of the clients' reports in the round, if they were counted.
            facts: What else the engine needs to go on after the round.

        Raises:
            InputValueError: If the round was not begun, or was released already, the ledger could not be written, this
                is a forked process, or the noise of the state was drawn for other rounds: some round was begun and
                never computed.
        """
        with self._lock:
            number = self.last_round
            if self._storage is None:
                raise InputValueError(f"out={str(self.folder)!r}: call resume with the storage of the states first.")
            self._book.check()
            if not self._book.record.attempts[number]:
                raise InputValueError(f"round {number} was never begun: call begin first.")
            if number <= self.last_released:
                raise InputValueError(
                    f"round {number} was released: another result of it would be a second release. Call begin first."
                )
            self._check_state(number, state)
            # After a state with other noise, none is of the rounds in their order.
            self._check_unmixed()
            about = {"run": self.run, "round": number, "ledger": self._book.seen(), **(facts or {})}
            self._storage.save(number, state, {**about, "reports": msgspec.to_builtins(reports)})
            self._book.released_until(number, reports=reports)

    def resume(self, storage: Storage, *, published: int = 0) -> int:
        """Continues after the newest state, and returns its round, 0 if there is none.

        Args:
            storage: Where the run's states are.
            published: The last round of which anything is known to be published.

        Raises:
            InputTypeError: If the guard has an aggregator, and the storage does not know the noise of a state.
            InputValueError: If the newest state is lost, belongs to another ledger, or has other noise, or the run has
                ended and its states are deleted.
        """
        self._storage = storage
        saved = storage.rounds()
        newest = max(saved, default=0)
        last = max(self.last_released, published)
        if newest < last and self.has_ended:
            raise InputValueError(f"out={str(self.folder)!r} holds a run that has ended: name another folder.")
        if newest < last:
            raise InputValueError(
                f"round {last} of the run in out={str(self.folder)!r} was released, and its newest checkpoint is of "
                f"round {newest}: to run rounds again would release them twice. Put the newest checkpoint back, or end "
                "the run here, with tff-mf report FOLDER --end."
            )
        # Also where nothing of it is needed: a state of another run is refused before anything is done.
        about = storage.about(newest) if saved else {}
        if saved and (about["run"], about["round"]) != (self.run, newest):
            raise InputValueError(
                f"checkpoint of round {newest} in out={str(self.folder)!r} is of round {about['round']} of run "
                f"{about['run']:.8}, and not of this one, {self.run:.8}: put the run's own checkpoint back."
            )
        if newest and not self._book.has_seen(about["ledger"]):
            raise InputValueError(
                f"ledger={str(self.folder / names.LEDGER)!r} is older than the checkpoint of round {newest}, and lacks "
                "who took part, or was changed since, or the checkpoint is of a copy of the folder that went on too: "
                "put the newest ledger back, with the checkpoint of the same folder."
            )
        self._check_state(newest)
        with self._lock:
            if not self.has_ended:
                reports = typed.convert(about["reports"], ReportCounts | None) if newest > self.last_released else None
                # A round in a state can be seen, and the process may have been stopped before it recorded the release.
                self._book.released_until(newest, reports=reports)
                self._last, self._mixed = newest, False
        return newest

    def goes_back_to(self, round_number: int) -> None:
        """Goes back to a round that was begun, to begin it again; its results so far must be discarded.

        Raises:
            InputValueError: If the round was released or not begun, or is not far enough back.
        """
        number = validation.whole("round_number", round_number)
        with self._lock:
            if not self.last_released < number <= self.next_round:
                raise InputValueError(
                    f"round_number={number} must be at least {self.last_released + 1}, the first round not "
                    f"released yet, and at most {self.next_round}, the next round."
                )
            if number != self.last_released + 1:
                self._check_unmixed()
            self._last, self._mixed = number - 1, False

    def _check_state(self, round_number: int, state: Any = None) -> None:
        """Raises unless the noise of a state was drawn exactly once for each round up to `round_number`.

        Args:
            round_number: The round, counted from 1.
            state: The state after it; the newest that was saved if not given.

        Raises:
            InputTypeError: If the guard has an aggregator, and the storage does not know the noise of a state.
            InputValueError: If the state has no noise, or noise of another aggregator or of another number of rounds.
        """
        assert self._storage is not None
        drawn = self._storage.drawn(state)
        if drawn is None:
            if self._noise is not None:
                raise InputTypeError(
                    "storage must know the noise of its states, as aggregators.SavedStates does: the guard checks it."
                )
            return
        if self._noise is not None:
            if self._noise not in drawn:
                raise InputValueError(
                    f"state has {'other noise than' if drawn else 'no noise of'} the aggregator that the guard was "
                    "opened with: pass the state that the process with this aggregator returned."
                )
            drawn = {self._noise: drawn[self._noise]}
        if not drawn:
            raise InputValueError("state has no noise: pass the whole state that the process returned.")
        for rounds in drawn.values():
            if rounds != round_number:
                self._mixed, last = True, self.last_released
                raise InputValueError(
                    f"round_number={round_number}: the noise of the state was drawn for {rounds} rounds. A round that "
                    "was begun was never computed, or was not computed from the state of the round before, so noise "
                    "went to other cohorts than those in the log. Release nothing of it, delete checkpoints after "
                    f"round {last}, load the state of round {last}, call goes_back_to({last + 1}), and begin again "
                    "from there. If a round fails, call goes_back_to with it before the next cohort."
                )

    def record_end(self) -> None:
        """Records that the run has ended: no round follows."""
        self._book.end()

    def end(self) -> run_reports.Report:
        """Records that the run has ended, deletes its keys, writes the final report, and returns it.

        Save the model before: the states in the folder `checkpoints` of the run, which have the keys of its noise, are
        deleted. If the process is killed in between, `open_guard` does the rest.
        """
        if not self.has_ended:
            self.record_end()
        folders.delete_keys(self.folder)
        return run_reports.write(self.folder, realised=True)

    def _cohort_of(self) -> frozenset[str]:
        """Returns the cohort of the next round; an empty one after the last."""
        if self._drawn is None:
            raise InputValueError(
                f"folder={str(self.folder)!r}: the plan's sampling draws the cohorts: call draws_from(clients) first, "
                "or give sampler= to open_guard."
            )
        return frozenset(self._drawn.cohort(self.next_round - 1) if self.next_round <= self.rounds else ())

    def _check_drawn_cohort(self, number: int, clients: Sequence[str]) -> None:
        if others := sorted(set(clients) - self._cohort_of()):
            raise RefusedCohortError(
                f"clients of round {number} are not all in the cohort that was drawn for it: take clients of "
                "allowed(clients).",
                others,
            )
        if len(set(clients)) < len(clients):
            raise InputValueError(f"clients of round {number} has one twice: a client takes part once.")

    def _check_unmixed(self) -> None:
        if self._mixed:
            last = self.last_released
            raise InputValueError(
                f"folder={str(self.folder)!r}: the noise of a state was drawn for other rounds than were begun. Load "
                f"the state of the last released round, {last}, and call goes_back_to({last + 1}) first."
            )

    def _check_schema(self, number: int, clients: Sequence[str]) -> None:
        refused = {client: reason for client in clients if (reason := self._refusal(client))}
        if refused:
            client, reason = next(iter(refused.items()))
            raise RefusedCohortError(
                f"clients={len(clients)} of round {number}: {len(refused)} may not take part, for example "
                f"{client!r}, which {reason}. Choose others.",
                list(refused),
            )

    def _refusal(self, client: str) -> str:
        schema = self._rules.schema
        return "" if schema is None else refusal(schema, self._past.get(client, ()), self.next_round)

    def _remember(self, clients: Iterable[str], round_number: int) -> None:
        for client in clients:
            rounds = self._past.setdefault(client, [])
            if round_number not in rounds:
                bisect.insort(rounds, round_number)


def begun_plan(folder: pathlib.Path | str, plan: tff_mf.Plan) -> tff_mf.Plan:
    """Returns the plan of a run that is resumed, with the σ that it began with; call it before building the aggregator.

    A σ that is calibrated again, on another machine, can differ in last bits, and its noise would continue no run. A
    plan whose σ differs by more is returned as it is, and refused by `open_guard`.

    Args:
        folder: The run's folder, which may not exist.
        plan: The plan as it is computed here.

    Raises:
        InputValueError: If `run.json` or `plan.json` is damaged.
    """
    folder = pathlib.Path(folder)
    if not (folder / names.RUN_JSON).is_file():
        return plan
    begun = run_reports.read_record(folder).plan.noise_multiplier
    same = math.isclose(plan.noise_multiplier, begun, rel_tol=run_reports.TOO_SMALL)
    return dataclasses.replace(plan, noise_multiplier=begun) if same else plan


@contextlib.contextmanager
def open_guard(
    folder: pathlib.Path | str,
    plan: tff_mf.Plan,
    *,
    sampler: str | None = None,
    aggregator: "MFAggregationFactory | None" = None,
    ended: bool = False,
    drawn: CohortPlan | None = None,
    held: bool = False,
    **more: Any,
) -> Iterator[RunGuard]:
    """Yields the guard of a run, a new one or one that is resumed.

    Writes the files that the guarantee follows from (`plan.json`, `mechanism.safetensors`, `run.json`) and the planned
    report before the first round. One process at a time can use the folder. With secret cohorts, they state the
    amplified ε, and no client is ever in them.

    Args:
        folder: The run's folder, which is made if it does not exist.
        plan: The mechanism, its noise and the participation schema: `tff_mf.plan(...)`.
        sampler: Name of what draws the cohorts, for the report. If `None`, the plan's sampling does, from the clients
            of `RunGuard.draws_from`; secret cohorts are drawn in no other way.
        aggregator: The aggregator of the pipeline, which is refused unless it has the noise of the plan. The state of
            each released round is compared with it. If `None`, nothing checks that the pipeline runs what is claimed.
        ended: Whether the run may have ended, so that its guard begins and releases nothing.
        drawn: The cohorts of all rounds, where they were drawn by the sampling that `sampler` names.
        held: Whether the caller keeps other processes out of the folder, by `files.alone`.
        more: Fields of `run.json`, such as `population` or `evaluation_columns`: see `reports.write_record`.

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If the folder holds another run, one that has ended, or damaged files, another process uses it,
            or the aggregator does not have the noise of the plan; of secret cohorts also if no theorem covers the run.

    Example:
        >>> import tempfile
        >>> import tff_mf
        >>> plan = tff_mf.plan(mechanism=tff_mf.Identity(), rounds=4, delta=1e-6, clients_per_round=2,
        ...                     sampling=tff_mf.MinSep(min_sep=2, max_participations=2), noise_multiplier=8.0)
        >>> with tempfile.TemporaryDirectory() as out, open_guard(out, plan, sampler="by hand") as guard:
        ...     guard.begin(["ann", "bob"])
        ...     guard.allowed(["ann", "carol"])
        1
        ['carol']
    """
    validation.instance("plan", plan, tff_mf.Plan, "make one with tff_mf.plan")
    if sampler is not None:
        validation.instance("sampler", sampler, str, "name what draws the cohorts")
    folder = pathlib.Path(folder)
    if aggregator is not None:
        check_aggregator(aggregator, plan)
    run_reports.check_fields(more)
    more = {"versions": folders.versions(), **_record_fields(folder, plan, sampler, **more)}
    with files.writing(folder, "folder"):
        folder.mkdir(parents=True, exist_ok=True)
    with contextlib.nullcontext() if held else files.alone(folder):
        _check_folder(folder, ended=ended)
        settings = more.get("settings")
        if settings is not None and not (folder / names.SETTINGS_TOML).exists():
            settings.write(folder)
        run_reports.write_record(folder, plan, **more)
        if not (folder / names.LEDGER).exists():
            run_reports.write(folder, realised=False)
        with ledger.open_ledger(folder / names.LEDGER, ended=ended) as book:
            yield RunGuard(
                folder,
                Rules.of(plan),
                book,
                plan=plan if sampler is None or drawn is not None else None,
                drawn=drawn,
                noise=None if aggregator is None else aggregator.fingerprint,
            )


def check_aggregator(aggregator: "MFAggregationFactory", plan: tff_mf.Plan) -> None:
    """Raises unless an aggregator adds the noise of the plan, and divides by its clients per round."""
    from ... import aggregators

    validation.instance(
        "aggregator", aggregator, aggregators.MFAggregationFactory, "pass what build_mf_aggregator returns"
    )
    if aggregator.clients_per_round != plan.clients_per_round:
        raise InputValueError(
            f"aggregator divides by clients_per_round={aggregator.clients_per_round!r}, and the plan is for "
            f"{plan.clients_per_round}: build both with one number."
        )
    if aggregator.insecure and plan.insecure_seed is None:
        raise InputValueError(
            "aggregator does not have the noise of the plan: its keys are known, by insecure_seed; pass "
            "what build_mf_aggregator returns."
        )
    clipping, restart_every = aggregator.adaptive_clipping, plan.restart_every
    counts, accounted = None, plan.adaptive_count_stddev
    if clipping is not None:
        counts = clipping.count_stddev * plan.cohort / plan.clients_per_round
    if (counts is None) != (accounted is None) or not math.isclose(counts or 0.0, accounted or 0.0, rel_tol=1e-12):
        of_aggregator = "the aggregator has no adaptive_clipping" if counts is None else f"it must be {counts!r}"
        raise InputValueError(
            f"adaptive_count_stddev={accounted!r} is not the standard deviation of the noise in the counts that the "
            f"aggregator releases: {of_aggregator}."
        )
    of_plan = None
    if clipping is None or restart_every is not None:
        of_plan = aggregators.MFAggregationFactory.of_plan(
            plan, restart_every=restart_every, adaptive_clipping=clipping, rounds=None
        ).fingerprint
    if aggregator.fingerprint != of_plan:
        raise InputValueError(
            "aggregator does not have the noise of the plan: build it with the plan's mechanism, "
            f"clip_norm={plan.clip_norm!r}, noise_multiplier={plan.noise_multiplier_as_run!r}, "
            f"restart_every={restart_every!r}, grid={plan.grid!r} and insecure_seed={plan.insecure_seed!r}."
        )


def _check_folder(folder: pathlib.Path, *, ended: bool) -> None:
    """Raises if a folder holds a run that has ended, or files of a run without its ledger.

    What the end of a run does is done here if the run was stopped in between: its keys are deleted, with which the
    noise can be removed from its models, and its report is written.

    Args:
        folder: The folder, which no other process uses.
        ended: Whether the run may have ended.
    """
    book = folder / names.LEDGER
    if book.is_file() and ledger.read_ledger(book).ended:
        folders.delete_keys(folder)
        if not (_ended(folder / names.REPORT) and (folder / names.REPORT_TEXT).is_file()):
            run_reports.write(folder, realised=True)
        if ended:
            return
        raise InputValueError(
            f"folder={str(folder)!r} holds a run that has ended: its model and report are there; name another folder "
            "for another run."
        )
    if _ended(folder / names.REPORT):
        raise InputValueError(
            f"folder={str(folder)!r} holds the report of a run that has ended, and its {names.LEDGER} has no end: put "
            "the newest ledger back."
        )
    if ledger.has_begun(book):
        return
    left = [name for name in _REMAINS if (folder / name).exists()]
    if any((folder / names.CHECKPOINTS).glob("*")):
        left.append(names.CHECKPOINTS)
    if left:
        raise InputValueError(
            f"folder={str(folder)!r} holds {', '.join(left)} of a run, but no {names.LEDGER}: its rounds would be "
            "released twice. Restore the ledger, or name another folder."
        )


def _ended(path: pathlib.Path) -> bool:
    try:
        log = json.loads(path.read_bytes())["log"]
        return bool(log and log["has_ended"])
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError) as error:
        raise InputValueError(f"report={str(path)!r} is damaged: restore it, or name another folder.") from error


def _record_fields(folder: pathlib.Path, plan: tff_mf.Plan, sampler: str | None, **more: Any) -> dict[str, Any]:
    """Returns the fields of `run.json` that a pipeline gives, and those that follow from what draws its cohorts."""
    if sampler is not None and plan.secret_cohorts:
        raise InputValueError(
            f"sampler={sampler!r} does not go with secret_cohorts, whose ε is of cohorts by the plan's sampling: leave "
            "it out."
        )
    if sampler is not None:
        return {"sampler": sampler, **more}
    planned = plan.population or getattr(plan.sampling, "population", None)
    fields = {"sampler": f"tff_mf.{type(plan.sampling).__name__}", "population": planned, **more}
    if not plan.secret_cohorts:
        return fields
    if planned is None or fields["population"] != planned:
        raise InputValueError(
            f"population={fields['population']!r} must be the plan's, {planned!r}: with secret_cohorts, make the plan "
            "with population=len(clients)."
        )
    _check_sampling(plan, planned, "clients")
    stated = run_reports.read_record(folder).amplified_epsilon if (folder / names.RUN_JSON).exists() else None
    if stated is None:
        # Not computed again where a run goes on: a certificate by samples would differ.
        stated = statements.stated_epsilon(
            statements.amplified_level(plan, SamplingSettings.of(plan.sampling), planned)
        )
    return {**fields, "amplified_epsilon": stated}


def checked_clients(plan: tff_mf.Plan, clients: Iterable[str], *, name: str = "clients") -> list[str]:
    """Returns the clients of a run in an order that depends on nothing else."""
    ids = checked_ids(clients, name)
    for planned in (plan.population, getattr(plan.sampling, "population", None)):
        if planned not in (None, len(ids)):
            raise InputValueError(
                f"{name} are {len(ids)}, and the plan is for population={planned}: make the plan for as many as there "
                "are."
            )
    _check_sampling(plan, len(ids), name)
    return sorted(ids)


def _check_sampling(plan: tff_mf.Plan, clients: int, name: str) -> None:
    """Raises if the plan's sampling would draw other cohorts than the plan's from as many clients."""
    try:
        word = SamplingSettings.of(plan.sampling)
    except InputValueError:
        # No word stands for it.
        return
    drawn_by = word.drawn_by(population=clients, clients_per_round=plan.clients_per_round)
    # The size may be left out of the plan's sampling, where no grid needs it.
    of_any_size = isinstance(drawn_by, tff_mf.BallsInBins | tff_mf.BMinSep)
    without_size = dataclasses.replace(drawn_by, clients_per_round=None) if of_any_size else drawn_by
    if plan.sampling not in (drawn_by, without_size):
        raise InputValueError(f"sampling={plan.sampling!r} of the plan must be {drawn_by!r} for {clients} {name}.")
