"""Runs processes, some at a time, until all are done."""

import dataclasses
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterable

_POLL_SECONDS = 0.2
_PATIENCE_SECONDS = 30.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A process to run.

    Attributes:
        name: What it is called.
        start: Called right before; returns the command.
        log: File for what it prints.
    """

    name: str
    start: Callable[[], list[str]]
    log: pathlib.Path


def run(jobs: Iterable[Job], *, at_once: int, on_end: Callable[[Job, int], None]) -> None:
    """Runs the jobs, `at_once` at a time; those that run when this is interrupted are ended first.

    Args:
        jobs: What to run, in this order.
        at_once: How many processes at a time.
        on_end: Called with each job and its exit status.
    """
    waiting = list(jobs)
    running: dict[subprocess.Popen, Job] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                running[_started(job)] = job
            time.sleep(_POLL_SECONDS)
            for process in [process for process in running if _has_ended(process)]:
                job = running.pop(process)
                on_end(job, _reaped(process))
    finally:
        for process in running:
            process.terminate()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for process in running:
            while not _has_ended(process) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
            _reaped(process)


def _started(job: Job) -> subprocess.Popen:
    command = job.start()
    # A session of its own: an interrupt is for this process, and a killed run's TFF worker can be found and ended.
    with job.log.open("wb") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )


def _has_ended(process: subprocess.Popen) -> bool:
    # Not `poll`, which would free the number that its group is known by.
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _reaped(process: subprocess.Popen) -> int:
    """Ends whatever is left of a process and of those it started, and returns its exit status."""
    os.killpg(process.pid, signal.SIGKILL)
    return process.wait()
