"""While a round trains, the next cohort is read; whenever a run is killed, what it released is on disk."""

import contextlib
import csv
import os
import shutil
import threading

import pytest

from tff_mf.experiments.runs import ledger, metrics, names, participation_log
from tff_mf.experiments.training import rounds
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
        if finished or not (folder / names.LEDGER).exists():
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


def newest(folder):
    versions = [path.stem.removeprefix("checkpoint_") for path in (folder / names.CHECKPOINTS).glob("checkpoint_*")]
    return max(map(int, versions), default=0)


def rows(folder):
    with (folder / names.METRICS).open(newline="") as file:
        return [{name: text for name, text in row.items() if name != "seconds"} for row in csv.DictReader(file)]


def participations(folder):
    return {(each.round_number, each.client) for each in participation_log.read_entries(folder / names.PARTICIPATION)}


def test_whenever_a_run_is_killed_nothing_is_released_that_is_not_on_disk(trained, left, tmp_path):
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
    # Checkpoints are of every second round: one began while another was not saved, or was saved and not released.
    assert any(begun > saved + 1 for saved, _, begun in seen)
    assert any(begun == saved > released for saved, released, begun in seen)
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


def test_reading_ahead_changes_nothing(trained, tmp_path, monkeypatch):
    trained(tmp_path / "ahead")
    monkeypatch.setattr(rounds, "read_ahead", lambda chunks: (each for each in chunks))
    trained(tmp_path / "one by one")
    one, other = tmp_path / "ahead", tmp_path / "one by one"
    assert rows(one) == rows(other)
    assert (one / names.PARTICIPATION).read_bytes() == (other / names.PARTICIPATION).read_bytes()
