"""The server of a deployment: rounds, a state that is stepped once, and a ledger."""

import contextlib
import dataclasses
import math
import pathlib
import shutil
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import safetensors.numpy

from tff_mf.errors import InputValueError

from .. import reports
from ..bundles import ParticipationPolicy, checked_copy, read_policy, runner
from ..bundles.stages import Stages, Tensors
from ..output import files, locks, typed
from ..run_folder import ledger, run_log
from ..run_folder.names import ANSWERS, LEDGER, MECHANISM, MODEL, RUN_JSON, STATE, VOCABULARY
from ._devices import Fleet, Report

_LOCK = ".coordinator"
_WEIGHTS = "state__global_model_weights__trainable__"
_COPIED = (RUN_JSON, MECHANISM, ANSWERS, VOCABULARY)
_WAIT_HOURS = 0.25
_PATIENCE_HOURS = 24.0 * 30
_MINUTES = 60

OnRound = Callable[[int], None]


@dataclasses.dataclass(kw_only=True)
class Tally:
    """Counts of the rounds that this process ran.

    Attributes:
        rounds: Finished rounds.
        reports: Reports in the sums, including scaled and zeroed ones.
        refused_devices: Devices that the server did not choose, since the policy does not allow it yet, or again.
        refused_reports: Refused reports.
        reasons: Refused reports by reason, one of `runner.REASONS`.
    """

    rounds: int = 0
    reports: int = 0
    refused_devices: int = 0
    refused_reports: int = 0
    reasons: Counter[str] = dataclasses.field(default_factory=Counter)


class Coordinator:
    """Runs the rounds of a bundle, and continues where an earlier process was stopped.

    `out` has the files of a run, which `tff-mf report` reads, and the server's secret state in `state/`.

    Formal guarantee: a state is on disk before its model is published, and from then on the ledger has the round as
    released; therefore no published round is ever run again, whenever the process is killed. Rounds that were not
    published may be run again, with a fresh key and other devices. Only one process at a time can hold `out`, and a
    state that is older than the ledger is refused. A device takes part only if its own record and the server's log
    allow it. No report of a device ends a run: anything but an update of this bundle, for this round and in time, is
    refused by reason and counted; updates are clipped by the bundle's graphs. The coordinator runs the checked files
    from its own copy, even if `bundle` changes; a killed process leaves this copy, which has no secrets, in the
    temporary folder.

    Args:
        bundle: A bundle of `tff-mf export`.
        out: Folder of the deployment; made if it does not exist.
        fleet: The devices.
        seed: Seed of the choice of devices and of the simulated clock.

    Raises:
        InputValueError: If the bundle is refused, or `out` belongs to another bundle.
    """

    def __init__(self, bundle: pathlib.Path, out: pathlib.Path, fleet: Fleet, *, seed: int = 0) -> None:
        with contextlib.ExitStack() as kept:
            copy, wrong = kept.enter_context(checked_copy(bundle))
            if copy is None:
                raise InputValueError(
                    f"bundle={str(bundle)!r} must not be deployed: {wrong[0].file}: {wrong[0].reason}."
                )
            out.mkdir(parents=True, exist_ok=True)
            for name in _COPIED:
                if (copy / name).exists() and not (out / name).exists():
                    files.write_atomically(out / name, (copy / name).read_bytes())
            if (copy / RUN_JSON).read_bytes() != (out / RUN_JSON).read_bytes():
                raise InputValueError(f"out={str(out)!r} holds another deployment: name another folder.")
            self._run = reports.read_configuration(out)
            self._policy: ParticipationPolicy = read_policy(copy)
            self._stages, self._out, self._fleet, self._seed = Stages(copy), out, fleet, seed
            weakref.finalize(self, kept.pop_all().close)

    def run(self, on_round: OnRound = lambda round_number: None) -> Tally:
        """Runs the rounds that are left, and writes the model and the final report.

        Args:
            on_round: Called when a round is on disk and may be published.

        Raises:
            InputValueError: If another process runs this deployment, or the state is older than what was released.
        """
        with locks.held(self._out / _LOCK, self._refuse_second):
            tally, state = self._run_rounds(on_round)
            names = sorted((name for name in state if name.startswith(_WEIGHTS)), key=_place)
            weights = {str(index): np.asarray(state[name]) for index, name in enumerate(names)}
            files.write_atomically(self._out / MODEL, safetensors.numpy.save(weights))
            reports.write(self._out, realised=True)
            # With the keys, the noise can be removed from the models; no round needs them any more.
            shutil.rmtree(self._out / STATE, ignore_errors=True)
        return tally

    def _run_rounds(self, on_round: OnRound) -> tuple[Tally, Tensors]:
        states = runner.StateStore(self._out / STATE, self._stages)
        done, about = self._saved(states)
        begun, tally = self._out / LEDGER, Tally()
        if begun.exists() and ledger.read_ledger(begun).ended:
            if about is None:
                raise InputValueError(f"out={str(self._out)!r} holds a deployment that has ended.")
            # Only the steps after the last round are missing.
            return tally, states.load(done)
        with run_log.open_run_log(self._out) as book:
            if about and about.get("run") != book.run:
                raise InputValueError(
                    f"out={str(self._out)!r} has the state of another deployment: continuing would release updates "
                    "of devices that are not in this log. Put the deployment's own newest state back."
                )
            self._check_not_older(book.last_released, done)
            # The process may have been stopped between writing the state and the ledger.
            book.released_until(
                done, reports=typed.convert(about["reports"], ledger.ReportCounts, "reports") if about else None
            )
            state = states.load(done) if about else self._stages.initialize()
            hour = about["hour"] if about else 0.0
            for number in range(done + 1, self._run.rounds + 1):
                state, hour = self._round(number, state, hour, states, book, tally)
                tally.rounds += 1
                on_round(number)
            book.ended()
        return tally, state

    def _saved(self, states: runner.StateStore) -> tuple[int, dict[str, Any] | None]:
        """Returns the round of the newest state and its metadata; round 0 and None if there is none."""
        rounds = states.rounds()
        if not rounds:
            return 0, None
        try:
            return rounds[-1], states.read(rounds[-1])[1]
        except runner.RefusedError as error:
            raise InputValueError(f"out={str(self._out)!r}: {error}") from error

    def _round(
        self, number: int, state: Tensors, hour: float, states: runner.StateStore, book: run_log.RunLog, tally: Tally
    ) -> tuple[Tensors, float]:
        """Runs one round until its model may be published, and returns the state and the hour after it."""
        chance = np.random.default_rng([self._seed, number])
        sent = self._stages.prepare(state)
        chosen, hour = self._choose(number, hour, book.past, chance, tally)
        book.begin(number, chosen, divisor=self._run.divisor or 1, clip_norm=self._run.clip_norm)
        total = runner.RoundSum(self._stages, chosen)
        for report in self._fleet.train(chosen, number, hour, sent, chance):
            self._take(total, report, number)
        counts = total.counts()
        state, _ = self._stages.update(state, self._stages.report(total.total()))
        hour += self._policy.round_minutes / _MINUTES * chance.uniform(0.5, 1.0)
        states.save(state, number, {"run": book.run, "hour": hour, "reports": counts})
        book.released_until(number, reports=typed.convert(counts, ledger.ReportCounts, "reports"))
        tally.reports += counts["counted"]
        tally.refused_reports += sum(total.refused.values())
        tally.reasons += total.refused
        return state, hour

    def _take(self, total: runner.RoundSum, report: object, number: int) -> None:
        """Adds a report, or counts it as refused; none of its fields is trusted."""
        if not isinstance(report, Report):
            total.refuse("damaged")
        elif type(report.round_number) is not int or report.round_number != number:
            total.refuse("another round")
        elif type(report.minutes) not in (int, float) or not report.minutes <= self._policy.round_minutes:
            total.refuse("late")
        else:
            update, types = report.update, self._stages.update_types
            total.take(report.device, lambda: _read(update, types))

    def _choose(
        self, number: int, hour: float, past: Mapping[str, Sequence[int]], chance: np.random.Generator, tally: Tally
    ) -> tuple[list[str], float]:
        """Returns the devices of a round, and the hour at which enough had volunteered."""
        waited = 0.0
        refused: set[str] = set()
        while waited <= _PATIENCE_HOURS:
            allowed = []
            for device in self._fleet.volunteers(number, hour + waited, chance):
                # The server knows the rounds of a device, and not its timer.
                if self._policy.allows(list(past.get(device, ())), round_number=number, hours_since=math.inf):
                    allowed.append(device)
                else:
                    refused.add(device)
            if len(allowed) >= self._run.clients_per_round:
                tally.refused_devices += len(refused)
                chosen = chance.choice(len(allowed), self._run.clients_per_round, replace=False)
                return [allowed[index] for index in chosen], hour + waited
            waited += _WAIT_HOURS
        raise RuntimeError(
            f"Round {number} did not find {self._run.clients_per_round} devices within {_PATIENCE_HOURS} hours."
        )

    def _check_not_older(self, last: int, done: int) -> None:
        if last > done:
            raise InputValueError(
                f"out={str(self._out)!r} has the state of round {done}, and round {last} was released: continuing "
                "would release rounds twice. Put the newest state back, or end the deployment here."
            )

    def _refuse_second(self) -> None:
        raise InputValueError(f"out={str(self._out)!r} is run by another process: a state must be stepped once.")


def _read(update: Any, types: runner.Types) -> dict[str, np.ndarray]:
    """Returns a device's update, from a file or from memory, if it has exactly these names, types and shapes."""
    try:
        if isinstance(update, pathlib.Path):
            return runner.read_update(update, types)[0]
        return runner.checked(update, types)
    except runner.RefusedUpdateError:
        raise
    # Reading an object from a device may fail in any way, and must not end the server.
    except Exception as error:
        raise runner.RefusedUpdateError("damaged") from error


def _place(name: str) -> int:
    return int(name.removeprefix(_WEIGHTS).split("__")[0])
