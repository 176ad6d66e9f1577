"""No worker outlives the program that started it, even if the program's output is piped."""

import os
import pathlib
import select
import signal
import time

import pytest

NOWHERE = os.open(os.devnull, os.O_WRONLY)
SUM = """
import numpy as np, tensorflow_federated as tff
from tff_mf import aggregators
total = tff.federated_computation(tff.federated_sum, tff.FederatedType(np.int32, tff.CLIENTS))
"""
IN_A_SESSION = SUM + "with aggregators.tff_session():\n    print(total([1, 2]))\n"
RESIDENT = IN_A_SESSION.replace("tff_session", "resident_context")
PROGRAMS = {
    "resident": RESIDENT,
    "session": IN_A_SESSION,
    "exception in the session": IN_A_SESSION.replace("with", "import contextlib\nwith contextlib.suppress(ValueError),")
    + "    raise ValueError\n",
    "in the background of a script": "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + IN_A_SESSION,
}


@pytest.fixture
def output_of(forks):
    """A function that runs a program and returns its output, read to the end of the pipe.

    The reader of a pipe reaches its end only when no process holds the writing end.
    """

    def run(program):
        reading, writing = os.pipe()
        process = forks.start(program, [], stdout=writing, stderr=NOWHERE)
        os.close(writing)
        assert process.wait(timeout=120) == 0
        try:
            return "".join(iter(lambda: next_part(reading), ""))
        finally:
            os.close(reading)

    return run


def next_part(pipe):
    assert select.select([pipe], [], [], 10)[0], "a process still holds the writing end"
    return os.read(pipe, 4096).decode()


@pytest.mark.sampled(most=3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_pipe_reaches_its_end_and_no_worker_is_left(name, output_of, processes_left):
    assert output_of(PROGRAMS[name]).split()[-1] == "3"
    assert processes_left() == set()


def test_the_worker_ends_with_the_block(output_of):
    program = SUM + (
        "import psutil\n"
        "def alive(): return [c for c in psutil.Process().children() if c.status() != psutil.STATUS_ZOMBIE]\n"
        "with aggregators.tff_session():\n"
        "    total([1, 2])\n"
        "    inside = len(alive())\n"
        "print(inside, len(alive()))\n"
    )
    assert output_of(program).split() == ["1", "0"]


ENDS = {
    "interrupt": (signal.SIGINT, "tff_session"),
    "terminate": (signal.SIGTERM, "tff_session"),
    "resident, killed": (signal.SIGKILL, "resident_context"),
}


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("name", ENDS)
def test_an_ended_run_leaves_no_worker(name, tmp_path: pathlib.Path, forks, processes_left):
    end, session = ENDS[name]
    marker = tmp_path / "started"
    program = (
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\n"
        + SUM
        + "import pathlib, time\n"
        + f"with aggregators.{session}():\n"
        + "    total([1, 2])\n"
        + f"    pathlib.Path({str(marker)!r}).touch()\n"
        + "    time.sleep(60)\n"
    )
    process = forks.start(program, [], stdout=NOWHERE, stderr=NOWHERE)
    wait_for(marker.exists, 100)
    assert processes_left() != set()
    process.send_signal(end)
    process.wait(timeout=60)
    wait_for(lambda: processes_left() == set(), 100)
    assert processes_left() == set()


def wait_for(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
