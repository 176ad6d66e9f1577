"""Small runs from end to end: sampling and data sets, curves, and what is on disk when one is killed."""

import contextlib
import json
import os
import shutil
import threading

import pytest
import run_folders

import tff_mf
from tff_mf.experiments import reports, train
from tff_mf.experiments.runs import ledger, names, results
from tff_mf.experiments.runs.folders import ExecutionSettings
from tff_mf.experiments.runs.ledger import Rules

from .shared import StoppedError, open_loop, rows, small_settings, stop_after, took_part
from .small_runs import ROUNDS, trained

SMALL = {"client_learning_rate": 0.5, "max_examples": 4, "batch_size": 4, "evaluate_every": 2}


def privacy(rounds, min_sep, max_participations, clients_per_round=2, noise_multiplier=4.0):
    schema = tff_mf.MinSep(min_sep=min_sep, max_participations=max_participations)
    own = {"clients_per_round": clients_per_round, "noise_multiplier": noise_multiplier}
    return run_folders.plan(mechanism=tff_mf.Identity(), rounds=rounds, sampling=schema, **own)


SCHEMA = tff_mf.MinSep(min_sep=2, max_participations=4)
PRIVACY = run_folders.plan(
    mechanism=tff_mf.Tree(8), rounds=8, sampling=SCHEMA, cohort=4, noise_multiplier=8.0, clip_norm=0.5
)
SETTINGS = small_settings(PRIVACY, **SMALL)


def test_a_run_that_stops_early_states_what_was_planned(small_data, tmp_path):
    with pytest.raises(StoppedError):
        train.run(SETTINGS, PRIVACY, data=small_data, out=tmp_path, on_round=stop_after(4))
    ended = tmp_path.with_name("ended")
    shutil.copytree(tmp_path, ended)
    with open_loop(ended, Rules.of(PRIVACY)) as loop:
        loop.record_end()
    early = reports.build(ended, realised=True)
    assert "all 4 models" in early.headline
    assert early.claim.epsilon == pytest.approx(PRIVACY.epsilon, rel=1e-9)
    assert early.claim.epsilon_as_run == pytest.approx(PRIVACY.epsilon_as_run, rel=1e-9)

    result = train.run(SETTINGS, PRIVACY, data=small_data, out=tmp_path, execution=ExecutionSettings(resume=True))
    assert "all 8 models" in result.report.headline
    assert result.report.claim.epsilon <= early.claim.epsilon

    for name, change in (
        ("insecure_seed", lambda run: run | {"insecure_seed": 3}),
        ("delta", lambda run: run | {"delta": 0.5}),
        (
            "max_participations",
            lambda run: run | {"sampling": {"kind": "MinSep", "min_sep": 2, "max_participations": 1}},
        ),
    ):
        file = tmp_path / names.PLAN
        before = file.read_bytes()
        file.write_text(json.dumps(change(json.loads(before))))
        assert reports.build(tmp_path, realised=True).claim.epsilon is None, name
        file.write_bytes(before)


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
