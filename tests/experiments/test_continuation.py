"""A run goes on only if its files agree with its checkpoint; what was released is never run again."""

import contextlib
import csv
import hashlib
import json
import signal
import subprocess
import sys

import msgspec
import psutil
import pytest
import run_folders

import tff_mf
from tff_mf.base.errors import InputError
from tff_mf.experiments import reports
from tff_mf.experiments.output import files
from tff_mf.experiments.runs import folders, ledger, metrics, run_record, server_loop
from tff_mf.experiments.runs.settings import RunSettings

COHORTS = [["a", "c"], ["b", "d"], ["a", "c"], ["b", "d"], ["a", "c"]]
HISTORY = [{"round": 2, "loss": 0.25}, {"round": 4, "loss": 0.1 + 0.2}]


@pytest.fixture
def folder(tmp_path):
    """A run that was killed in round 5, its newest checkpoint of round 4."""
    plan = run_folders.plan(sampling=tff_mf.MinSep(min_sep=2, max_participations=4))
    reports.write_record(tmp_path, plan)
    with server_loop.open_loop(tmp_path) as loop:
        for clients in COHORTS:
            number = loop.begin(clients)
            if number < 5:
                loop.released(number)
    with (tmp_path / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["round", "seconds", "loss"])
        writer.writeheader()
        for number in range(1, 5):
            evaluated = {row["round"]: row for row in HISTORY}.get(number, {"round": number})
            writer.writerow({**evaluated, "seconds": 1.5})
    return tmp_path


class Saved:
    """The state after round 4, with what is known about it."""

    def __init__(self, seen, **about):
        self._about = {"round": 4, "ledger": seen, "reports": None, **about}

    def rounds(self):
        return [4]

    def about(self, round_number):
        return self._about


@pytest.fixture
def seen(folder):
    """What the checkpoint has of the ledger."""
    content = (folder / "ledger.jsonl").read_bytes()
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def resume(folder, seen, run=None):
    with server_loop.open_loop(folder, run=run) as loop:
        assert loop.resume(Saved(seen, run=loop.run)) == 4
        return loop.run


def test_checkpoints_of_another_run_of_the_same_settings_are_refused(folder, seen):
    run = ledger.read_ledger(folder / "ledger.jsonl").run
    assert resume(folder, seen, run) == run
    with pytest.raises(InputError, match="belongs to run"):
        resume(folder, seen, "0" * 32)


def test_a_state_of_another_run_or_round_is_refused(folder, seen):
    with server_loop.open_loop(folder) as loop:
        for about in ({"run": "0" * 32}, {"run": loop.run, "round": 3}):
            with pytest.raises(InputError, match="and not of this one"):
                loop.resume(Saved(seen, **about))


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("ledger.jsonl", '"round":2', '"round":3', "ledger"),
        ("ledger.jsonl", '"clients":["a","c"]', '"clients":["a","b"]', "was changed since"),
        ("ledger.jsonl", '"round":2', '"round":"x"', "line 4 is damaged"),
        ("run.json", '"clip_norm": 1.0', '"clip_norm": 0.5', "run.json.*changed"),
    ],
)
def test_what_was_changed_is_named(folder, seen, name, old, new, reason):
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=reason):
        resume(folder, seen)


@pytest.mark.parametrize("damage", ["", "round,seconds\n", "\xff", "round,seconds,loss\n1,1.5,\n2,1.5,0.5\n", None])
def test_metrics_are_written_anew_from_the_checkpoint(folder, damage, caplog):
    path = folder / "metrics.csv"
    before = path.read_text()
    metrics.restore_metrics(path, 4, HISTORY)
    assert path.read_text() == before
    path.unlink() if damage is None else path.write_bytes(damage.encode("latin-1"))
    metrics.restore_metrics(path, 4, HISTORY)
    assert "written anew" in caplog.text
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["round"] for row in rows] == ["1", "2", "3", "4"]
    assert [row["loss"] for row in rows] == ["", "0.25", "", str(0.1 + 0.2)]


def test_noise_and_rate_are_those_that_the_run_began_with(folder):
    """Computed again on another machine, both could differ in last bits."""
    asked = {"rounds": 9, "clients_per_round": 2, "delta": 1e-6, "min_sep": 2, "max_participations": 4}
    settings = RunSettings(**asked, epsilon=8.0, server_learning_rate="proposed", mechanism="identity")
    record = json.loads((folder / "run.json").read_text())
    own = {"settings": msgspec.to_builtins(settings), "server_learning_rate": 0.1 + 0.2}
    (folder / "run.json").write_text(json.dumps({**record, **own}))
    found = run_record.read_record(folder)
    assert found.settings == settings
    assert (found.training.epsilon, found.training.noise_multiplier) == (None, 5.0)
    assert (found.training.server_learning_rate, found.training.grid) == (0.1 + 0.2, "none")
    of_a_guard = {"sampling": "min-sep", "min_sep": 2, "max_participations": 4}
    wrong = {"server_learning_rate=None": {"server_learning_rate": None}, "secret_cohorts": {"secret_cohorts": True}}
    for words, changes in {**wrong, "sampling and": {"sampling": of_a_guard}}.items():
        (folder / "run.json").write_text(json.dumps({**record, **own, **changes}))
        with pytest.raises(InputError, match=words):
            run_record.read_record(folder)
    assert run_record.begun_record(folder / "none") is None


def test_a_ledger_of_a_newer_release_is_not_added_to(folder):
    path = folder / "newer.jsonl"
    path.write_text((folder / "ledger.jsonl").read_text().replace('"version":1', '"version":2'))
    assert ledger.read_ledger(path).problems == ["it has version 2, and this release reads version 1"]
    with pytest.raises(InputError, match=r"newer\.jsonl"), ledger.open_ledger(path):
        pass


HOLD = """
import pathlib, sys
from tff_mf.experiments.output import files
with files.alone(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_process_a_folder(tmp_path):
    command = [sys.executable, "-c", HOLD, tmp_path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=f"in use by process {other.pid}"), files.alone(tmp_path):
            pass
        other.stdin.close()
    with files.alone(tmp_path):
        folders.check_new(tmp_path)


def test_what_the_machine_lacks_is_one_line_and_no_fault_of_the_input(tmp_path):
    # Two gigabytes for the process.
    line = 'ulimit -v 2000000; exec "$0" -c "from tff_mf.experiments.cli import main; main()" "$@"'
    arguments = ["show", "tree-online", "--rounds", "16000", "--sampling", "single"]
    command = ["bash", "-c", line, sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1), done.stderr
    assert "Unable to allocate" in done.stderr


# What `tff-mf` runs, in a process that has started another.
INTERRUPTED = """
import os, signal, subprocess, sys, time
import psutil
from tff_mf.experiments import cli

SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}

class Freed:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGNAL)
        time.sleep(60)

def freed():
    Freed()
    print("not ended")

def slow():
    try:
        print("begun", flush=True)
        time.sleep(60)
    finally:
        print("unwinding", flush=True)
        time.sleep(60)

def turned():
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt as error:
        raise SystemError("returned a result with an exception set") from error

def main(**given):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], **SILENT)
    print(child.pid, flush=True)
    BODY()

cli.cli.main = main
cli.main()
"""


@contextlib.contextmanager
def started(body, signal="SIGINT"):
    """Yields a process; in the end its child must be gone."""
    command = [sys.executable, "-c", INTERRUPTED.replace("BODY", body).replace("SIGNAL", signal)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        yield process
    # It was killed, and takes a moment to be gone; nobody here may be its parent, to reap it.
    with contextlib.suppress(psutil.NoSuchProcess):
        child = psutil.Process(pid)
        if body == "turned":
            # An error unwinds, which ends TFF's worker, and this is none.
            child.kill()
        _, alive = psutil.wait_procs([child], timeout=50)
        assert not alive or child.status() == psutil.STATUS_ZOMBIE


def test_a_second_interrupt_ends_at_once_without_a_traceback():
    with started("slow") as process:
        # Not before: an interrupt may arrive ahead of the `try`.
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "unwinding\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(50) == 1
        assert process.stderr.read() == "tff-mf: interrupted\n"


@pytest.mark.parametrize(
    ("body", "number", "status", "said"),
    [
        # Python drops what a destructor raises, and would continue.
        ("freed", "SIGINT", 1, "tff-mf: interrupted\n"),
        ("freed", "SIGTERM", 143, ""),
        # Native code turns an interrupt into an error of its own.
        ("turned", "SIGINT", 1, "tff-mf: interrupted\n"),
    ],
)
def test_an_interrupt_that_python_or_native_code_lost_ends_the_process_and_its_children(body, number, status, said):
    with started(body, number) as process:
        assert process.wait(50) == status
        assert (process.stdout.read(), process.stderr.read()) == ("", said)
