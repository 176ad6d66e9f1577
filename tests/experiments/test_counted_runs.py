"""What is on disk at any moment of a run: clients before their data train, a state before it is released."""

import os
import threading

from tff_mf.base import checkpoint_files
from tff_mf.experiments.runs import ledger, names, results

from .small_runs import ROUNDS, trained


def test_at_any_moment_nothing_is_released_that_is_not_on_disk(small_data, tmp_path, monkeypatch):
    """Around each `fsync`, in whatever thread: a kill there leaves what is there."""
    folder, fsync, one_at_a_time, seen = tmp_path / "run", os.fsync, threading.Lock(), []

    def look():
        book = folder / names.LEDGER
        # The checkpoints are deleted once everything is written.
        if not book.exists() or (folder / names.SUMMARY).exists():
            return
        # Other threads go on meanwhile: what must not be ahead is read first.
        evaluated = results.read_metrics(folder / names.METRICS).last_evaluated
        released = ledger.read_ledger(book).last_released
        saved = max(checkpoint_files.saved_rounds(folder / names.CHECKPOINTS), default=0)
        record = ledger.read_ledger(book)
        seen.append((evaluated, released, saved, max(record.attempts, default=0), record.impossible))

    def around(descriptor):
        for happens in (look, lambda: fsync(descriptor), look):
            with one_at_a_time:
                happens()

    monkeypatch.setattr(os, "fsync", around)
    # Of every fifth round, and before each evaluation.
    trained(folder, small_data, ["--mechanism", "identity", "--set", "checkpoint_every=5"])
    assert len(seen) > 5 * ROUNDS
    assert [each for each in seen if not max(each[:2]) <= each[2] <= each[3] or each[4]] == []
    # One round began while another was not saved, or was saved and not released.
    assert any(begun > saved + 1 for _, _, saved, begun, _ in seen)
    assert any(begun == saved > released for _, released, saved, begun, _ in seen)
