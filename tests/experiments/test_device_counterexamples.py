"""For each requirement on the server, a device that takes part too soon if it is not met."""

import dataclasses
import pathlib

import pytest
from federated_client import ALONE, CLAIM, DAY, ROUNDS, SECONDS, Client, device_of, merged, policy_of, world_of

import tff_mf
from tff_mf.experiments.bundles import _device_file, _policies


def twice(world, **second):
    """Two rounds side by side."""
    world.attempt()
    world.next_round()
    world.pass_time(60)
    world.attempt(**second)


def no_index(world):
    world.attempt(index=None)
    world.pass_time(device_of().timer_seconds)
    world.next_round()
    world.attempt()


def specification_ahead(world):
    world.attempt()
    # The timer would do if rounds took no longer than planned.
    world.pass_time(device_of().timer_seconds)
    world.next_round()
    world.attempt(specification=world.device.specification(world.round_number + 6))


def late(world):
    world.attempt(counted_in=6)
    world.next_round(7)
    world.attempt()


def same_name_of_two_policies(world):
    task, again = "words", dataclasses.replace(world.device, task_name="phrases")
    for _ in range(2):
        both = merged(world.device.specification(world.round_number), again.specification(world.round_number))
        for policy in both["eligibility_policies"]:
            policy["name"] = policy["name"].partition("/")[2]
        world.attempt(specification=both, task=task)
        world.next_round()


def pause(world):
    world.attempt()
    world.client.lose_history()
    world.pass_time(2 * DAY)
    world.next_round()
    world.attempt()


def clock_set_forward(world):
    world.attempt()
    world.client.lose_history()
    world.client.offset += DAY
    world.next_round()
    world.attempt()


def clock_put_right_after_a_reset(world):
    world.attempt()
    world.client.offset = -1000 * DAY
    world.client.lose_history()
    world.client.offset = 0
    world.next_round()
    world.attempt()


def clock_put_right_after_a_contribution(world):
    world.client.offset = -50 * DAY
    world.attempt()
    world.client.offset = 0
    # Another task's upload purges what seems to be 50 days old.
    world.client.upload("phrases", None)
    world.next_round()
    world.attempt()


def backup_put_back(world):
    kept = world.client.backup()
    world.attempt()
    world.client.restore(kept)
    world.next_round()
    world.attempt()


def reinstalled(world):
    world.attempt()
    world.client.lose_history()
    world.next_round()
    world.attempt()


# For each requirement on the server: what a device does if it is not met, and how the world is then made.
COUNTEREXAMPLES = {
    "index: a plan without it": ("index", no_index, {}),
    "index: a specification ahead of the plan": ("index", specification_ahead, {}),
    "late: counted in a later round": ("late", late, {}),
    "once: counted twice": ("once", lambda world: world.attempt(times=2), {}),
    "aborted: counted, and answered with ABORTED": (
        "aborted",
        lambda world: (world.attempt(aborted=True), world.next_round(), world.attempt()),
        {},
    ),
    "task_name: another name": (
        "task_name",
        lambda world: (
            world.attempt(),
            world.next_round(),
            world.attempt(
                specification=dataclasses.replace(world.device, task_name="more").specification(2), task="more"
            ),
        ),
        {},
    ),
    "task_name: weights are ignored": ("task_name", lambda world: twice(world, weights_are_kept=False), {}),
    "task_name: two policies of one name": ("task_name", same_name_of_two_policies, {}),
    "pauses: a pause of two days": ("pauses", pause, {}),
    "history: a clock set forward": ("history", clock_set_forward, {}),
    "history: a clock put right after a reset": ("history", clock_put_right_after_a_reset, {}),
    "history: a clock put right after a contribution": ("history", clock_put_right_after_a_contribution, {}),
    "history: a backup put back": ("history", backup_put_back, {}),
    "history: cannot be opened": ("history", twice, {"opens": False}),
}


@pytest.mark.parametrize("case", COUNTEREXAMPLES)
def test_if_the_server_breaks_a_requirement_a_device_takes_part_too_soon(case):
    name, play, more = COUNTEREXAMPLES[case]
    assert name in _device_file.REQUIREMENTS
    world = world_of(client=Client(**more))
    play(world)
    assert not CLAIM.allows(world.counted)


@pytest.mark.parametrize("case", COUNTEREXAMPLES)
def test_a_server_that_identifies_devices_keeps_the_claim_nevertheless(case):
    _, play, more = COUNTEREXAMPLES[case]
    world = world_of(client=Client(**more), checked=ALONE)
    play(world)
    assert CLAIM.allows(world.counted)


def test_every_critical_requirement_has_a_counterexample():
    shown = {name for name, _, _ in COUNTEREXAMPLES.values()} | {"versions", "places"}
    known = {**_device_file.REQUIREMENTS, **_device_file.PLACES}
    assert shown == {name for name, severity in known.items() if severity == "critical"}
    page = (pathlib.Path(__file__).parents[2] / "docs" / "deployment.md").read_text()
    assert [name for name in known if f"`{name}`" not in page] == []


def test_a_reinstalled_device_waits_for_the_trust_period():
    world = world_of()
    reinstalled(world)
    assert world.counted == [1]
    short = world_of(device_of(trust_seconds=1, timer_seconds=1))
    reinstalled(short)
    assert not CLAIM.allows(short.counted)
    # Two days of pause need a period longer by two days.
    longer = world_of(device_of(trust_seconds=device_of().trust_seconds + 2 * DAY))
    pause(longer)
    assert longer.counted == [1]


def test_the_timer_works_without_an_index():
    """A second guard, as long as rounds take no longer than planned."""
    assert device_of().timer_seconds == CLAIM.min_sep * SECONDS
    for seconds, counted in ((device_of().timer_seconds, [1]), (1, [1, 2])):
        world = world_of(device_of(timer_seconds=seconds))
        world.attempt(index=None)
        world.next_round()
        world.attempt()
        assert world.counted == counted


def test_clients_that_do_not_find_their_index_are_kept_out_by_the_version():
    old = Client(phase_stats=False)
    world = world_of(client=old)
    twice(world)
    assert world.counted == []
    specifications = [device_of(timer_seconds=1).specification(number) for number in (1, 2)]
    for specification in specifications:
        specification["eligibility_policies"][0]["min_version"] = 1
        world.attempt(
            specification=specification,
            index=specification["eligibility_policies"][0]["min_sep_policy"]["current_index"],
        )
        world.next_round()
    assert not CLAIM.allows(world.counted)


def test_no_client_keeps_a_place_in_each_epoch():
    claim = tff_mf.FixedEpoch(min_sep=4, max_participations=5)
    world = world_of(device_of(claim))
    world.attempt()
    world.next_round(5)
    world.attempt()
    assert world.counted == [1, 6]
    assert not claim.allows(world.counted)
    assert _policies.of_devices_alone(policy_of(claim), ROUNDS).allows(world.counted)
    checked = world_of(device_of(claim), checked=claim)
    checked.attempt()
    checked.next_round(5)
    assert not checked.attempt()
