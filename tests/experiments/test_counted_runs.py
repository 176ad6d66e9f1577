"""Small runs from end to end: sampling and data sets, curves, and what is on disk when one is killed."""

import contextlib
import os
import shutil
import threading

import pytest

from tff_mf.experiments.runs import ledger, names, results

from .shared import rows, took_part
from .small_runs import ROUNDS, trained


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
        ordered = [names.METRICS, names.LEDGER]
        rest = [each.name for each in folder.iterdir() if each.name not in (*ordered, names.CHECKPOINTS)]
        for name in (*ordered, *rest):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy2(folder / name, copied / name)
        if (folder / names.CHECKPOINTS).exists():
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


# One sentence of a client: the order of more is random.
REPEATABLE = [
    *("--mechanism", "identity", "--set", "insecure_seed=7", "--without-epsilon"),
    *("--set", "max_examples=1", "--set", "batch_size=1"),
]


def newest(folder):
    versions = [path.stem.removeprefix("checkpoint_") for path in (folder / names.CHECKPOINTS).glob("checkpoint_*")]
    return max(map(int, versions), default=0)


def without_seconds(folder):
    return [{name: text for name, text in row.items() if name != "seconds"} for row in rows(folder / names.METRICS)]


def test_whenever_a_run_is_killed_nothing_is_released_that_is_not_on_disk(small_data, left, tmp_path):
    folder, flags = tmp_path / "whole", REPEATABLE
    copies, finish = left(folder)
    trained(folder, small_data, flags)
    finish(True)
    assert len(copies) > 5 * ROUNDS
    seen = set()
    for each in copies:
        released, begun = 0, 0
        if (each / names.LEDGER).exists():
            record = ledger.read_ledger(each / names.LEDGER)
            assert not record.impossible
            released, begun = max(record.released, default=0), max(record.attempts, default=0)
        evaluated = results.read_metrics(each / names.METRICS).last_evaluated
        # The checkpoints are deleted once everything is written.
        if not (each / names.SUMMARY).exists():
            assert max(released, evaluated) <= newest(each) <= begun
        seen.add((newest(each), released, begun))
    # Checkpoints are of every second round: one began while another was not saved, or was saved and not released.
    assert any(begun > saved + 1 for saved, _, begun in seen)
    assert any(begun == saved > released for saved, released, begun in seen)
    # Resumed, some of them: the same end, and nothing runs again that was released.
    stopped = [each for each in copies if not (each / names.SUMMARY).exists()]
    for each in (stopped[2], stopped[len(stopped) // 2]):
        before = ledger.read_ledger(each / names.LEDGER) if (each / names.LEDGER).exists() else None
        trained(each, small_data, [*flags, "--resume"])
        record = ledger.read_ledger(each / names.LEDGER)
        assert not record.impossible
        assert record.ended
        for number in before.released if before else ():
            assert record.attempts[number] == before.attempts[number]
        assert without_seconds(each) == without_seconds(folder)
        assert set(took_part(each)) == set(took_part(folder))
