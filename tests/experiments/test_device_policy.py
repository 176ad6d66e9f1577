"""The clients' policy of a bundle: what simulated clients do that keep it, and the ε of devices alone.

The rules are those of the federated-compute client of August 2026, read in its sources: what makes it eligible, what it
writes down before it uploads, which answer makes it count an upload as none, and when its history begins anew.
"""

import dataclasses
import itertools
import json
import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_folders import plan

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.guard import export
from tff_mf.experiments.guard.export import DevicePolicy

DAY = 86400
# Seconds since 1970, of a day in 2027.
START = 1_800_000_000.0
MIN_SEP_VERSIONS = {True: 3, False: 1}
MINUTES = 15.0
SECONDS = MINUTES * 60


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
        # By name: of two policies with one name, the first is never checked.
        stored: dict[str, tuple[Mapping[str, Any], set[str]]] = {}
        for place, policy in enumerate(specification["eligibility_policies"]):
            infos = [info for info in specification["task_info"] if place in info["eligibility_policy_indices"]]
            using = {info["task_name"] for info in infos}
            version = MIN_SEP_VERSIONS[self._phase_stats] if "min_sep_policy" in policy else 1
            if version < policy["min_version"]:
                left -= using
            else:
                stored[policy["name"]] = policy, using
        for policy, using in stored.values():
            left -= {task for task in using & left if not self._allows(policy, task)}
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
    """A server that runs the rounds of one task with the clients' policy, and one device that it offers them to."""

    def __init__(self, device: DevicePolicy, client: Client, round_seconds: float = SECONDS) -> None:
        self.device, self.client = device, client
        self.round_number = 1
        self.counted: list[int] = []
        self._round_seconds = round_seconds
        # The device was there long before the run.
        self.pass_time(100 * DAY)

    def pass_time(self, seconds: float) -> None:
        """Lets time pass in the round."""
        self.client.time += seconds

    def next_round(self) -> None:
        """Lets a whole round pass."""
        self.round_number += 1
        self.pass_time(self._round_seconds)

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


def device_of(schema: tff_mf.Participation, rounds: int) -> DevicePolicy:
    """Returns the clients' policy that keeps a schema."""
    return DevicePolicy.of(schema, rounds=rounds, longest_round=MINUTES, task_name="words")


def _seconds(duration: str) -> int:
    return int(duration.removesuffix("s"))


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 40))
def test_the_length_of_the_run_bounds_participations(min_sep, limit, rounds):
    alone = export.of_devices_alone(tff_mf.MinSep(min_sep=min_sep, max_participations=limit), rounds)
    assert alone.max_participations == len(range(0, rounds, alone.min_sep)) <= limit
    assert alone.min_sep >= min_sep
    # Longer than b only if b alone would let more in, and then no longer than it takes.
    shorter = alone.min_sep - 1
    assert alone.min_sep == min_sep or len(range(0, rounds, shorter)) > limit


@pytest.mark.parametrize(("min_sep", "limit"), [(1, 2), (2, 3), (2, 1), (3, 2), (5, 9)])
def test_clients_do_all_that_the_schema_of_devices_alone_has_and_no_more(min_sep, limit):
    """Every history of five rounds, in each of which a device is asked, loses its upload or its history, or is not."""
    rounds = 5
    claim = tff_mf.MinSep(min_sep=min_sep, max_participations=limit)
    device = device_of(claim, rounds)
    found = set()
    for history in itertools.product(("not asked", "counted", "lost", "wiped"), repeat=rounds):
        world = World(device, Client())
        for happens in history:
            world.pass_time(1)
            if happens == "wiped":
                world.client.lose_history()
            if happens != "not asked" and world.attempt() and happens == "lost":
                world.counted.pop()
            world.next_round()
        found.add(tuple(number - 1 for number in world.counted))
    assert found == set(export.of_devices_alone(claim, rounds).patterns(rounds))


HAPPENS = ("unindexed", "counted", "lost", "aborted", "wiped", "pruned", "set back", "other")
CHANCES = (2, 6, 2, 2, 2, 1, 1, 2)
HISTORIES = 40


@given(st.integers(1, 6), st.integers(1, 5), st.integers(8, 24), st.integers(1, 30), st.integers(0, 2**32))
def test_any_history_is_a_pattern_of_what_is_claimed(min_sep, limit, rounds, days, seed):
    """Rounds are no longer than planned, the clock is only ever set back, and the server does what it must.

    Some clients are of a release that does not find its index, which the version keeps out, or write none down at
    times, which the timer makes up for where devices are claimed to be no further apart than it.
    """
    claim = tff_mf.MinSep(min_sep=min_sep, max_participations=limit)
    device = device_of(claim, rounds)
    kept = export.of_devices_alone(claim, rounds)
    happens, chances = (HAPPENS, CHANCES) if kept.min_sep == min_sep else (HAPPENS[1:], CHANCES[1:])
    other = dataclasses.replace(device_of(tff_mf.MinSep(min_sep=2, max_participations=9), rounds), task_name="phrases")
    chance = random.Random(seed)
    for _ in range(HISTORIES):
        client = Client(days=days, phase_stats=chance.random() < 0.9)
        seconds = chance.uniform(0.1, 1) * SECONDS
        world = World(device, client, seconds)
        for _ in range(rounds):
            both = merged(other.specification(world.round_number), device.specification(world.round_number))
            began = client.time
            for moment in sorted(chance.random() for _ in range(chance.randrange(4))):
                client.time = began + moment * seconds
                happen(world, chance.choices(happens, chances)[0], both)
            client.time = began
            world.next_round()
        assert kept.allows(world.counted)
        assert claim.allows(world.counted)


def happen(world, happens, both):
    client, number = world.client, world.round_number
    if happens == "wiped":
        client.lose_history()
    elif happens == "pruned":
        client.prune(1)
    elif happens == "set back":
        client.offset -= 3 * SECONDS
    elif happens == "other":
        if "phrases" in client.eligible(both):
            client.upload("phrases", number)
    elif happens in ("counted", "unindexed"):
        world.attempt(specification=both, index=None if happens == "unindexed" else 0)
    elif world.attempt(specification=both, aborted=happens == "aborted"):
        # It is in no sum: it never arrived, or was refused.
        world.counted.pop()


# Three bands apart, what fixed epochs cannot align and other rounds can.
GAPPED = tff_mf.BandedToeplitz(column=[1, 0, 0, 0, 0.9])


def write(folder, participation=None, *, task_name=None, minutes=MINUTES, population=None, **privacy):
    """Writes what a bundle's policy follows from, and the policy."""
    folder.mkdir(exist_ok=True)
    schema = tff_mf.MinSep(min_sep=3, max_participations=2) if participation is None else participation
    made = plan(sampling=schema, **{"mechanism": GAPPED, **privacy})
    reports.write_record(folder, made, population=population)
    export.write_device_policy(folder, longest_round=minutes, task_name=task_name)
    return json.loads((folder / export.DEVICE_POLICY).read_text())


def test_its_specification_follows_from_the_plan(tmp_path):
    """Of nine rounds, three are three apart, and two are accounted for: five apart, two fit."""
    written = write(tmp_path, task_name="words")
    found = written["population_eligibility_spec"]
    device = export.DevicePolicy(task_name="words", minimum_separation=4, trust_seconds=5 * 900, timer_seconds=3 * 900)
    assert found == device.specification(1)
    assert found["task_info"][0]["task_assignment_mode"] == "TASK_ASSIGNMENT_MODE_SINGLE"
    assert written["client_flags"] == {"log_min_sep_index_to_phase_stats": True, "opstats_ttl_days": 30}


def test_devices_alone_do_not_enforce_fixed_epochs_and_the_file_says_so(tmp_path):
    assert write(tmp_path / "min-sep")["devices_alone_suffice"]
    found = write(tmp_path / "epochs", tff_mf.FixedEpoch(min_sep=3, max_participations=3))
    assert not found["devices_alone_suffice"]
    numbers = {"min_sep": 3, "max_participations": 3}
    assert found["participation"] == {
        "claimed": {"participation": "FixedEpoch", **numbers},
        "by_devices_alone": {"participation": "MinSep", **numbers},
    }


@pytest.mark.parametrize(
    "schema", [tff_mf.SingleParticipation(), tff_mf.FixedEpoch(min_sep=3, max_participations=1)], ids=str
)
def test_clients_can_enforce_single_participation(schema, tmp_path):
    found = write(tmp_path, schema)
    policies = found["population_eligibility_spec"]["eligibility_policies"]
    assert policies[0]["min_sep_policy"]["minimum_separation"] == 8
    assert found["devices_alone_suffice"]


def test_a_long_period_needs_a_long_history(tmp_path):
    assert write(tmp_path, minutes=9 * 24 * 60.0)["client_flags"]["opstats_ttl_days"] == 45
    with pytest.raises(tff_mf.InputError, match="longest_round is too long"):
        write(tmp_path / "other", minutes=1e10)


def test_names_follow_from_the_settings(tmp_path):
    names = [
        write(tmp_path / str(index), **privacy)["population_eligibility_spec"]["task_info"][0]["task_name"]
        for index, privacy in enumerate([{}, {}, {"noise_multiplier": 6.0}, {"task_name": "words/v2"}])
    ]
    assert names[0] == names[1] != names[2]
    assert names[3] == "words/v2"
    for name in ("", "a" * 129, "words\n"):
        with pytest.raises(tff_mf.InputError, match="task_name"):
            export.check_task_name(name)
