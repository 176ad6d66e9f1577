"""A device that follows the rules of a federated-compute client, and a server that runs rounds, both simulated.

The rules are those of the client of August 2026, read in its sources: what makes it eligible, what it writes down
before it uploads, which answer makes it count an upload as none, and when its history begins anew.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import tff_mf
from tff_mf.experiments.guard.export import DevicePolicy

DAY = 86400
# Seconds since 1970, of a day in 2027.
START = 1_800_000_000.0
MIN_SEP_VERSIONS = {True: 3, False: 1}

# What the tests of both files are about.
MINUTES = 15.0
SECONDS = MINUTES * 60
ROUNDS = 20
CLAIM = tff_mf.MinSep(min_sep=4, max_participations=3)


@dataclasses.dataclass(kw_only=True)
class Entry:
    """What a client keeps of one upload."""

    task: str
    index: int | None
    began: float
    aborted: bool = False


class Client:
    """A device: its clock may be wrong, and its history may be lost.

    Args:
        phase_stats: Whether it writes the index where it looks for it, as clients do with the flag that is needed.
        days: How long it keeps its history.
    """

    def __init__(self, *, phase_stats: bool = True, days: int = 30) -> None:
        self._phase_stats, self._days = phase_stats, days
        self.time, self.offset = START, 0.0
        self._history: list[Entry] = []
        self._earliest = self.now

    @property
    def now(self) -> float:
        """The time by the device's own clock."""
        return self.time + self.offset

    def eligible(self, specification: Mapping[str, Any]) -> set[str]:
        """Returns the tasks that the client's own check lets it take part in."""
        left = {info["task_name"] for info in specification["task_info"]}
        of_policy: dict[str, set[str]] = {}
        for place, policy in enumerate(specification["eligibility_policies"]):
            using = {
                info["task_name"] for info in specification["task_info"] if place in info["eligibility_policy_indices"]
            }
            version = MIN_SEP_VERSIONS[self._phase_stats] if "min_sep_policy" in policy else 1
            if version < policy["min_version"]:
                left -= using
            else:
                of_policy[policy["name"]] = using
        for policy in specification["eligibility_policies"]:
            using = of_policy.get(policy["name"], set()) & left
            left -= {task for task in using if not self._allows(policy, task)}
        return left

    def upload(self, task: str, index: int | None, *, aborted: bool = False) -> None:
        """Writes an upload down before it begins, and then whether the server aborted it."""
        self._forget_old()
        kept = index if self._phase_stats else None
        self._history.append(Entry(task=task, index=kept, began=self.now, aborted=aborted))

    def lose_history(self) -> None:
        """Reinstalled, data cleared, or a history that cannot be read and is begun anew."""
        self._history, self._earliest = [], self.now

    def prune(self, keep: int) -> None:
        """Forgets the oldest entries, because they take too much room."""
        if len(self._history) > keep:
            self._history, self._earliest = self._history[len(self._history) - keep :], self.now

    def _forget_old(self) -> None:
        oldest = self.now - self._days * DAY
        left = [entry for entry in self._history if entry.began >= oldest]
        if len(left) < len(self._history):
            self._history, self._earliest = left, oldest

    def _last(self, task: str) -> Entry | None:
        return next((entry for entry in reversed(self._history) if entry.task == task and not entry.aborted), None)

    def _allows(self, policy: Mapping[str, Any], task: str) -> bool:
        reaches_back, last = self.now - self._earliest, self._last(task)
        if "min_sep_policy" in policy:
            min_sep = policy["min_sep_policy"]
            trust = _seconds(min_sep["min_trustworthiness_period"])
            if trust and reaches_back < trust:
                return False
            if last is None or last.index is None:
                return True
            return min_sep["current_index"] - last.index - 1 >= min_sep["minimum_separation"]
        period = _seconds(policy["swor_policy"]["min_period"])
        return reaches_back >= period and (last is None or period < self.now - last.began)


class World:
    """A server that runs the rounds of one task, and one device that it offers them to.

    Args:
        device: The clients' policy.
        round_seconds: How long a round takes.
        client: The device.
    """

    def __init__(
        self,
        device: DevicePolicy,
        *,
        round_seconds: float,
        client: Client | None = None,
    ) -> None:
        self.device, self.client = device, Client() if client is None else client
        self.round_number = 1
        self.counted: list[int] = []
        self._round_seconds = round_seconds
        self._began = 0.0
        # The device was there long before the run.
        self.pass_time(100 * DAY)

    def pass_time(self, seconds: float) -> None:
        """Lets time pass in the round."""
        self.client.time += seconds

    @contextlib.contextmanager
    def a_round(self, seconds: float | None = None) -> Iterator[None]:
        """Runs a round, of other length if one is given, within which `be_at` chooses moments."""
        self._round_seconds = self._round_seconds if seconds is None else seconds
        self._began = self.client.time
        yield
        self.client.time = self._began
        self.next_round()

    def be_at(self, moment: float) -> None:
        """Goes to a moment of the round, from 0 to 1."""
        self.client.time = self._began + moment * self._round_seconds

    def next_round(self, rounds: int = 1) -> None:
        """Lets whole rounds pass."""
        self.round_number += rounds
        self.pass_time(rounds * self._round_seconds)

    def attempt(
        self,
        *,
        specification: Mapping[str, Any] | None = None,
        index: int | None = 0,
        aborted: bool = False,
    ) -> bool:
        """Offers a round to the device, counts its contribution if it takes part, and returns whether it did.

        Args:
            specification: What the device checks; that of the round if `None`.
            index: The plan's index; that of the round if 0.
            aborted: Whether the server answers ABORTED.
        """
        given = self.device.specification(self.round_number) if specification is None else specification
        name = self.device.task_name
        if name not in self.client.eligible(given):
            return False
        self.client.upload(name, self.round_number if index == 0 else index, aborted=aborted)
        self.counted.append(self.round_number)
        return True


def merged(*specifications: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the specification of a population with several tasks."""
    tasks, policies = [], []
    for each in specifications:
        for info in each["task_info"]:
            places = [place + len(policies) for place in info["eligibility_policy_indices"]]
            tasks.append({**info, "eligibility_policy_indices": places})
        policies += each["eligibility_policies"]
    return {"task_info": tasks, "eligibility_policies": policies}


def device_of(schema: tff_mf.Participation = CLAIM, rounds: int = ROUNDS, **changes: Any) -> DevicePolicy:
    """Returns the clients' policy that keeps a schema, or one that was changed."""
    of_schema = DevicePolicy.of(schema, rounds=rounds, round_minutes=MINUTES, task_name="words")
    return dataclasses.replace(of_schema, **changes)


def world_of(device: DevicePolicy | None = None, **more: Any) -> World:
    """Returns a server with one device, in rounds as long as planned."""
    return World(device_of() if device is None else device, round_seconds=SECONDS, **more)


def _seconds(duration: str) -> int:
    return int(duration.removesuffix("s"))
