"""While a round trains, the next cohort is read, the last model evaluated and saved: whenever the run is killed."""

import contextlib
import csv
import os
import shutil
import threading
import types

import pytest

pytest.importorskip("tensorflow_federated")

from tff_mf.experiments.runs import ledger, metrics, names, participation_log, server_loop
from tff_mf.experiments.training import checkpoints, rounds
from tff_mf.experiments.training.client_batches import read_ahead

from . import stand_in
from .shared import invoke

ROUNDS = stand_in.ROUNDS


def test_one_chunk_is_read_ahead_and_errors_come_when_they_are_due():
    asked = []
    second = threading.Event()

    def chunks():
        for number in range(4):
            asked.append((number, threading.get_ident()))
            if number == 1:
                second.set()
            if number == 3:
                raise OSError("disk")
            yield number

    with contextlib.closing(read_ahead(chunks())) as ahead:
        assert next(ahead) == 0
        assert second.wait(10)
        assert [next(ahead), next(ahead)] == [1, 2]
        with pytest.raises(OSError, match="disk"):
            next(ahead)
    assert [number for number, _ in asked] == [0, 1, 2, 3]
    assert threading.get_ident() not in {thread for _, thread in asked}


class Saved:
    """Checkpoints whose saves wait for `go`, of every second round and of each release."""

    def __init__(self, fails_in=0):
        self.go, self.happened, self.histories, self.fails_in = threading.Event(), [], [], fails_in

    resumes = True

    def is_due(self, round_number, *, released):
        return released or round_number % 2 == 0

    def save(self, round_number, progress):
        assert self.go.wait(10)
        if round_number == self.fails_in:
            raise OSError("No space left on device")
        self.happened.append(f"saved {round_number}")
        self.histories.append([each["round"] for each in progress.history])


@contextlib.contextmanager
def opened(saved):
    async def release(value, key):
        assert value["seconds"] == key
        saved.happened.append(f"row {key}")

    loop = types.SimpleNamespace(save=saved.save, released=lambda number: saved.happened.append(f"ledger {number}"))
    manager = types.SimpleNamespace(release=release)
    said = {"on_round": lambda number, _: saved.happened.append(f"on {number}"), "history": ()}
    with rounds.Releases(saved=saved, loop=loop, managers=[manager], **said) as found:
        yield found
    assert [each["round"] for each in found.history] == saved.histories[-1]


def add(found, number, **metrics):
    found.add(
        checkpoints.Progress(state=None, round_number=number, seconds=number), (lambda: metrics) if metrics else None
    )


def test_nothing_of_a_round_is_released_before_it_is_on_disk():
    saved = Saved()
    with opened(saved) as found:
        add(found, 1)
        assert saved.happened == ["row 1", "on 1"]
        add(found, 2)
        # The next round trains now, and the checkpoint is being written.
        assert saved.happened == ["row 1", "on 1"]
        saved.go.set()
        add(found, 3, loss=1.0)
        assert saved.happened[:6] == ["row 1", "on 1", "saved 2", "ledger 2", "row 2", "on 2"]
    assert saved.happened[6:] == ["saved 3", "ledger 3", "row 3", "on 3"]


def test_a_model_is_evaluated_while_the_next_round_trains_and_saved_with_its_metrics():
    saved, measured, thread = Saved(), threading.Event(), []

    def evaluate():
        thread.append(threading.get_ident())
        assert measured.wait(10)
        return {"loss": 1.0}

    saved.go.set()
    with opened(saved) as found:
        add(found, 1, loss=2.0)
        found.add(checkpoints.Progress(state=None, round_number=2, seconds=2), evaluate)
        # The next round trains now, and the model is being evaluated.
        assert saved.happened == ["saved 1", "ledger 1", "row 1", "on 1"]
        measured.set()
        add(found, 3)
        assert saved.happened[4:] == ["saved 2", "ledger 2", "row 2", "on 2", "row 3", "on 3"]
        add(found, 4)
    assert saved.histories == [[1], [1, 2], [1, 2]]
    assert thread != [threading.get_ident()]


@pytest.mark.parametrize("number", [2, 3])
def test_an_evaluation_that_fails_stops_the_run_and_nothing_of_its_round_is_saved_or_released(number):
    saved = Saved()
    saved.go.set()
    threads = threading.active_count()

    def fails():
        raise ArithmeticError("not a number")

    def run():
        with opened(saved) as found:
            add(found, 1)
            if number == 3:
                add(found, 2)
            found.add(checkpoints.Progress(state=None, round_number=number, seconds=number), fails)
            add(found, number + 1)

    with pytest.raises(ArithmeticError, match="not a number"):
        run()
    before = ["row 1", "on 1", "saved 2", "ledger 2", "row 2", "on 2"]
    assert saved.happened == before[: 2 if number == 2 else 6]
    assert threading.active_count() == threads


def test_a_failed_save_stops_the_run_and_releases_nothing_more():
    saved = Saved(fails_in=2)
    saved.go.set()

    def run():
        with opened(saved) as found:
            for number in (1, 2, 3, 4):
                add(found, number)

    with pytest.raises(OSError, match="No space left"):
        run()
    assert saved.happened == ["row 1", "on 1"]


def test_a_round_that_is_interrupted_finishes_the_save_of_the_last_one_and_does_not_release_it():
    saved = Saved()
    saved.go.set()

    def run():
        with opened(saved) as found:
            add(found, 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert saved.happened == ["saved 2"]


@pytest.fixture
def trained(small_data, monkeypatch):
    """A function that trains a run in a folder, with a stand-in for TFF, and asserts that it ends."""
    stand_in.put_in_place(monkeypatch)

    def run(folder, *more):
        done = invoke(*stand_in.arguments(folder, small_data, ["--mechanism", "identity"]), *more)
        assert done.exit_code == 0, done.output + repr(done.exception)

    return run


@pytest.fixture
def left(monkeypatch, tmp_path):
    """Copies of a run's folder around each `fsync`, in whatever thread: what a run that is killed then leaves."""
    found, fsync, one_at_a_time, finished = [], os.fsync, threading.Lock(), []

    def copy(folder):
        if finished or not (folder / names.CHECKPOINTED_RUN).exists():
            return
        copied = tmp_path / f"left{len(found)}"
        copied.mkdir()
        # Other threads go on meanwhile. What must not be ahead is copied first, and what must be first on disk last.
        ordered = [names.METRICS, names.LEDGER, names.PARTICIPATION]
        rest = [each.name for each in folder.iterdir() if each.name not in (*ordered, names.CHECKPOINTS)]
        for name in (*ordered, *rest):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy2(folder / name, copied / name)
        shutil.copytree(folder / names.CHECKPOINTS, copied / names.CHECKPOINTS, ignore=shutil.ignore_patterns(".*"))
        found.append(copied)

    def copying(folder):
        def around(descriptor):
            with one_at_a_time:
                copy(folder)
            fsync(descriptor)
            with one_at_a_time:
                copy(folder)

        monkeypatch.setattr(os, "fsync", around)
        return found, finished.append

    return copying


@pytest.fixture
def saved_late(monkeypatch):
    """Each checkpoint is written once the next round has begun, the longest time that a round is not on disk."""
    begin, save, last, changed = server_loop.ServerLoop.begin, checkpoints.Recovery.save, [0], threading.Condition()

    def beginning(loop, clients, **more):
        number = begin(loop, clients, **more)
        with changed:
            last.append(number)
            changed.notify_all()
        return number

    def saving(saved, number, progress, about):
        with changed:
            assert number == ROUNDS or changed.wait_for(lambda: last[-1] > number, 10)
        save(saved, number, progress, about)

    monkeypatch.setattr(server_loop.ServerLoop, "begin", beginning)
    monkeypatch.setattr(checkpoints.Recovery, "save", saving)


def newest(folder):
    versions = [path.stem.removeprefix("checkpoint_") for path in (folder / names.CHECKPOINTS).glob("checkpoint_*")]
    return max(map(int, versions), default=0)


def rows(folder):
    with (folder / names.METRICS).open(newline="") as file:
        return [{name: text for name, text in row.items() if name != "seconds"} for row in csv.DictReader(file)]


def participations(folder):
    return {(each.round_number, each.client) for each in participation_log.read_entries(folder / names.PARTICIPATION)}


def test_whenever_a_run_is_killed_nothing_is_released_that_is_not_on_disk(trained, left, saved_late, tmp_path):
    folder = tmp_path / "whole"
    copies, finish = left(folder)
    trained(folder)
    finish(True)
    assert len(copies) > 5 * ROUNDS
    seen = set()
    for each in copies:
        released, begun = 0, 0
        if (each / names.LEDGER).exists():
            record = ledger.read_ledger(each / names.LEDGER)
            assert not record.impossible
            released, begun = max(record.released, default=0), max(record.attempts, default=0)
        evaluated = metrics.read_metrics(each / names.METRICS).last_evaluated
        # The checkpoints are deleted once everything is written.
        if not (each / names.SUMMARY).exists():
            assert max(released, evaluated) <= newest(each) <= begun
        seen.add((newest(each), released, begun))
    # Checkpoints are of every second round: one began while two were not saved, or saved and not released.
    assert any(begun > saved + 2 for saved, _, begun in seen)
    assert any(begun > saved > released for saved, released, begun in seen)
    # Resumed, some of them: the same end, and nothing runs again that was released.
    stopped = [each for each in copies if not (each / names.SUMMARY).exists()]
    for each in stopped[2 :: len(stopped) // 5]:
        before = ledger.read_ledger(each / names.LEDGER) if (each / names.LEDGER).exists() else None
        trained(each, "--resume")
        record = ledger.read_ledger(each / names.LEDGER)
        assert not record.impossible
        assert record.ended
        for number in before.released if before else ():
            assert record.attempts[number] == before.attempts[number]
        assert rows(each) == rows(folder)
        assert participations(each) == participations(folder)


def test_reading_ahead_and_evaluating_meanwhile_change_nothing(trained, tmp_path, monkeypatch):
    trained(tmp_path / "ahead")
    monkeypatch.setattr(rounds, "read_ahead", lambda chunks: (each for each in chunks))
    add, waited = rounds.Releases.add, []

    def waiting(found, progress, evaluate=None):
        add(found, progress, evaluate)
        found.finish()
        waited.append(progress.round_number)

    monkeypatch.setattr(rounds.Releases, "add", waiting)
    trained(tmp_path / "one by one")
    assert waited == [*range(1, ROUNDS + 1)]
    one, other = tmp_path / "ahead", tmp_path / "one by one"
    assert rows(one) == rows(other)
    assert (one / names.PARTICIPATION).read_bytes() == (other / names.PARTICIPATION).read_bytes()
