"""A comparison chooses rates by validation alone, and goes on after being killed; test_specs.py has what it plans."""

import dataclasses
import fcntl
import json
import re
import subprocess
import sys
import time
import types

import hypothesis
import hypothesis.strategies as st
import numpy as np
import psutil
import pytest
import scipy.stats

import tff_mf
from tff_mf.base import checkpoint_files
from tff_mf.experiments import compare
from tff_mf.experiments.runs import ledger, names, statements
from tff_mf.experiments.runs.results import Summary
from tff_mf.experiments.runs.settings import RunSettings
from tff_mf.experiments.runs.signal_to_noise import proposed_rate
from tff_mf.experiments.runs.statements import Reason

from . import test_command_line, test_specs


def claimed(seed, *reasons):
    """A claim of ten and more rounds, of which a seed is one."""
    schema = statements.bound_to(tff_mf.MinSep(min_sep=3, max_participations=2))
    own = {"delta": 1e-6, "rounds": 10 + seed, "participation": schema, "reasons": reasons}
    return statements.claim(tff_mf.Guarantee(mu=0.5), **own)


def finished(label, rate, seed, accuracy, validation, *, epsilon=2.0, published=None, claim=None):
    setting = {"rounds": 4, "clients_per_round": 2, "delta": 1e-6, "min_sep": 2, "max_participations": 2}
    settings = RunSettings(**setting, epsilon=epsilon, seed=seed)
    return compare.Finished(
        run=compare.PlannedRun(label=label, settings=settings, optimized_for=settings, published=published or {}),
        rate=rate,
        history=[(2, accuracy / 2), (4, accuracy)],
        claim=claim or claimed(seed),
        summary=Summary(
            accuracy=accuracy, baseline_accuracy=0.08, loss=None, test_sentences=70, validation_accuracy=validation,
            validation_accuracy_smoothed=validation, validation_sentences=20, validation_split="heldout",
            model_sha256="", parameters=1, seconds=0, tff_mf_version="",
        ),
    )  # fmt: skip


def result_of(runs):
    return compare.ComparisonResult(
        runs_planned=len(runs), runs_done=len(runs), runs_failed={}, levels=compare.levels(runs)
    )


def test_rates_are_chosen_by_validation_and_never_by_test():
    runs = [
        *(finished("blt", 0.5, seed, 0.2 + seed / 100, 0.3) for seed in range(3)),
        *(finished("blt", 1.0, seed, 0.1, 0.4) for seed in range(3)),
        *(finished("blt", 1.7, seed, 0.9, 0.2) for seed in range(3)),
        *(finished("identity", rate, seed, 0.05, rate) for seed in range(2) for rate in (0.1, 0.2)),
    ]
    blt, identity = compare.levels(runs)
    assert (blt.mechanism, blt.server_learning_rate, identity.server_learning_rate) == ("blt", 1.0, 0.2)
    assert not blt.rate_at_edge
    assert identity.rate_at_edge
    assert list(blt.accuracy_by_seed.values()) == [0.1, 0.1, 0.1]


def test_rates_are_compared_over_the_seeds_that_all_have():
    """The second rate has no run of the seed whose validation is easiest."""
    runs = [finished("blt", 0.5, 0, 0.1, 0.9), finished("blt", 0.5, 1, 0.1, 0.1), finished("blt", 1.0, 1, 0.1, 0.2)]
    (level,) = compare.levels(runs)
    assert level.server_learning_rate == 1.0


def test_the_tables_have_the_papers_numbers_and_mark_what_did_not_learn():
    paper = {"test_accuracy": 23.19, "rms_loss": 8.6}
    runs = [finished("Band MF", 1.0, seed, 0.2 + seed / 10, 0.1, published=paper) for seed in range(2)]
    runs += [finished("DP-SGD", 1.0, seed, 0.07 + seed / 10, 0.1) for seed in range(2)]
    runs += [finished("DP-SGD", 1.0, 0, 0.07, 0.1, epsilon=8.0)]
    text = compare.page(result_of(runs))
    assert re.search(r"\| Band MF +\| 25.00 \(23.19\) +\| – +\|", text)
    assert re.search(r"\| DP-SGD +\| 12.00 +\| 7.00\* +\|", text)
    assert re.search(r"\| the most frequent word +\| 8.00 +\| 8.00 +\|", text)
    assert "did not learn" in text
    # A line for all guarantees of a level, at the end.
    end = text.split("## Guarantees")[1].replace("\n  ", " ")
    assert [line for line in end.split("\n") if line.startswith("- ")] == [
        f"- {named}: {statements.line(claimed(0))}" for named in ("ε = 2, Band MF; DP-SGD", "ε = 8, DP-SGD")
    ]


@hypothesis.given(st.lists(st.floats(0, 1), min_size=3, max_size=8, unique=True))
def test_the_interval_is_students(values):
    mean, half = compare.mean_and_half_width(values)
    low, high = scipy.stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=scipy.stats.sem(values))
    assert (mean - half, mean + half) == (pytest.approx(low, abs=1e-9), pytest.approx(high, abs=1e-9))


def test_a_level_states_no_more_than_each_of_its_runs():
    cut = [claimed(seed, Reason(field="log", text=str(seed))) for seed in range(3)]
    (stated,) = compare.levels([finished("blt", 1.0, seed, 0.1, 0.4, claim=seed and cut[seed]) for seed in range(3)])
    assert stated.claim == cut[1]


def test_rates_of_the_paper_are_proposed_from_its_noise():
    """Table 4: each mechanism's best rate at its effective RMSE is within a step or two of the line's proposal."""
    schema = tff_mf.MinSep(min_sep=342, max_participations=6)
    best = {1.0: 0.0244, 2.0: 0.0414, 4.0: 0.0704, 8.0: 0.1197}
    setting = {"mechanism": tff_mf.Identity(), "rounds": 2052, "sampling": schema, "clients_per_round": 1000}
    for epsilon, rate in best.items():
        plan = tff_mf.plan(**setting, epsilon=epsilon, delta=1e-6)
        assert proposed_rate(plan) == pytest.approx(rate, rel=0.75)
        # Noise for half of the clip norm: twice the rate, to a step of the grid.
        half = proposed_rate(dataclasses.replace(plan, clip_norm=0.5)) / proposed_rate(plan)
        assert half in (pytest.approx(1.7), pytest.approx(1.7**2))
    with pytest.raises(tff_mf.InputError, match="effective_rmse"):
        proposed_rate(dataclasses.replace(plan, noise_multiplier=0.0))


def run_by_code(out, codes, monkeypatch, say):
    """Does runs that are programs by name, and returns the last line of each, since none writes a report."""
    monkeypatch.setattr(compare.runs, "_command", lambda run, _: [sys.executable, "-c", codes[run.name]])
    (out / "logs").mkdir()
    planned = [types.SimpleNamespace(name=name) for name in codes]
    with (out / "lock").open("w") as lock:
        return compare.run_missing(planned, out, at_once=2, lock=lock.fileno(), say=say)


def test_runs_are_done_in_parallel_and_what_failed_is_told(tmp_path, monkeypatch):
    said = []
    codes = {"silent": "raise SystemExit(3)"} | {
        name: f"import sys; print('said by {name}', file=sys.stderr)" for name in "abc"
    }
    failed = run_by_code(tmp_path, codes, monkeypatch, said.append)
    assert failed == {"silent": "ended with status 3"} | {name: f"said by {name}" for name in "abc"}
    # gRPC may say something of its own in a process that is forked.
    assert (tmp_path / "logs" / "a.txt").read_text().splitlines()[-1] == "said by a"
    assert [re.split("[,:]", text)[0] for text in said] == [f"{ended} of 4" for ended in range(1, 5)]


LONG = """
import os, subprocess, sys, time
inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({pids!r}, "w").write(f"{{os.getpid()}} {{inner.pid}}")
time.sleep(600)
"""


def test_interrupted_runs_are_ended_with_what_they_started(tmp_path, monkeypatch):
    pids = tmp_path / "pids"

    def fail(text):
        if "short" in text:
            wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_by_code(tmp_path, {"long": LONG.format(pids=str(pids)), "short": ""}, monkeypatch, fail)
    wait_for(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()))


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_comparison_that_is_killed_in_a_run_goes_on_with_it(small_data, tmp_path):
    """No released round is run again: its ledger has all that was released, by one run, once.

    The run ends with the comparison that started it, and has its lock until then.
    """
    out = tmp_path / "out"
    text = f'epsilon = 4.0\ndataset = "sqlite:{small_data}"\n[[grid]]\nmechanism = "identity"\n'
    spec = test_specs.written(tmp_path, text)
    command = [test_command_line.COMMAND, "compare", str(spec), "--out", str(out)]
    with (tmp_path / "first.txt").open("w") as log:
        first = subprocess.Popen(command, stdout=log, stderr=log)
    wait_for(lambda: any(book.released for book in books(out)))
    started = psutil.Process(first.pid).children(recursive=True)
    assert started
    (run,) = psutil.Process(first.pid).children()
    run.suspend()
    first.kill()
    first.wait()
    with (out / ".lock").open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    run.resume()
    wait_for(lambda: not any(alive(process.pid) for process in started))
    (before,) = books(out)
    assert not before.ended, "killed too late to see anything"

    again = test_command_line.run("compare", spec, "--out", out, "--json")
    assert again.returncode == 0, again.stderr
    (after,) = books(out)
    assert (after.run, after.ended, after.problems, after.impossible) == (before.run, True, [], [])
    assert set(after.released) == set(range(1, 41))
    assert {number: after.attempts[number] for number in before.released} == dict.fromkeys(before.released, 1)
    (report,) = out.glob("runs/*/report.json")
    assert checkpoint_files.saved_rounds(report.parent / names.CHECKPOINTS) == []
    result = json.loads(again.stdout)
    assert result["runs_done"] == len(result["levels"][0]["accuracy_by_seed"]) == 1
    assert json.loads((out / "comparison.json").read_text()) == result
    for name in [*result["pictures"], "comparison.md"]:
        assert (out / name).is_file()

    # Killed after its report and before it deleted its keys, or before the page, a run is not done.
    assert compare.is_done(out, report.parent.name)
    (report.parent / names.CHECKPOINTS / names.COHORTS).write_bytes(b"keys")
    assert not compare.is_done(out, report.parent.name)
    (report.parent / names.CHECKPOINTS / names.COHORTS).unlink()
    (report.parent / names.REPORT_TEXT).unlink()
    assert not compare.is_done(out, report.parent.name)


def books(out):
    return [ledger.read_ledger(path) for path in out.glob(f"runs/*/{names.LEDGER}")]
