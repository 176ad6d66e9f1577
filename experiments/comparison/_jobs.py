"""Runs processes, a limited number at a time, until all have ended."""

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
        name: Its name.
        start: Returns the command; called right before the process starts.
        log: File for its output.
    """

    name: str
    start: Callable[[], list[str]]
    log: pathlib.Path


def run(jobs: Iterable[Job], *, at_once: int, on_end: Callable[[Job, int], None]) -> None:
    """Runs the jobs, `at_once` at a time. If this is interrupted, it ends the running ones first.

    Args:
        jobs: The jobs, in the order in which they start.
        at_once: Largest number of processes at a time.
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
    # In its own session: an interrupt reaches this process only, and the TFF worker of a killed run can be ended.
    with job.log.open("wb") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )


def _has_ended(process: subprocess.Popen) -> bool:
    # Not `poll`, which would free the process's number, by which its group is ended.
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _reaped(process: subprocess.Popen) -> int:
    """Ends what is left of a process and of those that it started, and returns its exit status."""
    os.killpg(process.pid, signal.SIGKILL)
    return process.wait()
