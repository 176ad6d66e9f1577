"""What a pipeline can do wrong with a guard, and how it is told: rounds skipped, plans overridden, folders reused."""

import asyncio
import collections
import json
import pathlib
import sys
import threading

import numpy as np
import pytest

import tff_mf
from tff_mf.experiments import reports
from tff_mf.experiments.guard import opening
from tff_mf.experiments.privacy.plan import plan_privacy
from tff_mf.experiments.run_folder import ledger, names
from tff_mf.experiments.run_folder.participation_log import read_entries

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "fuzz"))
from run_folders import ANSWERS

COHORTS = [["a", "b"], ["c", "d"], ["e", "f"], ["g", "h"], ["i", "j"], ["k", "l"]]


def plan(**changes):
    arguments = {
        "mechanism": tff_mf.BLT.production("b100"),
        "rounds": 6,
        "participation": tff_mf.MinSep(min_sep=2, max_participations=2),
        "delta": 1e-6,
        "clients_per_round": 2,
        "noise_multiplier": 5.0,
    }
    return plan_privacy(**{**arguments, **changes})


def opened(folder, **more):
    return opening.open_guard(folder, plan(), **{"clip_norm": 1.0, "sampler": "by hand", **more})


def released(folder):
    return ledger.read_ledger(folder / names.LEDGER).released


@pytest.fixture(scope="module")
def aggregators():
    return pytest.importorskip("tff_mf.aggregators")


class Process:
    """The noise of a process's state without its model: what the guard looks at."""

    def __init__(self, aggregators, **changes):
        import tensorflow as tf

        arguments = {
            "mechanism": plan().mechanism,
            "clip_norm": 1.0,
            "noise_multiplier": 5.0,
            "clients_per_round": 2,
            **changes,
        }
        self.aggregator = aggregators.build_mf_aggregator(**arguments)
        self._query, self._sum = self.aggregator._query(tf.TensorSpec([2])), tf.zeros([2])

    def state(self, rounds):
        state, total = self._query.initial_global_state(), self._sum
        if self.aggregator.adaptive_clipping is not None:
            total = (total, np.float32(0))
        for _ in range(rounds):
            _, state, _ = self._query.get_noised_result(total, state)
        return collections.OrderedDict(model=np.zeros(2), aggregator=(state, ()))


@pytest.mark.parametrize("changes", [{}, {"restart_every": 2}], ids=["one stream", "restarts"])
def test_a_round_that_failed_and_was_skipped_is_found_at_the_next_release(tmp_path, aggregators, changes):
    """With restarts, a skip of a whole period has the same place in the stream, and another count."""
    process = Process(aggregators, **changes)
    with opened(tmp_path / "run", aggregator=process.aggregator, **changes) as guarded:
        guarded.goes_on_after(0, process.state(0))
        guarded.released(guarded.begin(COHORTS[0]), process.state(1))
        for clients in COHORTS[1:4]:
            number = guarded.begin(clients)
        for drawn in (2, 3, 5):
            with pytest.raises(tff_mf.InputError, match=rf"for {drawn} rounds.*load the state of round 1, call goes_b"):
                guarded.released(number, process.state(drawn))
        # What was computed since is thrown away, and only that helps: row 2 of the noise went to another cohort.
        for wrong in (
            lambda: guarded.begin(COHORTS[4]),
            lambda: guarded.goes_back_to(4),
            lambda: guarded.goes_on_after(3, process.state(3)),
            lambda: guarded.released(4, process.state(4)),
        ):
            with pytest.raises(tff_mf.InputError, match=r"goes_back_to\(2\) first"):
                wrong()
        assert released(tmp_path / "run") == {1: 1}
        guarded.goes_back_to(2)
        guarded.begin(COHORTS[5])
        with pytest.raises(tff_mf.InputError, match="must be the round that was begun last, 2"):
            guarded.released(1, process.state(1))
        guarded.released(2, process.state(2))
        # A round that fails, as it should be done; not every round is released.
        assert guarded.begin(COHORTS[4]) == 3
        guarded.goes_back_to(3)
        assert [guarded.begin([]), guarded.begin([])] == [3, 4]
        guarded.released(4, process.state(4))
    assert released(tmp_path / "run") == {1: 1, 2: 1, 3: 1, 4: 1}
    assert ledger.read_ledger(tmp_path / "run" / names.LEDGER).attempts == {1: 1, 2: 2, 3: 3, 4: 2}


def test_the_state_is_asked_for_and_is_that_of_the_aggregator(tmp_path, aggregators):
    process, other = Process(aggregators), Process(aggregators, clip_norm=2.0)
    with opened(tmp_path / "run", aggregator=process.aggregator) as guarded:
        with pytest.raises(TypeError, match="state=None"):
            guarded.goes_on_after(0)
        guarded.begin(COHORTS[0])
        with pytest.raises(TypeError, match="state=None"):
            guarded.released(1)
        for state, reason in ((other.state(1), "other noise than the aggregator"), ([np.zeros(2)], "no noise")):
            with pytest.raises(ValueError, match=reason):
                guarded.released(1, state)
        guarded.released(1, process.state(1))
    with opened(tmp_path / "run", aggregator=process.aggregator) as guarded:
        with pytest.raises(ValueError, match="drawn for 0 rounds"):
            guarded.goes_on_after(1, process.state(0))
        assert guarded.goes_on_after(1, process.state(1)) == 1


@pytest.mark.parametrize(
    "more",
    [
        {"noise_multiplier": 50.0},
        {"delta": 1e-5},
        {"rounds": 100},
        {"min_sep": 5},
        {"max_participations": 1},
        {"participation": "FixedEpoch"},
        {"insecure_seed": None},
        {"clients_per_round": 3},
        {"cohort": 1000, "simulation": True},
        {"divisor": 7.0},
        {"mechanism_sha256": "x"},
        {"epsilon": 1.0},
    ],
    ids=lambda more: next(iter(more)),
)
def test_what_the_plan_determines_cannot_be_given(tmp_path, more):
    with pytest.raises(ValueError, match=f"{next(iter(more))}= cannot be given"), opened(tmp_path / "run", **more):
        pass
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=f"{next(iter(more))}= cannot be given"):
        reports.write_configuration(tmp_path, plan(), clip_norm=1.0, **more)
    assert not (tmp_path / "run.json").exists()


class Lazy(collections.abc.Sequence):
    """Draws whenever it is read."""

    drawn = 0

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return list(self)[index]

    def __iter__(self):
        Lazy.drawn += 1
        return iter([f"client {Lazy.drawn}"])


def test_the_cohort_that_is_handed_out_is_the_one_on_disk(tmp_path):
    with opened(tmp_path / "run") as guarded:
        handed = [clients for _, clients in guarded.cohorts(Lazy() for _ in range(6))]
    assert [[each.client] for each in read_entries(tmp_path / "run" / "participation.csv")] == handed


def test_ids_that_cannot_be_written_leave_nothing_behind(tmp_path):
    with opened(tmp_path / "run") as guarded:
        before = (tmp_path / "run" / "participation.csv").read_bytes()
        for wrong in ([None], ["a", None]):
            with pytest.raises(TypeError, match="clients has None"):
                guarded.begin(wrong)
        with pytest.raises(ValueError, match="cannot be encoded in UTF-8"):
            guarded.begin(["a", "\ud800"])
        assert (tmp_path / "run" / "participation.csv").read_bytes() == before
        assert guarded.begin(["a", "b"]) == 1


def test_threads_that_begin_at_once_get_a_round_each(tmp_path):
    together, numbers = threading.Barrier(6), []
    with opened(tmp_path / "run") as guarded:

        def begin(clients):
            together.wait()
            numbers.append(guarded.begin(clients))

        threads = [threading.Thread(target=begin, args=(clients,)) for clients in COHORTS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(numbers) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "more",
    [
        {"population": 1},
        {"sampler": "another"},
        {"simulation": True},
        {"evaluation_columns": ["loss"]},
        {"released_without_noise": [{"name": "loss", "of": "training clients"}]},
    ],
    ids=lambda more: next(iter(more)),
)
def test_a_run_goes_on_with_what_it_was_started_with(tmp_path, more):
    begun = {"population": 20, "evaluation_columns": ("accuracy",)}
    for _ in range(2):
        with opened(tmp_path, **begun):
            pass
    with (
        pytest.raises(ValueError, match=f"{next(iter(more))}=.* is not the setting that the run"),
        opened(tmp_path, **{**begun, **more}),
    ):
        pass


def test_a_folder_of_a_run_that_ended_is_not_opened_again(tmp_path):
    folder = tmp_path / "run"
    with opened(folder) as guarded:
        (folder / "answers.json").write_text(json.dumps(ANSWERS))
        for number, _ in guarded.cohorts(COHORTS):
            guarded.released(number)
        guarded.end()
    lines = (folder / names.LEDGER).read_bytes().splitlines(keepends=True)
    (folder / names.LEDGER).write_bytes(b"".join(lines[:-1]))
    with pytest.raises(ValueError, match="has ended"), opened(folder):
        pass
    (folder / names.LEDGER).unlink()
    (folder / "participation.csv").unlink()
    with pytest.raises(ValueError, match="has ended"), opened(folder):
        pass


@pytest.mark.parametrize("name", ["model.safetensors", "metrics.csv", "participation.csv", "checkpoints/checkpoint_1"])
@pytest.mark.parametrize("emptied", [False, True])
def test_what_is_left_of_a_run_without_a_ledger_is_no_new_run(tmp_path, name, emptied):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    if emptied:
        (tmp_path / names.LEDGER).write_text('{"kind": "op')
    with pytest.raises(ValueError, match=rf"holds {name.split('/')[0]} of a run"), opened(tmp_path):
        pass


def test_an_aggregator_that_clips_adaptively_is_opened_with_its_counts(tmp_path, aggregators):
    from tff_mf import queries

    clipping = queries.AdaptiveClipping(count_stddev=3.0)
    process = Process(aggregators, restart_every=2, adaptive_clipping=clipping)
    for more in ({}, {"restart_every": 2}, {"restart_every": 2, "adaptive_count_stddev": 30.0}):
        with (
            pytest.raises(ValueError, match=r"must be 3\.0, the standard deviation"),
            opened(tmp_path / "other", aggregator=process.aggregator, **more),
        ):
            pass
    for more in ({}, {"restart_every": 3}):
        with (
            pytest.raises(ValueError, match="does not have the noise of the plan"),
            opened(tmp_path / "other", aggregator=process.aggregator, adaptive_count_stddev=3.0, **more),
        ):
            pass
    with (
        pytest.raises(ValueError, match="no adaptive_clipping"),
        opened(tmp_path / "other", aggregator=Process(aggregators).aggregator, adaptive_count_stddev=3.0),
    ):
        pass
    right = {"aggregator": process.aggregator, "restart_every": 2, "adaptive_count_stddev": 3.0}
    with opened(tmp_path / "run", **right) as guarded:
        for number in range(1, 4):
            guarded.begin(COHORTS[number], clip_norm=1.0)
        guarded.released(3, process.state(3))


def test_an_aggregator_of_another_cohort_is_refused(tmp_path, aggregators):
    with (
        pytest.raises(ValueError, match=r"clients_per_round=3\.0, and the plan is for 2"),
        opened(tmp_path / "run", aggregator=Process(aggregators, clients_per_round=3).aggregator),
    ):
        pass


@pytest.fixture
def parts(tmp_path, aggregators):
    """A guard's data source and what releases, with `begin(aggregator)`."""
    tff = pytest.importorskip("tensorflow_federated")
    from tff_mf.experiments.guard import guarded_source

    numbers = {name: {"x": np.zeros([2], np.float32)} for name in "abcdefghijkl"}
    data = tff.simulation.datasets.TestClientData(numbers)
    seen = []

    class Seen(tff.program.ReleaseManager):
        async def release(self, value, key):
            seen.append(key)

    def of(guarded, checkpoints):
        source = guarded_source.GuardedDataSource(guarded, data, lambda k: guarded.allowed("abcdefghijkl")[:k])
        return source, guarded_source.GuardedReleaseManager(Seen(), guarded, checkpoints), seen

    return of


def test_rounds_that_are_released_count_from_one(tmp_path, aggregators, parts):
    checkpoints = aggregators.CheckpointManager(tmp_path / "checkpoints")
    for first in (1, 3):
        with opened(tmp_path / "run") as guarded:
            source, manager, seen = parts(guarded, checkpoints)
            guarded.goes_on_after(first - 1)
            iterator = source.iterator()
            iterator.select(2)
            for key in {0, -1, first - 1, first + 1}:
                with pytest.raises(ValueError, match="key="):
                    asyncio.run(manager.release("model", key))
            assert seen == []
            iterator.select(2)
            asyncio.run(manager.release("model", np.int64(first)))
            asyncio.run(manager.release("model", first + 1))
            assert sorted(released(tmp_path / "run")) == list(range(1, first + 2))
            seen.clear()


def test_a_program_that_skips_a_round_saves_and_releases_nothing(tmp_path, aggregators, parts):
    process = Process(aggregators)
    checkpoints = aggregators.CheckpointManager(tmp_path / "checkpoints", aggregator=process.aggregator)
    with opened(tmp_path / "run", aggregator=process.aggregator) as guarded:
        source, manager, seen = parts(guarded, checkpoints)
        iterator = source.iterator()

        async def rounds():
            await checkpoints.save((process.state(0), iterator), 0)
            iterator.select(2)
            with pytest.raises(ValueError, match="the newest saved program state belongs to round 0"):
                await manager.release("model", 1)
            await checkpoints.save((process.state(1), iterator), 1)
            await manager.release("model", 1)
            iterator.select(2)
            iterator.select(2)
            # Its own count is right, that of the rounds that were begun is another.
            with pytest.raises(ValueError, match="round_number=3: the noise of the state was drawn for 2 rounds"):
                await checkpoints.save((process.state(2), iterator), 2)
            for key in (2, 3, "model"):
                with pytest.raises(RuntimeError, match="could not be saved"):
                    await manager.release("model", key)

        asyncio.run(rounds())
        assert (seen, released(tmp_path / "run")) == ([1], {1: 1})
        assert asyncio.run(checkpoints.get_versions()) == [0, 1]


def test_two_iterators_do_not_draw_in_turn(tmp_path, aggregators, parts):
    checkpoints = aggregators.CheckpointManager(tmp_path / "checkpoints")
    with opened(tmp_path / "run") as guarded:
        source, _, _ = parts(guarded, checkpoints)
        first, second = source.iterator(), source.iterator()
        second.select(2)
        with pytest.raises(ValueError, match="another iterator of the run"):
            first.select(2)
        again, _, _ = parts(guarded, checkpoints)
        third = again.iterator()
        third.select(2)
        with pytest.raises(ValueError, match="another iterator of the run"):
            second.select(2)
        loaded = type(third).from_bytes(third.to_bytes())
        with pytest.raises(ValueError, match="another iterator of the run"):
            third.select(2)
        loaded.select(2)
    assert ledger.read_ledger(tmp_path / "run" / names.LEDGER).attempts == {1: 1, 2: 1, 3: 1}
