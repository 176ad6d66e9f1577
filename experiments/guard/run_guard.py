"""A guard for other pipelines: refuses cohorts that the participation schema forbids, and keeps the files of a run.

A pipeline with its own sampler and loop calls the guard before it hands out data. The result is a folder as `tff-mf
train` writes it, whose guarantee `tff-mf report` states and checks. See docs/swap-in-tff.md.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

from .. import reports as run_reports
from ..runs.report_counts import ReportCounts
from ..runs.rules import RefusedCohortError as RefusedCohortError
from ..runs.rules import Schema, checked_ids
from ..runs.server_loop import ServerLoop
from . import _checks


def refusal(schema: tff_mf.Participation, past: Sequence[int], round_number: int) -> str:
    """Returns why a client may not take part in a round, given its past rounds; an empty text if it may.

    Past rounds can be later ones, from abandoned attempts. If the round is among them, it counts once.

    Args:
        schema: The participation schema.
        past: Rounds for which the client was chosen.
        round_number: The round.

    Example:
        >>> refusal(tff_mf.MinSep(min_sep=3, max_participations=2), [1], 3)
        'took part in round 1: min_sep=3'
        >>> refusal(tff_mf.FixedEpoch(min_sep=3, max_participations=3), [1], 8)
        'took part in round 1: with min_sep=3 it may come in rounds 4, 7 after it'
    """
    return Schema.of(schema).refusal(past, round_number)


class RunGuard(ServerLoop):
    """Stands between a sampler and the data of its clients. Made by `open_guard`.

    Formal guarantee: as for `ServerLoop`: before `begin` returns, the clients of the round are on disk, and none of
    them exceeds the schema. With an aggregator, a round is released only with a state whose noise is the aggregator's
    and was drawn exactly once for each round up to it, by the state's own count. After a state with other noise,
    nothing is begun or released until the run went back to the last released round. Threads may share a guard.
    """

    def __init__(self, *parts: Any, noise: str | None = None) -> None:
        super().__init__(*parts)
        self._noise = noise
        # Whether a state was seen whose noise was drawn for other rounds than were begun.
        self._mixed = False

    @property
    def knows_its_noise(self) -> bool:
        """Whether the guard was opened with the aggregator, and checks the noise of released states."""
        return self._noise is not None

    def goes_on_after(
        self, round_number: int, state: Any = None, *, run: str | None = None, reports: ReportCounts | None = None
    ) -> int:
        """Tells the guard after which round training is resumed, and returns the round.

        Args:
            round_number: Version of the newest checkpoint; 0 for a new start.
            state: The process's state in the checkpoint. Needed if the guard knows the aggregator.
            run: The `run` that was kept in the checkpoint, if it was.
            reports: Counts of the clients' reports in that round, if they were kept in the checkpoint.

        Raises:
            InputTypeError: If there is no state, although the guard knows the aggregator.
            InputValueError: If the checkpoint belongs to another run, a later round was released, so that rounds would
                be released twice, the round was never begun, or the state's noise belongs to another number of rounds.
        """
        number = validation.whole("round_number", round_number, at_least=0)
        if run not in (None, self.run):
            raise InputValueError(f"run={run!r} of the checkpoint must be {self.run!r}: load a checkpoint of this run.")
        with self._lock:
            _checks.check_drawn(state, self._noise, number, last_released=self.last_released)
            return self.goes_on_unseen(number, reports=reports)

    def goes_on_unseen(self, round_number: int, *, reports: ReportCounts | None = None) -> int:
        """Does what `goes_on_after` does without checking the state, which is checked when it is released.

        Raises:
            InputValueError: As `goes_on_after`, except for the state.
        """
        with self._lock:
            number = super().goes_on_unseen(round_number, reports=reports)
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

    def cohorts(self, cohorts: Iterable[Sequence[str]]) -> Iterator[tuple[int, list[str]]]:
        """Yields the round and the clients of each cohort, once it is recorded, up to the last round.

        Args:
            cohorts: Any iterable of cohorts, from the next round on; each is taken from it when its round begins.

        Raises:
            RefusedCohortError: If the schema forbids a cohort.
        """
        rounds = iter(cohorts)
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
            self.released_unseen(number, reports=reports)

    def released_unseen(self, round_number: int, *, reports: ReportCounts | None = None) -> None:
        """Records what `released` does, for a round whose state was checked by `check_state`.

        Raises:
            InputValueError: If the round was not begun.
        """
        super().released(round_number, reports=reports)

    def check_state(self, round_number: int, state: Any) -> None:
        """Raises unless the noise of a state was drawn exactly once for each round up to `round_number`.

        Raises:
            InputTypeError: If there is no state, although the guard knows the aggregator.
            InputValueError: If the state has no noise, or noise of another aggregator or of another number of rounds.
        """
        try:
            _checks.check_drawn(state, self._noise, round_number, last_released=self.last_released)
        except _checks.OtherRoundsError:
            self._mixed = True
            raise

    def end(self) -> dict[str, Any]:
        """Records that the run has ended, writes the final report, and returns it."""
        self.record_end()
        return run_reports.write(self.folder, realised=True)

    def _check_states(self) -> None:
        if self._mixed:
            last = self.last_released
            raise InputValueError(
                f"out={str(self.folder)!r}: the noise of a state was drawn for other rounds than were begun. Load the "
                f"state of the last released round, {last}, and call goes_back_to({last + 1}) first."
            )
