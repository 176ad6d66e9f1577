"""A guard for other pipelines: refuses cohorts that the participation schema forbids, and keeps the files of a run.

A pipeline with its own sampler and loop calls the guard before it hands out data. The result is a folder as `tff-mf
train` writes it, whose guarantee `tff-mf report` states and checks. See docs/swap-in-tff.md.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError, InputValueError

from .. import reports as run_reports
from ..output import files
from ..runs import folders, server_loop
from ..runs.ledger import ReportCounts, has_begun, read_ledger
from ..runs.names import CHECKPOINTS, LEDGER, METRICS, MODEL, REPORT, REPORT_TEXT, RUN_JSON, SUMMARY
from ..runs.rules import RefusedCohortError as RefusedCohortError
from ..runs.rules import Rules, checked_ids
from ..runs.server_loop import ServerLoop
from ..sampling import CohortPlan
from . import drawing

if TYPE_CHECKING:
    from ...aggregators import MFAggregationFactory

# What a run leaves behind, besides its checkpoints.
_REMAINS = (REPORT, MODEL, METRICS, SUMMARY)


class RunGuard(ServerLoop):
    """Stands between a sampler and the data of its clients. Made by `open_guard`.

    Formal guarantee: as for `ServerLoop`: before `begin` returns, the clients of the round are on disk, and none of
    them exceeds the schema. With an aggregator, a round is released only with a state whose noise is the aggregator's
    and was drawn exactly once for each round up to it, by the state's own count. After a state with other noise,
    nothing is begun or released until the run went back to the last released round. Threads may share a guard.

    If the plan's sampling draws the cohorts, a round is begun with no client that is not in its own cohort. If they are
    secret, that alone bounds who takes part, and nothing of a cohort is written but the key that all follow from, in
    the folder of the checkpoints, until the run has ended. The amplified ε holds if nobody else learns a cohort either.
    """

    def __init__(self, *parts: Any, plan: tff_mf.Plan, draws: bool, noise: str | None = None) -> None:
        super().__init__(*parts)
        self._noise, self._plan, self._draws = noise, plan, draws
        self._drawn: CohortPlan | None = None
        # Whether a state was seen whose noise was drawn for other rounds than were begun.
        self._mixed = False

    def draws_from(self, clients: Iterable[str]) -> CohortPlan:
        """Draws the cohorts of all rounds by the plan's sampling, or takes up the cohorts of a run that is resumed.

        Args:
            clients: Ids of all clients, in any order; a resumed run needs the same.

        Raises:
            InputTypeError: If an id is not a string.
            InputValueError: If something else draws the cohorts, there are other clients than planned or than the run
                began with, too few for the cohorts, or the key of a run that is resumed is lost.
        """
        if not self._draws:
            raise InputValueError("sampler= was given to open_guard, so that it draws the cohorts: leave it out there.")
        with self._lock:
            begun = self._book.record.newest is not None
            self._drawn = drawing.cohorts(self.folder, self._plan, clients, run=self.run, begun=begun)
            return self._drawn

    def allowed(self, clients: Iterable[str]) -> list[str]:
        """Returns the clients that may take part in the next round: of drawn cohorts, those in its own."""
        allowed = super().allowed(clients)
        if not self._draws:
            return allowed
        drawn = self._cohort_of()
        return [client for client in allowed if client in drawn]

    def begin(self, clients: Sequence[str], *, clip_norm: float | None = None) -> int:
        """Records the clients of the next round, of secret cohorts none, and returns the round, counted from 1.

        Args:
            clients: Ids of the clients; if cohorts are drawn, clients of the round's own cohort, all or some.
            clip_norm: As for `ServerLoop.begin`.

        Raises:
            RefusedCohortError: If the schema forbids the round to a client, or it is not in the cohort that was drawn.
            InputTypeError: If an id is not a string.
            InputValueError: As for `ServerLoop.begin`, or if `draws_from` was not called.
        """
        if not self._draws:
            return super().begin(clients, clip_norm=clip_norm)
        read = checked_ids(clients)
        with self._lock:
            if others := sorted(set(read) - self._cohort_of()):
                raise RefusedCohortError(
                    f"clients of round {self.next_round} are not all in the cohort that {self._plan.sampling!r} drew "
                    "for it: take clients of allowed(clients).",
                    others,
                )
            if len(set(read)) < len(read):
                raise InputValueError(f"clients of round {self.next_round} has one twice: a client takes part once.")
            return super().begin([] if self._plan.secret_cohorts else read, clip_norm=clip_norm)

    def _cohort_of(self) -> frozenset[str]:
        """Returns the cohort of the next round; an empty one after the last."""
        if self._drawn is None:
            raise InputValueError(
                f"folder={str(self.folder)!r}: the plan's sampling draws the cohorts: call draws_from(clients) first, "
                "or give sampler= to open_guard."
            )
        return frozenset(self._drawn.cohort(self.next_round - 1) if self.next_round <= self.rounds else ())

    def goes_on_after(self, round_number: int, state: Any = None, *, run: str | None = None) -> int:
        """Tells the guard after which round training is resumed, and returns the round.

        Args:
            round_number: Version of the newest checkpoint; 0 for a new start.
            state: The process's state in the checkpoint. Needed if the guard knows the aggregator.
            run: The `run` that was kept in the checkpoint, if it was.

        Raises:
            InputTypeError: If there is no state, although the guard knows the aggregator.
            InputValueError: If the checkpoint belongs to another run, a later round was released, so that rounds would
                be released twice, the round was never begun, or the state's noise belongs to another number of rounds.
        """
        number = validation.whole("round_number", round_number, at_least=0)
        if run not in (None, self.run):
            raise InputValueError(f"run={run!r} of the checkpoint must be {self.run!r}: load a checkpoint of this run.")
        with self._lock:
            _check_drawn(state, self._noise, number, last_released=self.last_released)
            return self.record_resumed(number)

    def record_resumed(self, round_number: int, *, reports: ReportCounts | None = None) -> int:
        """Records what `goes_on_after` does, for a round whose state is checked when it is released.

        Raises:
            InputValueError: As `goes_on_after`, except for the state.
        """
        with self._lock:
            number = super().record_resumed(round_number, reports=reports)
            self._mixed = False
            return number

    def goes_back_to(self, round_number: int) -> None:
        """Goes back to a round that this process began, to begin it again; its results so far must be discarded.

        Raises:
            InputValueError: If the round was released or not begun, or is not far enough back.
        """
        with self._lock:
            super().goes_back_to(round_number)
            self._mixed = False

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

    def released(self, round_number: int, state: Any = None, *, reports: ReportCounts | None = None) -> None:
        """Records that all rounds up to this one are released. Call it once the checkpoint is on disk, then release.

        It need not be called in every round.

        Args:
            round_number: The round, counted from 1; with a state, the round that was begun last.
            state: The process's state after the round. Needed if the guard knows the aggregator.
            reports: Counts of the clients' reports in the round, if they were counted.

        Raises:
            InputTypeError: If there is no state, although the guard knows the aggregator.
            InputValueError: If the round was not begun, by this process or before its checkpoint, or the noise of the
                state belongs to another number of rounds: some round was begun and never computed.
        """
        number = validation.whole("round_number", round_number)
        with self._lock:
            if state is not None and self.last_round != number:
                raise InputValueError(
                    f"round_number={number} must be the round that was begun last, {self.last_round}, with the state "
                    "after it. To begin a failed round again, call goes_back_to first."
                )
            self.check_state(number, state)
            self.record_released(number, reports=reports)

    def record_released(self, round_number: int, *, reports: ReportCounts | None = None) -> None:
        """Records what `released` does, for a round whose state was checked by `check_state`."""
        super().released(round_number, reports=reports)

    def check_state(self, round_number: int, state: Any) -> None:
        """Raises unless the noise of a state was drawn exactly once for each round up to `round_number`.

        Raises:
            InputTypeError: If there is no state, although the guard knows the aggregator.
            InputValueError: If the state has no noise, or noise of another aggregator or of another number of rounds.
        """
        try:
            _check_drawn(state, self._noise, round_number, last_released=self.last_released)
        except _OtherRoundsError:
            self._mixed = True
            raise

    def end(self) -> run_reports.Report:
        """Records that the run has ended, deletes its keys, writes the final report, and returns it.

        Save the model before: the states in the folder `checkpoints` of the run, which have the keys of its noise, are
        deleted. If the process is killed in between, `open_guard` does the rest.
        """
        if not self.has_ended:
            self.record_end()
        folders.delete_keys(self.folder)
        return run_reports.write(self.folder, realised=True)

    def _check_unmixed(self) -> None:
        if self._mixed:
            last = self.last_released
            raise InputValueError(
                f"folder={str(self.folder)!r}: the noise of a state was drawn for other rounds than were begun. Load "
                f"the state of the last released round, {last}, and call goes_back_to({last + 1}) first."
            )


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
    if not (folder / RUN_JSON).is_file():
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
        check_aggregator(aggregator, plan, more)
    run_reports.check_fields(more)
    more = drawing.record_fields(folder, plan, sampler, **more)
    with files.writing(folder, "folder"):
        folder.mkdir(parents=True, exist_ok=True)
    with files.alone(folder):
        _check_folder(folder, ended=ended)
        more.setdefault("versions", folders.versions())
        run_reports.write_record(folder, plan, **more)
        if not (folder / LEDGER).exists():
            run_reports.write(folder, realised=False)
        noise = None if aggregator is None else aggregator.fingerprint
        make = functools.partial(RunGuard, noise=noise, plan=plan, draws=sampler is None)
        with server_loop.open_loop(folder, rules=Rules.of(plan), make=make, ended=ended) as guarded:
            yield guarded


class _OtherRoundsError(InputValueError):
    """The noise in a state was drawn for another number of rounds."""


def _check_drawn(state: Any, noise: str | None, round_number: int, *, last_released: int) -> None:
    """Raises unless the noise in a server's state was drawn exactly once for each round up to `round_number`."""
    if state is None:
        if noise is not None:
            raise InputTypeError(
                "state=None must be the process's state after the round: the guard checks the rounds of its noise."
            )
        return
    from ... import aggregators

    drawn = aggregators.rounds_drawn(state)
    if noise is not None:
        if noise not in drawn:
            raise InputValueError(
                f"state has {'other noise than' if drawn else 'no noise of'} the aggregator that the guard was opened "
                "with: pass the state that the process with this aggregator returned."
            )
        drawn = {noise: drawn[noise]}
    other = next((rounds for rounds in drawn.values() if rounds != round_number), None)
    if not drawn:
        raise InputValueError("state has no noise: pass the whole state that the process returned.")
    if other is not None:
        raise _OtherRoundsError(
            f"round_number={round_number}: the noise of the state was drawn for {other} rounds. A round that was "
            "begun was never computed, or was not computed from the state of the round before, so noise went to other "
            f"cohorts than those in the log. Release nothing of it, delete checkpoints after round {last_released}, "
            f"load the state of round {last_released}, call goes_back_to({last_released + 1}), and begin again from "
            "there. If a round fails, call goes_back_to with it before the next cohort."
        )


def check_aggregator(aggregator: "MFAggregationFactory", plan: tff_mf.Plan, more: Mapping[str, Any]) -> None:
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
    about = more.get("about")
    if isinstance(about, Mapping) and "generator" in about:
        raise InputValueError(
            f"about['generator']={about['generator']!r} is not the generator of aggregator, whose noise is "
            "TensorFlow's: leave it out, and the report names that."
        )
    if aggregator.insecure and plan.insecure_seed is None:
        raise InputValueError(
            "aggregator does not have the noise of the plan: its keys are known, by insecure_seed; pass "
            "what build_mf_aggregator returns."
        )
    clipping, restart_every = aggregator.adaptive_clipping, plan.restart_every
    _check_counts(None if clipping is None else clipping.count_stddev, plan)
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


def _check_counts(of_aggregator: float | None, plan: tff_mf.Plan) -> None:
    """Raises unless the noise of adaptive clipping's counts is the one that is accounted for."""
    accounted = plan.adaptive_count_stddev
    if of_aggregator is None and accounted is None:
        return
    scale = plan.cohort / plan.clients_per_round
    if of_aggregator is None:
        raise InputValueError(
            f"adaptive_count_stddev={accounted!r}, and the aggregator has no adaptive_clipping: leave it out, or build "
            "the aggregator with it."
        )
    if accounted is None or not math.isclose(accounted, of_aggregator * scale, rel_tol=1e-12):
        raise InputValueError(
            f"adaptive_count_stddev={accounted!r} must be {of_aggregator * scale!r}, the standard deviation of the "
            "noise in the counts that the aggregator releases."
        )


def _check_folder(folder: pathlib.Path, *, ended: bool) -> None:
    """Raises if a folder holds a run that has ended, or files of a run without its ledger.

    What the end of a run does is done here if the run was stopped in between: its keys are deleted, with which the
    noise can be removed from its models, and its report is written.

    Args:
        folder: The folder, which no other process uses.
        ended: Whether the run may have ended.
    """
    book = folder / LEDGER
    if book.is_file() and read_ledger(book).ended:
        folders.delete_keys(folder)
        if not (_ended(folder / REPORT) and (folder / REPORT_TEXT).is_file()):
            run_reports.write(folder, realised=True)
        if ended:
            return
        raise InputValueError(
            f"folder={str(folder)!r} holds a run that has ended: its model and report are there; name another folder "
            "for another run."
        )
    if _ended(folder / REPORT):
        raise InputValueError(
            f"folder={str(folder)!r} holds the report of a run that has ended, and its {LEDGER} has no end: put the "
            "newest ledger back."
        )
    if has_begun(book):
        return
    left = [name for name in _REMAINS if (folder / name).exists()]
    if any((folder / CHECKPOINTS).glob("*")):
        left.append(CHECKPOINTS)
    if left:
        raise InputValueError(
            f"folder={str(folder)!r} holds {', '.join(left)} of a run, but no {LEDGER}: its rounds would be "
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
