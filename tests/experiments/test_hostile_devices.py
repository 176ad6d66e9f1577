"""Hostile devices of every kind, and a server that is killed at calls of every kind: what the runner makes of them."""

import collections
import json
import math
import random

import numpy as np
import pytest
import safetensors.numpy
from runner_fleet import OUTCOMES, Fleet, expected, ledger_of, loaded_runner, numbers_of, operated

MIN_SEP, COHORT = 10, 4
# Of the calls that change files, half a round's: moments before and after each.
CALLS = {"fsync": 22, "replace": 8, "rename": 10, "unlink": 14, "link": 2}


@pytest.fixture(scope="module")
def runner(bundle):
    return loaded_runner(bundle.folder)


@pytest.fixture(scope="module")
def sent(bundle, runner, tmp_path_factory):
    """What became of the report of a hostile device of each kind, and the norm by which it changed the sum.

    In two attempts of a round: an intact report of the first one is of no use in the second.
    """
    root = tmp_path_factory.mktemp("hostile")
    hostile = {kind.replace(" ", "-"): kind for kind in OUTCOMES}
    words = dict.fromkeys(hostile, np.ones((2, 20), np.int64))
    fleet = Fleet(root / "devices", runner, bundle.folder, root / "run", words=words, hostile=hostile)
    runner.start(root / "run", bundle.folder)
    found = collections.defaultdict(list)
    with runner.opened(root / "run", bundle.folder) as deployment:
        for again in (False, True):
            deployment.prepare(list(hostile), minutes=30, again=again)
            for device, kind in hostile.items():
                outcome, change = fleet.received(deployment, device)
                squares = (np.square(each, dtype=np.float64).sum() for each in change.values())
                found[kind].append((outcome, math.sqrt(sum(squares))))
    return found


@pytest.mark.parametrize("kind", OUTCOMES)
def test_each_kind_is_refused_by_its_name_or_bounded(sent, kind):
    assert [outcome for outcome, _ in sent[kind]] == [expected(kind, again=again) for again in (False, True)]
    for outcome, norm in sent[kind]:
        # In float32, a sum of several updates changes by an update and by what its rounding adds.
        assert norm <= ((1 + 1e-5) if outcome.get("counted") and not outcome.get("zeroed") else 0)


def random_kills(count):
    generator = random.Random(0)
    names = [generator.choice(list(CALLS)) for _ in range(count)]
    return [(name, generator.randrange(CALLS[name])) for name in names]


@pytest.mark.parametrize(
    ("rounds", "kills"),
    [
        # Before the first state, in the middle of a round, and when a state is on disk that the ledger does not name.
        pytest.param(11, [("link", 0), ("rename", 31), ("link", 3)], id="3 kills"),
        # Long: each server loads the graphs again.
        pytest.param(40, random_kills(50), id="50 kills", marks=pytest.mark.long),
    ],
)
def test_a_killed_server_loses_nothing_and_releases_nothing_twice(bundle, runner, tmp_path, rounds, kills):
    devices = [f"device{index}" for index in range(COHORT * MIN_SEP)]
    cohorts = [devices[COHORT * (number % MIN_SEP) :][:COHORT] for number in range(rounds)]
    words = {device: np.full((2, 20), 1 + index) for index, device in enumerate(devices)}
    # A device that replays is chosen in the first round, and so again.
    kinds = sorted(OUTCOMES, key=lambda kind: kind != "replay")
    hostile = dict(zip(["device0", "device2", *devices[1::2]], kinds, strict=True))
    ends = operated(bundle.folder, tmp_path, cohorts=cohorts, words=words, hostile=hostile, kills=kills)
    assert ends == [9] * len(kills) + [0]
    book, numbers = ledger_of(tmp_path / "run"), list(range(1, rounds + 1))
    released = [entry for entry in book if entry["kind"] == "released"]
    assert [entry["round"] for entry in released] == numbers
    assert [(entry["round"], entry["attempt"]) for entry in book if entry["kind"] == "begin"] == [
        (number, 1) for number in numbers
    ]
    record = tmp_path / "devices" / "record.jsonl"
    # A report is lost whose device was killed before it sent what it had recorded; none is counted twice.
    lost, reasons = 0, set()
    for entry, cohort in zip(released, cohorts, strict=True):
        sent = collections.Counter()
        for device in cohort:
            sent.update(expected(hostile.get(device, ""), again=entry["round"] > MIN_SEP))
        assert collections.Counter(numbers_of(entry["reports"])) <= sent
        messages = COHORT + sum(hostile.get(device) == "twice" for device in cohort)
        lost += messages - entry["reports"]["came"]
        reasons |= set(entry["reports"]["refused"])
    assert lost <= sum(name == "rename" and moment % 2 == 0 for name, moment in kills)
    assert reasons == set(runner.REASONS)
    # However often a server continued a round, its devices saw one model.
    seen = {(entry["round"], entry["model"]) for entry in map(json.loads, record.read_text().splitlines())}
    assert len(seen) == len({model for _, model in seen}) == rounds
    for number in numbers:
        model = safetensors.numpy.load_file(tmp_path / "run" / "models" / f"round-{number:06d}.safetensors")
        assert all(np.isfinite(value).all() for value in model.values())
