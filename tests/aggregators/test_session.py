"""No process of ours outlives the program, also when its output is piped."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import psutil
import pytest

pytestmark = pytest.mark.alone

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
    "no session": SUM + "print(total([1, 2]))\n",
    "exit in the session": IN_A_SESSION + "    raise SystemExit(0)\n",
    "in the background of a script": "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + IN_A_SESSION,
    "two sessions": IN_A_SESSION + "with aggregators.tff_session():\n    print(total([1, 2]))\n",
}


def output_of(program):
    command = [sys.executable, "-c", program]
    # A pipe's reader sees the end of its input only when nobody holds the writing end.
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=120, check=True
    ).stdout.decode()


def workers():
    """Workers of this environment: another checkout's tests may run beside these."""
    found = set()
    for process in psutil.process_iter(["exe", "status"]):
        executable = process.info["exe"] or ""
        if executable.startswith(sys.prefix) and "worker_binary" in executable and process.info["status"] != "zombie":
            found.add(process.pid)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_pipe_reads_to_the_end_and_no_worker_is_left(name):
    before = workers()
    assert output_of(PROGRAMS[name]).split()[-1] == "3"
    assert workers() <= before


def test_the_worker_ends_with_the_block():
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


@pytest.mark.parametrize("name", ENDS)
def test_a_run_that_is_ended_leaves_no_worker(name, tmp_path: pathlib.Path):
    end, session = ENDS[name]
    before = workers()
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
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 100
        while not marker.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        os.kill(process.pid, end)
        process.communicate(timeout=60)
    deadline = time.monotonic() + 10
    while not workers() <= before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert workers() <= before
