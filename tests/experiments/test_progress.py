"""Bars on a terminal; without one, nothing but lines, and no control character."""

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import types

import pytest
from click.testing import CliRunner

import tff_mf
from tff_mf.experiments.cli import cli
from tff_mf.experiments.datasets import named_data
from tff_mf.experiments.output import progress

SCHEMA = ["--rounds", "400", "--min-sep", "60", "--max-participations", "6"]
SEARCH = ["optimize", "banded", *SCHEMA, "--bands", "20", "--free-norms", "--out", "x"]
PLAN = [
    "plan",
    "--population",
    "900",
    "--clients-per-round",
    "2",
    "--rounds",
    "32",
    "--delta",
    "1e-3",
    "--epsilon",
    "2",
]
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


def on_a_terminal(program, cwd, *arguments, columns=0):
    """What a program writes to standard output, a pipe, and to standard error, a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, cwd=cwd) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                some = os.read(ours, 4096)
            except OSError:  # Linux says so when nobody is at the other end any more.
                break
            if not some:
                break
            shown += some
        out = process.stdout.read()
    os.close(ours)
    assert process.returncode == 0, shown
    return out.decode(), shown.decode()


def lines(shown):
    """What was on a line of the terminal at some time, without what moves the cursor or sets a color."""
    return [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", line).rstrip() for line in re.split(r"[\r\n]+", shown)]


COMMAND = "import sys\nfrom tff_mf.experiments.cli import main\nmain()"


@pytest.mark.parametrize(("arguments", "label"), [(SEARCH, "optimize"), (PLAN, "plan")])
def test_a_command_has_a_bar_on_a_terminal_and_no_trace_of_one_elsewhere(tmp_path, arguments, label):
    out, shown = on_a_terminal(COMMAND, tmp_path, *arguments, "--json")
    assert json.loads(out)
    assert any(line.startswith(label) for line in lines(shown))
    assert "\r" in shown.replace("\r\n", "")
    piped = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments, "--json"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert json.loads(piped.stdout).keys() == json.loads(out).keys()
    assert not CONTROL.search(piped.stdout + piped.stderr)
    assert label not in piped.stderr


ROUNDS = """
from tff_mf.experiments.output import progress
with progress.rounds(4, "blt") as on_round:
    for number in (3, 4):
        on_round(number, {progress._ACCURACY: 0.25} if number == 4 else {})
with progress.bar("compare", 2):
    for number in range(2):
        progress.say(f"line {number}")
        progress.step()
assert list(progress.steps("ab", 2, "plan")) == ["a", "b"]
progress.step()
"""


def test_rounds_and_lines_on_a_terminal(tmp_path):
    found = lines(on_a_terminal(ROUNDS, tmp_path)[1])
    assert any(line.startswith("blt") and "100%" in line and "accuracy 0.2500" in line for line in found)
    assert found.index("line 0") < found.index("line 1")
    assert any(line.startswith("compare") and "100%" in line for line in found)


WIDE = """
import os
os.environ.pop("COLUMNS", None)
from tff_mf.experiments.output import progress
with progress.bar("banded-toeplitz", 400) as advance:
    for number in range(4):
        advance(10, "accuracy 0.2500, and what else there is to say of it")
    progress.say("word " * 30)
with progress.bar("pydoc: reading modules", 2) as advance:
    advance(1, "")
with progress.search() as show:
    class Where:
        rounds, iteration, error = 2048, 3, 1234567.25
    show(Where)
"""


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_no_bar_is_wider_than_the_terminal(tmp_path, columns):
    """The terminal would wrap it, and the next one would be written below and not over it."""
    _, shown = on_a_terminal(WIDE, tmp_path, columns=columns)
    found = lines(shown)
    assert max(map(len, found)) <= columns
    assert sum(line.startswith("word word") for line in found) > 1
    bars = [line for line in found if line.startswith("banded-toeplitz")]
    assert any("10%" in line for line in bars)
    assert columns < 80 or any("accuracy" in line for line in bars)


def test_an_interrupted_bar_restores_the_cursor(tmp_path):
    program = "import contextlib\nfrom tff_mf.experiments.output import progress\n"
    program += "with contextlib.suppress(ValueError), progress.bar('x', 2):\n    raise ValueError"
    _, shown = on_a_terminal(program, tmp_path)
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_without_a_terminal_a_bar_writes_nothing(capsys):
    with progress.bar("x", 3) as advance:
        progress.step("a")
        advance(2, "b")
        progress.say("a line")
    assert list(progress.steps(range(3), 3, "x")) == [0, 1, 2]
    assert capsys.readouterr() == ("", "a line\n")


def counted(monkeypatch):
    """The totals that bars are opened with, and the steps that are then made."""
    opened, done = [], []
    monkeypatch.setattr(progress, "bar", lambda label, total: opened.append(total) or contextlib.nullcontext())
    monkeypatch.setattr(progress, "step", lambda note="": done.append(note))
    return opened, done


def test_an_audit_has_as_many_steps_as_its_bar(monkeypatch):
    opened, done = counted(monkeypatch)
    command = ["audit", "identity", "--rounds", "6", "--max-participations", "1", "--coordinates", "2048"]
    CliRunner().invoke(cli, command, catch_exceptions=False)
    assert opened == [len(done)]


def test_a_first_download_prints_nothing_on_standard_output(tmp_path, monkeypatch, capsys):
    import tensorflow_federated as tff

    def download(cache_dir):
        print("Downloading data")
        print("50%\r100%", file=sys.stderr)
        raise OSError("no connection")

    monkeypatch.setenv("TFF_MF_CACHE", str(tmp_path))
    fake = types.SimpleNamespace(load_word_counts=download, load_data=download)
    monkeypatch.setattr(tff.simulation.datasets, "stackoverflow", fake)
    with pytest.raises(tff_mf.InputError, match="could not be downloaded"):
        named_data.data_file("stackoverflow")
    assert capsys.readouterr() == ("", "")
