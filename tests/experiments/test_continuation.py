"""A run goes on only if its files agree with its checkpoint; what was released is never run again."""

import contextlib
import csv
import errno
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
from tff_mf.experiments import cli, reports
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
    """States of rounds of the run, the newest of round `newest`, as training saved them."""

    def __init__(self, run, newest, heads):
        self.run, self._newest, self._heads = run, newest, heads

    def rounds(self):
        return [self._newest] if self._newest else []

    def about(self, round_number):
        return {"run": self.run, "round": round_number, "ledger": self._heads[round_number], "reports": None}

    def save(self, round_number, state, about):
        raise AssertionError("no round was computed")


@pytest.fixture
def check(folder):
    """A function that resumes a run after a round, as training does."""
    heads = ledger.read_ledger(folder / "ledger.jsonl").heads

    def checked(folder, round_number=4, run=None):
        with server_loop.open_loop(folder, run=run) as loop:
            evaluated = metrics.read_metrics(folder / "metrics.csv").last_evaluated
            saved = Saved(loop.run, round_number, heads)
            assert loop.resume(saved, published=evaluated) == round_number

    return checked


def test_checkpoints_of_another_run_of_the_same_settings_are_refused(folder, check):
    run = ledger.read_ledger(folder / "ledger.jsonl").run
    check(folder, run=run)
    with pytest.raises(InputError, match="belongs to run"):
        check(folder, run="0" * 32)
    with server_loop.open_loop(folder, run=run) as loop:
        assert loop.run == run


def test_a_state_of_another_run_or_round_is_refused(folder):
    heads = ledger.read_ledger(folder / "ledger.jsonl").heads
    with server_loop.open_loop(folder) as loop:
        for run, number in (("0" * 32, 4), (loop.run, 3)):
            saved = Saved(run, 4, heads)
            about = saved.about(number)
            saved.about = lambda _, about=about: about
            with pytest.raises(InputError, match="and not of this one"):
                loop.resume(saved)


def test_what_was_released_is_not_run_again(folder, check):
    with pytest.raises(InputError, match=r"round 4 .* was released, and its newest checkpoint is of round 3"):
        check(folder, 3)
    with pytest.raises(InputError, match="was released"):
        check(folder, 0)


def test_metrics_tell_of_a_release_that_a_shortened_ledger_does_not(folder, check):
    lines = (folder / "ledger.jsonl").read_text().splitlines(keepends=True)
    kept = next(index for index, line in enumerate(lines) if '"released", "round": 3' in line)
    (folder / "ledger.jsonl").write_text("".join(lines[: kept + 2]))
    with pytest.raises(InputError, match=r"round 4 .* was released"):
        check(folder, 3)


def test_a_ledger_that_is_missing_or_lacks_rounds(folder, check):
    lines = (folder / "ledger.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.csv").unlink()
    (folder / "ledger.jsonl").write_text("".join(lines[:5]))
    for round_number in (2, 3):
        with pytest.raises(InputError, match="rounds that the ledger lacks"):
            check(folder, round_number)
    rows = (folder / "participation.csv").read_text().splitlines(keepends=True)
    (folder / "participation.csv").write_text("".join(rows[:5]))
    with pytest.raises(InputError, match=r"older than the checkpoint of round 3, and lacks who took part"):
        check(folder, 3)
    for left in (rows, []):
        (folder / "participation.csv").write_text("".join(left)) if left else (folder / "participation.csv").unlink()
        (folder / "ledger.jsonl").unlink()
        with pytest.raises(
            InputError, match="is older than the checkpoint" if not left else "is the log of another run"
        ):
            check(folder, 4)


def test_a_state_of_an_attempt_that_the_ledger_lacks_is_refused(folder, check):
    """Round 5 was begun again, with others; both logs are older, and only the state tells of it."""
    names = ("ledger.jsonl", "participation.csv")
    older = {name: (folder / name).read_bytes() for name in names}
    with server_loop.open_loop(folder) as loop:
        loop.record_resumed(4)
        loop.begin(["e", "f"])
    heads = ledger.read_ledger(folder / "ledger.jsonl").heads
    for name in names:
        (folder / name).write_bytes(older[name])
    with server_loop.open_loop(folder) as loop, pytest.raises(InputError, match="older than the checkpoint of round 5"):
        loop.resume(Saved(loop.run, 5, heads))


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("ledger.jsonl", '"round": 2', '"round": 3', "ledger"),
        ("participation.csv", "3,1,c", "3,1,b", "other clients in round 3"),
        ("participation.csv", "3,1,c", "x,1,c", "damaged line"),
        ("participation.csv", "round,attempt", "round;attempt", "must name the columns"),
        ("run.json", '"clip_norm": 1.0', '"clip_norm": 0.5', "run.json.*changed"),
    ],
)
def test_what_was_changed_is_named(folder, check, name, old, new, reason):
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=reason):
        check(folder)


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
    del own["server_learning_rate"]
    (folder / "run.json").write_text(json.dumps({**record, **own}))
    with pytest.raises(InputError, match="server_learning_rate=None"):
        run_record.read_record(folder)
    assert run_record.begun_record(folder / "none") is None


def test_a_ledger_of_a_newer_release_is_not_added_to(folder):
    line, _head = ledger.chained("", {"kind": "opened", "version": 2, "run": "x", "bound_to": None})
    path = folder / "newer.jsonl"
    path.write_text(line)
    assert ledger.read_ledger(path).problems[0].startswith("line 1 has an entry that this release does not know")
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


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left", "somewhere"), "somewhere: No space left; saved files are intact"),
        (MemoryError("Unable to allocate 9 PiB\nfor an array"), "Unable to allocate 9 PiB for an array"),
    ],
)
def test_what_the_machine_lacks_is_one_line_and_no_fault_of_the_input(monkeypatch, capsys, error, said):
    def full(*given, **more):
        raise error

    monkeypatch.setattr(cli.cli, "main", full)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_number_beyond_float64_is_none_of_a_report(folder):
    reports.write(folder, realised=False)
    stored = json.loads((folder / "planned.json").read_text())
    for number in (10**400, float("inf"), float("nan")):
        stored["clipping"]["clip_norm"] = number
        assert "clip_norm" in reports.problem(stored)


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
