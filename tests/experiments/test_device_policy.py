"""The clients' policy of a bundle: what clients that keep it do, and what a server must do for it."""

import dataclasses
import itertools
import math
import random

import pytest
from federated_client import CLAIM, DAY, ROUNDS, SECONDS, Client, World, device_of, merged, world_of
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf.experiments.guard import export


def test_a_client_counts_the_rounds_between():
    assert device_of(tff_mf.MinSep(min_sep=7, max_participations=3)).minimum_separation == 6
    world = world_of()
    took_part = [world.attempt()]
    for _ in range(7):
        world.pass_time(1)
        world.next_round()
        took_part.append(world.attempt())
    assert took_part == [True] + [False] * 6 + [True]


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
        world = world_of(device)
        for happens in history:
            world.pass_time(1)
            if happens == "wiped":
                world.client.lose_history()
            if happens != "not asked" and world.attempt() and happens == "lost":
                world.counted.pop()
            world.next_round()
        found.add(tuple(number - 1 for number in world.counted))
    assert found == set(export.of_devices_alone(claim, rounds).patterns(rounds))


HAPPENS = ("counted", "unanswered", "lost", "late", "aborted", "wiped", "pruned", "set back", "other")
CHANCES = (6, 2, 1, 1, 2, 2, 1, 1, 2)
HISTORIES = 40


@given(st.integers(1, 6), st.integers(1, 5), st.integers(8, 24), st.integers(1, 30), st.integers(0, 2**32))
def test_any_history_is_a_pattern_of_what_is_claimed(min_sep, limit, rounds, days, seed):
    """Rounds are no longer than planned, the clock is only ever set back, and the server does what it must."""
    claim = tff_mf.MinSep(min_sep=min_sep, max_participations=limit)
    device = device_of(claim, rounds)
    kept = export.of_devices_alone(claim, rounds)
    other = dataclasses.replace(device_of(tff_mf.MinSep(min_sep=2, max_participations=9)), task_name="phrases")
    chance = random.Random(seed)
    for _ in range(HISTORIES):
        world = World(device, round_seconds=chance.uniform(0.1, 1) * SECONDS, client=Client(days=days))
        for _ in range(rounds):
            both = merged(other.specification(world.round_number), device.specification(world.round_number))
            with world.a_round():
                for moment in sorted(chance.random() for _ in range(chance.randrange(4))):
                    world.be_at(moment)
                    happen(world, chance.choices(HAPPENS, CHANCES)[0], both)
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
    elif world.attempt(specification=both, aborted=happens == "aborted") and happens not in ("counted", "unanswered"):
        # It is in no sum: it never arrived, came too late, or was refused.
        world.counted.pop()


@given(st.integers(1, 6), st.integers(6, 20), st.integers(0, 2**32))
def test_a_period_that_follows_the_rounds_holds_through_pauses(min_sep, rounds, seed):
    """Rounds of any length: the period reaches from the start of the round b − 1 before to the end of this one."""
    claim = tff_mf.MinSep(min_sep=min_sep, max_participations=rounds)
    device = device_of(claim, rounds, timer_seconds=1)
    chance = random.Random(seed)
    for _ in range(HISTORIES):
        lengths = [SECONDS * 10 ** chance.uniform(-2, 3) for _ in range(rounds)]
        starts = [sum(lengths[:number]) for number in range(rounds + 1)]
        world = world_of(device)
        for number in range(rounds):
            period = starts[number + 1] - starts[max(0, number - device.minimum_separation)]
            world.device = dataclasses.replace(device, trust_seconds=math.ceil(period))
            with world.a_round(lengths[number]):
                for moment in sorted(chance.uniform(0.01, 0.99) for _ in range(2)):
                    world.be_at(moment)
                    if chance.random() < 0.3:
                        world.client.lose_history()
                    world.attempt()
        assert claim.allows(world.counted)


def every_round(world):
    for _ in range(ROUNDS):
        world.attempt()
        world.next_round()
        world.pass_time(1)


def test_min_sep_alone_bounds_no_participations_but_by_the_length_of_the_run():
    world = world_of(device_of(minimum_separation=CLAIM.min_sep - 1))
    every_round(world)
    assert len(world.counted) == math.ceil(ROUNDS / CLAIM.min_sep) == 5
    assert not CLAIM.allows(world.counted)
    world = world_of()
    every_round(world)
    assert world.counted == [1, 8, 15]


def test_a_client_that_counts_the_difference_would_let_devices_in_too_soon():
    """Such a client does with a number what the real one does with one less."""
    world = world_of(device_of(minimum_separation=device_of().minimum_separation - 1))
    every_round(world)
    assert world.counted == [1, 7, 13, 19]
    assert not CLAIM.allows(world.counted)


def test_a_client_that_forgets_too_soon_never_takes_part_again():
    """The warning: a matter of who takes part, and not of privacy."""
    device = device_of(trust_seconds=40 * DAY)
    world = world_of(device)
    assert world.attempt()
    for day in range(100):
        world.pass_time(DAY)
        world.next_round()
        # Another task's upload each day, so that there is always something old.
        world.client.upload("phrases", day)
        if day > 30:
            assert not world.attempt()


def test_a_reinstalled_device_waits_for_the_trust_period():
    for device, counted in ((device_of(), [1]), (device_of(trust_seconds=1, timer_seconds=1), [1, 2])):
        world = world_of(device)
        world.attempt()
        world.client.lose_history()
        world.next_round()
        world.attempt()
        assert world.counted == counted


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
    world = world_of(client=Client(phase_stats=False))
    for _ in range(2):
        world.attempt()
        world.next_round()
        world.pass_time(60)
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
    assert export.of_devices_alone(claim, ROUNDS).allows(world.counted)
