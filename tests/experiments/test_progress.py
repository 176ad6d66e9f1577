"""Bars on a terminal; without one, nothing but lines, and no control character; and what native code may write."""

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
import types

import pytest

import tff_mf
from tff_mf.experiments import cli
from tff_mf.experiments.output import native_output, progress
from tff_mf.experiments.training.datasets import named_data

SCHEMA = ["--rounds", "400", "--min-sep", "60", "--max-participations", "6"]
SEARCH = ["optimize", "banded", *SCHEMA, "--bands", "20", "--set", "unit_norms=false", "--out", "x"]
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


def on_a_terminal(program, cwd, *arguments):
    """What a program writes to standard output, a pipe, and to standard error, a terminal."""
    ours, theirs = pty.openpty()
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


def test_a_command_has_a_bar_on_a_terminal_and_no_trace_of_one_elsewhere(tmp_path):
    out, shown = on_a_terminal(COMMAND, tmp_path, *SEARCH, "--json")
    assert json.loads(out)
    assert any(line.startswith("optimize") for line in lines(shown))
    assert "\r" in shown.replace("\r\n", "")
    piped = subprocess.run(
        [sys.executable, "-c", COMMAND, *SEARCH, "--json"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert json.loads(piped.stdout).keys() == json.loads(out).keys()
    assert not CONTROL.search(piped.stdout + piped.stderr)
    assert "optimize" not in piped.stderr


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


def test_only_lines_with_the_beginning_are_removed(capfd):
    with contextlib.suppress(ValueError), native_output.without("INFO: "):
        os.write(2, b"INFO: made a delegate\nERROR: it matters\n\nanother line\n")
        raise ValueError
    os.write(2, b"INFO: after\n")
    assert capfd.readouterr().err == "ERROR: it matters\nanother line\nINFO: after\n"


def test_a_log_level_of_the_user_is_kept(monkeypatch):
    for asked, kept in (("0", "0"), ("1", "3"), ("2", "3"), ("", "3")):
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", asked)
        cli._quiet()
        assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == kept
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    cli._quiet()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "3"
