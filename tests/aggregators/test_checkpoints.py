"""Checkpoints contain everything that cannot be recomputed, and no released round is run again."""

import asyncio
import functools
import os

import numpy as np
import pytest
import tensorflow_federated as tff
import tree

import tff_mf
from tff_mf import aggregators, queries

from ..conftest import OTHER_NOISE
from .conftest import noise_of


def start(process):
    with_text = {"text": "ε", "bytes": b"\x00\xff", "nothing": None, "rounds": 0, "half": 0.5, "yes": True}
    return {"state": process.initialize(), "others": with_text, "tuple": (np.float64(2), np.zeros([0, 3], np.int32))}


SHAPE = 3000


@pytest.fixture(scope="module", autouse=True)
def resident(taken_apart_once):
    """A round takes two thirds of the time that it takes in TFF's own context."""
    with aggregators.resident_context():
        yield


ROUNDS = 9
# One of each kind of memory; test_noise_laws.py replays every mechanism.
TREE = tff_mf.Tree(ROUNDS, variant="full")
RUNS = {
    "blt": {},
    "banded": {"mechanism": tff_mf.optimize_banded(rounds=ROUNDS, bands=3)},
    "dense": {"mechanism": tff_mf.optimize_dense(rounds=ROUNDS, participation=tff_mf.SingleParticipation())},
    "tree": {"mechanism": TREE},
    "restarts of a tree": {
        "mechanism": TREE,
        "restart_every": 4,
        "adaptive_clipping": queries.AdaptiveClipping(count_stddev=1.0),
    },
    "grid of the model": {"grid": "auto"},
}


@pytest.mark.parametrize(
    ("name", "replays"),
    [("blt", False), *((each, True) for each in RUNS)],
)
def test_a_loaded_state_is_the_saved_one_to_the_bit_and_goes_on_with_fresh_keys(regression, tmp_path, name, replays):
    aggregator, process = aggregator_and_process(regression, name, SHAPE)
    manager = aggregators.CheckpointManager(tmp_path / "c", aggregator=aggregator if replays else None)
    value, saved = [np.ones(SHAPE, np.float32)], start(process)
    for _ in range(7):
        saved["state"] = process.next(saved["state"], value).state
    saved["others"] |= {"rounds": 7, "text": "δ"}
    asyncio.run(manager.save(saved, 7))
    loaded, version = asyncio.run(manager.load_latest(start(process)))
    assert version == 7
    assert loaded["others"] == saved["others"]
    for one, other in zip(tree.flatten(loaded), tree.flatten(saved), strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.shape(one) == np.shape(other)
    # The next round draws a fresh key after the same past.
    after, again = (process.next(loaded["state"], value) for _ in range(2))
    # On a grid, one of 3,000 coordinates is equal by chance in one of ten runs.
    assert np.mean(np.asarray(after.result) == np.asarray(again.result)) < 0.01
    if name != "restarts of a tree":
        assert noise_of(after.state).round == 8
        past = [np.asarray(noise_of(each).keys)[:7] for each in (after.state, saved["state"])]
        np.testing.assert_array_equal(*past)


def test_old_checkpoints_are_deleted_and_no_version_is_written_twice(tmp_path):
    manager = aggregators.CheckpointManager(tmp_path / "c")
    assert asyncio.run(manager.load_latest({"x": 0})) == (None, 0)
    for version in (1, 2, 10):
        asyncio.run(manager.save({"x": np.float32(version)}, version))
    assert asyncio.run(manager.get_versions()) == [2, 10]
    assert asyncio.run(manager.load_latest({"x": 0})) == ({"x": 10.0}, 10)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "c").iterdir()} == {0o600}
    with pytest.raises(tff.program.ProgramStateExistsError):
        asyncio.run(manager.save({"x": 3}, 10))
    with pytest.raises(tff.program.ProgramStateNotFoundError):
        asyncio.run(manager.load(1, {"x": 0}))
    asyncio.run(manager.remove_all())
    assert list((tmp_path / "c").iterdir()) == []


OTHERS = {
    "smaller σ": {"noise_multiplier": 0.4},
    "smaller ζ": {"clip_norm": 0.05},
    "same product": {"clip_norm": 2.0, "noise_multiplier": 0.25},
    "known keys": {"insecure_seed": 3},
    "mechanism": {"mechanism": tff_mf.BLT.production("b100")},
    "restarts": {"restart_every": 7},
    "grid": {"grid": tff_mf.Grid(bits=12, max_clients=40)},
}
MANAGERS = {
    "replay": lambda folder, aggregator: aggregators.CheckpointManager(folder, aggregator=aggregator),
    "no aggregator": lambda folder, aggregator: aggregators.CheckpointManager(folder),
}


@functools.cache
def aggregator_and_process(regression, name, size=2):
    """An aggregator with the named noise, and its process, which is traced once for all contexts."""
    mine = {"insecure_seed": None, "noise_multiplier": 0.5, "clip_norm": 1.0}
    aggregator = regression.aggregator(**{**mine, **{**RUNS, **OTHERS}[name]})
    return aggregator, aggregator.create(tff.TensorType(np.float32, [size]))


# The graph has no structure for these states, or is the same for them.
UNKNOWN_TO_THE_GRAPH = ("restarts", "grid")


@pytest.mark.sampled
@pytest.mark.parametrize("manager", MANAGERS.values(), ids=MANAGERS)
@pytest.mark.parametrize("name", OTHERS)
def test_a_state_with_other_noise_is_neither_loaded_nor_stepped(regression, tmp_path, manager, name):
    (ours, process), (other, others) = (aggregator_and_process(regression, each) for each in ("blt", name))
    state = process.next(process.initialize(), [np.ones(2, np.float32)]).state
    asyncio.run(manager(tmp_path / "ours", ours).save({"state": state}, 1))
    with pytest.raises(tff_mf.InputError, match=r"(other noise|another structure).*with grid=None if it began in fl"):
        asyncio.run(manager(tmp_path / "ours", other).load(1, {"state": others.initialize()}))
    if name in UNKNOWN_TO_THE_GRAPH:
        return
    files = tff.program.FileProgramStateManager(tmp_path / "tff")
    asyncio.run(files.save({"state": state}, 1))
    loaded = asyncio.run(files.load(1, {"state": others.initialize()}))["state"]
    for each in (loaded, state):
        with pytest.raises(tff_mf.InputError, match=OTHER_NOISE):
            others.next(each, [np.ones(2, np.float32)])


def test_loading_keys_without_rows_needs_the_aggregator(regression, tmp_path):
    aggregator, process = aggregator_and_process(regression, "blt")
    state = process.initialize()
    asyncio.run(aggregators.CheckpointManager(tmp_path, aggregator=aggregator).save(state, 1))
    with pytest.raises(tff_mf.InputError, match="pass aggregator="):
        asyncio.run(aggregators.CheckpointManager(tmp_path).load(1, state))


def test_damaged_and_foreign_files_are_refused(tmp_path):
    manager = aggregators.CheckpointManager(tmp_path)
    asyncio.run(manager.save({"x": np.zeros(100)}, 1))
    with pytest.raises(tff_mf.InputError, match="another structure"):
        asyncio.run(manager.load(1, {"x": 0, "y": 0}))
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for damaged in (b"", whole[:50], whole[:-1], whole.replace(b"tff_mf_checkpoint", b"tff_mf_checkpoinT")):
        path.write_bytes(damaged)
        with pytest.raises(tff_mf.InputError, match="damaged"):
            asyncio.run(manager.load(1, {"x": 0}))


class Recording(tff.program.ReleaseManager):
    def __init__(self, folder):
        self.folder, self.seen = folder, []

    async def release(self, value, key):
        self.seen.append((key, sorted(path.name for path in self.folder.glob("checkpoint_*"))))


def test_a_release_waits_for_the_checkpoint(tmp_path):
    checkpoints = aggregators.CheckpointManager(tmp_path)
    recording = Recording(tmp_path)
    manager = aggregators.WriteAheadReleaseManager(recording, checkpoints)

    async def as_in_the_training_program_of_tff():
        tasks = [checkpoints.save({"x": np.zeros(1000)}, 1), recording.release(0, "alone"), manager.release(0, "waits")]
        await asyncio.gather(*tasks)

    asyncio.run(as_in_the_training_program_of_tff())
    assert recording.seen == [("alone", []), ("waits", ["checkpoint_1.safetensors"])]


def test_nothing_is_released_after_a_failed_checkpoint(tmp_path, monkeypatch):
    checkpoints = aggregators.CheckpointManager(tmp_path)
    recording = Recording(tmp_path)
    manager = aggregators.WriteAheadReleaseManager(recording, checkpoints)
    monkeypatch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError("full")))

    async def both():
        saving = asyncio.create_task(checkpoints.save({"x": np.zeros(100)}, 1))
        releasing = asyncio.create_task(manager.release(0, "waits"))
        return await asyncio.gather(saving, releasing, return_exceptions=True)

    saving, releasing = asyncio.run(both())
    assert isinstance(saving, OSError)
    assert isinstance(releasing, RuntimeError)
    assert recording.seen == []
