"""Answers for the report: asked for on a terminal, filled in as a file, mended. Commands run as a shell runs them."""

import fcntl
import json
import os
import pathlib
import pty
import select
import shutil
import subprocess
import sys
import termios
import time

import pytest
import run_folders

import tff_mf
from tff_mf.experiments import guard, reports
from tff_mf.experiments.reports.questions import ASKED

from .shared import invoke

ENVIRONMENT = {**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
ANSWERS = {**run_folders.ANSWERS, "answered_by": "the operator"}
TYPED = {"participation_depends_on_data": "no", "state_is_secret": "yes"}
NONE = dict.fromkeys(ANSWERS)


@pytest.fixture(scope="module")
def unanswered(tmp_path_factory):
    """A finished run with both reports, as `tff-mf train` leaves it: nobody has answered anything."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    run_folders.start(folder, answers={})
    (folder / "answers.json").unlink()
    reports.write(folder, realised=False)
    run_folders.run(folder)
    reports.write(folder, realised=True)
    return folder


@pytest.fixture
def run(unanswered, tmp_path):
    return pathlib.Path(shutil.copytree(unanswered, tmp_path / "run"))


class Terminal:
    """A command with a terminal of its own, which somebody types at."""

    def __init__(self, arguments, folder):
        self._end, other = pty.openpty()
        self._seen = ""
        self._process = subprocess.Popen(
            ["tff-mf", *arguments],
            stdin=other,
            stdout=other,
            stderr=other,
            cwd=folder,
            env=ENVIRONMENT,
            start_new_session=True,
            # Ctrl-C reaches the processes of the terminal.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(other)

    def until(self, text):
        """Waits until something is shown."""
        deadline = time.monotonic() + 120
        while text not in self._seen:
            assert time.monotonic() < deadline, self._seen
            if select.select([self._end], [], [], 1.0)[0]:
                self._seen += os.read(self._end, 4096).decode(errors="replace")
        shown, _, self._seen = self._seen.partition(text)
        return shown + text

    def type(self, text):
        os.write(self._end, text.encode())

    def ended(self, again=""):
        """Returns exit status and what was shown last; types a key again as long as nothing follows.

        Python loses an interrupt that comes just before it waits for input until somebody types more.
        """
        deadline = time.monotonic() + 120
        try:
            while True:
                assert time.monotonic() < deadline, self._seen
                if not select.select([self._end], [], [], 2.0)[0]:
                    self.type(again)
                    continue
                if not (part := os.read(self._end, 4096)):
                    break
                self._seen += part.decode(errors="replace")
        except OSError:
            # The other end is closed.
            pass
        os.close(self._end)
        return self._process.wait(120), self._seen.replace("\r\n", "\n")


def answer_all(terminal, answers):
    for question in ASKED:
        terminal.until(f"{question.name}")
        answer = answers[question.name]
        terminal.type(f"{TYPED.get(question.name, answer)}\n")


def test_answers_are_asked_one_by_one_on_a_terminal(run):
    terminal = Terminal(["report", "run", "--answer"], run.parent)
    answer_all(terminal, ANSWERS)
    status, shown = terminal.ended()
    assert status == 0
    assert json.loads((run / "answers.json").read_text()) == ANSWERS
    assert "\nPrivacy report (realised)\n=========================\n\nε ≤ " in shown
    assert reports.check(run) == []


def test_what_does_not_answer_is_asked_again_and_enter_keeps_what_was_answered(run):
    earlier = {**NONE, "trusted": "us", "population": 20_000}
    (run / "answers.json").write_text(json.dumps(earlier))
    terminal = Terminal(["report", "run", "--answer"], run.parent)
    terminal.until("trusted [us]: ")
    terminal.type("\n")
    terminal.until("unit: ")
    terminal.type("ein Gerät\n")
    terminal.until("clients_of_one_person: ")
    for wrong in ("many", "0", "1.5"):
        terminal.type(f"{wrong}\n")
        terminal.until("does not answer this question")
        terminal.until("clients_of_one_person: ")
    terminal.type("2\n")
    terminal.until("population [20000]: ")
    terminal.type("-\n")
    for name in list(ANSWERS)[4:]:
        terminal.until(f"{name}: ")
        terminal.type("\n")
    status, shown = terminal.ended()
    assert status == 0
    assert "still open: population, enforcement" in shown
    answers = {**NONE, "trusted": "us", "unit": "ein Gerät", "clients_of_one_person": 2}
    assert json.loads((run / "answers.json").read_text()) == answers


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("key", ["\x03", "\x04"], ids=["Ctrl-C", "end of input"])
def test_whoever_stops_loses_nothing(run, key):
    (run / "answers.json").write_text(json.dumps({**ANSWERS, "unit": "a phone"}))
    terminal = Terminal(["report", "run", "--answer"], run.parent)
    terminal.until("trusted [the server's operator]: ")
    terminal.type("somebody else\n")
    terminal.until("unit [a phone]: ")
    terminal.type(key)
    status, shown = terminal.ended(again=key)
    assert status == 1
    assert "the answers so far are in run/answers.json" in shown
    assert "Traceback" not in shown
    answers = {**ANSWERS, "trusted": "somebody else", "unit": "a phone"}
    assert json.loads((run / "answers.json").read_text()) == answers
    terminal = Terminal(["report", "run", "--answer"], run.parent)
    terminal.until("trusted [somebody else]: ")
    for name in list(ANSWERS)[1:]:
        terminal.type("\n")
        terminal.until(name)
    terminal.type("\n")
    assert terminal.ended()[0] == 0
    answers = {**ANSWERS, "trusted": "somebody else", "unit": "a phone"}
    assert json.loads((run / "answers.json").read_text()) == answers
    assert reports.check(run) == []


def test_without_a_terminal_it_says_what_to_do(run):
    done = invoke("report", run, "--answer", input="yes\n", catch_exceptions=True)
    assert str(done.exception) == (
        f"--answer asks on a terminal, and there is none: `tff-mf report {run} --questions` writes "
        f"{run}/answers.json, to fill in with an editor or a program."
    )
    assert not (run / "answers.json").exists()


def test_a_form_is_written_where_it_is_read(run):
    assert invoke("report", run, "--questions").exit_code == 0
    again = invoke("report", run, "--questions", catch_exceptions=True)
    assert isinstance(again.exception, tff_mf.InputError)
    assert "exists, and is not overwritten" in str(again.exception)
    assert json.loads((run / "answers.json").read_text()) == NONE
    (run / "answers.json").write_text(json.dumps(ANSWERS))
    title, _, _, first, *_ = invoke("report", run).stdout.splitlines()
    assert (title, first[:3]) == ("Privacy report (realised)", "ε ≤")
    assert invoke("report", run, "--check").stdout == "0 critical of 0 findings; stated\n"


def test_a_shell_that_empties_the_file_first_does_no_harm(run):
    """As was advised once: `> RUN/answers.json` is what is read, and empty when the command begins."""
    line = "tff-mf report run --questions > run/answers.json"
    subprocess.run(line, shell=True, cwd=run.parent, env=ENVIRONMENT, check=True, timeout=120)
    assert json.loads((run / "answers.json").read_text()) == NONE


def test_a_form_that_is_written_elsewhere_says_where_it_is_read(run):
    done = invoke("report", run, "--questions", "--out", run.parent / "form.json")
    assert done.exit_code == 0
    assert f"copy it to {run}/answers.json" in " ".join(done.stderr.split())
    assert json.loads((run.parent / "form.json").read_text()) == NONE


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"{", "is damaged"),
        (b"\xff\xfe", "is damaged"),
        (b"\0" * 9, "is damaged"),
        (b"[" * 100_000, "is damaged"),
        (b"[]", "must hold one JSON object"),
        (b'{"unit": 3}', "unit=3 does not answer"),
        (b'{"population": "many"}', "population='many'"),
        (b'{"clients_of_one_person": 0}', "clients_of_one_person=0"),
        (b'{"state_is_secret": "yes"}', "state_is_secret='yes'"),
        (b'{"populaton": 3}', "the nearest is 'population'"),
        (None, "cannot be read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damaged_answers_are_named_everywhere(run, content, text):
    path = run / "answers.json"
    path.mkdir() if content is None else path.write_bytes(content)
    for arguments in ([], ["--check"], ["--planned"]):
        done = invoke("report", run, *arguments, catch_exceptions=True)
        assert isinstance(done.exception, tff_mf.InputError), arguments
        message = str(done.exception)
        assert text in message
        assert str(path) in message
        assert f"`tff-mf report {run} --answer` asks anew" in message
        assert "\n" not in message
    with pytest.raises(tff_mf.InputError, match="answer"), guard.open_guard(run, run_folders.plan(), sampler="x"):
        pass
